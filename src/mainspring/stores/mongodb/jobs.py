"""Jobs: writes them by compare-and-set, and fires their slots.

A batch of slots fires in one transaction. It reads the jobs and their unfinished runs, decides
what overlaps, inserts the runs, cancels those that are replaced, and advances the jobs. So a slot
has its run exactly if its job has advanced. Two transactions that fire the same job write the same
document, and one of them meets a write conflict, so overlap is exact.

A firing is valid until a time (`valid_until`), but a commit cannot be guarded by time. The
transaction reads the server's clock when it begins, and is not committed if more time has passed
since than the firings are valid. A client that is frozen between this check and its commit is late
by a few seconds at most, because other clients end its session then (database.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import inf
from typing import NamedTuple

from pymongo import DeleteOne, InsertOne, ReplaceOne, UpdateOne

from mainspring.core.clock import from_us
from mainspring.core.model import Run, Source
from mainspring.core.overlap import resolve_overlap, runs_ended_by
from mainspring.core.policy import Overlap
from mainspring.core.transitions import Change
from mainspring.stores.batching import split_by_key, split_in_order
from mainspring.stores.codec import to_us
from mainspring.stores.mongodb.codec import (
    LIVE_STATES,
    RUN_FIELDS,
    SET_ASIDE,
    is_lane,
    job_document,
    read_run,
)
from mainspring.stores.mongodb.commit import apply
from mainspring.stores.mongodb.database import Database, Document
from mainspring.stores.mongodb.dedupe import add_in_transaction, run_documents
from mainspring.stores.mongodb.transaction import WriteConflict, in_transaction
from mainspring.stores.protocol import Fired, Firing, JobWrite

JobOperation = InsertOne[Document] | ReplaceOne[Document] | DeleteOne

_TIME_FIELDS = ("next_run_at", "last_run_at")
_VERSION_FIELDS = {"version": 1}
_LARGE_FIELDS = ("payload", "result", "attempts", "progress", "error")
_SMALL_FIELDS = dict.fromkeys((name for name in RUN_FIELDS if name not in _LARGE_FIELDS), 1)


async def put_jobs(db: Database, writes: Sequence[JobWrite]) -> list[bool]:
    """Write jobs in one transaction, so that a crash leaves all of them or none. A refusal rests on
    a version that a majority has, so that no failover can undo it."""
    if not writes:
        return []
    documents = [None if write.job is None else job_document(write.job) for write in writes]
    return await in_transaction(db, lambda db: _put_in_transaction(db, writes, documents))


async def _put_in_transaction(
    db: Database, writes: Sequence[JobWrite], documents: Sequence[Document | None]
) -> list[bool]:
    done = [False] * len(writes)
    for part in split_in_order(writes, lambda write: write.id):
        ids = [writes[at].id for at in part]
        walk = db.jobs.find({"_id": {"$in": ids}}, _VERSION_FIELDS, session=db.session)
        versions = {job["_id"]: job["version"] async for job in walk}
        operations: list[JobOperation] = []
        for at in part:
            write, version, document = writes[at], versions.get(writes[at].id, 0), documents[at]
            if write.expected_version not in (None, version):
                continue
            if document is not None:
                is_new = write.id not in versions
                by_id = {"_id": write.id}
                operations.append(InsertOne(document) if is_new else ReplaceOne(by_id, document))
            elif write.id in versions:
                operations.append(DeleteOne({"_id": write.id}))
            else:
                continue
            done[at] = True
        if operations:
            await db.jobs.bulk_write(operations, ordered=False, session=db.session)
    return done


async def fire(
    db: Database, firings: Sequence[Firing], fired: list[Fired], ended: list[Run]
) -> None:
    """Fire the first firings of all jobs in one batch, the second ones in the next, and so on.
    After a firing that is not done, the later ones of its job are not done either. What is done is
    put into `fired` after each batch, and the runs that it has ended (skipped or replaced) into
    `ended`: a later batch may fail."""
    broken: set[str] = set()
    for batch in split_by_key(firings, lambda firing: firing.job_id):
        chained = {at: firings[at] for at in batch if firings[at].job_id not in broken}
        if not chained:
            continue
        fired_now, ended_now = await in_transaction(db, partial(_fire_batch, chained))
        ended += ended_now
        for at, firing in chained.items():
            fired[at] = fired_now.get(at, Fired(False))
            if not fired[at].done:
                broken.add(firing.job_id)


async def _fire_batch(
    firings: Mapping[int, Firing], db: Database
) -> tuple[dict[int, Fired], list[Run]]:
    """What was fired, and the runs that this has ended."""
    began = db.time.elapsed()
    jobs = await _due_jobs(db, firings.values())
    due = {at: firing for at, firing in firings.items() if firing.job_id in jobs}
    if not due:
        return {}, []
    plans = await _plans(db, due, jobs)
    runs = [run for plan in plans.values() for run in plan.runs]
    documents = run_documents(runs)
    replaced = await _replace_earlier(db, plans)
    added = await add_in_transaction(db, runs, documents)
    stored = {
        run.id: run if item.duplicate else item.run for run, item in zip(runs, added, strict=True)
    }
    await _advance(db, due.values())
    valid_for = min(_seconds_left(firing, jobs[firing.job_id]) for firing in due.values())
    if db.time.elapsed() - began > valid_for:
        raise WriteConflict  # the jobs are read again, with the time that it is now
    fired = {
        at: Fired(True, tuple(stored[run.id] for run in plan.runs), replaced[at])
        for at, plan in plans.items()
    }
    # A run that was stored and had ended before (by a backfill) has another end than the plan's.
    skipped = [
        run for run in runs if run.finished and stored[run.id].finished_at == run.finished_at
    ]
    return fired, [*skipped, *(run for ended in replaced.values() for run in ended)]


async def _due_jobs(db: Database, firings: Iterable[Firing]) -> dict[str, Document]:
    """The jobs that have the version that their firing expects, if the firing is still valid."""
    expected = {firing.job_id: firing for firing in firings}
    shown = {**_VERSION_FIELDS, "now": db.time.now}
    walk = db.jobs.find({"_id": {"$in": list(expected)}}, shown, session=db.session)
    return {job["_id"]: job async for job in walk if _may_fire(expected[job["_id"]], job)}


def _may_fire(firing: Firing, job: Document) -> bool:
    return job.get("version") == firing.version and _seconds_left(firing, job) >= 0


def _seconds_left(firing: Firing, job: Document) -> float:
    if firing.valid_until is None:
        return inf
    return float(to_us(firing.valid_until) - job["now"]) / 1_000_000


class _Plan(NamedTuple):
    """What a firing adds and changes, and the earlier runs that it rests on."""

    earlier: Sequence[Run]
    runs: tuple[Run, ...]
    changes: Sequence[Change]


async def _plans(
    db: Database, firings: Mapping[int, Firing], jobs: Mapping[str, Document]
) -> dict[int, _Plan]:
    unfinished = await _unfinished(db, firings.values())
    plans = {}
    for at, firing in firings.items():
        earlier = unfinished.get(firing.job_id, [])
        runs, changes = resolve_overlap(
            firing.overlap, firing.runs, earlier, from_us(jobs[firing.job_id]["now"])
        )
        plans[at] = _Plan(earlier, runs, changes)
    return plans


async def _unfinished(db: Database, firings: Iterable[Firing]) -> dict[str, list[Run]]:
    """The unfinished runs of earlier slots, by job: all where they are needed, with their payloads;
    else the newest."""
    whole = [f.job_id for f in firings if f.needs_all_unfinished]
    others = [
        f.job_id for f in firings if f.overlap is not Overlap.ALLOW and not f.needs_all_unfinished
    ]
    stored: list[Document] = []
    if whole:
        stored += await db.runs.find(live_slots(whole), session=db.session).to_list()
    if others:
        stored += await _newest_slots(db, others)
    unfinished: dict[str, list[Run]] = {}
    for run in stored:
        if not _may_never_start(run):
            unfinished.setdefault(run["job_id"], []).append(read_run(run))
    return unfinished


async def _newest_slots(db: Database, job_ids: Sequence[str]) -> list[Document]:
    """The unfinished slot runs of these jobs, or the newest of each job that may start.

    Mostly a job has none or one: one query reads them all. Where slots are queued, there may be
    thousands, and each job needs a query."""
    few = 10 + 4 * len(job_ids)
    walk = db.runs.find(live_slots(job_ids), _SMALL_FIELDS, session=db.session)
    runs = await walk.limit(few + 1).to_list()
    if len(runs) <= few:
        return runs
    newest = []
    for job_id in job_ids:
        walk = db.runs.find(live_slots([job_id]), _SMALL_FIELDS, session=db.session)
        async for run in walk.sort("scheduled_at", -1).batch_size(2):
            if not _may_never_start(run):
                newest.append(run)
                break
    return newest


def _may_never_start(run: Document) -> bool:
    """Whether it is set aside or its lane is damaged."""
    if not is_lane(run.get("lane")):
        return bool(run["state"] == "pending")
    return bool(run["lane"]["p"] == SET_ASIDE)


def live_slots(job_ids: Sequence[str]) -> Document:
    return {
        "job_id": {"$in": list(job_ids)},
        "source": str(Source.SCHEDULE),
        "state": {"$in": list(LIVE_STATES)},
    }


async def _replace_earlier(db: Database, plans: Mapping[int, _Plan]) -> dict[int, tuple[Run, ...]]:
    """Cancel the runs that these firings replace. Gives those that ended, for each firing."""
    changes = [change for plan in plans.values() for change in plan.changes]
    done = dict(zip((change.id for change in changes), await apply(db, changes), strict=True))
    return {
        at: runs_ended_by(plan.earlier, plan.changes, [done[change.id] for change in plan.changes])
        for at, plan in plans.items()
    }


async def _advance(db: Database, firings: Iterable[Firing]) -> None:
    operations = []
    for firing in firings:
        moments = {name: moment for name in _TIME_FIELDS if (moment := getattr(firing, name))}
        change: Document = {"$inc": {"version": 1}}
        if moments:
            change["$set"] = {name: to_us(moment) for name, moment in moments.items()}
        if gone := {name: "" for name in _TIME_FIELDS if name not in moments}:
            change["$unset"] = gone
        operations.append(UpdateOne({"_id": firing.job_id, "version": firing.version}, change))
    result = await db.jobs.bulk_write(operations, ordered=False, session=db.session)
    if result.matched_count < len(operations):
        raise WriteConflict
