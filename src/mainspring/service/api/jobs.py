"""`/api/v1/jobs`: create, list, read, change, delete, trigger, pause and resume jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header, Query, Request, Response

from mainspring.core import model
from mainspring.core.plurals import plural
from mainspring.core.schedules.base import moment
from mainspring.errors import InvalidInput
from mainspring.service.access import access
from mainspring.service.api import job_operations as operations
from mainspring.service.api.lists import list_response, read_offset
from mainspring.service.dependencies import (
    Cursor,
    JobPath,
    Limit,
    ServiceDep,
    note_detail,
    path_of,
    read_moment,
)
from mainspring.service.problems import ApiError, FieldError, problem_document
from mainspring.service.router import api_router
from mainspring.service.schemas.backfill import Backfill, BackfillBody, backfill_document
from mainspring.service.schemas.explanation import Explanation
from mainspring.service.schemas.fields import query_of
from mainspring.service.schemas.job import (
    Job,
    JobBody,
    JobList,
    JobMatchBody,
    JobsBulkBody,
    JobsBulkResult,
    JobUpdateBody,
    PrunedOrphans,
    RenderedRequest,
    TriggerBody,
    brief_job_document,
    etag,
    job_document,
)
from mainspring.service.schemas.job_health import JobHealth, JobMetrics, metrics_document
from mainspring.service.schemas.json_format import camel_case, json_response
from mainspring.service.schemas.run import Run, run_document
from mainspring.service.schemas.workflow import Workflow, workflow_of
from mainspring.stores.protocol import JobOrder

router = api_router(prefix="/api/v1/jobs", tags=["jobs"])

Window = Annotated[
    str,
    Query(
        max_length=64,
        description="How far back, from `1h` to `8d`. The window begins at a full hour.",
        examples=["24h"],
    ),
]
Tag = Annotated[str | None, query_of(JobMatchBody, "tag", max_length=200)]
Queue = Annotated[str | None, query_of(JobMatchBody, "queue", max_length=200)]
Enabled = Annotated[bool | None, query_of(JobMatchBody, "enabled")]
Search = Annotated[str | None, query_of(JobMatchBody, "search", max_length=200)]
RequestDryRun = Annotated[
    bool, Query(alias="dryRun", description="Only show the request, filled in and signed.")
]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="The ETag that the job was read with.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="A request sent again with the same key and body within 24 h creates nothing.",
    ),
]

PruneDryRun = Annotated[bool, Query(alias="dryRun", description="Only list the jobs; delete none.")]
BackfillDryRun = Annotated[
    bool, Query(alias="dryRun", description="Only say what would be added; add nothing.")
]
Force = Annotated[
    bool, Query(description="Also if no worker is alive to say which handlers exist.")
]
SlotTime = Annotated[
    str | None,
    Query(max_length=64, description="A slot, as an ISO 8601 date-time: why not at that time?"),
]
_DRY_RUN: dict[int | str, dict[str, Any]] = {
    200: {"model": RenderedRequest, "description": "The request that a dry run shows."}
}


@router.post(
    "",
    status_code=201,
    response_model=Job,
    responses=_DRY_RUN,
    summary="Create a job",
)
@access("write")
async def create_job(
    body: JobBody,
    service: ServiceDep,
    request: Request,
    dry_run: RequestDryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    if dry_run:
        return json_response(await operations.preview_request(service, body))
    made = await operations.create_job(service, request, body, idempotency_key)
    headers = {"Location": path_of(request, f"/api/v1/jobs/{made.job.id}")}
    if made.replayed:
        headers["Idempotency-Replayed"] = "true"
    return _job(made.job, made.secret, status=201, headers=headers)


_ORDERS: dict[str, JobOrder] = {
    "id": "id",
    "nextRunAt": "next_run_at",
    "lastRunAt": "last_run_at",
    "updatedAt": "updated_at",
}


@router.get("", response_model=JobList, summary="List jobs")
@access("read")
async def list_jobs(
    service: ServiceDep,
    tag: Tag = None,
    queue: Queue = None,
    enabled: Enabled = None,
    search: Search = None,
    order: Annotated[
        Literal["id", "nextRunAt", "lastRunAt", "updatedAt"],
        Query(
            description="Sort by this field. `lastRunAt` sorts by the last slot that fired. Jobs"
            " without a value come last."
        ),
    ] = "id",
    descending: Annotated[bool, Query(description="The last first.")] = False,
    payloads: Annotated[
        bool, Query(description="With the `payload` and the `body` of each job.")
    ] = False,
    limit: Limit = 50,
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="Leave out so many.")] = 0,
    cursor: Cursor = None,
) -> Response:
    """A page ends early when it has 4 MiB; `nextCursor` gives the rest."""
    chosen: dict[str, Any] = {
        "tag": tag,
        "queue": queue,
        "enabled": enabled,
        "search": search,
        "order": _ORDERS[order],
        "descending": descending,
    }

    async def read(count: int, cursor: str | None) -> model.Page[model.Job]:
        if order == "id" and not descending:
            start = 0 if cursor else offset
            return await service.client.list_jobs(
                **chosen, limit=count, cursor=cursor, offset=start
            )
        start = offset if cursor is None else read_offset(cursor)
        page = await service.client.list_jobs(**chosen, limit=count + 1, offset=start)
        more = len(page.items) > count
        return model.Page(page.items[:count], str(start + count) if more else None)

    def document(job: model.Job) -> dict[str, Any]:
        return job_document(job) if payloads else brief_job_document(job)

    return await list_response(read, document, limit=limit, cursor=cursor)


@router.post(
    "/bulk",
    response_model=JobsBulkResult,
    summary="Create, pause, resume, trigger or delete many jobs",
)
@access("write")
async def bulk_jobs(body: JobsBulkBody, service: ServiceDep, request: Request) -> Response:
    items = await operations.bulk_jobs(service, body)
    ids = [str(item.job_id) for item in items if item.problem is None]
    done = len(ids)
    note_detail(request, f"{body.action} {done} of {plural(len(items), 'job')}: {', '.join(ids)}")
    return json_response(
        {
            "matched": len(items),
            "succeeded": done,
            "failed": len(items) - done,
            "items": [_bulk_item(one) for one in items],
        }
    )


@router.post(
    "/prune-orphans",
    response_model=PrunedOrphans,
    summary="Delete the jobs of code that is gone",
)
@access("write")
async def prune_orphans(
    service: ServiceDep, request: Request, dry_run: PruneDryRun = False, force: Force = False
) -> Response:
    orphans = await service.client.prune_orphans(dry_run=dry_run, force=force)
    note_detail(request, ", ".join(job.id for job in orphans))
    return json_response({"jobs": [job.id for job in orphans], "removed": not dry_run})


@router.get("/{id}", response_model=Job, summary="Read a job")
@access("read")
async def get_job(id: JobPath, service: ServiceDep) -> Response:
    return _job(await service.client.get_job(id))


@router.patch(
    "/{id}",
    response_model=Job,
    summary="Change a job; what is left out stays",
)
@access("write")
async def update_job(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    request: Request,
    if_match: IfMatch = None,
) -> Response:
    return _job(*await operations.update_job(service, request, id, body, if_match))


@router.delete("/{id}", status_code=204, summary="Delete a job; running work may end")
@access("write")
async def delete_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    await operations.remove_job(service, id, if_match)
    return Response(status_code=204)


@router.post(
    "/{id}/trigger",
    status_code=202,
    response_model=Run,
    responses=_DRY_RUN,
    summary="Run a job now",
)
@access("write")
async def trigger_job(
    id: JobPath,
    service: ServiceDep,
    request: Request,
    body: TriggerBody | None = None,
    dry_run: RequestDryRun = False,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Response:
    if dry_run:
        return json_response(await operations.preview_trigger(service, id, body, if_match))
    run, replayed = await operations.trigger_job(
        service, request, id, body, idempotency_key, if_match
    )
    headers = {"Location": path_of(request, f"/api/v1/runs/{run.id}")}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return json_response(run_document(run, whole=True), 202, headers)


@router.post(
    "/{id}/backfill",
    status_code=202,
    response_model=Backfill,
    responses={200: {"model": Backfill, "description": "What a dry run would add."}},
    summary="Run past slots that have not run",
)
@access("write")
async def backfill_job(
    id: JobPath, body: BackfillBody, service: ServiceDep, dry_run: BackfillDryRun = False
) -> Response:
    sent = body.sent  # the times as they were read; one without an offset is in UTC
    backfill = await service.client.backfill(
        id,
        moment(sent["start"], "UTC", "start"),
        moment(sent["end"], "UTC", "end"),
        limit=body.limit,
        priority=body.priority,
        dry_run=dry_run,
    )
    return json_response(backfill_document(backfill), 200 if dry_run else 202)


@router.post(
    "/{id}/pause",
    response_model=Job,
    summary="Fire no more slots until the job is resumed",
)
@access("write")
async def pause_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await operations.set_job_enabled(service, id, if_match, enabled=False))


@router.post(
    "/{id}/resume",
    response_model=Job,
    summary="Go on with the next slot",
)
@access("write")
async def resume_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await operations.set_job_enabled(service, id, if_match, enabled=True))


@router.post(
    "/{id}/breaker/reset",
    response_model=Job,
    summary="Close the circuit breaker and let its waiting runs start",
)
@access("write")
async def reset_breaker(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await operations.close_breaker(service, id, if_match))


@router.get(
    "/{id}/health",
    response_model=JobHealth,
    summary="Show the health of a job",
)
@access("read")
async def get_job_health(id: JobPath, service: ServiceDep) -> Response:
    return json_response(camel_case(await service.client.job_health(id)))


@router.get(
    "/{id}/metrics",
    response_model=JobMetrics,
    summary="Show the metrics of a job",
)
@access("read")
async def get_job_metrics(id: JobPath, service: ServiceDep, window: Window = "24h") -> Response:
    try:
        return json_response(metrics_document(await service.client.job_metrics(id, window)))
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError("window", str(error))) from None


@router.get(
    "/{id}/workflow",
    response_model=Workflow,
    summary="Show the workflow that a job belongs to",
)
@access("read")
async def get_job_workflow(id: JobPath, service: ServiceDep) -> Response:
    job = await service.client.get_job(id)
    return json_response(workflow_of(await service.client.workflow(job)))


@router.get(
    "/{id}/explain",
    response_model=Explanation,
    summary="Say why a job does not run, or did not",
)
@access("read")
async def explain_job(id: JobPath, service: ServiceDep, at: SlotTime = None) -> Response:
    await service.client.get_job(id)
    return json_response(camel_case(await service.client.explain(id, read_moment(at, "at"))))


def _job(
    job: model.Job,
    secret: str | None = None,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    document = job_document(job)
    if secret is not None:
        document["signingSecret"] = secret
    return json_response(document, status, {"ETag": etag(job), **(headers or {})})


def _bulk_item(item: operations.BulkItem) -> dict[str, Any]:
    document: dict[str, Any] = {"succeeded": item.problem is None}
    for name, value in (
        ("index", item.index),
        ("id", item.job_id),
        ("runId", item.run_id),
        ("signingSecret", item.secret),
    ):
        if value is not None:
            document[name] = value
    if item.problem is not None:
        document["problem"] = problem_document(item.problem)
    return document
