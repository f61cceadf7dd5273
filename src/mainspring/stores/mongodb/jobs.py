"""Jobs: kept by compare-and-set, and advanced together with the runs of their slots.

A batch of slots fires in three steps, each of a few commands whatever the size of the batch. The
second step decides:

1. The runs are inserted as reserved (two_phase.py), marked with the id of this batch.
2. Each job advances by compare-and-set on its version, and its document says what it fired:
   `firing: {by, runs, replaces, made}`. `by` is the id of the batch.
3. The runs that a slot replaces are cancelled, and the reserved runs become visible.

A reserved run counts only for the batch that marked it. It may be left from a plan that never came
true, and the slot may be part of a gap by now, or overlap. Where such a run is found in step 1, the
job's document holds the whole new run under `made`, and step 3 puts that in its place.

A plan holds until a moment (`valid_until`), but a write cannot be guarded by time
(server_clock.py), and one that was sent in time may arrive when its sender has long been frozen. So
the server stamps the second step (`fired_at`), and if it came too late, whoever would take the
third puts the job back to what it was `before` instead.

A crash before the second step leaves reserved runs, which the next firing of the slot replaces or
a sweep deletes; the job has not moved. A crash after it leaves the third step to whoever fires,
edits or drops the job next, or to the sweep that goes with every look for lapsed leases. So a
slot gives its run exactly when the job advances, and overlap is exact: an earlier slot's run is
whole before the next one is decided.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from bson import ObjectId
from pymongo import ReplaceOne, UpdateMany, UpdateOne
from pymongo.errors import DuplicateKeyError

from mainspring.core import transitions
from mainspring.core.clock import from_us
from mainspring.core.model import LIVE, Run, Source, State
from mainspring.core.policy import Overlap
from mainspring.core.transitions import Change
from mainspring.errors import StoreUnavailable
from mainspring.stores.batching import turns, waves
from mainspring.stores.mongodb import dedupe, two_phase
from mainspring.stores.mongodb.claim import stamp_lanes
from mainspring.stores.mongodb.codec import (
    LIVE_STATES,
    RESERVED,
    RUN_FIELDS,
    SET_ASIDE,
    is_lane,
    job_document,
    read_run,
    to_us,
)
from mainspring.stores.mongodb.collections import BY_ID, Database, Document
from mainspring.stores.mongodb.commit import commit
from mainspring.stores.mongodb.insert import add, carry_out_followers, documents
from mainspring.stores.mongodb.queries import get
from mainspring.stores.mongodb.server_clock import read_moment
from mainspring.stores.mongodb.two_phase import reserve
from mainspring.stores.protocol import Fired, Firing, JobWrite, ended, overlapped

__all__ = ["fire", "live_slots", "put_jobs", "sweep"]

TRIES = 20
SIDE_BY_SIDE = 32
"""Jobs that are written at once: each waits for a majority, mostly for the same one."""
_MOMENTS = ("next_run_at", "last_run_at")
_SHOWN = dict.fromkeys(("version", "limit", "firing", "fired_at", *_MOMENTS), 1)
_HALF = {"intent": 1}
_LARGE = ("payload", "result", "attempts", "progress", "error")
_THIN = dict.fromkeys((name for name in RUN_FIELDS if name not in _LARGE), 1)


async def put_jobs(db: Database, writes: Sequence[JobWrite]) -> list[bool]:
    """Each by itself; those of different ids side by side, so that they share the waiting for a
    majority."""
    made = [None if write.job is None else job_document(write.job) for write in writes]
    done = [False] * len(writes)
    turns = asyncio.Semaphore(SIDE_BY_SIDE)

    async def put(at: int) -> None:
        async with turns:
            write, document = writes[at], made[at]
            if document is None:
                done[at] = await _drop_job(db, write.id, write.expected_version)
            else:
                done[at] = await _put_job(db, document, write.expected_version)

    for wave in waves(writes, lambda write: write.id):
        await asyncio.gather(*(put(at) for at in wave))
    return done


async def _put_job(db: Database, made: Document, expected: int | None) -> bool:
    job_id = made["_id"]
    for _ in range(TRIES):
        stored = await db.jobs.find_one({"_id": job_id}, _SHOWN) if expected != 0 else None
        wanted = _version(stored) if expected is None else expected
        if _version(stored) != wanted:
            return await _refused(db, job_id, expected)
        if stored is None:
            try:
                await db.jobs.insert_one(made)
            except DuplicateKeyError:
                if expected is None:
                    continue
                return await _refused(db, job_id, 0)
        else:
            await _finish(db, [stored])
            result = await db.jobs.replace_one({"_id": job_id, "version": wanted}, made)
            if not result.matched_count:
                if expected is None:
                    continue
                return await _refused(db, job_id, expected)
        was_limited = stored is not None and "limit" in stored
        if was_limited != ("limit" in made):
            await stamp_lanes(db, job_id, limited="limit" in made)
        return True
    return False


async def _drop_job(db: Database, job_id: str, version: int | None) -> bool:
    for _ in range(TRIES):
        stored = await db.jobs.find_one({"_id": job_id}, _SHOWN)
        if stored is None or version not in (None, stored["version"]):
            return await _refused(db, job_id, version)
        await _finish(db, [stored])
        gone = await db.jobs.delete_one({"_id": job_id, "version": stored["version"]})
        if gone.deleted_count:
            if "limit" in stored:
                await stamp_lanes(db, job_id, limited=False)
            return True
    return False


async def _refused(db: Database, job_id: str, wanted: int | None) -> bool:
    """What stands in a write's way counts when a majority has it; it may be rolled back before."""
    kept = (await db.settled(db.jobs, [job_id])).get(job_id)
    if _version(kept) == wanted or (wanted is None and kept is not None):
        raise StoreUnavailable(f"a change of job {job_id!r} was rolled back; try again")
    return False


