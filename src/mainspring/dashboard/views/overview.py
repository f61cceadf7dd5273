"""The page at `/`: what runs, what failed, what comes next. Before the first job it is a page that
says what to do first."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from mainspring.core.model import State
from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.dashboard.sample_job import sample_job
from mainspring.service.access import access

__all__ = ["router"]

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
    due = sum(one.count for one in counts.due.values())
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
