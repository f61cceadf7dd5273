"""Statistics and health of the scheduler and of single jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from mainspring.core.forecast import JobLoad
from mainspring.core.model import Job, Page, Run, State, replace
from mainspring.engine.breakers import breaker_status
from mainspring.engine.engine import Engine
from mainspring.engine.live_workers import find_orphans, without_worker
from mainspring.engine.settings import Settings
from mainspring.errors import StoreError
from mainspring.stores.protocol import JobQuery, RunQuery

__all__ = ["JobHealth", "JobMetrics", "SchedulerHealth", "Stats"]

LOOKUPS_AT_ONCE = 50

MOST_MEASURED = 1000
"""Jobs whose past runs a forecast looks at."""

RECENT = 200
"""Runs over which a job's averages are computed."""


JobStatus = Literal["healthy", "failing", "paused", "no_worker", "orphaned", "unknown"]


@dataclass(frozen=True, slots=True)
class Stats:
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
    """Jobs that this process does not fire, because no live worker has their handler."""
    memory_limit_reached: bool = False
    """This process holds as much memory as it may: it claims no more runs."""
    orphaned_jobs: tuple[str, ...] = ()
    """Those of them that code defined, and whose code is gone (`prune_orphans` removes them)."""


@dataclass(frozen=True, slots=True)
class JobHealth:
    """`no_worker`: no live worker has the job's handler and takes its queue, so none of its runs
    can start. `orphaned`: workers are alive, code defined the job, and none of them has its
    handler: its function was renamed or removed (`prune_orphans` removes such jobs).

    `breaker` is the state of the circuit breaker, which all nodes share: "closed", "open" (until
    `breaker_until`, then one run tries), "half_open", or "none" if the job has no breaker.
    """

    job_id: str
    status: JobStatus
    enabled: bool
    last_run_at: datetime | None
    next_run_at: datetime | None
    consecutive_failures: int
    breaker: str
    breaker_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """Counts and rates (0 to 1, or None) are over all stored runs of the job that succeeded or
    failed. `average_duration` (seconds) and `consecutive_failures` are over the newest 200 of
    them."""

    job_id: str
    total: int
    succeeded: int
    failed: int
    success_rate: float | None
    failure_rate: float | None
    average_duration: float | None
    consecutive_failures: int


async def stats(engine: Engine, settings: Settings) -> Stats:
    counts = await engine.store.counts()
    jobs = enabled = 0
    cursor: str | None = None
    while True:
        page = await engine.store.jobs(JobQuery(limit=1000, cursor=cursor))
        jobs += len(page.items)
        enabled += sum(job.enabled for job in page.items)
        if (cursor := page.cursor) is None:
            break
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
    failing = engine.failing
    store = "ok" if not failing else f"it fails at {', '.join(failing)}"
    paused_since = None
    try:
        await engine.store.jobs(JobQuery(limit=1))
        paused_since = await engine.operations.paused_since()
    except StoreError as error:
        store = str(error)
    not_fired = engine.live_workers.not_fired
    full = engine.worker.claims_no_more
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
        orphaned_jobs=engine.live_workers.orphaned,
        memory_limit_reached=full,
    )


async def get_job(engine: Engine, job_id: str) -> Job:
    [job] = await with_last_runs(engine, [await engine.operations.job(job_id)])
    return job


async def list_jobs(engine: Engine, query: JobQuery, *, last_runs: bool) -> Page[Job]:
    page = await engine.store.jobs(query)
    return replace(page, items=await with_last_runs(engine, page.items)) if last_runs else page


async def with_last_runs(engine: Engine, jobs: Sequence[Job]) -> list[Job]:
    """The jobs with `last_run_at` set to the start of their newest run that was tried, also a
    triggered or enqueued one.

    The store keeps only the last slot with the job, because a write for every run would cost too
    much. So the newest run is looked up by an index. If there is none, it may have been pruned;
    then the last slot is the best answer.
    """
    kept_since = engine.time.now() - engine.retention
    found: list[Job] = []
    for at in range(0, len(jobs), LOOKUPS_AT_ONCE):
        chunk = jobs[at : at + LOOKUPS_AT_ONCE]
        newest = await asyncio.gather(*(_newest_tried(engine, job) for job in chunk))
        for job, run in zip(chunk, newest, strict=True):
            last = job.last_run_at
            if run is not None:
                last = run.started_at
            elif last is not None and (last > kept_since or last < job.created_at):
                last = None  # the slot was skipped, or its run has not started yet
            found.append(job if last == job.last_run_at else replace(job, last_run_at=last))
    return found