def _version(stored: Document | None) -> int:
    return stored["version"] if stored else 0


async def sweep(db: Database) -> None:
    """Carry out what a crash left half made and decided: by a key, by a job, by an upstream run."""
    await two_phase.sweep(db, _carry_out_decided)


async def _carry_out_decided(db: Database, runs: Sequence[Document]) -> set[str]:
    pointed = await dedupe.carry_out_pointed(db, runs)
    fired = {"_id": {"$in": [run["job_id"] for run in runs]}, "firing": {"$exists": True}}
    jobs = [job async for job in db.jobs.find(fired, _SHOWN)]
    await _finish(db, jobs)  # which also cancels what the slots replace
    pointed |= {run_id for job in jobs for run_id in job["firing"]["runs"]}
    return pointed | await carry_out_followers(db, runs)


# -- fire -----------------------------------------------------------------------------------


async def fire(db: Database, firings: Sequence[Firing]) -> list[Fired]:
    """Firings of one job are a chain and fire one after another; those of different jobs together.
    So the first ones of all jobs are one batch, the second ones the next batch, and so on."""
    fired = [Fired(False)] * len(firings)
    broken: set[str] = set()
    for batch in turns(firings, lambda firing: firing.job_id):
        chained = {at: firings[at] for at in batch if firings[at].job_id not in broken}
        fired_now = await _fire(db, chained) if chained else {}
        for at, firing in chained.items():
            fired[at] = fired_now.get(at, Fired(False))
            if not fired[at].done:
                broken.add(firing.job_id)
    return fired


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a firing adds and changes."""

    firing: Firing
    before: Document
    earlier: list[Run]
    runs: tuple[Run, ...]
    changes: list[Change]
    made: list[Document]
    holds_for: float
    """Seconds that it holds from the reading of the job on."""

    def record(self, by: ObjectId, there: Container[str]) -> Document:
        """What the job's document says of this firing. `there` are the runs that were reserved
        already, by another plan."""
        return {
            "by": by,
            "runs": [run.id for run in self.runs],
            "replaces": [change.id for change in self.changes],
            "made": [made for made in self.made if made["_id"] in there],
            "before": self.before,
            "until": None if (until := self.firing.valid_until) is None else to_us(until),
        }


async def _fire(db: Database, firings: Mapping[int, Firing]) -> dict[int, Fired]:
    began = db.time.elapsed()
    plans = await _plans(db, firings)
    if not plans:
        return {}
    holds_until = began + min(plan.holds_for for plan in plans.values())
    by = ObjectId()
    there = await reserve(db, [made for plan in plans.values() for made in plan.made], by)
    records = {at: plan.record(by, there) for at, plan in plans.items()}
    won = {at: plans[at] for at in await _advance(db, plans, records, holds_until)}
    replaced = await _replace_earlier(db, won)
    whole = await _bring_to_life(
        db, [_Places(records[at], {made["_id"]: made for made in won[at].made}) for at in won]
    )
    await add(db, [run for plan in won.values() for run in plan.runs if run.dedupe_key is not None])
    stored = await _as_stored(db, list(won.values()), whole=whole)
    return {
        at: Fired(True, tuple(stored[run.id] for run in plan.runs), replaced[at])
        for at, plan in won.items()
    }


async def _as_stored(db: Database, plans: Sequence[_Plan], *, whole: bool) -> dict[str, Run]:
    """The runs of these plans as they are stored, by id. `whole`: each is as it was made."""
    known = [made for plan in plans for made in plan.made] if whole else []
    stored = {made["_id"]: read_run(made) for made in known}
    runs = {run.id: run for plan in plans for run in plan.runs if run.id not in stored}
    stored |= {run.id: run for run in await get(db, runs)}
    await add(db, [run for run_id, run in runs.items() if run_id not in stored])  # swept away
    return runs | stored


async def _plans(db: Database, firings: Mapping[int, Firing]) -> dict[int, _Plan]:
    """What those firings come to whose job has the version they expect."""
    ids = [firing.job_id for firing in firings.values()]
    shown = {**_SHOWN, "now": db.time.now}
    jobs = {job["_id"]: job async for job in db.jobs.find({"_id": {"$in": ids}}, shown)}
    due = {
        at: firing
        for at, firing in firings.items()
        if firing.job_id in jobs and _may_fire(firing, jobs[firing.job_id])
    }
    await _finish(db, [jobs[firing.job_id] for firing in due.values()])
    unfinished = await _unfinished(db, due.values())
    plans = {}
    for at, firing in due.items():
        job, earlier = jobs[firing.job_id], unfinished.get(firing.job_id, [])
        before = {name: job[name] for name in _MOMENTS if name in job}
        runs, changes = overlapped(firing, earlier, from_us(job["now"]))
        holds_for = _seconds_left(firing, job["now"])
        plans[at] = _Plan(firing, before, earlier, runs, changes, [], holds_for)
    keyless = [r for plan in plans.values() for r in plan.runs if r.dedupe_key is None]
    limits = {job_id: "limit" in job for job_id, job in jobs.items()}
    made = {document["_id"]: document for document in await documents(db, keyless, limits)}
    for plan in plans.values():
        plan.made.extend(made[run.id] for run in plan.runs if run.id in made)
    return plans


def _may_fire(firing: Firing, job: Document) -> bool:
    if job.get("version") != firing.version:
        return False
    return firing.valid_until is None or job["now"] <= to_us(firing.valid_until)


def _seconds_left(firing: Firing, now: int) -> float:
    return inf if firing.valid_until is None else (to_us(firing.valid_until) - now) / 1_000_000


async def _unfinished(db: Database, firings: Iterable[Firing]) -> dict[str, list[Run]]:
    """The unfinished runs of earlier slots, oldest first, by job. They are read whole only where
    they may be replaced: a thousand payloads are a lot to read for a yes or no."""
    replacing = [f.job_id for f in firings if f.overlap is Overlap.REPLACE]
    others = [f.job_id for f in firings if f.overlap in (Overlap.SKIP, Overlap.QUEUE)]
    unfinished: dict[str, list[Run]] = {}
    for job_ids, shown in ((replacing, None), (others, _THIN)):
        if job_ids:
            async for run in db.runs.find(live_slots(job_ids), shown).sort("created_at", 1):
                if not _may_never_start(run):
                    unfinished.setdefault(run["job_id"], []).append(read_run(run))
    return unfinished


def _may_never_start(run: Document) -> bool:
    """It is set aside, or its lane is damaged."""
    if not is_lane(run.get("lane")):
        return bool(run["state"] == "pending")
    return bool(run["lane"]["p"] == SET_ASIDE)


def live_slots(job_ids: Sequence[str]) -> Document:
    return {
        "job_id": {"$in": list(job_ids)},
        "source": str(Source.SCHEDULE),
        "state": {"$in": list(LIVE_STATES)},
    }


async def _advance(
    db: Database, plans: Mapping[int, _Plan], records: Mapping[int, Document], holds_until: float
) -> list[int]:
    """Move the jobs on; give the positions of those that had not moved before.

    `holds_until`: up to when all plans hold for certain, by this client's `elapsed`. An answer that
    came before needs no look at the server's stamps.
    """
    moves = []
    for at, plan in plans.items():
        firing = plan.firing
        moments = {name: moment for name in _MOMENTS if (moment := getattr(firing, name))}
        kept = {name: to_us(moment) for name, moment in moments.items()}
        change = db.time.stamped(_moved(kept, {"firing": records[at]}), "fired_at")
        moves.append(UpdateOne({"_id": firing.job_id, "version": firing.version}, change))
    result = await db.jobs.bulk_write(moves, ordered=False)
    if result.matched_count == len(moves) and db.time.elapsed() < holds_until:
        return list(plans)
    ids = [plan.firing.job_id for plan in plans.values()]
    [by] = {record["by"] for record in records.values()}
    shown = {"fired_at": 1, "firing.by": 1, "firing.until": 1, "firing.before": 1}
    mine = {"_id": {"$in": ids}, "firing.by": by}
    won = {job["_id"]: job async for job in db.jobs.find(mine, shown)}
    for job in won.values():
        if _too_late(job):
            await _take_back(db, job)
    in_time = {job_id for job_id, job in won.items() if not _too_late(job)}
    return [at for at, plan in plans.items() if plan.firing.job_id in in_time]


def _moved(moments: Document, more: Document) -> Document:
    """A job's step to these moments; those that are not among them are none."""
    gone = {name: "" for name in _MOMENTS if name not in moments}
    change = {"$set": {**moments, **more}, "$inc": {"version": 1}}
    return {**change, "$unset": gone} if gone else change


