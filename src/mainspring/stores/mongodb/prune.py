"""Deletes old runs and expired notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from mainspring.core.model import FINISHED
from mainspring.stores.codec import to_us
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.schema import comes_after
from mainspring.stores.mongodb.server_clock import span_us
from mainspring.stores.mongodb.transaction import in_transaction
from mainspring.stores.protocol import TTL_NOTE_KEPT

_FINISHED = sorted(map(str, FINISHED))


async def prune_runs(db: Database, before: datetime, limit: int) -> int:
    """Delete by ids, and only runs that have not changed since they were read: a run may be revived
    meanwhile."""
    now = to_us(await db.now())
    await db.notes.delete_many({"expires_at": {"$gt": 0, "$lte": now}, "ttl": None})
    kept = now - span_us(TTL_NOTE_KEPT)
    await db.notes.delete_many({"expires_at": {"$gt": 0, "$lte": kept}, "ttl": {"$ne": None}})
    if limit <= 0:
        return 0
    old = {"state": {"$in": _FINISHED}, "finished_at": {"$gt": 0, "$lt": to_us(before)}}
    where, count = prunable(db, before), 0
    awaited: set[str] = set()
    while count < limit:
        walk = db.runs.find(where, {"dedupe_key": 1}).sort("finished_at", 1).limit(limit - count)
        found = await walk.to_list(limit)
        free = await _without_awaited(db, found)
        count += await _drop(db, free, old)
        if len(free) == len(found):
            break
        awaited |= {run["_id"] for run in found} - {run["_id"] for run in free}
        where = {**prunable(db, before), "_id": {"$nin": sorted(awaited)}}
    return count


async def _without_awaited(db: Database, runs: Sequence[Document]) -> list[Document]:
    """Those of these runs that no unfinished run comes after."""
    awaited: set[str] = set()
    for part in chunks([run["_id"] for run in runs]):
        where = comes_after(part) | {"$nor": [{"state": "skipped"}]}
        async for follower in db.runs.find(where, {"after": 1}, hint="upstream"):
            awaited.update(follower["after"])
    return [run for run in runs if run["_id"] not in awaited]


async def delete_finished(db: Database, expected: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Delete those of the runs that are as expected, have finished and hold no key. Gives the ids
    of the runs that still exist."""
    free = {"$lte": [{"$ifNull": ["$dedupe_until", 0]}, db.time.now]}
    left: set[str] = set()
    for part in chunks(expected):
        where = {"_id": {"$in": list(part)}, "state": {"$in": _FINISHED}, "$expr": free}
        shown = {"dedupe_key": 1, "state": 1, "token": 1}
        found = await db.runs.find(where, shown, hint=BY_ID).to_list()
        alike: dict[tuple[str, int], list[Document]] = {}
        for run in await _without_awaited(db, found):
            if _is_expected(run, expected[run["_id"]]):
                alike.setdefault((run["state"], run["token"]), []).append(run)
        for (state, token), same in alike.items():
            await _drop(db, same, {"state": state, "token": token, "finished_at": {"$gt": 0}})
        kept = db.runs.find({"_id": {"$in": list(part)}}, {"_id": 1}, hint=BY_ID)
        left |= {run["_id"] async for run in kept}
    return left


def _is_expected(run: Document, expect: Mapping[str, Any]) -> bool:
    return all(run.get(name) == value for name, value in expect.items())


async def _drop(db: Database, old: list[Document], as_seen: Document) -> int:
    """Delete these runs with their keys, unless they have changed since they were read."""
    count = 0
    for part in chunks([run["_id"] for run in old if "dedupe_key" not in run]):
        count += await _delete(db, part, as_seen)
    for keyed in chunks([run for run in old if "dedupe_key" in run]):
        count += await in_transaction(db, partial(_delete_with_keys, keyed, as_seen))
    return count


async def _delete(db: Database, ids: Sequence[str], as_seen: Document) -> int:
    where = {"_id": {"$in": ids}, **as_seen}
    return (await db.runs.delete_many(where, hint=BY_ID, session=db.session)).deleted_count


async def _delete_with_keys(runs: Sequence[Document], as_seen: Document, db: Database) -> int:
    ids = [run["_id"] for run in runs]
    count = await _delete(db, ids, as_seen)
    walk = db.runs.find({"_id": {"$in": ids}}, {"_id": 1}, hint=BY_ID, session=db.session)
    left = {run["_id"] async for run in walk}
    keys = {run["_id"]: run["dedupe_key"] for run in runs if run["_id"] not in left}
    held = {"_id": {"$in": list(keys.values())}, "run": {"$in": list(keys)}}
    await db.keys.delete_many(held, hint=BY_ID, session=db.session)
    return count


def prunable(db: Database, before: datetime) -> Document:
    """The condition of runs that have finished and hold no key."""
    free = {"$lte": [{"$ifNull": ["$dedupe_until", 0]}, db.time.now]}
    return {"finished_at": {"$gt": 0, "$lt": to_us(before)}, "$expr": free}