async def _newest_tried(engine: Engine, job: Job) -> Run | None:
    page = await engine.store.find(RunQuery(job=job.id, tried=True, brief=True, limit=1))
    # One that is older than the job was left by another job that had its id.
    return page.items[0] if page.items and page.items[0].created_at >= job.created_at else None


async def job_health(engine: Engine, job_id: str) -> JobHealth:
    job = await get_job(engine, job_id)
    recent = await _newest_ended(engine, job_id)
    workers = await engine.live_workers.current()
    status: JobStatus = "healthy"
    if find_orphans([job], workers):
        status = "orphaned"
    elif not job.enabled:
        status = "paused"
    elif without_worker([job], workers):
        status = "no_worker"
    elif not recent:
        status = "unknown"
    elif recent[0].state is State.FAILED:
        status = "failing"
    breaker = await breaker_status(engine.store, job)
    return JobHealth(
        job_id=job_id,
        status=status,
        enabled=job.enabled,
        last_run_at=job.last_run_at,
        next_run_at=job.next_run_at,
        consecutive_failures=_consecutive_failures(recent),
        breaker="none" if breaker is None else breaker.state,
        breaker_until=None if breaker is None else breaker.until,
    )


async def job_metrics(engine: Engine, job_id: str) -> JobMetrics:
    await engine.operations.job(job_id)
    counts = (await engine.store.counts()).runs.get(job_id, {})
    succeeded, failed = counts.get(State.SUCCEEDED, 0), counts.get(State.FAILED, 0)
    total = succeeded + failed
    recent = await _newest_ended(engine, job_id)
    durations = [run.duration for run in recent if run.duration is not None]
    return JobMetrics(
        job_id=job_id,
        total=total,
        succeeded=succeeded,
        failed=failed,
        success_rate=succeeded / total if total else None,
        failure_rate=failed / total if total else None,
        average_duration=sum(durations) / len(durations) if durations else None,
        consecutive_failures=_consecutive_failures(recent),
    )


async def all_jobs(engine: Engine) -> list[Job]:
    jobs: list[Job] = []
    cursor: str | None = None
    while True:
        page = await engine.store.jobs(JobQuery(limit=1000, cursor=cursor))
        jobs += page.items
        if (cursor := page.cursor) is None:
            return jobs


async def p95_durations(engine: Engine, loads: Sequence[JobLoad]) -> dict[str, float]:
    """By job: the duration in seconds that 95 % of its newest runs did not exceed. Only of the
    jobs with the shortest gaps: the others hardly take longer than theirs."""
    repeated = [load for load in loads if load.shortest_gap is not None]
    repeated.sort(key=lambda load: load.shortest_gap or 0.0)
    found: dict[str, float] = {}
    ids = [load.job_id for load in repeated[:MOST_MEASURED]]
    for at in range(0, len(ids), LOOKUPS_AT_ONCE):
        chunk = ids[at : at + LOOKUPS_AT_ONCE]
        runs = await asyncio.gather(*(_newest_ended(engine, job_id) for job_id in chunk))
        for job_id, newest in zip(chunk, runs, strict=True):
            durations = sorted(run.duration for run in newest if run.duration is not None)
            if durations:
                found[job_id] = durations[(len(durations) * 95 - 1) // 100]
    return found


async def _newest_ended(engine: Engine, job_id: str) -> list[Run]:
    ended = frozenset({State.SUCCEEDED, State.FAILED})
    query = RunQuery(job=job_id, states=ended, brief=True, limit=RECENT)
    return (await engine.store.find(query)).items


def _consecutive_failures(newest: list[Run]) -> int:
    failed = [run.state is State.FAILED for run in newest]
    return failed.index(False) if False in failed else len(failed)
