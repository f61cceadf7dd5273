"""Statistics and health of the scheduler and of single jobs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from mainspring.core.clock import EPOCH
from mainspring.core.durations import duration
from mainspring.core.forecast import JobLoad
from mainspring.core.model import FINISHED, Job, Page, State, replace
from mainspring.core.policy import Span
from mainspring.core.statistics import (
    HOUR,
    PERIODS_KEPT,
    Distribution,
    LastRun,
    Period,
    Totals,
    period_start,
)
from mainspring.engine.breakers import breaker_statuses
from mainspring.engine.engine import Engine
from mainspring.engine.jobs_without_worker import find_orphans, without_worker
from mainspring.engine.live_workers import LiveWorker
from mainspring.engine.memory import resident_memory
from mainspring.engine.settings import Settings
from mainspring.errors import StoreError, refused
from mainspring.stores.paging import all_items, read_runs
from mainspring.stores.protocol import Counts, JobQuery, RunQuery

LOOKUPS_AT_ONCE = 50

JOBS_AT_ONCE = 200
"""Jobs that are read at once: reading them holds the interpreter's lock, and others wait."""

MOST_MEASURED = 1000
"""Jobs whose past runs a forecast looks at."""

DURATION_WINDOW = timedelta(days=7)
"""Over how long a forecast measures the durations of a job's runs."""

HEALTHY, WARNING = 0.95, 0.8
"""The least success rates of a healthy job and of one with a warning."""

RATE_WINDOW = timedelta(hours=24)
"""The success rate that decides a job's health is over so much time. If no run ended in it, the
rate is over all runs since the job was made."""

SHORTEST_WINDOW = HOUR
RECENT_FAILURES = 10

JobStatus = Literal[
    "healthy", "warning", "unhealthy", "overdue", "paused", "no_worker", "orphaned", "unknown"
]


@dataclass(frozen=True, slots=True)
class Stats:
    """How many jobs and runs there are. `runs` counts unfinished runs by state, and by the other
    states all runs that ever ended. `running_here`, `workers` and `is_leader` are of this process.
    """

    jobs: int
    enabled_jobs: int
    runs: Mapping[str, int]
    due: int
    running_here: int
    workers: int
    is_leader: bool


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """`store` is "ok" or says what is wrong. A store can answer reads and still fail other calls
    (a file that another program has locked); `failing` names those calls."""

    status: Literal["healthy", "degraded"]
    store: str
    failing: tuple[str, ...]
    running_here: int
    workers: int
    stuck_threads: int
    is_leader: bool
    enabled: bool = True
    """Whether this process fires slots."""
    paused_since: datetime | None = None
    """Since when all firing is paused, on every node; None if it is not."""
    jobs_without_worker: tuple[str, ...] = ()
    """Jobs that are not fired, or get no further runs after other jobs, because no live worker can
    run them."""
    memory_limit_reached: bool = False
    """This process holds as much memory as it may: it claims no more runs."""
    orphaned_jobs: tuple[str, ...] = ()
    """Jobs that code defined, with a schedule or without, and whose code is gone for longer than a
    minute (`prune_orphans` removes them)."""
    memory: int | None = None
    """Bytes of memory that this process uses, without its child processes. None if not known."""
    cpu_seconds: float = 0.0
    """CPU time that this process has used, without its child processes."""


