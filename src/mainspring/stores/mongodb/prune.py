"""Deletes old runs and expired notes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from mainspring.core.model import FINISHED
from mainspring.stores.mongodb import dedupe
from mainspring.stores.mongodb.codec import to_us
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.server_clock import span_us
from mainspring.stores.protocol import TTL_NOTE_KEPT

__all__ = ["delete_finished", "prunable", "prune"]

_FINISHED = sorted(map(str, FINISHED))


async def prune(db: Database, before: datetime, limit: int) -> int:
    """Deletes by ids, and only what is still as it was seen: a run may be revived meanwhile."""
    now = to_us(await db.now())
    await db.notes.delete_many({"expires_at": {"$gt": 0, "$lte": now}, "ttl": None})
    kept = now - span_us(TTL_NOTE_KEPT)
    await db.notes.delete_many({"expires_at": {"$gt": 0, "$lte": kept}, "ttl": {"$ne": None}})
    if limit <= 0:
        return 0
    walk = db.runs.find(prunable(db, before), {"dedupe_key": 1}).sort("finished_at", 1).limit(limit)
    old = {"state": {"$in": _FINISHED}, "finished_at": {"$gt": 0, "$lt": to_us(before)}}
    return await _drop(db, await walk.to_list(limit), old)


async def delete_finished(db: Database, expected: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """Delete those of the runs that are as expected, have finished and hold no key. Gives the ids
    that are there still."""
    free = {"$lte": [{"$ifNull": ["$dedupe_until", 0]}, db.time.now]}
    left: set[str] = set()
    for part in chunks(expected):
        where = {"_id": {"$in": list(part)}, "state": {"$in": _FINISHED}, "$expr": free}
        shown = {"dedupe_key": 1, "state": 1, "token": 1}
        found = await db.runs.find(where, shown, hint=BY_ID).to_list()
        alike: dict[tuple[str, int], list[Document]] = {}
        for run in found:
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
    """Delete these runs and their keys, where the runs are still as they were seen."""
    count = 0
    for part in chunks(old):
        ids = [run["_id"] for run in part]
        named = [run["dedupe_key"] for run in part if "dedupe_key" in run]
        held = {"_id": {"$in": named}, "run": {"$in": ids}}
        seen = await db.keys.find(held).to_list() if named else []
        forgotten = {"_id": {"$in": ids}, "state": {"$in": _FINISHED}}
        await db.runs.update_many(  # what a crash left of a revival
            {**forgotten, "intent": {"$exists": True}}, {"$unset": {"intent": ""}}, hint=BY_ID
        )
        gone = await db.runs.delete_many(
            {"_id": {"$in": ids}, **as_seen, "intent": None}, hint=BY_ID
        )
        count += gone.deleted_count
        await dedupe.drop(db, await _of_none(db, seen))
    return count


def prunable(db: Database, before: datetime) -> Document:
    """Finished, and no longer holding a key."""
    free = {"$lte": [{"$ifNull": ["$dedupe_until", 0]}, db.time.now]}
    return {"finished_at": {"$gt": 0, "$lt": to_us(before)}, "$expr": free}


async def _of_none(db: Database, seen: list[Document]) -> list[Document]:
    """Those of the keys whose run is gone."""
    if not seen:
        return []
    wanted = {"_id": {"$in": [key["run"] for key in seen]}}
    left = {run["_id"] async for run in db.runs.find(wanted, {"_id": 1})}
    return [key for key in seen if key["run"] not in left]
