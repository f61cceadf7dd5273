"""Renew: extends leases by the server's clock, for workers that still hold their runs.

A valid lease is extended at once. If a lease has lapsed, another run may have taken the capacity of
the job's limit, so a transaction counts first (limits.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from bson import ObjectId
from pymongo import UpdateMany

from mainspring.stores.codec import progress_text
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.limits import job_of, lapsed_condition, read_limits
from mainspring.stores.mongodb.server_clock import span_us
from mainspring.stores.mongodb.transaction import in_transaction
from mainspring.stores.protocol import Held, Renewed

TRIES = 20
_ANSWER_FIELDS = {"cancel_requested": 1, "reason": 1}
_NAMES = ("job_id", "token", "leased_at", "evicted")


async def renew_leases(db: Database, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
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
        if not mine:
            break
        items = [left[run_id] for run_id in mine]
        lapsed_jobs = {job_of(run) for run in mine.values() if _has_lapsed(run)}
        if (await read_limits(db, lapsed_jobs)).limits:
            await in_transaction(db, partial(_extend_within_limits, items, lease, nonce))
        else:
            await _extend(db, [(left[run_id], run) for run_id, run in mine.items()], lease, nonce)
        done = {"_id": {"$in": list(mine)}, "state": "running", "renewed": nonce}
        async for run in db.runs.find(done, _ANSWER_FIELDS, hint=BY_ID):
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
    shown = {**dict.fromkeys(_NAMES, 1), "lapsed": lapsed_condition(db)}
    walk = db.runs.find(where, shown, hint=BY_ID, session=db.session)
    found = {run["_id"]: run async for run in walk}
    return {
        run_id: found[run_id]
        for run_id, token in tokens.items()
        if run_id in found and found[run_id].get("token") == token
    }


def _has_lapsed(run: Document) -> bool:
    return bool(run["lapsed"] or run.get("evicted"))


async def _extend_within_limits(
    held: Iterable[Held], lease: int, nonce: ObjectId, db: Database
) -> None:
    """Extend the leases that are valid, have no limit, or fit under their limit. Called in a
    transaction."""
    items = {item.id: item for item in held}
    seen = await _mine(db, items.values())
    jobs = {job_of(run) for run in seen.values() if _has_lapsed(run)}
    capacity = await read_limits(db, jobs)
    await capacity.lock(db, jobs)
    await capacity.count(db)
    kept = []
    for run_id, run in seen.items():
        if _has_lapsed(run):
            if not capacity.left(job_of(run)):
                continue
            capacity.take(job_of(run))
        kept.append((items[run_id], run))
    if kept:
        await _extend(db, kept, lease, nonce)


async def _extend(
    db: Database, runs: Sequence[tuple[Held, Document]], lease: int, nonce: ObjectId
) -> None:
    """Extend leases. A lapsed one is extended only if nobody has renewed it since it was read."""
    groups: dict[Any, list[str]] = {}
    updates: list[tuple[Document, Document]] = []
    for item, run in runs:
        progress = progress_text(item.progress)
        if not _has_lapsed(run):
            groups.setdefault((item.token, progress), []).append(item.id)
            continue
        seen = {"leased_at": run["leased_at"]}
        where = {"_id": item.id, "state": "running", "token": item.token, **seen}
        change = _extension(db, lease, nonce, progress)
        updates.append((where, {**change, "$unset": {"evicted": ""}}))
    for (token, progress), ids in groups.items():
        alike = {"_id": {"$in": ids}, "state": "running", "token": token, "evicted": None}
        updates.append((alike, _extension(db, lease, nonce, progress)))
    operations = [UpdateMany(where, change, hint=BY_ID) for where, change in updates]
    await db.runs.bulk_write(operations, ordered=False, session=db.session)


def _extension(db: Database, lease: int, nonce: ObjectId, progress: str | None) -> Document:
    put = {"lease": lease, "renewed": nonce, "progress": progress}
    return db.time.stamped({"$set": put}, "leased_at")