def _too_late(job: Document) -> bool:
    until, at = job["firing"].get("until"), read_moment(job.get("fired_at"))
    return until is not None and at is not None and to_us(at) > until


async def _take_back(db: Database, job: Document) -> None:
    """The job is what it was before a firing that came too late, but for its version. The runs
    stay reserved: the next firing of the slot may be counting on them already."""
    firing = job["firing"]
    change = _moved(firing["before"], {})
    change["$unset"] = {**change.get("$unset", {}), "firing": "", "fired_at": ""}
    if not change["$set"]:
        del change["$set"]
    await db.jobs.update_one({"_id": job["_id"], "firing.by": firing["by"]}, change)


async def _replace_earlier(db: Database, won: Mapping[int, _Plan]) -> dict[int, tuple[Run, ...]]:
    """Cancel what these firings replace; the runs that ended by it, for each firing."""
    changes = [change for plan in won.values() for change in plan.changes]
    done = dict(zip((change.id for change in changes), await commit(db, changes), strict=True))
    replaced = {}
    for at, plan in won.items():
        kept = [done[change.id] for change in plan.changes]
        moved = [change.id for change in plan.changes if not done[change.id]]
        gone = await _replace(db, moved, f"replaced by {plan.runs[0].id}")
        replaced[at] = (*ended(plan.earlier, plan.changes, kept), *gone)
    return replaced


