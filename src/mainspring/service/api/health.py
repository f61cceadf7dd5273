"""Health, statistics and workers, the probes, and `/metrics`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal, Self

from fastapi import Query, Response
from msgspec import Meta
from msgspec.structs import asdict

from mainspring.core.model import Source, State
from mainspring.core.statistics import WHOLE_STORE, Distribution, Period, period_start
from mainspring.engine.live_workers import LiveWorker
from mainspring.errors import MainspringError
from mainspring.scheduler import statistics
from mainspring.service.access import access, api_router
from mainspring.service.dependencies import Service, ServiceDep
from mainspring.service.metrics import CONTENT_TYPE
from mainspring.service.schemas.documents import (
    Cursor,
    Document,
    Milliseconds,
    Reply,
    Time,
    example,
    seconds_to_milliseconds,
    to_iso,
    to_milliseconds,
)

router = api_router(tags=["health"])

ENGINE_SECONDS = 5.0
"""How long the engine may take to answer before the service counts as not ready."""

DAY = timedelta(days=1)

STEPS = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "24h": (timedelta(hours=24), timedelta(minutes=15)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
"""By the name of a window: how long it is, and how long each of its parts."""


# -- documents --------------------------------------------------------------------------------

Status = Literal["healthy", "degraded", "stopping"]


class Health(Document):
    status: Annotated[Status, example("healthy")]
    time: Time
    store: Annotated[Literal["ok", "away"], example("ok")]
    running: int
    """Attempts that run in this process."""
    capacity: int
    """How many attempts may run at once here."""
    poll_interval: Milliseconds
    is_leader: bool
    """Whether this process fires slots first."""
    stuck_threads: int
    """Threads that outlived their attempt."""
    enabled: bool
    """Whether this process fires slots."""
    paused_since: Time | None
    """Since when all firing is paused, on every node. Null: it is not."""
    memory: int | None
    """Bytes of memory that this process holds. Null: not known."""
    cpu_seconds: float
    """CPU time that this process has used."""
    memory_limit_reached: bool
    """This process holds as much memory as it may: it claims no more runs, and is replaced."""
    jobs_without_worker: list[str]
    """Jobs that are not fired, or get no further runs after others, because no live worker can run
    them."""
    orphaned_jobs: list[str]
    """Jobs that code defined, and whose code is gone."""


class JobCounts(Document):
    total: int
    enabled: int


class LastDay(Document):
    succeeded: int
    failed: int


class Statistics(Document):
    jobs: JobCounts
    runs: Annotated[dict[State, int], example({"pending": 2, "succeeded": 1450, "failed": 50})]
    """Runs by state: how many are unfinished now, and how many have ever ended in each final
    state."""
    last_day: LastDay
    """Runs that ended within 24 hours."""
    due: int
    """Pending runs whose time has come."""


class HistoryPoint(Document):
    time: Time
    """When this part of the window begins."""
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    duration_p95: Milliseconds | None
    """95 % of the runs took at most so long."""
    lateness_p95: Milliseconds | None
    """95 % of the runs started at most so late."""


class History(Document):
    """How the runs of all jobs ended, over time."""

    since: Time
    step: Milliseconds
    """How long each part of the window is."""
    points: list[HistoryPoint]
    """The parts, the oldest first."""


class OpenBreaker(Document):
    """A circuit breaker that is not closed."""

    job_id: str
    state: Annotated[Literal["open", "half_open"], example("open")]
    failures: int
    """How many runs have failed in a row."""
    until: Time | None
    """When one run may try again. Null: now."""
    trial: str | None
    """The run that tries. Null: none has begun."""


class OpenBreakerList(Document):
    items: list[OpenBreaker]
    next_cursor: Cursor


class Firing(Document):
    """Whether slots fire."""

    paused_since: Time | None
    """Since when all firing is paused, on every node. Null: it is not."""


class Probe(Document):
    status: Annotated[str, example("ok")]


class Worker(Document):
    """A process that works on runs. A worker of an earlier version says less of itself."""

    id: str
    node: str | None
    """The host or pod that it runs on."""
    pid: int | None
    version: str | None
    is_leader: bool
    """Whether it fires slots first."""
    fires: bool
    """Whether it fires slots: not with enabled=False."""
    queues: list[str] | None
    """The queues it takes; null: all."""
    handlers: list[str]
    capacity: int | None
    """How many attempts it may run at once."""
    running: int | None
    """How many it ran when it was last seen."""
    memory: int | None
    """Bytes that it used when it was last seen."""
    memory_limit: int | None
    """Bytes at which it drains."""
    memory_limit_reached: bool
    """Whether it takes no more runs because of its memory limit."""
    started_at: Time | None
    seen_at: Time | None
    """Its last sign of life."""

    @classmethod
    def of(cls, worker: LiveWorker) -> Self:
        fields = worker.to_dict()
        times = {name: to_iso(fields[name]) for name in ("started_at", "seen_at")}
        return cls(**{**fields, **times})


class WorkerList(Document):
    items: list[Worker]
    next_cursor: Cursor


Rate = Annotated[
    float | None,
    Meta(description="0 to 1, of the runs that succeeded or failed. Null if none did."),
]


class EndedRun(Document):
    """The run that ended last, of those that were tried."""

    id: str
    state: State
    source: Source
    started_at: Time
    finished_at: Time
    error: str | None


class JobHealth(Document):
    job_id: str
    status: statistics.JobStatus
    """`healthy`: at least 95 % of the runs succeeded. `warning`: at least 80 %. `unhealthy`: fewer.
    `overdue`: a slot passed and no scheduler fired it. `paused`: the job is not enabled.
    `no_worker`: no live worker has its handler. `orphaned`: the code or file that defined it no
    longer does. `unknown`: no run has ended yet."""
    enabled: bool
    success_rate: Rate
    rated_since: Time | None
    """The rate is over the runs that ended since then. Null: none has, and it is over all runs
    since the job was made."""
    consecutive_failures: int
    last_run: EndedRun | None
    last_run_at: Time | None
    """When the newest run started."""
    next_run_at: Time | None
    breaker: Literal["closed", "open", "half_open", "none"]
    breaker_until: Time | None


class Spread(Document):
    """Percentiles are within 5 % of the true ones, or 1 ms. All are null if no run was counted."""

    average: Milliseconds | None
    p50: Milliseconds | None
    p95: Milliseconds | None
    max: Milliseconds | None

    @classmethod
    def of(cls, spread: statistics.Spread) -> Self:
        """In milliseconds; the library has seconds."""
        seconds = {name: getattr(spread, name) for name in cls.__struct_fields__}
        return cls(**{name: value and value * 1000 for name, value in seconds.items()})


class FailedRun(Document):
    id: str
    finished_at: Time
    attempts: int
    error: str | None


class JobMetrics(Document):
    job_id: str
    since: Time
    """Where the window begins: at a full hour."""
    total: int
    """The runs that succeeded or failed."""
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    success_rate: Rate
    failure_rate: Rate
    duration: Spread
    """How long the last attempt of each run took."""
    lateness: Spread
    """How much later than due the runs started, at the first attempt."""
    consecutive_failures: int
    ended: dict[str, int]
    """All runs since the job was made, by how they ended."""
    recent_failures: list[FailedRun]
    """The newest stored runs that failed, at most 10."""

    @classmethod
    def of(cls, metrics: statistics.JobMetrics) -> Self:
        document = super().of(metrics)
        document.duration = Spread.of(metrics.duration)
        document.lateness = Spread.of(metrics.lateness)
        return document


# -- routes -----------------------------------------------------------------------------------


@router.get("/api/v1/health", summary="Show the health of the service")
@access("read")
async def get_health(service: ServiceDep) -> Reply[Health]:
    return Reply(await read_health(service))


async def read_health(service: Service) -> Health:
    client = service.client
    health = await client.health()
    return Health(
        status="stopping" if service.draining.is_set() else health.status,
        time=to_iso(service.clock.now()),
        store="ok" if health.store == "ok" else "away",
        running=health.running_here,
        capacity=client.workers,
        poll_interval=to_milliseconds(client.poll),
        is_leader=health.is_leader,
        stuck_threads=health.stuck_threads,
        enabled=health.enabled,
        paused_since=to_iso(health.paused_since),
        memory=health.memory,
        cpu_seconds=health.cpu_seconds,
        memory_limit_reached=health.memory_limit_reached,
        jobs_without_worker=list(health.jobs_without_worker),
        orphaned_jobs=list(health.orphaned_jobs),
    )


@router.get("/api/v1/statistics", summary="Count jobs and runs")
@access("read")
async def get_statistics(service: ServiceDep) -> Reply[Statistics]:
    return Reply(await read_statistics(service))


async def read_statistics(service: Service) -> Statistics:
    client = service.client
    counts = await client.counts(since=await client.now() - DAY)
    jobs = await client.list_jobs(limit=1, last_runs=False, with_total=True)
    enabled = await client.list_jobs(limit=1, last_runs=False, with_total=True, enabled=True)
    return Statistics(
        jobs=JobCounts(total=jobs.total or 0, enabled=enabled.total or 0),
        runs={state: counts.total(state) for state in State},
        last_day=LastDay(
            succeeded=counts.ended.get(State.SUCCEEDED, 0), failed=counts.ended.get(State.FAILED, 0)
        ),
        due=sum(due.count for due in counts.due.values()),
    )


@router.get("/api/v1/statistics/history", summary="Show how runs ended over time")
@access("read")
async def get_history(
    service: ServiceDep,
    window: Annotated[
        Literal["1h", "24h", "7d"],
        Query(description="How far back: by the minute, the quarter of an hour, or two hours."),
    ] = "24h",
) -> Reply[History]:
    return Reply(await _read_history(service, window))


async def _read_history(service: Service, window: str) -> History:
    """How runs ended in each part of the window, also in parts without a run. It is computed at
    most 60 times in a part: a week has 10,000 counted minutes, and charts ask every few seconds."""
    length, step = STEPS[window]
    kept = service.histories.get(window)
    now = service.clock.monotonic()
    if kept is None or now - kept[0] > step.total_seconds() / 60:
        history = await _compute_history(service, length, step)
        kept = service.histories[window] = (now, history)
    return kept[1]


async def _compute_history(service: Service, length: timedelta, step: timedelta) -> History:
    now = await service.client.now()
    first = period_start(now - length, step) + step
    counts = await service.client.counts(since=first)
    periods = counts.periods.get(WHOLE_STORE, ())
    # In a thread: it takes tenths of a second for a week, and other requests go on meanwhile.
    points = await asyncio.to_thread(_points, periods, first, now, step)
    return History(since=to_iso(first), step=to_milliseconds(step), points=points)


def _points(
    periods: Sequence[Period], first: datetime, last: datetime, step: timedelta
) -> list[HistoryPoint]:
    parts: dict[datetime, list[Period]] = {}
    for period in periods:
        parts.setdefault(period_start(period.start, step), []).append(period)
    starts = [first + number * step for number in range((last - first) // step + 1)]
    return [_point(start, parts.get(start, [])) for start in starts]


def _point(start: datetime, periods: list[Period]) -> HistoryPoint:
    ended: Counter[State] = Counter()
    duration, lateness = Distribution(), Distribution()
    for period in periods:
        ended.update(period.ended)
        duration, lateness = duration.plus(period.duration), lateness.plus(period.lateness)
    return HistoryPoint(
        time=to_iso(start),
        succeeded=ended[State.SUCCEEDED],
        failed=ended[State.FAILED],
        cancelled=ended[State.CANCELLED],
        skipped=ended[State.SKIPPED],
        duration_p95=seconds_to_milliseconds(duration.percentile(0.95)),
        lateness_p95=seconds_to_milliseconds(lateness.percentile(0.95)),
    )


@router.get("/api/v1/breakers", summary="List the circuit breakers that are open")
@access("read")
async def list_open_breakers(service: ServiceDep) -> Reply[OpenBreakerList]:
    breakers = await service.client.open_breakers()
    items = [
        OpenBreaker.of({"jobId": job_id} | asdict(breaker)) for job_id, breaker in breakers.items()
    ]
    return Reply(OpenBreakerList(items=items, next_cursor=None))


@router.get("/api/v1/workers", summary="List the workers that are alive")
@access("read")
async def list_workers(service: ServiceDep) -> Reply[WorkerList]:
    items = [Worker.of(worker) for worker in await service.client.list_workers()]
    return Reply(WorkerList(items=items, next_cursor=None))


@router.get(
    "/metrics",
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
@access("read", works_without_store=True)
async def metrics(service: ServiceDep) -> Response:
    return Response(await service.metrics.text(), media_type=CONTENT_TYPE)


# -- probes ---------------------------------------------------------------------------------


@router.get("/livez", summary="The process responds")
@access("open")
async def livez() -> Reply[Probe]:
    """Does not use the store: the process must not be killed because the store is away."""
    return Reply(Probe(status="ok"))


@router.get("/readyz", summary="The service can do its work")
@access("open")
async def readyz(service: ServiceDep) -> Reply[Probe]:
    why = await why_not_ready(service)
    if why is not None:
        return Reply(Probe(status=why), 503, {"Retry-After": "5"})
    return Reply(Probe(status="ok"))


async def why_not_ready(service: Service) -> str | None:
    if not service.started:
        return "not started"
    if service.draining.is_set() or not service.client.started:
        return "stopping"
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            health = await service.client.health()
    except TimeoutError:
        return f"the engine did not answer within {ENGINE_SECONDS:.0f} s"
    except MainspringError as error:
        return str(error)
    if health.failing:
        return f"the store fails these calls: {', '.join(health.failing)}"
    if health.store != "ok":
        return "the store is away"
    if health.stuck_threads >= max(health.workers, 1):
        return (
            "degraded: handlers that outlived their timeout use all threads; restart the process,"
            ' and give these jobs isolation="process"'
        )
    return None
