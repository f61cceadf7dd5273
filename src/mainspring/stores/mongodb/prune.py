"""Prune and elect."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from pymongo.errors import DuplicateKeyError

from mainspring.core.model import FINISHED
from mainspring.stores.mongodb import dedupe
from mainspring.stores.mongodb.codec import to_us
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.server_clock import span_us, until

__all__ = ["drop_runs", "elect", "prunable", "prune"]

TRIES = 10
_FINISHED = sorted(map(str, FINISHED))


async def prune(db: Database, before: datetime, limit: int) -> int:
    """Deletes by ids, and only what is still as it was seen: a run may be revived meanwhile."""
    now = to_us(await db.now())
    await db.notes.delete_many({"expires_at": {"$gt": 0, "$lte": now}})
    if limit <= 0:
        return 0
    walk = db.runs.find(prunable(db, before), {"dedupe_key": 1}).sort("finished_at", 1).limit(limit)
    return await _drop(db, await walk.to_list(limit), {"$gt": 0, "$lt": to_us(before)})


async def drop_runs(db: Database, ids: Iterable[str]) -> int:
    count = 0
    for part in chunks(dict.fromkeys(ids)):
        free = {"$lte": [{"$ifNull": ["$dedupe_until", 0]}, db.time.now]}
        where = {"_id": {"$in": list(part)}, "state": {"$in": _FINISHED}, "$expr": free}
        found = await db.runs.find(where, {"dedupe_key": 1}).to_list()
        count += await _drop(db, found, {"$gt": 0})
    return count


async def _drop(db: Database, old: list[Document], finished: Document) -> int:
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
            {**forgotten, "finished_at": finished, "intent": None}, hint=BY_ID
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


async def elect(db: Database, name: str, holder: str, ttl: timedelta) -> int | None:
    """A term is a document; who takes it over guards that by the term seen."""
    for _ in range(TRIES):
        shown = {"holder": 1, "token": 1, "since": 1, "over": _over(db)}
        term = await db.terms.find_one({"_id": name}, shown)
        if term is None:
            token = await _begin(db, name, holder, ttl) if ttl else 0
        elif term["holder"] == holder:
            token = await _write(db, term, term["token"], holder, ttl)
        elif term["over"] and ttl:
            token = await _write(db, term, term["token"] + 1, holder, ttl)
        else:
            return None
        if token is not None:
            return token if ttl else None
    return None


def _over(db: Database) -> Document:
    return {"$lte": [until("since", "ttl"), db.time.now]}


async def _begin(db: Database, name: str, holder: str, ttl: timedelta) -> int | None:
    put = {"holder": holder, "token": 1, "ttl": span_us(ttl)}
    change = db.time.stamped({"$set": put}, "since")
    try:
        await db.terms.update_one({"_id": name, "token": None}, change, upsert=True)
    except DuplicateKeyError:
        return None
    return 1


async def _write(
    db: Database, seen: Document, token: int, holder: str, ttl: timedelta
) -> int | None:
    change = db.time.stamped(
        {"$set": {"holder": holder, "token": token, "ttl": span_us(ttl)}}, "since"
    )
    same = {name: seen[name] for name in ("_id", "holder", "token", "since")}
    result = await db.terms.update_one(same, change)
    return token if result.matched_count else None