async def _finish(db: Database, jobs: Sequence[Document]) -> None:
    """Carry out what the jobs' documents say they fired, unless that was done."""
    fired = [job for job in jobs if "firing" in job]
    for job in fired:
        if _too_late(job):
            await _take_back(db, job)
    in_time = [job["firing"] for job in fired if not _too_late(job)]
    ids = [run_id for record in in_time for run_id in record["runs"]]
    if not ids:
        return
    waiting = {"_id": {"$in": ids}, "state": RESERVED}
    half = {run["_id"]: run async for run in db.runs.find(waiting, _HALF, hint=BY_ID)}
    places = []
    for record in in_time:
        if half.keys().isdisjoint(record["runs"]):
            continue
        await _replace(db, record["replaces"], f"replaced by {record['runs'][0]}")
        made = {run["_id"]: run for run in record["made"]}
        for run_id in record["runs"]:
            intent = half[run_id]["intent"] if run_id in half else {}
            if run_id not in made and intent.get("by") == record["by"]:
                made[run_id] = {"_id": run_id, "state": intent["put"]["state"]}
        places.append(_Places(record, {run_id: made[run_id] for run_id in half if run_id in made}))
    await _bring_to_life(db, places)


@dataclass(frozen=True, slots=True)
class _Places:
    """A firing's record, and those of its runs that are to become visible, by id. Of a run that
    the record's own batch has reserved only the state counts here."""

    record: Document
    runs: Mapping[str, Document]


