"""Plans which slots of a job fire now, and makes their runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from mainspring.core.clock import later
from mainspring.core.durations import duration
from mainspring.core.model import (
    Job,
    Run,
    Source,
    State,
    on_each_node,
    replace,
    slot_run_id,
    without_node,
)
from mainspring.core.overlap import may_never_start
from mainspring.core.policy import AfterFailure, MisfireKind, Overlap
from mainspring.core.schedules import Schedule
from mainspring.core.transitions import JOB_PAUSED, MISFIRE, PAUSED
from mainspring.engine.live_workers import LiveWorker
from mainspring.engine.workflow import Followers
from mainspring.stores.protocol import Firing

MOST_COUNTED = 100
"""Slots that cannot be counted by arithmetic are counted one by one, at 20 µs each, up to this
number: of a longer gap only this many are reported."""

MOST_STEPPED = 1000
"""The same for the slots that `misfire="all"` runs."""

PLAN_HOLDS = timedelta(seconds=5)
"""The store refuses a plan that is older than this: its slots may count as missed by now."""

NO_FOLLOWERS = Followers()

_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Gap:
    """Slots that were missed and will not run."""

    first: datetime
    last: datetime
    count: int
    reason: str = MISFIRE

    def data(self) -> dict[str, Any]:
        return {"first": self.first, "last": self.last, "count": self.count}


def plan(
    job: Job,
    now: datetime,
    followers: Followers = NO_FOLLOWERS,
    most: int = 1000,
    pauses: Iterable[tuple[datetime, datetime]] = (),
    workers: Sequence[LiveWorker] = (),
) -> tuple[list[Firing], Gap | None]:
    """Return what to fire for a job whose `next_run_at` has come, and the slots it missed.
    `workers` are the nodes on which `each_node` jobs run.

    `pauses`: from when to when all firing was paused, oldest first. Slots of such a span do not
    run: they are recorded. A plan ends where a span begins or ends, and what is due besides is left
    for the next plan.

    Of several slots that are due at once only the newest runs, unless `misfire="all"`; those
    passed over leave one skipped record, made by the first firing. Each firing advances the job,
    so each expects the version that the one before it leaves. They end once they make `most` runs;
    the job is still due then, for the next plan.
    """
    assert job.schedule is not None
    assert job.next_run_at is not None
    now = max(now, job.next_run_at)  # even if the store's clock was set back
    until = now
    for begin, end in pauses:
        # A pause that ends so late was recorded before the store's clock was set back.
        if not job.next_run_at <= end <= now + PLAN_HOLDS:
            continue
        if begin <= job.next_run_at:
            return _plan_paused(job, now, min(end, now))
        until = min(now, begin - _INSTANT)
        break
    slots, gap, left = _chosen(job, now, until, most)
    passed_over = () if gap is None else (_gap_run(job, gap, now),)
    if gap is not None and not slots:
        upcoming = job.schedule.next(until)
        return [_firing(job, job.version, passed_over, gap.last, upcoming, now)], gap
    firings: list[Firing] = []
    catching_up = job.policy.misfire.kind is MisfireKind.ALL and len(slots) + left > 1
    count = 0
    for at, slot in enumerate(slots):
        roots = on_nodes(_slot_run(job, slot, now), job, now, workers)
        runs = with_followers(roots, followers, now, workers)
        if at == 0:
            runs += passed_over
        count += len(runs)
        # Never leave a single slot: the next plan would not see that it is catching up.
        full = count >= most and len(slots) - at - 1 + left > 1
        ahead = slots[at + 1] if at + 1 < len(slots) else None
        following = ahead or job.schedule.next(slot if left else until)
        firing = _firing(job, job.version + len(firings), runs, slot, following, now)
        if catching_up and firing.overlap is Overlap.SKIP:
            # `misfire="all"` runs all of them, one by one.
            firing = replace(firing, overlap=Overlap.QUEUE)
        firings.append(firing)
        if full:
            break
    return firings, gap


def passed_slots(job: Job, now: datetime) -> Firing | None:
    """The firing that records the slots of a job which are due while somebody pauses it; None if
    there is none. Whether a slot is due that counts from the end of a run is not known here."""
    due = job.enabled and job.next_run_at is not None and job.next_run_at <= now
    if not due or job.schedule is None or job.schedule.after_end:
        return None
    [firing], _ = _plan_paused(job, now, now, JOB_PAUSED)
    return firing


def _plan_paused(
    job: Job, now: datetime, resumed_at: datetime, reason: str = PAUSED
) -> tuple[list[Firing], Gap]:
    """Record the slots that passed while all firing was paused."""
    assert job.schedule is not None
    assert job.next_run_at is not None
    last = max(job.schedule.previous(resumed_at + _INSTANT) or job.next_run_at, job.next_run_at)
    gap = _gap(job, job.next_run_at, last, reason)
    upcoming = job.schedule.next(resumed_at)
    return [_firing(job, job.version, (_gap_run(job, gap, now),), last, upcoming, now)], gap


def slot_after_end(job: Job, last: Run | None, now: datetime) -> datetime | None:
    """When the next slot is of a job whose schedule counts from the end of the run before it.

    `last` is the run of the last slot. While it has not ended, its end is later than now, so the
    slot is at least one interval from now. One that is gone ended long ago. `next_run_at` is the
    earliest that the slot can be."""
    assert job.schedule is not None
    assert job.next_run_at is not None
    if last is None or (last.finished and last.finished_at is None) or may_never_start(last):
        return job.next_run_at
    ended_at = last.finished_at if last.finished else now
    assert ended_at is not None
    slot = job.schedule.next(max(ended_at, last.scheduled_at))
    return None if slot is None else max(slot, job.next_run_at)


def over_before(job: Job, now: datetime) -> tuple[Firing, Gap] | None:
    """Return the firing that records the last slot of a job as missed, if its schedule had ended
    when it was stored."""
    assert job.schedule is not None
    last = job.schedule.previous(now + _INSTANT)
    if last is None:
        return None
    gap = Gap(last, last, 1)
    return _firing(job, job.version, (_gap_run(job, gap, now),), last, None, now), gap


def make_run(
    job: Job,
    *,
    run_id: str,
    now: datetime,
    source: Source,
    scheduled_at: datetime,
    run_at: datetime,
    **fields: Any,
) -> Run:
    """Make a run of a job, with the queue, priority and deadline of its policy.

    Its `created_at` is never before that of its job. So a worker can tell a run of a removed job
    from a run of the new job with the same id.
    """
    policy = job.policy
    deadline = policy.start_deadline
    values: dict[str, Any] = {
        "queue": policy.queue,
        "priority": policy.priority,
        "payload": job.payload,
        **{name: value for name, value in fields.items() if value is not None},
    }
    return Run(
        id=run_id,
        job_id=job.id,
        handler=job.handler,
        created_at=max(now, job.created_at),  # even if a clock was set back
        source=source,
        scheduled_at=scheduled_at,
        run_at=run_at,
        start_by=None if deadline is None else later(run_at, deadline),
        **values,
    )


def on_nodes(run: Run, job: Job, now: datetime, workers: Iterable[LiveWorker]) -> tuple[Run, ...]:
    """The run; of an `each_node` job one for each of the workers that can run it."""
    if not job.policy.each_node:
        return (run,)
    able = [worker for worker in workers if worker.takes(job.handler, run.queue, job.owner)]
    # A default handler serves only what no worker has a handler of its own for.
    own = [worker for worker in able if job.handler in worker.handlers]
    return on_each_node(run, [worker.id for worker in own or able], now)


def job_was_removed(run: Run, job: Job | None) -> bool:
    """Whether the run's job was removed, given the one that has its id now."""
    return job is None or job.created_at > run.created_at


