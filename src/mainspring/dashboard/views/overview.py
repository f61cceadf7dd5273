"""The pages at `/` (what runs, failed and comes next; before the first job: what to do first) and
at `/workers` (what each worker is doing, when it was last seen, and what it can run)."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import Query, Request, Response

from mainspring.core.model import Run, State
from mainspring.dashboard.demo import sample_job
from mainspring.dashboard.pages import page_router, render, service_of
from mainspring.service.access import access
from mainspring.service.api.health import read_statistics

router = page_router()

FAILURES_SHOWN = 8


@router.get("/")
@access("read")
async def overview(
    request: Request, window: Annotated[Literal["1h", "24h", "7d"], Query()] = "24h"
) -> Response:
    service = service_of(request)
    client = service.client
    figures, health, workers, failures, breakers = await asyncio.gather(
        read_statistics(service),
        client.health(),
        client.list_workers(),
        client.list_runs(state=State.FAILED, brief=True, limit=FAILURES_SHOWN),
        client.open_breakers(),
    )
    if not figures.jobs.total:
        return render(
            request,
            "welcome.html",
            page="",
            title="Welcome",
            sample=sample_job(workers),
            health=health,
            address=str(request.base_url).rstrip("/"),
        )
    return render(
        request,
        "overview.html",
        page="",
        title="Overview",
        window=window,
        figures=figures,
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
