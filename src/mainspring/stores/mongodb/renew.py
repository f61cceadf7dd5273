"""Renew: leases extended by the servers' clock, for those that still hold their runs.

A valid lease is extended as it stands. One that has lapsed may have lost its place under a limit
to another run, so it must find room first (concurrency.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from bson import ObjectId
from pymongo import UpdateMany

from mainspring.stores.mongodb.codec import progress_text
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.concurrency import can_be_fenced, job_of, lapsed, room_under
from mainspring.stores.mongodb.server_clock import span_us
from mainspring.stores.protocol import Held, Renewed

__all__ = ["renew"]

TRIES = 20
_TOLD = {"cancel_requested": 1, "reason": 1}
_NAMES = ("job_id", "token", "fence", "leased_at", "evicted")


async def renew(db: Database, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
    kept: dict[str, Renewed] = {}
    for part in chunks(held):
        kept |= await _renew(db, {item.id: item for item in part}, span_us(lease))
    return [kept[item.id] for item in held if item.id in kept]


async def _renew(db: Database, held: Mapping[str, Held], lease: int) -> dict[str, Renewed]:
    nonce = ObjectId()
    kept: dict[str, Renewed] = {}
    left = dict(held)
    for _ in range(TRIES):
        mine = await _mine(db, left.values())
        if any(_over(run) for run in mine.values()):
            mine = await _with_room(db, left.values(), mine, nonce)
        if not mine:
            break
        await _extend(db, [(left[run_id], run) for run_id, run in mine.items()], lease, nonce)
        done = {"_id": {"$in": list(mine)}, "state": "running", "renewed": nonce}
        async for run in db.runs.find(done, _TOLD, hint=BY_ID):
            wish = bool(run.get("cancel_requested"))
            kept[run["_id"]] = Renewed(run["_id"], wish, run.get("reason"))
        left = {run_id: left[run_id] for run_id in mine if run_id not in kept}
        if not left:
            break
    return kept


async def _mine(db: Database, held: Iterable[Held]) -> dict[str, Document]:
    """Those that are running under the token held."""
    tokens = {item.id: item.token for item in held}
    where = {"_id": {"$in": list(tokens)}, "state": "running"}
    shown = {**dict.fromkeys(_NAMES, 1), "lapsed": lapsed(db)}
    found = {run["_id"]: run async for run in db.runs.find(where, shown, hint=BY_ID)}
    return {
        run_id: found[run_id]
        for run_id, token in tokens.items()
        if run_id in found
        and found[run_id].get("token") == token
        and (can_be_fenced(found[run_id]) or not _over(found[run_id]))
    }


def _over(run: Document) -> bool:
    return bool(run["lapsed"] or run.get("evicted"))


async def _with_room(
    db: Database, held: Iterable[Held], seen: Mapping[str, Document], nonce: ObjectId
) -> dict[str, Document]:
    """Of these runs those that may be renewed; those that needed a place have one reserved."""
    items = list(held)
    jobs = {job_of(run) for run in seen.values() if _over(run)}
    for _ in range(TRIES):
        room = await room_under(db, jobs, nonce)
        if not await room.count(db):
            continue
        mine = await _mine(db, items)  # again: what was lapsed is fenced now
        kept, anew = {}, []
        for run_id, run in mine.items():
            if _over(run) and room.limited(job_of(run)):
                if not room.left(job_of(run)):
                    continue
                room.take(job_of(run))
                anew.append(run)
            kept[run_id] = run
        if await room.reserve(db, anew):
            return kept
    return {run_id: run for run_id, run in seen.items() if not _over(run)}


async def _extend(
    db: Database, runs: Sequence[tuple[Held, Document]], lease: int, nonce: ObjectId
) -> None:
    """Extend leases: the valid ones all alike, the lapsed ones guarded by what was seen."""
    groups: dict[Any, list[str]] = {}
    updates: list[tuple[Document, Document]] = []
    for item, run in runs:
        progress = progress_text(item.progress)
        if not _over(run):
            groups.setdefault((item.token, progress), []).append(item.id)
            continue
        seen = {"fence": run.get("fence"), "leased_at": run["leased_at"]}
        where = {"_id": item.id, "state": "running", "token": item.token, **seen}
        change = _extension(db, lease, nonce, progress)
        updates.append((where, {**change, "$unset": {"evicted": ""}, "$inc": {"fence": 1}}))
    for (token, progress), ids in groups.items():
        alike = {"_id": {"$in": ids}, "state": "running", "token": token, "evicted": None}
        updates.append((alike, _extension(db, lease, nonce, progress)))
    operations = [UpdateMany(where, change, hint=BY_ID) for where, change in updates]
    await db.runs.bulk_write(operations, ordered=False)


def _extension(db: Database, lease: int, nonce: ObjectId, progress: str | None) -> Document:
    put = {"lease": lease, "renewed": nonce, "progress": progress}
    return db.time.stamped({"$set": put}, "leased_at")
