"""How things stand: statistics and health of the scheduler and of single jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from mainspring.engine.engine import Engine
from mainspring.engine.live_workers import LiveWorker, without_worker
from mainspring.errors import StoreError
from mainspring.model import State
from mainspring.settings import Settings
from mainspring.store import JobQuery, RunQuery

__all__ = ["JobHealth", "JobMetrics", "SchedulerHealth", "Stats"]

RECENT = 200
"""Runs that a job's figures look back on."""


JobStatus = Literal["healthy", "failing", "paused", "no_worker", "unknown"]


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
    """`store` is "ok", or says what is wrong with it; one may answer, and yet fail at what the
    engine asks of it (a file that another program has locked): `failing` names that."""

    status: Literal["healthy", "degraded"]
    store: str
    failing: tuple[str, ...]
    running_here: int
    workers: int
    stuck_threads: int
    is_leader: bool
    jobs_without_worker: tuple[str, ...] = ()
    """Jobs that this process does not fire, because no live worker has their handler."""


@dataclass(frozen=True, slots=True)
class JobHealth:
    """`no_worker`: no live worker has the job's handler, so none of its runs can start."""

    job_id: str
    status: JobStatus
    enabled: bool
    last_run_at: datetime | None
    next_run_at: datetime | None
    consecutive_failures: int
    breaker: str


@dataclass(frozen=True, slots=True)
class JobMetrics:
    """Over the job's newest finished runs (at most `RECENT`). Rates are 0 to 1, or None."""

    job_id: str
    total: int
    succeeded: int
    failed: int
    success_rate: float | None
    failure_rate: float | None
    average_duration: float | None
    consecutive_failures: int


async def stats(engine: Engine, settings: Settings) -> Stats:
    counts = await engine.control.counts()
    jobs = enabled = 0
    cursor: str | None = None
    while True:
        page = await engine.control.jobs(JobQuery(limit=1000, cursor=cursor))
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
        is_leader=engine.keeper.leads,
    )


async def health(engine: Engine, settings: Settings) -> SchedulerHealth:
    failing = engine.failing
    store = "ok" if not failing else f"it fails at {', '.join(failing)}"
    try:
        await engine.control.jobs(JobQuery(limit=1))
    except StoreError as error:
        store = str(error)
    orphaned = engine.live_workers.not_fired
    fine = store == "ok" and engine.worker.stuck < max(settings.workers, 1) and not orphaned
    return SchedulerHealth(
        status="healthy" if fine else "degraded",
        store=store,
        failing=failing,
        running_here=engine.worker.running,
        workers=settings.workers,
        stuck_threads=engine.worker.stuck,
        is_leader=engine.keeper.leads,
        jobs_without_worker=orphaned,
    )


async def list_workers(engine: Engine) -> list[LiveWorker]:
    return await engine.live_workers.current()


async def job_health(engine: Engine, job_id: str) -> JobHealth:
    job = await engine.control.job(job_id)
    metrics = await job_metrics(engine, job_id)
    status: JobStatus = "healthy"
    if not job.enabled:
        status = "paused"
    elif without_worker([job], await list_workers(engine)):
        status = "no_worker"
    elif metrics.total == 0:
        status = "unknown"
    elif metrics.consecutive_failures:
        status = "failing"
    return JobHealth(
        job_id=job_id,
        status=status,
        enabled=job.enabled,
        last_run_at=job.last_run_at,
        next_run_at=job.next_run_at,
        consecutive_failures=metrics.consecutive_failures,
        breaker=engine.worker.breaker_state(job_id),
    )


async def job_metrics(engine: Engine, job_id: str) -> JobMetrics:
    await engine.control.job(job_id)
    ended = frozenset({State.SUCCEEDED, State.FAILED})
    runs = (await engine.control.runs(RunQuery(job=job_id, states=ended, limit=RECENT))).items
    failed = [run.state is State.FAILED for run in runs]
    durations = [run.duration for run in runs if run.duration is not None]
    total = len(runs)
    return JobMetrics(
        job_id=job_id,
        total=total,
        succeeded=total - sum(failed),
        failed=sum(failed),
        success_rate=1 - sum(failed) / total if total else None,
        failure_rate=sum(failed) / total if total else None,
        average_duration=sum(durations) / len(durations) if durations else None,
        consecutive_failures=failed.index(False) if False in failed else total,
    )
