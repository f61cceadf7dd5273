"""The pages at `/` (what runs, failed and comes next; before the first job: what to do first) and
at `/workers` (what each worker is doing, when it was last seen, and what it can run)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from mainspring.core.model import Run, State
from mainspring.dashboard.demo import sample_job
from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.service.access import access

router = APIRouter(include_in_schema=False, route_class=PageRoute)

DAY = timedelta(days=1)
FAILURES_SHOWN = 8


@router.get("/")
@access("read")
async def overview(
    request: Request, window: Annotated[Literal["1h", "24h", "7d"], Query()] = "24h"
) -> Response:
    client = service_of(request).client
    now = await client.now()
    counts, health, workers, failures, breakers = await asyncio.gather(
        client.counts(since=now - DAY),
        client.health(),
        client.list_workers(),
        client.list_runs(state=State.FAILED, brief=True, limit=FAILURES_SHOWN),
        client.open_breakers(),
    )
    jobs = await client.list_jobs(limit=1, last_runs=False, with_total=True)
    enabled = await client.list_jobs(limit=1, last_runs=False, with_total=True, enabled=True)
    if not jobs.total:
        return render(
            request,
            "welcome.html",
            page="",
            title="Welcome",
            sample=sample_job(workers),
            health=health,
            address=str(request.base_url).rstrip("/"),
        )
    due = sum(waiting.count for waiting in counts.due.values())
    return render(
        request,
        "overview.html",
        page="",
        title="Overview",
        window=window,
        jobs=jobs.total or 0,
        enabled_jobs=enabled.total or 0,
        running=counts.total(State.RUNNING),
        pending=counts.total(State.PENDING),
        due=due,
        succeeded=counts.ended.get(State.SUCCEEDED, 0),
        failed=counts.ended.get(State.FAILED, 0),
        health=health,
        workers=workers,
        failures=failures.items,
        breakers=breakers,
    )


RUNS_SHOWN = 200


@router.get("/workers")
@access("read")
async def workers(request: Request) -> Response:
    client = service_of(request).client
    found, running, health = await asyncio.gather(
        client.list_workers(),
        client.list_runs(state=State.RUNNING, brief=True, limit=RUNS_SHOWN),
        client.health(),
    )
    by_worker: dict[str, list[Run]] = {}
    for run in running.items:
        by_worker.setdefault(run.worker or "", []).append(run)
    known = {worker.id for worker in found}
    return render(
        request,
        "workers.html",
        page="workers",
        title="Workers",
        workers=found,
        runs=by_worker,
        lost=[run for run in running.items if run.worker not in known],
        more=running.cursor is not None,
        health=health,
    )
