"""Runs past slots of a job on purpose: adds a run for each slot that has none.

Idempotent for each slot, because the run has the slot's own id: a call that is repeated, or was
stopped half-way, adds what is missing and no more. A slot that was skipped has a run already, which
stays as the record of why. Its backfill has an id of its own, made from that one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta

from msgspec import Struct

from mainspring.core.model import Job, Run, Source, State, replace, slot_run_id
from mainspring.core.policy import MAX_PRIORITY
from mainspring.core.schedules import Schedule
from mainspring.engine.context import EngineContext
from mainspring.engine.jobs_without_worker import followers_to_run
from mainspring.engine.live_workers import LiveWorkers
from mainspring.engine.pruner import history_begins, retention_of
from mainspring.engine.slots import make_run, with_followers
from mainspring.errors import InvalidInput, InvalidState, RecordUnreadable, refused
from mainspring.stores.paging import read_runs

MOST_WITHOUT_LIMIT = 1000
"""Slots that may be backfilled without saying how many."""

MOST_SLOTS = 100_000
"""Slots that one backfill looks at."""

BATCH = 500
"""Slots that are looked up and added in one step: each has two ids."""

_INSTANT = timedelta(microseconds=1)

Progress = Callable[[int, int], Awaitable[None]]
"""Called with the number of slots done and to do. An error of it ends the backfill."""


class BackfillPlan(Struct, frozen=True, kw_only=True):
    """Which slots to backfill: those from `start` up to, but not at, `end`. At most `limit` runs
    are added, earliest slot first."""

    start: datetime
    end: datetime
    limit: int | None = None
    priority: int = 0
    dry_run: bool = False


class Backfill(Struct, frozen=True, kw_only=True):
    """What a backfill did, or a dry run would do.

    `slots` is how many slots lie in the range. `added` are the runs of the slots that had none, by
    id; `existing` the runs that were there already and were left alone, with their states.
    `may_have_run` is how many of the added slots are older than the runs that are kept of the job:
    if they ran, their runs have been deleted since. `next_slot` is the first slot that was not
    looked at, because `limit` was reached. `first_slot` is the first slot of the schedule, if that
    is later than the start of the range: an interval counts from when its job was first stored.
    """

    job_id: str
    slots: int
    added: tuple[str, ...] = ()
    existing: Mapping[str, State] = {}
    may_have_run: int = 0
    next_slot: datetime | None = None
    first_slot: datetime | None = None


async def backfill(
    engine: EngineContext,
    live_workers: LiveWorkers,
    job: Job,
    plan: BackfillPlan,
    progress: Progress | None = None,
) -> Backfill:
    """Add a run for each slot of the plan that has none, a batch at a time, and call `progress`
    after each. What was added before an error or a cancellation stays."""
    schedule = _schedule_of(job)
    now = await engine.store.now()
    _check(plan, now)
    total = await _count_slots(schedule, plan)
    if plan.limit is None and not plan.dry_run and total > MOST_WITHOUT_LIMIT:
        raise InvalidInput(
            f"job {job.id!r} has {total:,} slots from {plan.start.isoformat()} to"
            f" {plan.end.isoformat()}: give a limit (how many to run, up to {MOST_SLOTS:,}), or a"
            " shorter range",
            field="limit",
            allowed=f"1 to {MOST_SLOTS}",
        )
    most = plan.limit or MOST_SLOTS
    kept_for, kept_since = retention_of(job, engine.settings), await history_begins(engine, job)
    added: list[str] = []
    existing: dict[str, State] = {}
    old = done = 0
    first_slot = slot = schedule.next(plan.start - _INSTANT)
    if first_slot == plan.start or schedule.previous(plan.start) is not None:
        first_slot = None
    while slot is not None and slot < plan.end and len(added) < most:
        slots, slot = _batch(schedule, slot, plan.end, min(BATCH, most - len(added)))
        missing = await _missing(engine, job, slots, existing)
        if missing and not plan.dry_run:
            there = await _add(engine, live_workers, job, missing, plan.priority)
            existing |= there
            missing = {run_id: at for run_id, at in missing.items() if run_id not in there}
        added += missing
        old += sum(
            now - moment > kept_for or (kept_since is not None and moment < kept_since)
            for moment in missing.values()
        )
        done += len(slots)
        if progress is not None:
            await progress(done, total)
        await asyncio.sleep(0)
    return Backfill(
        job_id=job.id,
        slots=total,
        added=tuple(added),
        existing=existing,
        may_have_run=old,
        next_slot=slot if slot is not None and slot < plan.end else None,
        first_slot=first_slot,
    )


def _schedule_of(job: Job) -> Schedule:
    if job.unreadable is not None:
        raise RecordUnreadable("job", job.id, job.unreadable)
    if job.schedule is None:
        raise InvalidState(
            f"job {job.id!r} has no schedule, so it has no slots to backfill: enqueue or trigger it"
        )
    if job.policy.each_node:
        raise InvalidState(
            f"job {job.id!r} runs on each node, and the nodes of past slots may be gone: trigger it"
        )
    if job.schedule.after_end:
        raise InvalidState(
            f"job {job.id!r} runs {job.schedule.describe()}, so it has no slots to backfill:"
            " trigger it"
        )
    return job.schedule


def _check(plan: BackfillPlan, now: datetime) -> None:
    if plan.end <= plan.start:
        raise InvalidInput(
            f"end ({plan.end.isoformat()}) must be later than start ({plan.start.isoformat()})",
            field="end",
            given=plan.end,
        )
    if plan.end > now:
        raise InvalidInput(
            f"a backfill runs slots of the past: end is {plan.end.isoformat()}, and it is"
            f" {now.isoformat(timespec='seconds')} now",
            field="end",
            given=plan.end,
        )
    limit, priority = plan.limit, plan.priority
    if limit is not None and (type(limit) is not int or not 1 <= limit <= MOST_SLOTS):
        raise InvalidInput(
            f"limit is a whole number from 1 to {MOST_SLOTS:,}, not {limit!r}",
            field="limit",
            given=limit,
        )
    if type(priority) is not int or not 0 <= priority <= MAX_PRIORITY:
        raise refused("priority", priority, f"is 0 to {MAX_PRIORITY}")


async def _count_slots(schedule: Schedule, plan: BackfillPlan) -> int:
    """How many slots the plan has. `InvalidInput` where they are too many for one call."""
    first = plan.start - _INSTANT
    count = schedule.count(first, plan.end - _INSTANT)
    if count is None:  # they cannot be counted by arithmetic
        count, slot = 0, schedule.next(first)
        while slot is not None and slot < plan.end and count <= MOST_SLOTS:
            count, slot = count + 1, schedule.next(slot)
            if not count % BATCH:
                await asyncio.sleep(0)
    if count > MOST_SLOTS:
        raise InvalidInput(
            f"there are more than {MOST_SLOTS:,} slots from {plan.start.isoformat()} to"
            f" {plan.end.isoformat()}: give a shorter range",
            field="start",
            given=plan.start,
        )
    return count


def _batch(
    schedule: Schedule, first: datetime, end: datetime, most: int
) -> tuple[list[datetime], datetime | None]:
    """Up to `most` slots before `end`, and the slot after them."""
    slots: list[datetime] = []
    slot: datetime | None = first
    while slot is not None and slot < end and len(slots) < most:
        slots.append(slot)
        slot = schedule.next(slot)
    return slots, slot


async def _missing(
    engine: EngineContext, job: Job, slots: Sequence[datetime], existing: dict[str, State]
) -> dict[str, datetime]:
    """The ids of the runs to add, with their slots. Runs that are there are put in `existing`."""
    ids = {run_id for slot in slots for run_id in _ids(job, slot)}
    stored = await read_runs(engine.store, ids)
    missing: dict[str, datetime] = {}
    for slot in slots:
        own, again = _ids(job, slot)
        run_id = own
        # The record of the skip is older, and may have been pruned before the backfilled run.
        if again in stored or (own in stored and stored[own].state is State.SKIPPED):
            run_id = again
        if run_id in stored:
            existing[run_id] = stored[run_id].state
        else:
            missing[run_id] = slot
    return missing


def _ids(job: Job, slot: datetime) -> tuple[str, str]:
    """The id of the slot's run, and that of its backfill if the slot was skipped."""
    own = slot_run_id(job.id, slot)
    return own, f"{own}@backfill"


