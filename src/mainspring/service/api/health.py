"""Health, statistics and workers, the probes, and `/metrics`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from mainspring.core.model import State
from mainspring.core.statistics import WHOLE_STORE, Distribution, Period, period_start
from mainspring.errors import MainspringError
from mainspring.service.access import access
from mainspring.service.dependencies import Service, ServiceDep
from mainspring.service.metrics import CONTENT_TYPE
from mainspring.service.router import api_router
from mainspring.service.schemas.health import (
    PROCESS_FIELDS,
    Health,
    History,
    OpenBreakerList,
    Probe,
    Statistics,
)
from mainspring.service.schemas.json_format import (
    camel_case,
    json_response,
    seconds_to_milliseconds,
    to_iso,
    to_milliseconds,
)
from mainspring.service.schemas.worker import WorkerList

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


@router.get("/api/v1/health", response_model=Health, summary="Show the health of the service")
@access("read")
async def get_health(service: ServiceDep) -> Response:
    return json_response(await read_health(service))


async def read_health(service: Service) -> dict[str, Any]:
    client = service.client
    found = await client.health()
    return {
        "status": "stopping" if service.draining.is_set() else found.status,
        "time": to_iso(service.clock.now()),
        "store": found.store if found.store == "ok" else "away",
        "running": found.running_here,
        "capacity": client.workers,
        "pollInterval": to_milliseconds(client.poll),
        **camel_case({name: getattr(found, name) for name in PROCESS_FIELDS}),
        "jobsWithoutWorker": list(found.jobs_without_worker),
        "orphanedJobs": list(found.orphaned_jobs),
    }


@router.get("/api/v1/statistics", response_model=Statistics, summary="Count jobs and runs")
@access("read")
async def get_statistics(service: ServiceDep) -> Response:
    return json_response(await read_statistics(service))


async def read_statistics(service: Service) -> dict[str, Any]:
    client = service.client
    counts = await client.counts(since=await client.now() - DAY)
    jobs = await client.list_jobs(limit=1, last_runs=False, with_total=True)
    enabled = await client.list_jobs(limit=1, last_runs=False, with_total=True, enabled=True)
    return {
        "jobs": {"total": jobs.total, "enabled": enabled.total},
        "runs": {str(state): counts.total(state) for state in State},
        "lastDay": {
            "succeeded": counts.ended.get(State.SUCCEEDED, 0),
            "failed": counts.ended.get(State.FAILED, 0),
        },
        "due": sum(due.count for due in counts.due.values()),
    }


@router.get(
    "/api/v1/statistics/history",
    response_model=History,
    summary="Show how runs ended over time",
)
@access("read")
async def get_history(
    service: ServiceDep,
    window: Annotated[
        Literal["1h", "24h", "7d"],
        Query(description="How far back: by the minute, the quarter of an hour, or two hours."),
    ] = "24h",
) -> Response:
    return json_response(await _read_history(service, window))


async def _read_history(service: Service, window: str) -> dict[str, Any]:
    """How runs ended in each part of the window, also in parts without a run. It is computed at
    most 60 times in a part: a week has 10,000 counted minutes, and charts ask every few seconds."""
    length, step = STEPS[window]
    kept = service.histories.get(window)
    now = service.clock.monotonic()
    if kept is None or now - kept[0] > step.total_seconds() / 60:
        found = await _compute_history(service, length, step)
        kept = service.histories[window] = (now, found)
    return kept[1]


async def _compute_history(service: Service, length: timedelta, step: timedelta) -> dict[str, Any]:
    now = await service.client.now()
    first = period_start(now - length, step) + step
    counts = await service.client.counts(since=first)
    periods = counts.periods.get(WHOLE_STORE, ())
    # In a thread: it takes tenths of a second for a week, and other requests go on meanwhile.
    points = await asyncio.to_thread(_points, periods, first, now, step)
    return {"since": to_iso(first), "step": to_milliseconds(step), "points": points}


def _points(
    periods: Sequence[Period], first: datetime, last: datetime, step: timedelta
) -> list[dict[str, Any]]:
    parts: dict[datetime, list[Period]] = {}
    for period in periods:
        parts.setdefault(period_start(period.start, step), []).append(period)
    starts = [first + number * step for number in range((last - first) // step + 1)]
    return [_point(start, parts.get(start, [])) for start in starts]


def _point(start: datetime, periods: list[Period]) -> dict[str, Any]:
    ended: Counter[str] = Counter()
    duration, lateness = Distribution(), Distribution()
    for period in periods:
        ended.update({str(state): count for state, count in period.ended.items()})
        duration, lateness = duration.plus(period.duration), lateness.plus(period.lateness)
    return {
        "time": to_iso(start),
        **{state: ended[state] for state in ("succeeded", "failed", "cancelled", "skipped")},
        "durationP95": seconds_to_milliseconds(duration.percentile(0.95)),
        "latenessP95": seconds_to_milliseconds(lateness.percentile(0.95)),
    }


@router.get(
    "/api/v1/breakers",
    response_model=OpenBreakerList,
    summary="List the circuit breakers that are open",
)
@access("read")
async def list_open_breakers(service: ServiceDep) -> Response:
    breakers = await service.client.open_breakers()
    items = [{"jobId": job_id, **camel_case(breaker)} for job_id, breaker in breakers.items()]
    return json_response({"items": items, "nextCursor": None})


@router.get(
    "/api/v1/workers",
    response_model=WorkerList,
    summary="List the workers that are alive",
)
@access("read")
async def list_workers(service: ServiceDep) -> Response:
    items = [camel_case(worker.to_dict()) for worker in await service.client.list_workers()]
    return json_response({"items": items, "nextCursor": None})


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


@router.get("/livez", response_model=Probe, summary="The process answers")
@access("open")
async def livez() -> Response:
    """Does not use the store: the process must not be killed because the store is away."""
    return json_response({"status": "ok"})


@router.get("/readyz", response_model=Probe, summary="The service can do its work")
@access("open")
async def readyz(service: ServiceDep) -> Response:
    why = await why_not_ready(service)
    if why is not None:
        return json_response({"status": why}, 503, {"Retry-After": "5"})
    return json_response({"status": "ok"})


async def why_not_ready(service: Service) -> str | None:
    if not service.started:
        return "not started"
    if service.draining.is_set() or not service.client.started:
        return "stopping"
    try:
        async with asyncio.timeout(ENGINE_SECONDS):
            found = await service.client.health()
    except TimeoutError:
        return f"the engine did not answer within {ENGINE_SECONDS:.0f} s"
    except MainspringError as error:
        return str(error)
    if found.failing:
        return f"the store fails these calls: {', '.join(found.failing)}"
    if found.store != "ok":
        return "the store is away"
    if found.stuck_threads >= max(found.workers, 1):
        return (
            "degraded: handlers that outlived their timeout use all threads; restart the process,"
            ' and give these jobs isolation="process"'
        )
    return None
