"""The page of the workers: what each is doing, when it was last seen, and what it can run."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response

from mainspring.core.model import Run, State
from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.service.access import access

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=PageRoute)

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
    known = {one.id for one in found}
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