async def _add(
    engine: EngineContext,
    live_workers: LiveWorkers,
    job: Job,
    missing: Mapping[str, datetime],
    priority: int,
) -> dict[str, State]:
    """Add a run for each slot, and those of the jobs that come after it. Return the slots' runs
    that another client has added meanwhile, with their states.

    The runs have no `start_deadline`: that counts from the slot, and a backfill comes late on
    purpose."""
    # Two clients that add at the same millisecond tell their runs apart by the microseconds.
    now = await engine.store.now() - engine.rng.randrange(1000) * _INSTANT
    followers = await followers_to_run(engine, {job.id})
    workers = await live_workers.find_nodes(followers.after([job.id]).values())
    runs: list[Run] = []
    roots: list[Run] = []
    for at, (run_id, slot) in enumerate(missing.items()):
        due = now + at * _INSTANT  # the earliest slot runs first
        root = replace(
            make_run(
                job,
                run_id=run_id,
                now=due,
                source=Source.BACKFILL,
                scheduled_at=slot,
                run_at=due,
                priority=priority,
            ),
            start_by=None,
        )
        roots.append(root)
        runs += with_followers([root], followers, now, workers)
    stored = {result.run.id: result.run for result in await engine.store.add(runs)}
    for run in runs:
        if stored[run.id].created_at == run.created_at:
            engine.emit("run.enqueued", run)
    return {
        root.id: stored[root.id].state
        for root in roots
        if stored[root.id].created_at != root.created_at
    }
