"""Add: inserts runs, each once, one for each dedupe key, and a workflow whole or not at all.

Runs that have no dedupe key and wait for no other run are inserted without a transaction, many with
each command. Otherwise one transaction decides about all runs of the call, in their order, and
inserts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pymongo.errors import BulkWriteError

from mainspring.core import codec
from mainspring.core.model import Run, replace
from mainspring.stores.codec import to_us
from mainspring.stores.mongodb.codec import LIVE_STATES, read_run, run_document
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.dedupe import DedupeKeys, read_keys, take_keys
from mainspring.stores.mongodb.errors import duplicates_only
from mainspring.stores.mongodb.transaction import in_transaction
from mainspring.stores.protocol import Added


async def add(db: Database, runs: Sequence[Run]) -> list[Added]:
    if not runs:
        return []
    made = documents(runs)
    if all(run.dedupe_key is None and not run.after for run in runs):
        stored = await _insert(db, made)
        return [Added(read_run(stored[run.id])) for run in runs]
    return await in_transaction(db, lambda db: add_in_transaction(db, runs, made))


def documents(runs: Sequence[Run]) -> list[Document]:
    """The runs as documents, in order. Raises `InvalidInput` before anything is written."""
    payloads = [None if run.payload is None else codec.encode(run.payload) for run in runs]
    return [run_document(run, payload) for run, payload in zip(runs, payloads, strict=True)]


async def add_in_transaction(
    db: Database, runs: Sequence[Run], made: Sequence[Document]
) -> list[Added]:
    """Insert runs, given also as documents. `db` is bound to a transaction."""
    stored = await _read(db, {run.id for run in runs})
    new_ones = [run for run in runs if run.id not in stored]
    wanted = {run.dedupe_key for run in new_ones if run.dedupe_key is not None}
    keys = await read_keys(db, wanted) if wanted else DedupeKeys(set(), {})
    added: list[Added] = []
    refused: set[str] = set()
    new: list[Document] = []
    taken: dict[str, str] = {}
    for run, document in zip(runs, made, strict=True):
        key = run.dedupe_key
        if run.id in stored:
            added.append(Added(read_run(stored[run.id])))
        elif not refused.isdisjoint(run.after):
            refused.add(run.id)
            added.append(Added(replace(read_run(document), duplicate=True), duplicate=True))
        elif key is not None and (holder := keys.holders.get(key)) is not None:
            refused.add(run.id)
            added.append(Added(replace(read_run(holder), duplicate=True), duplicate=True))
        else:
            stored[run.id] = document
            new.append(document)
            added.append(Added(read_run(document)))
            if key is not None:
                taken[key] = run.id
                if await _holds(db, document):
                    keys.holders[key] = document
    await take_keys(db, taken, keys.known)
    for part in chunks(new):
        await db.runs.insert_many(part, ordered=False, session=db.session)
    return added


async def _holds(db: Database, document: Document) -> bool:
    if document["state"] in LIVE_STATES:
        return True
    until = document.get("dedupe_until")
    return until is not None and until > to_us(await db.now())


async def _insert(db: Database, made: Sequence[Document]) -> dict[str, Document]:
    """Insert the runs whose id is new. Gives all runs as they are stored, by id."""
    stored: dict[str, Document] = {}
    there: set[str] = set()
    for run in made:
        stored.setdefault(run["_id"], run)
    for part in chunks(made):
        try:
            await db.runs.insert_many(part, ordered=False)
        except BulkWriteError as error:
            if not duplicates_only(error):
                raise
            there |= {part[one["index"]]["_id"] for one in error.details["writeErrors"]}
    return stored | await _read(db, there)


async def _read(db: Database, ids: Iterable[str]) -> dict[str, Document]:
    found: dict[str, Document] = {}
    for part in chunks(ids):
        walk = db.runs.find({"_id": {"$in": list(part)}}, hint=BY_ID, session=db.session)
        found |= {run["_id"]: run async for run in walk}
    return found
