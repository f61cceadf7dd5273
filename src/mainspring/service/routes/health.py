"""How things stand: `/api/observability/*`, the probes, and `/metrics`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Response

from mainspring.core.model import State
from mainspring.errors import MainspringError
from mainspring.service.dependencies import COMPATIBILITY, PageLimit, Service, ServiceDep
from mainspring.service.metrics import CONTENT_TYPE
from mainspring.service.schemas import documents
from mainspring.service.schemas import envelopes as docs

__all__ = ["health_of", "router", "stats_of"]

router = APIRouter()

OLDEST_LOOP = 5.0
"""Seconds that the engine's loop may take to answer before the service is not ready."""

DAY = timedelta(days=1)


@router.get(
    "/api/observability/health",
    tags=[COMPATIBILITY],
    response_model=docs.PageHealth,
    summary="Is it well?",
)
async def health(service: ServiceDep) -> Response:
    return documents.answer(await health_of(service))


async def health_of(service: Service) -> dict[str, Any]:
    scheduler = service.scheduler
    found = await scheduler.health()
    status = "stopping" if service.draining.is_set() else found.status
    return {
        "success": status == "healthy",
        "status": status,
        "timestamp": documents.when(service.clock.now()),
        "store": found.store if found.store == "ok" else "away",
        "scheduler": {
            **_state(service, found.running_here),
            "pollInterval": documents.ms(scheduler.poll),
            "isLeader": found.is_leader,
            "stuckThreads": found.stuck_threads,
        },
        "jobsWithoutWorker": list(found.jobs_without_worker),
    }


@router.get(
    "/api/observability/stats",
    tags=[COMPATIBILITY],
    response_model=docs.Stats,
    summary="Figures of the system",
)
async def stats(service: ServiceDep) -> Response:
    data, _ = await stats_of(service)
    return documents.answer({"success": True, "data": data})


async def stats_of(service: Service) -> tuple[dict[str, Any], dict[str, int]]:
    """What the page's form tells, and the runs that ended within 24 hours, by how."""
    scheduler = service.scheduler
    now = await scheduler.now()
    counts = await scheduler.counts(since=now - DAY)
    good, bad = counts.total(State.SUCCEEDED), counts.total(State.FAILED)
    ended = counts.ended
    jobs = await scheduler.list_jobs(limit=1, last_runs=False, with_total=True)
    enabled = await scheduler.list_jobs(limit=1, last_runs=False, with_total=True, enabled=True)
    here = (await scheduler.health()).running_here
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


@router.get(
    "/api/observability/failures",
    tags=[COMPATIBILITY],
    response_model=docs.Executions,
    summary="Failed attempts, newest first",
)
async def failures(service: ServiceDep, limit: PageLimit = 10) -> Response:
    scheduler = service.scheduler
    # A run can end badly without a failed attempt of its own: its workers died under it.
    failing = await scheduler.list_runs(failing=True, limit=limit)
    failed = await scheduler.list_runs(state=State.FAILED, limit=limit)
    runs = {run.id: run for run in [*failing.items, *failed.items]}
    found = [
        one
        for run in runs.values()
        for one in documents.executions(run)
        if one["status"] == "failure"
    ]
    found.sort(key=lambda one: one["startedAt"], reverse=True)
    return documents.answer({"success": True, "data": found[:limit]})


def _state(service: Service, running_here: int) -> dict[str, Any]:
    return {
        "isRunning": service.scheduler.started and not service.draining.is_set(),
        "runningJobs": running_here,
        "maxConcurrentJobs": service.scheduler.workers,
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


@router.get("/livez", tags=["health"], response_model=docs.Probe, summary="The process answers")
async def livez() -> Response:
    """Never touches the store: a store that is away is no reason to kill the process."""
    return documents.answer({"status": "ok"})


@router.get("/readyz", tags=["health"], response_model=docs.Probe, summary="It can do its work")
async def readyz(service: ServiceDep) -> Response:
    why = await why_not_ready(service)
    if why is not None:
        return documents.answer({"status": why}, 503, {"Retry-After": "5"})
    return documents.answer({"status": "ok"})


async def why_not_ready(service: Service) -> str | None:
    if not service.started:
        return "not started"
    if service.draining.is_set() or not service.scheduler.started:
        return "stopping"
    try:
        async with asyncio.timeout(OLDEST_LOOP):
            found = await service.scheduler.health()
    except TimeoutError:
        return f"the engine did not answer within {OLDEST_LOOP:.0f} s"
    except MainspringError as error:
        return str(error)
    if found.failing:
        return f"the store is away: it fails at {', '.join(found.failing)}"
    if found.store != "ok":
        return "the store is away"
    if found.stuck_threads >= max(found.workers, 1):
        return "degraded: its threads are stuck"
    return None