async def _bring_to_life(db: Database, places: Sequence[_Places]) -> bool:
    """Make reserved runs visible, none before what it waits for; say whether it was so for all.

    A run comes behind those that it waits for in its firing. So the first runs of all firings
    are changed together, then the second ones, and so on, in one ordered command.
    """
    steps: list[UpdateMany | ReplaceOne[Document]] = []
    count = 0
    for position in range(max((len(place.record["runs"]) for place in places), default=0)):
        alike: dict[tuple[ObjectId, str], list[str]] = {}
        for place in places:
            run_id = "".join(place.record["runs"][position : position + 1])
            if run_id not in place.runs:
                continue
            run, count = place.runs[run_id], count + 1
            if any(made["_id"] == run_id for made in place.record["made"]):
                steps.append(ReplaceOne({"_id": run_id, "state": RESERVED}, run))
            else:
                alike.setdefault((place.record["by"], run["state"]), []).append(run_id)
        for (by, state), ids in alike.items():
            where = {"_id": {"$in": ids}, "state": RESERVED, "intent.by": by}
            change = {"$set": {"state": state}, "$unset": {"intent": ""}}
            steps.append(UpdateMany(where, change, hint=BY_ID))
    if not steps:
        return True
    return (await db.runs.bulk_write(steps)).matched_count == count


async def _replace(db: Database, ids: Sequence[str], reason: str) -> list[Run]:
    """Cancel runs, or ask their holders to stop, however they move meanwhile; give the former."""
    gone: list[Run] = []
    for _ in range(TRIES):
        if not ids:
            break
        found = await get(db, ids)
        now = await db.now()
        changes = [
            transitions.request_cancel(run, reason)
            if run.state is State.RUNNING
            else transitions.cancelled(run, now, reason)
            for run in found
            if run.state in LIVE and not run.cancel_requested
        ]
        done = await commit(db, changes)
        gone += ended(found, changes, done)
        ids = [change.id for change, kept in zip(changes, done, strict=True) if not kept]
    return gone
