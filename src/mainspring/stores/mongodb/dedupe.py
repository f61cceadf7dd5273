"""Dedupe keys: a document for each, which names the run that holds the key.

A unique index cannot do this on a sharded collection, and a key may outlive its run. A run holds
its key while it is live, and after its end until `dedupe_until`. All functions here are called in a
transaction. A client that takes a key writes its document, even if it names the same run already.
So if two clients take a key at the same time, one of them meets a write conflict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymongo import InsertOne, UpdateOne

from mainspring.stores.mongodb.codec import LIVE_STATES, RUN_FIELDS
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks

_ALL_FIELDS = dict.fromkeys(RUN_FIELDS, 1)


@dataclass(frozen=True, slots=True)
class DedupeKeys:
    """The keys that have a document, and the runs that hold them."""

    known: set[str]
    holders: dict[str, Document]


async def read_keys(db: Database, keys: Iterable[str]) -> DedupeKeys:
    named: dict[str, str] = {}
    for part in chunks(dict.fromkeys(keys)):
        where = {"_id": {"$in": part}}
        async for key in db.keys.find(where, hint=BY_ID, session=db.session):
            named[key["_id"]] = key["run"]
    runs: dict[str, Document] = {}
    lives = {"$in": ["$state", list(LIVE_STATES)]}
    shown = {**_ALL_FIELDS, "holds": {"$or": [lives, {"$gt": ["$dedupe_until", db.time.now]}]}}
    for part in chunks(dict.fromkeys(named.values())):
        where = {"_id": {"$in": part}}
        async for run in db.runs.find(where, shown, hint=BY_ID, session=db.session):
            runs[run["_id"]] = run
    holding = {key: runs[run_id] for key, run_id in named.items() if run_id in runs}
    return DedupeKeys(set(named), {key: run for key, run in holding.items() if run["holds"]})


async def take_keys(db: Database, wanted: Mapping[str, str], known: set[str]) -> None:
    """Write that these runs hold these keys. `known` are the keys that have a document."""
    operations: list[Any] = []
    for key, run_id in wanted.items():
        if key in known:
            change = {"$set": {"run": run_id}, "$inc": {"version": 1}}
            operations.append(UpdateOne({"_id": key}, change))
        else:
            operations.append(InsertOne({"_id": key, "run": run_id, "version": 1}))
    for part in chunks(operations):
        await db.keys.bulk_write(list(part), ordered=False, session=db.session)
