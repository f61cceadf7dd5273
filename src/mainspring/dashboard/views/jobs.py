"""The page at `/jobs`: all jobs, searched, filtered and sorted, and what can be done with them."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from mainspring.core.model import Job, Page, State
from mainspring.dashboard.charts import draw_runs
from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.dashboard.sample_job import sample_job
from mainspring.service.access import access
from mainspring.stores.protocol import JobOrder

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=PageRoute)

JOBS_PER_PAGE = 25
RUNS_SHOWN = 20
STARTED_STATES = (State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED)
"""The states of runs whose time has come."""

Sort = Literal["id", "next", "last", "updated"]
ORDERS: dict[str, JobOrder] = {
    "id": "id",
    "next": "next_run_at",
    "last": "last_run_at",
    "updated": "updated_at",
}
Text = Annotated[str, Query(max_length=200)]


@router.get("/jobs")
@access("read")
async def jobs(
    request: Request,
    q: Text = "",
    state: Annotated[Literal["", "enabled", "paused"], Query()] = "",
    tag: Text = "",
    queue: Text = "",
    sort: Annotated[Sort, Query()] = "id",
    desc: Annotated[bool, Query()] = False,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    client = service_of(request).client
    filters = {"q": q.strip(), "state": state, "tag": tag.strip(), "queue": queue.strip()}
    match: dict[str, Any] = {
        "search": filters["q"] or None,
        "enabled": {"enabled": True, "paused": False}.get(state),
        "tag": filters["tag"] or None,
        "queue": filters["queue"] or None,
    }

    async def read_page(number: int) -> Page[Job]:
        return await client.list_jobs(
            **match,
            order=ORDERS[sort],
            descending=desc,
            limit=JOBS_PER_PAGE,
            offset=(number - 1) * JOBS_PER_PAGE,
            with_total=True,
            last_runs=False,
        )

    found, paused_since, workers = await asyncio.gather(
        read_page(page), client.paused_since(), client.list_workers()
    )
    if page > 1 and not found.items and found.total:  # past the end: jobs may have been deleted
        page = -(-found.total // JOBS_PER_PAGE)
        found = await read_page(page)
    health, runs = await asyncio.gather(
        client.jobs_health(found.items),
        asyncio.gather(
            *(
                client.list_runs(job=job.id, state=STARTED_STATES, brief=True, limit=RUNS_SHOWN)
                for job in found.items
            )
        ),
    )
    rows = [
        {
            "job": job,
            "health": of_job,
            "last": recent.items[0] if recent.items else None,
            "spark": draw_runs(recent.items, RUNS_SHOWN),
        }
        for job, of_job, recent in zip(found.items, health, runs, strict=True)
    ]
    total = found.total or 0
    return render(
        request,
        "jobs.html",
        page="jobs",
        title="Jobs",
        rows=rows,
        total=total,
        number=page,
        pages=max(1, -(-total // JOBS_PER_PAGE)),
        first=(page - 1) * JOBS_PER_PAGE + 1,
        filters=filters,
        is_filtered=any(filters.values()),
        match={name: value for name, value in match.items() if value is not None},
        sort=sort,
        desc=desc,
        tags=sorted({one for job in found.items for one in job.tags}),
        queues=_queues(found.items, workers),
        paused_since=paused_since,
        sample=sample_job(workers),
    )


def _queues(jobs: Any, workers: Any) -> list[str]:
    """Queues to choose from: those of the jobs that are shown, and of the live workers."""
    of_workers = {name for worker in workers for name in worker.queues or ()}
    return sorted({job.policy.queue for job in jobs} | of_workers)
