"""Health and figures: `/api/observability/*`, the probes, and `/metrics`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from fastapi import Response
from pydantic.alias_generators import to_camel

from mainspring.core.model import State
from mainspring.core.statistics import WHOLE_STORE, Distribution, Period, period_start
from mainspring.errors import MainspringError
from mainspring.service.dependencies import COMPATIBILITY, PageLimit, Service, ServiceDep
from mainspring.service.metrics import CONTENT_TYPE
from mainspring.service.router import api_router
from mainspring.service.routes.runs import find_executions
from mainspring.service.schemas.execution import Executions
from mainspring.service.schemas.health import PROCESS_FIELDS, CompatHealth, Probe, Stats
from mainspring.service.schemas.json_format import (
    camel_case,
    json_response,
    seconds_to_milliseconds,
    to_iso,
    to_milliseconds,
)

__all__ = [
    "read_health",
    "read_history",
    "read_open_breakers",
    "read_stats",
    "router",
    "why_not_ready",
]

router = api_router()

ENGINE_SECONDS = 5.0
"""How long the engine may take to answer before the service counts as not ready."""

DAY = timedelta(days=1)

STEPS = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "24h": (timedelta(hours=24), timedelta(minutes=15)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
"""By the name of a window: how long it is, and how long each of its parts."""


@router.get(
    "/api/observability/health",
    tags=[COMPATIBILITY],
    response_model=CompatHealth,
    summary="Show the health of the service",
)
async def health(service: ServiceDep) -> Response:
    found = await read_health(service)
    names = ("status", "store", "jobsWithoutWorker", "orphanedJobs")
    process = {to_camel(name): found[to_camel(name)] for name in PROCESS_FIELDS}
    return json_response(
        {
            "success": found["status"] == "healthy",
            "timestamp": found["time"],
            **{name: found[name] for name in names},
            "scheduler": {
                **_state(service, found["running"]),
                "pollInterval": found["pollInterval"],
                **process,
            },
        }
    )


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


@router.get(
    "/api/observability/stats",
    tags=[COMPATIBILITY],
    response_model=Stats,
    summary="Figures of the system",
)
async def stats(service: ServiceDep) -> Response:
    data, _ = await read_stats(service)
    return json_response({"success": True, "data": data})


async def read_stats(service: Service) -> tuple[dict[str, Any], dict[str, int]]:
    """The figures of the compatibility operation, and the runs that ended within 24 hours."""
    client = service.client
    now = await client.now()
    counts = await client.counts(since=now - DAY)
    good, bad = counts.total(State.SUCCEEDED), counts.total(State.FAILED)
    ended = counts.ended
    jobs = await client.list_jobs(limit=1, last_runs=False, with_total=True)
    enabled = await client.list_jobs(limit=1, last_runs=False, with_total=True, enabled=True)
    here = (await client.health()).running_here
    last_day = {
        "succeeded": ended.get(State.SUCCEEDED, 0),
        "failed": ended.get(State.FAILED, 0),
    }
    data: dict[str, Any] = {
        "executions": {
            "total": good + bad,
            "successful": good,
            "failed": bad,
            "last24Hours": sum(last_day.values()),
        },
        "scheduler": _state(service, here),
        "jobs": {"total": jobs.total, "enabled": enabled.total},
        "runs": {str(state): counts.total(state) for state in State},
        "due": sum(due.count for due in counts.due.values()),
    }
    return data, last_day


async def read_history(service: Service, window: str) -> dict[str, Any]:
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


async def read_open_breakers(service: Service) -> list[dict[str, Any]]:
    found = await service.client.open_breakers()
    return [{"jobId": job_id, **camel_case(one)} for job_id, one in found.items()]


@router.get(
    "/api/observability/failures",
    tags=[COMPATIBILITY],
    response_model=Executions,
    summary="Failed attempts, newest first",
)
async def failures(service: ServiceDep, limit: PageLimit = 10) -> Response:
    # A run can fail without a failed attempt: its workers died.
    queries: list[dict[str, Any]] = [{"failing": True}, {"state": State.FAILED}]
    found = await find_executions(service, *queries, limit=limit, status="failure")
    return json_response({"success": True, "data": found})


def _state(service: Service, running_here: int) -> dict[str, Any]:
    return {
        "isRunning": service.client.started and not service.draining.is_set(),
        "runningJobs": running_here,
        "maxConcurrentJobs": service.client.workers,
    }


@router.get(
    "/metrics",
    tags=["health"],
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def metrics(service: ServiceDep) -> Response:
    return Response(await service.metrics.text(), media_type=CONTENT_TYPE)


# -- probes ---------------------------------------------------------------------------------


@router.get("/livez", tags=["health"], response_model=Probe, summary="The process answers")
async def livez() -> Response:
    """Does not use the store: the process must not be killed because the store is away."""
    return json_response({"status": "ok"})


@router.get("/readyz", tags=["health"], response_model=Probe, summary="The service can do its work")
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
