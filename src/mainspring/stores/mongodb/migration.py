"""Converts a database of layout 1: completes or deletes runs that a crashed client left incomplete.

Those clients wrote without transactions. They first wrote a run with the state `reserved` and its
`intent`. Then they wrote another document, which decided that the run exists: its dedupe key, the
`firing` of its job, or the runs that it waits for. Then they gave the run its state. A client that
died in between left a reserved run, which no query found. The conversion runs once, when a database
of layout 1 is opened. Programs of the older version must be stopped before.
"""

from __future__ import annotations

from collections.abc import Sequence

from pymongo import ReplaceOne

from mainspring.core import transitions
from mainspring.core.model import LIVE
from mainspring.stores.mongodb.codec import read_run, to_us
from mainspring.stores.mongodb.collections import BY_ID, Database, Document, chunks
from mainspring.stores.mongodb.commit import apply
from mainspring.stores.mongodb.server_clock import read_moment

__all__ = ["complete_half_made"]

RESERVED = {"state": "reserved"}
_TIME_FIELDS = ("next_run_at", "last_run_at")


async def complete_half_made(db: Database) -> None:
    """Safe to repeat, and safe for several clients at once."""
    await _complete_firings(db)
    await _complete_keyed(db)
    await _complete_followers(db)
    await db.runs.delete_many(RESERVED)
    # A revival that was not finished was not acknowledged: the run stays finished.
    await db.runs.update_many({"intent": {"$exists": True}}, {"$unset": {"intent": ""}})
    gone = {"firing": "", "fired_at": ""}
    await db.jobs.update_many({"firing": {"$exists": True}}, {"$unset": gone})
    await db.limits.update_many({}, {"$unset": {"reserved": ""}})


async def _complete_firings(db: Database) -> None:
    """Complete the last firing of each job, which its document describes: cancel the runs that are
    replaced, then give the new runs their state, in order. Undo a firing that came too late."""
    shown = dict.fromkeys(("firing", "fired_at", *_TIME_FIELDS), 1)
    async for job in db.jobs.find({"firing": {"$exists": True}}, shown):
        firing = job["firing"]
        waiting = {"_id": {"$in": firing["runs"]}, **RESERVED}
        half = {run["_id"]: run async for run in db.runs.find(waiting, hint=BY_ID)}
        until, fired_at = firing.get("until"), read_moment(job.get("fired_at"))
        if until is not None and fired_at is not None and to_us(fired_at) > until:
            await _undo_firing(db, job)
            continue
        if half:
            await _replace_earlier(db, firing["replaces"], f"replaced by {firing['runs'][0]}")
        made = {run["_id"]: run for run in firing["made"]}
        for run_id in firing["runs"]:
            run = half.get(run_id)
            if run is not None and run_id in made:
                await _put(db, [made[run_id]])
            elif run is not None and run["intent"]["by"] == firing["by"]:
                await _put(db, [_without_intent(run)])


async def _undo_firing(db: Database, job: Document) -> None:
    before = job["firing"]["before"]
    gone = {name: "" for name in _TIME_FIELDS if name not in before} | {
        "firing": "",
        "fired_at": "",
    }
    change = {"$inc": {"version": 1}, "$unset": gone} | ({"$set": before} if before else {})
    await db.jobs.update_one({"_id": job["_id"], "firing.by": job["firing"]["by"]}, change)


async def _replace_earlier(db: Database, ids: Sequence[str], reason: str) -> None:
    now = await db.now()
    found = [read_run(run) async for run in db.runs.find({"_id": {"$in": ids}}, hint=BY_ID)]
    changes = [
        transitions.cancelled_or_requested(run, now, reason)
        for run in found
        if run.state in LIVE and not run.cancel_requested
    ]
    await apply(db, changes)


async def _complete_keyed(db: Database) -> None:
    """Complete the runs whose dedupe key names them."""
    async for run in db.runs.find({**RESERVED, "dedupe_key": {"$exists": True}}):
        if await db.keys.find_one({"_id": run["dedupe_key"], "run": run["_id"]}) is not None:
            await _put(db, [_without_intent(run)])


async def _complete_followers(db: Database) -> None:
    """Complete the runs whose upstream runs are complete, level by level."""
    while True:
        following = {**RESERVED, "intent.after": {"$exists": True}}
        found = await db.runs.find(following).to_list()
        upstream = list({run_id for run in found for run_id in run["intent"]["after"]})
        alive = set()
        for part in chunks(upstream):
            where = {"_id": {"$in": part}, "state": {"$ne": "reserved"}}
            alive |= {run["_id"] async for run in db.runs.find(where, {"_id": 1}, hint=BY_ID)}
        ready = [run for run in found if alive.issuperset(run["intent"]["after"])]
        if not ready:
            return
        await _put(db, [_without_intent(run) for run in ready])


def _without_intent(run: Document) -> Document:
    """The run as it was to become."""
    return {**run, **run["intent"]["put"], "intent": None}


async def _put(db: Database, runs: Sequence[Document]) -> None:
    for part in chunks(runs):
        whole = [{name: kept for name, kept in run.items() if name != "intent"} for run in part]
        places = [ReplaceOne({"_id": run["_id"], **RESERVED}, run) for run in whole]
        await db.runs.bulk_write(places)