@dataclass(frozen=True, slots=True)
class JobHealth:
    """`status` is the first of these that applies:

    - `orphaned`: workers are alive, code defined the job, and none of them has its handler: its
      function was renamed or removed (`prune_orphans` removes such jobs).
    - `paused`: the job is, or all firing is and the job has a schedule.
    - `no_worker`: no live worker has the job's handler and takes its queue, so none of its runs
      can start.
    - `overdue`: its next slot is past by more than the grace of its misfire policy, and no
      scheduler has fired it.
    - `unknown`: no run has succeeded or failed yet.
    - `healthy`, `warning`, `unhealthy`: at least 95 %, at least 80 %, or less of the runs have
      succeeded, of those that succeeded or failed.

    `success_rate` is over the runs that ended since `rated_since`: the last 24 hours and what is
    missing to a full hour. If none has ended since then, it is over all runs since the job was
    made, and `rated_since` is None. `last_run` is the run that ended last, however it was made;
    `last_run_at` is when the newest run started, which may still run.

    `breaker` is the state of the circuit breaker, which all nodes share: "closed", "open" (until
    `breaker_until`, then one run tries), "half_open", or "none" if the job has no breaker.
    """

    job_id: str
    status: JobStatus
    enabled: bool
    success_rate: float | None
    rated_since: datetime | None
    consecutive_failures: int
    last_run: LastRun | None
    last_run_at: datetime | None
    next_run_at: datetime | None
    breaker: str
    breaker_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """How long something took, in seconds. Percentiles are within 5 % of the true ones, or 1 ms."""

    average: float | None
    p50: float | None
    p95: float | None
    max: float | None

    @classmethod
    def of(cls, measured: Distribution) -> Spread:
        most = measured.max if measured.count else None
        return cls(measured.average, measured.percentile(0.5), measured.percentile(0.95), most)


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed, and why."""

    id: str
    finished_at: datetime
    attempts: int
    error: str | None


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """What the runs of a job did since a moment: the window asked for, and what is missing to a
    full hour.

    `total` is `succeeded` and `failed` together; the rates (0 to 1, or None) are of it. `duration`
    is how long the last attempt of each run took; `lateness` how much later than due the first
    attempt started, of runs that ended with it. `ended` counts all runs since the job was made, by
    how they ended. `recent_failures` are the newest stored ones, also from before the window.
    """

    job_id: str
    since: datetime
    total: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    success_rate: float | None
    failure_rate: float | None
    duration: Spread
    lateness: Spread
    consecutive_failures: int
    ended: Mapping[str, int]
    recent_failures: tuple[FailedRun, ...]


async def stats(engine: Engine, settings: Settings) -> Stats:
    counts = await engine.store.counts()
    jobs = enabled = 0
    async for job in all_items(engine.store.jobs, JobQuery(limit=1000)):
        jobs += 1
        enabled += job.enabled
    return Stats(
        jobs=jobs,
        enabled_jobs=enabled,
        runs={state.value: counts.total(state) for state in State},
        due=sum(due.count for due in counts.due.values()),
        running_here=engine.worker.running,
        workers=settings.workers,
        is_leader=engine.leader.fires_first,
    )


async def health(engine: Engine, settings: Settings) -> SchedulerHealth:
    failing = engine.context.outages.failing
    store = "ok" if not failing else f"the store fails these calls: {', '.join(failing)}"
    paused_since = None
    try:
        await engine.store.jobs(JobQuery(limit=1))
        paused_since = await engine.job_operations.paused_since()
    except StoreError as error:
        store = str(error)
    not_fired = engine.jobs_without_worker.not_fired
    full = engine.worker.memory_limit_reached
    stuck = engine.worker.stuck >= max(settings.workers, 1)
    fine = store == "ok" and not (stuck or not_fired or full)
    return SchedulerHealth(
        status="healthy" if fine else "degraded",
        store=store,
        failing=failing,
        running_here=engine.worker.running,
        workers=settings.workers,
        stuck_threads=engine.worker.stuck,
        is_leader=engine.leader.fires_first,
        enabled=settings.enabled,
        paused_since=paused_since,
        jobs_without_worker=not_fired,
        orphaned_jobs=engine.jobs_without_worker.orphaned,
        memory_limit_reached=full,
        memory=resident_memory(),
        cpu_seconds=sum(os.times()[:2]),
    )


async def get_job(engine: Engine, job_id: str) -> Job:
    [job] = await with_last_runs(engine, [await engine.job_operations.get_job(job_id)])
    [job] = await with_slots_to_come(engine, [job])
    return job


async def list_jobs(engine: Engine, query: JobQuery, *, last_runs: bool) -> Page[Job]:
    page = await engine.store.jobs(query)
    jobs = await with_last_runs(engine, page.items) if last_runs else page.items
    return replace(page, items=await with_slots_to_come(engine, jobs))


async def with_slots_to_come(engine: Engine, jobs: Sequence[Job]) -> list[Job]:
    """The jobs with a `next_run_at` that is still to come, while all firing is paused: a slot that
    passes then never runs. Otherwise a slot in the past shows that no node has fired it."""
    now = engine.time.now()
    passed = {job.id for job in jobs if job.next_run_at is not None and job.next_run_at < now}
    if not passed or await engine.job_operations.paused_since() is None:
        return list(jobs)
    return [
        replace(job, next_run_at=job.schedule.next(job.not_before(now)))
        if job.id in passed and job.schedule is not None
        else job
        for job in jobs
    ]


async def with_last_runs(engine: Engine, jobs: Sequence[Job]) -> list[Job]:
    """The jobs with `last_run_at` set to the start of their newest run that was tried, also a
    triggered or enqueued one.

    The newest run is looked up by an index: it may still run, so no counter knows of it. If there
    is none, it may have been pruned; then the run that ended last is known by the job's totals.
    """
    started: dict[str, datetime | None] = {}
    for at in range(0, len(jobs), LOOKUPS_AT_ONCE):
        chunk = jobs[at : at + LOOKUPS_AT_ONCE]
        query = RunQuery(jobs=frozenset(job.id for job in chunk), tried=True, brief=True, limit=1)
        newest = {run.job_id: run for run in (await engine.store.find(query)).items}
        started |= {
            job.id: run.started_at
            for job in chunk
            # One that is older than the job was left by another job that had its id.
            if (run := newest.get(job.id)) and run.created_at >= job.created_at
        }
        started |= await _started_before_pruning(engine, [j for j in chunk if j.id not in started])
    return [
        job if (last := started.get(job.id)) == job.last_run_at else replace(job, last_run_at=last)
        for job in jobs
    ]


async def _started_before_pruning(engine: Engine, jobs: Sequence[Job]) -> dict[str, datetime]:
    """When the run that ended last started, of each job that has made one."""
    counts = await engine.store.counts(jobs=frozenset(job.id for job in jobs)) if jobs else Counts()
    ended = {job_id: totals.last for job_id, totals in counts.totals.items() if totals.last}
    if not ended:
        return {}
    runs = await read_runs(engine.store, {last.id for last in ended.values()})
    created = {run.id: run.created_at for run in runs.values()}
    return {
        job.id: last.started_at
        for job in jobs
        # Another job that had its id may have left the run. One that was pruned counts as its own.
        if (last := ended.get(job.id)) and created.get(last.id, job.created_at) >= job.created_at
    }


async def job_health(engine: Engine, job_id: str) -> JobHealth:
    [health] = await jobs_health(engine, [await get_job(engine, job_id)])
    return health


async def jobs_health(engine: Engine, jobs: Sequence[Job]) -> list[JobHealth]:
    """The health of each of these jobs, at the cost of a few reads for all."""
    if not jobs:
        return []
    now = engine.time.now()
    since = period_start(now - RATE_WINDOW, HOUR)
    counts = await engine.store.counts(since, frozenset(job.id for job in jobs))
    breakers = await breaker_statuses(engine.store, jobs)
    workers = await engine.live_workers.read_workers()
    is_paused = await engine.job_operations.paused_since() is not None
    healths = []
    for job in jobs:
        totals, breaker = counts.totals.get(job.id, Totals()), breakers.get(job.id)
        recent = _success_rate(_ended(counts, job.id))
        rate = _success_rate(totals.ended) if recent is None else recent
        health = JobHealth(
            job_id=job.id,
            status=_status(job, workers, now, rate, is_paused=is_paused),
            enabled=job.enabled,
            success_rate=rate,
            rated_since=None if recent is None else since,
            consecutive_failures=totals.consecutive_failures,
            last_run=totals.last,
            last_run_at=job.last_run_at,
            next_run_at=job.next_run_at,
            breaker="none" if breaker is None else breaker.state,
            breaker_until=None if breaker is None else breaker.until,
        )
        healths.append(health)
    return healths


def _status(
    job: Job, workers: list[LiveWorker], now: datetime, rate: float | None, *, is_paused: bool
) -> JobStatus:
    if find_orphans([job], workers):
        return "orphaned"
    if not job.enabled or (is_paused and job.schedule is not None):
        return "paused"
    if without_worker([job], workers):
        return "no_worker"
    if job.next_run_at is not None and now > job.next_run_at + duration(job.policy.misfire.grace):
        return "overdue"
    if rate is None:
        return "unknown"
    return "healthy" if rate >= HEALTHY else "warning" if rate >= WARNING else "unhealthy"


def _success_rate(ended: Mapping[State, int]) -> float | None:
    succeeded, failed = ended.get(State.SUCCEEDED, 0), ended.get(State.FAILED, 0)
    return succeeded / (succeeded + failed) if succeeded + failed else None


def _ended(counts: Counts, job_id: str) -> Counter[State]:
    """How the runs of a job ended, over all periods."""
    ended: Counter[State] = Counter()
    for period in counts.periods.get(job_id, ()):
        ended.update(period.ended)
    return ended


def _summed(counts: Counts, job_id: str) -> Period:
    """All periods of a job as one."""
    whole = Period(EPOCH)
    for period in counts.periods.get(job_id, ()):
        whole = whole.plus(period)
    return whole


async def job_metrics(engine: Engine, job_id: str, window: Span) -> JobMetrics:
    span = _window(window)
    await engine.job_operations.get_job(job_id)
    since = period_start(engine.time.now() - span, HOUR)
    counts = await engine.store.counts(since, frozenset({job_id}))
    totals, period = counts.totals.get(job_id, Totals()), _summed(counts, job_id)
    rate = _success_rate(period.ended)
    return JobMetrics(
        job_id=job_id,
        since=since,
        total=period.ended.get(State.SUCCEEDED, 0) + period.ended.get(State.FAILED, 0),
        succeeded=period.ended.get(State.SUCCEEDED, 0),
        failed=period.ended.get(State.FAILED, 0),
        cancelled=period.ended.get(State.CANCELLED, 0),
        skipped=period.ended.get(State.SKIPPED, 0),
        success_rate=rate,
        failure_rate=None if rate is None else 1 - rate,
        duration=Spread.of(period.duration),
        lateness=Spread.of(period.lateness),
        consecutive_failures=totals.consecutive_failures,
        ended={str(state): totals.ended.get(state, 0) for state in State if state in FINISHED},
        recent_failures=await _recent_failures(engine, job_id),
    )


def _window(window: Span) -> timedelta:
    span = duration(window, what="window")
    if not SHORTEST_WINDOW <= span <= PERIODS_KEPT:
        raise refused("window", window, f"is 1h to {PERIODS_KEPT.days}d")
    return span


async def all_jobs(engine: Engine) -> list[Job]:
    return [job async for job in all_items(engine.store.jobs, JobQuery(limit=JOBS_AT_ONCE))]


async def p95_durations(engine: Engine, loads: Sequence[JobLoad]) -> dict[str, float]:
    """By job: the duration in seconds that 95 % of its runs of the last week did not exceed. Only
    of the jobs with the shortest gaps: the others rarely take longer than their interval."""
    repeated = [load for load in loads if load.shortest_gap is not None]
    repeated.sort(key=lambda load: load.shortest_gap or 0.0)
    durations: dict[str, float] = {}
    ids = [load.job_id for load in repeated[:MOST_MEASURED]]
    since = engine.time.now() - DURATION_WINDOW
    for at in range(0, len(ids), LOOKUPS_AT_ONCE):
        counts = await engine.store.counts(since, frozenset(ids[at : at + LOOKUPS_AT_ONCE]))
        for job_id in counts.periods:
            p95 = _summed(counts, job_id).duration.percentile(0.95)
            if p95 is not None:
                durations[job_id] = p95
    return durations


async def _recent_failures(engine: Engine, job_id: str) -> tuple[FailedRun, ...]:
    failed = frozenset({State.FAILED})
    query = RunQuery(job=job_id, states=failed, brief=True, limit=RECENT_FAILURES)
    return tuple(
        FailedRun(run.id, run.finished_at, run.attempt, run.error)
        for run in (await engine.store.find(query)).items
        if run.finished_at is not None
    )
