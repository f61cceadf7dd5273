"""The nine operations of an earlier scheduler's HTTP API, so that its clients need no change.

Each maps names and envelopes, and calls what `/api/v1` calls. Everything else has one API,
`/api/v1`.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from msgspec import Raw
from pydantic import AfterValidator

from mainspring.core.model import Job, Page, State
from mainspring.service.access import access
from mainspring.service.api import job_operations
from mainspring.service.api.health import read_health, read_statistics
from mainspring.service.api.jobs import IdempotencyKey, IfMatch
from mainspring.service.api.lists import read_items
from mainspring.service.compat.documents import (
    Created,
    Done,
    Executions,
    HealthAnswer,
    JobAnswer,
    JobPage,
    Stats,
    compat_job,
    created_document,
    execution_counts,
    execution_documents,
    scheduler_state,
)
from mainspring.service.dependencies import COMPATIBILITY, JobPath, Service, ServiceDep, path_of
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.router import api_router
from mainspring.service.schemas.job import JobBody, JobUpdateBody, etag
from mainspring.service.schemas.json_format import json_response

router = api_router(prefix="/api", tags=[COMPATIBILITY])

MAX_PAGE = 200
EXECUTIONS_PAGE = 10
"""How many whole runs are read at once to show their attempts."""

PageLimit = Annotated[
    int,
    Query(ge=1, description=f"At most so many; a number above {MAX_PAGE} means {MAX_PAGE}."),
    AfterValidator(lambda limit: min(limit, MAX_PAGE)),
]


@router.post("/jobs", status_code=201, response_model=Created, summary="Create a job")
@access("write")
async def create_job(
    body: JobBody, service: ServiceDep, request: Request, idempotency_key: IdempotencyKey = None
) -> Response:
    created = await job_operations.create_job(service, request, body, idempotency_key)
    job = created.job
    headers = {"Location": path_of(request, f"/api/jobs/{job.id}"), "ETag": etag(job)}
    if created.replayed:
        headers["Idempotency-Replayed"] = "true"
    return _answer(created_document(job, created.secret), 201, headers)


@router.get("/jobs", response_model=JobPage, summary="List jobs, by page")
@access("read")
async def list_jobs(
    service: ServiceDep,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    limit: PageLimit = 20,
) -> Response:
    total = 0

    async def read(count: int, cursor: str | None) -> Page[Job]:
        nonlocal total
        start = (page - 1) * limit if cursor is None else int(cursor)
        found = await service.client.list_jobs(limit=count, offset=start, with_total=True)
        total = found.total or 0
        return Page(found.items, str(start + count) if start + count < total else None)

    jobs, more = await read_items(read, compat_job, limit=limit, cursor=None)
    if more is not None and len(jobs) < limit:
        why = f"is too large: {len(jobs)} of these jobs fill a response; ask for fewer"
        raise ApiError.of_fields(FieldError.predicate("limit", why))
    paging = {"page": page, "limit": limit, "total": total}
    return json_response({"success": True, "data": list(map(Raw, jobs)), **paging})


@router.get("/jobs/{id}", response_model=JobAnswer, summary="Read a job")
@access("read")
async def get_job(id: JobPath, service: ServiceDep) -> Response:
    return _job_answer(await service.client.get_job(id))


@router.put("/jobs/{id}", response_model=JobAnswer, summary="Change a job; what is left out stays")
@access("write")
async def update_job(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    request: Request,
    if_match: IfMatch = None,
) -> Response:
    return _job_answer(*await job_operations.update_job(service, request, id, body, if_match))


@router.delete("/jobs/{id}", response_model=Done, summary="Delete a job; running work may end")
@access("write")
async def delete_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    await job_operations.remove_job(service, id, if_match)
    return json_response({"success": True, "message": f"job {id} was deleted"})


@router.get(
    "/jobs/{id}/executions", response_model=Executions, summary="List attempts, newest first"
)
@access("read")
async def list_executions(id: JobPath, service: ServiceDep, limit: PageLimit = 5) -> Response:
    await service.client.get_job(id)
    return _answer(await _find_executions(service, {"job": id, "tried": True}, limit=limit))


@router.get(
    "/observability/health", response_model=HealthAnswer, summary="Show the health of the service"
)
@access("read")
async def get_health(service: ServiceDep) -> Response:
    health = await read_health(service)
    scheduler = {**scheduler_state(health), "pollInterval": health["pollInterval"]}
    return json_response(
        {
            "success": health["status"] == "healthy",
            "status": health["status"],
            "timestamp": health["time"],
            "scheduler": scheduler,
        }
    )


@router.get("/observability/stats", response_model=Stats, summary="Show figures of the system")
@access("read")
async def get_stats(service: ServiceDep) -> Response:
    health, statistics = await read_health(service), await read_statistics(service)
    counts = execution_counts(statistics)
    return _answer({"executions": counts, "scheduler": scheduler_state(health)})


@router.get("/observability/failures", response_model=Executions, summary="List failed attempts")
@access("read")
async def list_failures(service: ServiceDep, limit: PageLimit = 10) -> Response:
    # A run can fail without a failed attempt: its workers died.
    queries: list[dict[str, Any]] = [{"failing": True}, {"state": State.FAILED}]
    return _answer(await _find_executions(service, *queries, limit=limit, status="failure"))


def _answer(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return json_response({"success": True, "data": data}, status, headers)


def _job_answer(job: Job, signing_secret: str | None = None) -> Response:
    document = compat_job(job)
    if signing_secret is not None:
        document["signingSecret"] = signing_secret
    return _answer(document, headers={"ETag": etag(job)})


async def _find_executions(
    service: Service, *queries: dict[str, Any], limit: int, status: str | None = None
) -> list[dict[str, Any]]:
    """The newest attempts of the runs that any of the queries finds, `limit` of each. Only attempts
    of that status, if one is given.

    Runs are read in small pages, and only documents of attempts are kept: a run can hold 20 logs of
    64 KiB beside its payload, and 200 whole runs took 735 MB."""
    found: dict[str, dict[str, Any]] = {}
    for query in queries:
        left, cursor = limit, None
        while left > 0:
            size = min(left, EXECUTIONS_PAGE)
            page = await service.client.list_runs(**query, limit=size, cursor=cursor)
            for run in page.items:
                for one in execution_documents(run):
                    if status is None or one["status"] == status:
                        found[one["_id"]] = one
            newest = sorted(found.values(), key=lambda one: one["startedAt"], reverse=True)
            found = {one["_id"]: one for one in newest[:limit]}
            left, cursor = left - size, page.cursor
            if cursor is None:
                break
    return list(found.values())
