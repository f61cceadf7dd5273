"""Add: inserts runs, each once, one for each dedupe key, and a workflow whole or not at all.

Runs that have no dedupe key and wait for no other run are inserted without a transaction, many with
each command. Otherwise one transaction decides about all runs of the call, in their order, and
inserts them.

A dedupe key has a document, which names the run that holds the key. A unique index cannot do this
on a sharded collection, and a key may outlive its run. A run holds its key while it is live, and
after its end until `dedupe_until`. A client that takes a key writes its document, even if it names
the same run already. So if two clients take a key at the same time, one of them meets a write
conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pymongo import InsertOne, UpdateOne
from pymongo.errors import BulkWriteError

from mainspring.core import codec
from mainspring.core.model import Run, replace
from mainspring.stores.mongodb.codec import LIVE_STATES, read_run, run_document
from mainspring.stores.mongodb.database import BY_ID, Collection, Database, Document, chunks
from mainspring.stores.mongodb.errors import duplicates_only
from mainspring.stores.mongodb.transaction import in_transaction
from mainspring.stores.protocol import Added


async def add(db: Database, runs: Sequence[Run]) -> list[Added]:
    if not runs:
        return []
    documents = run_documents(runs)
    if all(run.dedupe_key is None and not run.after for run in runs):
        stored = await _insert(db, documents)
        return [Added(read_run(stored[run.id])) for run in runs]
    return await in_transaction(db, lambda db: add_in_transaction(db, runs, documents))


def run_documents(runs: Sequence[Run]) -> list[Document]:
    """The runs as documents, in order. Raises `InvalidInput` before anything is written."""
    payloads = [None if run.payload is None else codec.encode(run.payload) for run in runs]
    return [run_document(run, payload) for run, payload in zip(runs, payloads, strict=True)]


async def add_in_transaction(
    db: Database, runs: Sequence[Run], documents: Sequence[Document]
) -> list[Added]:
    """Insert runs, given also as documents. `db` is bound to a transaction."""
    stored = await _read(db, db.runs, {run.id for run in runs})
    wanted = {run.dedupe_key for run in runs if run.id not in stored and run.dedupe_key is not None}
    keys = await read_keys(db, wanted) if wanted else DedupeKeys()
    added: list[Added] = []
    refused: set[str] = set()
    new: list[Document] = []
    taken: dict[str, str] = {}
    for run, document in zip(runs, documents, strict=True):
        key = run.dedupe_key
        holder = None if key is None else keys.holders.get(key)
        if run.id in stored:
            added.append(Added(read_run(stored[run.id])))
        elif holder is not None or not refused.isdisjoint(run.after):
            refused.add(run.id)
            shown = document if holder is None else holder
            added.append(Added(replace(read_run(shown), duplicate=True), duplicate=True))
        else:
            stored[run.id] = document
            new.append(document)
            added.append(Added(read_run(document)))
            if key is not None:
                taken[key] = run.id
                keys.holders.update(await _holding(db, {key: document}))
    await take_keys(db, taken, keys.known)
    for part in chunks(new):
        await db.runs.insert_many(part, ordered=False, session=db.session)
    return added


async def _insert(db: Database, documents: Sequence[Document]) -> dict[str, Document]:
    """Insert the runs whose id is new. Gives all runs as they are stored, by id."""
    stored: dict[str, Document] = {}
    there: set[str] = set()
    for run in documents:
        stored.setdefault(run["_id"], run)
    for part in chunks(documents):
        try:
            await db.runs.insert_many(part, ordered=False)
        except BulkWriteError as error:
            if not duplicates_only(error):
                raise
            there |= {part[failed["index"]]["_id"] for failed in error.details["writeErrors"]}
    return stored | await _read(db, db.runs, there)


async def _read(db: Database, collection: Collection, ids: Iterable[str]) -> dict[str, Document]:
    stored: dict[str, Document] = {}
    for part in chunks(ids):
        walk = collection.find({"_id": {"$in": part}}, hint=BY_ID, session=db.session)
        stored |= {document["_id"]: document async for document in walk}
    return stored


# -- keys -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DedupeKeys:
    """The keys that have a document, and the runs that hold them."""

    known: set[str] = field(default_factory=set)
    holders: dict[str, Document] = field(default_factory=dict)


async def read_keys(db: Database, keys: Iterable[str]) -> DedupeKeys:
    """Read keys in a transaction."""
    named = {key: kept["run"] for key, kept in (await _read(db, db.keys, keys)).items()}
    runs = await _read(db, db.runs, set(named.values()))
    last = {key: runs[run_id] for key, run_id in named.items() if run_id in runs}
    return DedupeKeys(set(named), await _holding(db, last))


async def _holding(db: Database, runs: Mapping[str, Document]) -> dict[str, Document]:
    """Those of these runs, by key, that hold their key."""
    ended = {key for key, run in runs.items() if run["state"] not in LIVE_STATES}
    now = await db.now() if ended else 0
    return {
        key: run
        for key, run in runs.items()
        if key not in ended or (run.get("dedupe_until") or 0) > now
    }


async def take_keys(db: Database, wanted: Mapping[str, str], known: set[str]) -> None:
    """Write that these runs hold these keys. `known` are the keys that have a document."""
    operations = [
        UpdateOne({"_id": key}, {"$set": {"run": run_id}, "$inc": {"version": 1}})
        if key in known
        else InsertOne({"_id": key, "run": run_id, "version": 1})
        for key, run_id in wanted.items()
    ]
    for part in chunks(operations):
        await db.keys.bulk_write(list(part), ordered=False, session=db.session)
