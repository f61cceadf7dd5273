"""Jobs: kept by compare-and-set, and advanced together with the runs of their slots.

A slot fires in three steps, and the second decides:

1. Places for its runs are reserved (reserved.py).
2. The job advances by compare-and-set on its version, and its document says what it fired:
   `firing: {by, runs, replaces, made}`.
3. What is to be replaced is cancelled, and the runs become what they are `made` to be. What a
   reserved run says of itself does not count: it may be left from a plan that never came true,
   and the slot may be part of a gap by now, or overlap.

A plan holds until a moment (`valid_until`), but a write cannot be guarded by time (times.py), and
one that was sent in time may arrive when its sender has long been frozen. So the server stamps the
second step (`fired_at`), and if it came too late, whoever would take the third puts the job back to
what it was `before` instead.

A crash before the second step leaves reserved runs, which the next firing of the slot takes up or
a sweep deletes; the job has not moved. A crash behind it leaves the third step to whoever fires,
edits or drops the job next, or to the sweep that goes with every look for lapsed leases. So a
slot gives its run exactly when the job advances, and overlap is exact: an earlier slot's run is
whole before the next one is decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError

from mainspring import states
from mainspring.clock import from_us
from mainspring.errors import StoreUnavailable
from mainspring.model import LIVE, Job, Run, Source, State, replace
from mainspring.policy import Overlap
from mainspring.states import Change
from mainspring.store import Fired, Firing, ended, overlapped
from mainspring.stores.mongodb import keys, reserved
from mainspring.stores.mongodb.adding import add, carry_out_followers, documents
from mainspring.stores.mongodb.changes import commit
from mainspring.stores.mongodb.claims import stamp_lanes
from mainspring.stores.mongodb.database import BY_ID, Database, Document
from mainspring.stores.mongodb.reads import get
from mainspring.stores.mongodb.reserved import fill, reserve
from mainspring.stores.mongodb.rows import LIVE_STATES, RESERVED, job_document, read_run, to_us
from mainspring.stores.mongodb.times import read_moment
from mainspring.stores.waves import waves

__all__ = ["add_jobs", "drop_job", "fire", "live_slots", "put_job", "sweep"]

TRIES = 20
_MOMENTS = ("next_run_at", "last_run_at")
_SHOWN = dict.fromkeys(("version", "limit", "firing", "fired_at", *_MOMENTS), 1)


async def put_job(db: Database, job: Job) -> bool:
    made = job_document(job)
    stored = await db.jobs.find_one({"_id": job.id}, _SHOWN)
    if _version(stored) != job.version:
        return await _refused(db, job.id, job.version)
    if stored is None:
        try:
            await db.jobs.insert_one(made)
        except DuplicateKeyError:
            return await _refused(db, job.id, 0)
    else:
        await _finish(db, stored)
        result = await db.jobs.replace_one({"_id": job.id, "version": job.version}, made)
        if not result.matched_count:
            return await _refused(db, job.id, job.version)
    was_limited = stored is not None and "limit" in stored
    if was_limited != ("limit" in made):
        await stamp_lanes(db, job.id, limited="limit" in made)
    return True


async def add_jobs(db: Database, jobs: Sequence[Job]) -> list[bool]:
    made = [job_document(replace(job, version=job.version - 1)) for job in jobs]
    return [await _add_job(db, document) for document in made]


async def _add_job(db: Database, made: Document) -> bool:
    try:
        await db.jobs.insert_one(made)
    except DuplicateKeyError:
        return await _refused(db, made["_id"], 0)
    if "limit" in made:
        await stamp_lanes(db, made["_id"], limited=True)
    return True


async def drop_job(db: Database, job_id: str, version: int | None = None) -> bool:
    for _ in range(TRIES):
        stored = await db.jobs.find_one({"_id": job_id}, _SHOWN)
        if stored is None or version not in (None, stored["version"]):
            return await _refused(db, job_id, version)
        await _finish(db, stored)
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
    await reserved.sweep(db, _carry_out_decided)


async def _carry_out_decided(db: Database, runs: Sequence[Document]) -> set[str]:
    pointed = await keys.carry_out_pointed(db, runs)
    fired = {"_id": {"$in": [run["job_id"] for run in runs]}, "firing": {"$exists": True}}
    async for job in db.jobs.find(fired, _SHOWN):
        await _finish(db, job)  # which also cancels what the slot replaces
        pointed |= set(job["firing"]["runs"])
    return pointed | await carry_out_followers(db, runs)


# -- fire -----------------------------------------------------------------------------------


async def fire(db: Database, firings: Sequence[Firing]) -> list[Fired]:
    fired = [Fired(False)] * len(firings)
    broken: set[str] = set()
    for wave in waves(firings, lambda firing: firing.job_id):
        chained = {at: firings[at] for at in wave if firings[at].job_id not in broken}
        fired_now = await _fire(db, chained)
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

    def record(self, by: ObjectId) -> Document:
        return {
            "by": by,
            "runs": [run.id for run in self.runs],
            "replaces": [change.id for change in self.changes],
            "made": self.made,
            "before": self.before,
            "until": None if (until := self.firing.valid_until) is None else to_us(until),
        }


async def _fire(db: Database, firings: Mapping[int, Firing]) -> dict[int, Fired]:
    plans = await _plans(db, firings)
    if not plans:
        return {}
    nonce = ObjectId()
    await reserve(db, [made for plan in plans.values() for made in plan.made])
    won = await _advance(db, plans, nonce)
    replaced: dict[int, tuple[Run, ...]] = {}
    for at in won:
        plan = plans[at]
        done = await commit(db, plan.changes) if plan.changes else []
        gone = await _finish(db, {"_id": plan.firing.job_id, "firing": plan.record(nonce)})
        replaced[at] = (*ended(plan.earlier, plan.changes, done), *gone)
        await add(db, [run for run in plan.runs if run.dedupe_key is not None])
    fired = {}
    for at in won:
        ids = [run.id for run in plans[at].runs]
        stored = await get(db, ids)
        await add(db, [run for run in plans[at].runs if run.id not in stored])  # swept away
        runs = tuple(stored.get(run.id, run) for run in plans[at].runs)
        fired[at] = Fired(True, runs, replaced[at])
    return fired


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
    for firing in due.values():
        await _finish(db, jobs[firing.job_id])
    asking = [f.job_id for f in due.values() if f.overlap is not Overlap.ALLOW]
    unfinished: dict[str, list[Run]] = {}
    if asking:
        async for run in db.runs.find(live_slots(asking)).sort("created_at", 1):
            unfinished.setdefault(run["job_id"], []).append(read_run(run))
    plans = {}
    for at, firing in due.items():
        job, earlier = jobs[firing.job_id], unfinished.get(firing.job_id, [])
        before = {name: job[name] for name in _MOMENTS if name in job}
        runs, changes = overlapped(firing, earlier, from_us(job["now"]))
        plans[at] = _Plan(firing, before, earlier, runs, changes, [])
    keyless = [r for plan in plans.values() for r in plan.runs if r.dedupe_key is None]
    made = {document["_id"]: document for document in await documents(db, keyless)}
    for plan in plans.values():
        plan.made.extend(made[run.id] for run in plan.runs if run.id in made)
    return plans


def _may_fire(firing: Firing, job: Document) -> bool:
    if job["version"] != firing.version:
        return False
    return firing.valid_until is None or job["now"] <= to_us(firing.valid_until)


def live_slots(job_ids: Sequence[str]) -> Document:
    return {
        "job_id": {"$in": list(job_ids)},
        "source": str(Source.SCHEDULE),
        "state": {"$in": list(LIVE_STATES)},
    }


async def _advance(db: Database, plans: Mapping[int, _Plan], nonce: ObjectId) -> list[int]:
    """Move the jobs on; give the positions of those that had not moved before."""
    moves = []
    for plan in plans.values():
        firing = plan.firing
        moments = {name: moment for name in _MOMENTS if (moment := getattr(firing, name))}
        kept = {name: to_us(moment) for name, moment in moments.items()}
        change = db.time.stamped(_moved(kept, {"firing": plan.record(nonce)}), "fired_at")
        moves.append(UpdateOne({"_id": firing.job_id, "version": firing.version}, change))
    await db.jobs.bulk_write(moves, ordered=False)
    ids = [plan.firing.job_id for plan in plans.values()]
    mine = {"_id": {"$in": ids}, "firing.by": nonce}
    won = {job["_id"]: job async for job in db.jobs.find(mine, _SHOWN)}
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
    """The job is what it was before a firing that came too late, but for its version. The places
    stay reserved: the next firing of the slot may be counting on them already."""
    firing = job["firing"]
    change = _moved(firing["before"], {})
    change["$unset"] = {**change.get("$unset", {}), "firing": "", "fired_at": ""}
    if not change["$set"]:
        del change["$set"]
    await db.jobs.update_one({"_id": job["_id"], "firing.by": firing["by"]}, change)


async def _finish(db: Database, job: Document) -> list[Run]:
    """Carry out what a job's document says it fired, unless that was done; give the runs that
    were cancelled for it."""
    firing = job.get("firing")
    if firing is None:
        return []
    if _too_late(job):
        await _take_back(db, job)
        return []
    waiting = {"_id": {"$in": firing["runs"]}, "state": RESERVED}
    reserved = {run["_id"] async for run in db.runs.find(waiting, {"_id": 1}, hint=BY_ID)}
    if not reserved:
        return []
    replaced = await _replace(db, firing["replaces"], f"replaced by {firing['runs'][0]}")
    await fill(db, [made for made in firing["made"] if made["_id"] in reserved])
    return replaced


async def _replace(db: Database, ids: Sequence[str], reason: str) -> list[Run]:
    """Cancel runs, or ask their holders to stop, however they move meanwhile; give the former."""
    gone: list[Run] = []
    for _ in range(TRIES):
        if not ids:
            break
        found = await get(db, ids)
        now = await db.now()
        changes = [
            states.request_cancel(run, reason)
            if run.state is State.RUNNING
            else states.cancelled(run, now, reason)
            for run in found.values()
            if run.state in LIVE and not run.cancel_requested
        ]
        done = await commit(db, changes)
        gone += ended(list(found.values()), changes, done)
        ids = [change.id for change, kept in zip(changes, done, strict=True) if not kept]
    return gone