def with_followers(
    roots: Sequence[Run], followers: Followers, now: datetime, workers: Sequence[LiveWorker] = ()
) -> tuple[Run, ...]:
    """A run (of an `each_node` job: its runs on all nodes), and waiting runs of all jobs that come
    after its job: one workflow instance.

    A follower's id is made from its job and the instance (the root's slot, or the root's id),
    so an instance can never give two. A follower that is paused, and what comes after it alone, is
    left out; so is one that also follows an enabled job outside this instance.
    """
    root = roots[0]
    runs_of = {root.job_id: tuple(roots)}
    awaited: dict[str, int] = {}  # how many runs of the instance each follower still needs
    reached = [root.job_id]
    for name in reached:  # it grows
        for job in followers.directly_after(name):
            if job.id == root.job_id or not job.enabled:
                continue
            if job.id not in awaited:
                awaited[job.id] = sum(
                    other == root.job_id or followers.is_enabled(other)
                    for other in set(job.policy.after)
                )
            awaited[job.id] -= 1
            if awaited[job.id] == 0:
                upstream = [run.id for name in job.policy.after for run in runs_of.get(name, ())]
                follower = _follower_run(job, root, tuple(upstream), now)
                runs_of[job.id] = on_nodes(follower, job, now, workers)
                reached.append(job.id)
    return tuple(run for runs in runs_of.values() for run in runs)


