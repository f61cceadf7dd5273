"""Health, statistics and workers, the probes, and `/metrics`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from fastapi import Query, Response
from msgspec.structs import asdict

from mainspring.core.model import State
from mainspring.core.statistics import WHOLE_STORE, Distribution, Period, period_start
from mainspring.errors import MainspringError
from mainspring.service.access import access, api_router
from mainspring.service.dependencies import Service, ServiceDep
from mainspring.service.metrics import CONTENT_TYPE
from mainspring.service.schemas.documents import Reply
from mainspring.service.schemas.health import (
    Health,
    History,
    HistoryPoint,
    JobCounts,
    LastDay,
    OpenBreaker,
    OpenBreakerList,
    Probe,
    Statistics,
    Worker,
    WorkerList,
)
from mainspring.service.schemas.json_format import seconds_to_milliseconds, to_iso, to_milliseconds

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