def _follower_run(job: Job, root: Run, upstream: tuple[str, ...], now: datetime) -> Run:
    instance = without_node(root)
    of_slot = root.source in (Source.SCHEDULE, Source.BACKFILL)
    if of_slot and instance == slot_run_id(root.job_id, root.scheduled_at):
        run_id = slot_run_id(job.id, root.scheduled_at)
    else:
        run_id = f"{job.id}@{instance}"
    run = make_run(
        job,
        run_id=run_id,
        now=now,
        source=Source.AFTER,
        scheduled_at=root.scheduled_at,
        run_at=root.run_at,
        trace=root.trace,
    )
    return replace(
        run,
        state=State.WAITING,
        after=upstream,
        after_any=job.policy.after_failure is AfterFailure.RUN,
    )


def _chosen(
    job: Job, now: datetime, until: datetime, most: int
) -> tuple[list[datetime], Gap | None, int]:
    """Return the slots up to `until` that are to run, earliest first; the gap of those passed
    over; and how many more are to run after these, if there are more than `most`."""
    schedule, misfire, first = job.schedule, job.policy.misfire, job.next_run_at
    assert schedule is not None
    assert first is not None
    newest = max(schedule.previous(until + _INSTANT) or first, first)
    if misfire.kind is MisfireKind.ALL:
        return _all_slots(job, first, newest, misfire.limit, most)
    late = now - newest > duration(misfire.grace)
    if late and misfire.kind is MisfireKind.SKIP:
        return [], _gap(job, first, newest), 0
    if newest == first:
        return [newest], None, 0
    last = schedule.previous(newest)
    return [newest], _gap(job, first, max(last or first, first)), 0


def _all_slots(
    job: Job, first: datetime, newest: datetime, limit: int, most: int
) -> tuple[list[datetime], Gap | None, int]:
    """The newest `limit` slots of those from `first` to `newest`, or the first `most` of them."""
    schedule = job.schedule
    assert schedule is not None
    behind = schedule.count(first, newest)
    if behind is None:  # they cannot be counted by arithmetic: they are found one by one
        slots = _newest_slots(job, first, newest, min(limit, MOST_STEPPED))
        start, count = slots[0], len(slots)
    else:
        count = min(behind + 1, limit)
        start = first if count > behind else _nth_from_last(schedule, first, newest, count)
        slots = [start]
        while len(slots) < min(count, most + 1):
            following = schedule.next(slots[-1])
            assert following is not None
            slots.append(following)
    before = schedule.previous(start) if start > first else None
    gap = None if start == first else _gap(job, first, max(before or first, first))
    return slots, gap, count - len(slots)


def _newest_slots(job: Job, first: datetime, newest: datetime, limit: int) -> list[datetime]:
    assert job.schedule is not None
    slots = [newest]
    while slots[-1] > first and len(slots) < limit:
        earlier = job.schedule.previous(slots[-1])
        slots.append(max(earlier or first, first))
    return slots[::-1]


def _nth_from_last(schedule: Schedule, first: datetime, newest: datetime, n: int) -> datetime:
    """Return the slot with `n - 1` slots after it up to `newest`, by binary search."""
    low, high = first, newest  # more than n - 1 lie behind `low`, at most so many behind `high`
    while high - low > _INSTANT:
        middle = low + (high - low) // 2
        if (schedule.count(middle, newest) or 0) >= n:
            low = middle
        else:
            high = middle
    return high


def _gap(job: Job, first: datetime, last: datetime, reason: str = MISFIRE) -> Gap:
    assert job.schedule is not None
    behind = job.schedule.count(first, last)
    if behind is not None:
        return Gap(first, last, 1 + behind, reason)
    count, slot = 1, first
    while slot < last and count < MOST_COUNTED:
        following = job.schedule.next(slot)
        if following is None or following > last:
            break
        slot, count = following, count + 1
    return Gap(first, last, count, reason)


def _slot_run(job: Job, slot: datetime, now: datetime) -> Run:
    assert job.schedule is not None
    return make_run(
        job,
        run_id=slot_run_id(job.id, slot),
        now=now,
        source=Source.SCHEDULE,
        scheduled_at=slot,
        run_at=slot + job.schedule.delay(slot),
    )


def _gap_run(job: Job, gap: Gap, now: datetime) -> Run:
    run = _slot_run(job, gap.first, now)
    return replace(run, state=State.SKIPPED, finished_at=now, reason=gap.reason, result=gap.data())


def _firing(
    job: Job,
    version: int,
    runs: tuple[Run, ...],
    slot: datetime,
    following: datetime | None,
    now: datetime,
) -> Firing:
    return Firing(
        job_id=job.id,
        version=version,
        runs=runs,
        overlap=job.policy.overlap,
        next_run_at=following,
        last_run_at=slot,
        valid_until=now + PLAN_HOLDS,
    )
