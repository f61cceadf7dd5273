"""`/api/v1/jobs`: create, list, read, change, delete, trigger, pause and resume jobs; and stop and
restart all firing."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Header, Query, Request, Response

from mainspring.core import model
from mainspring.core.plurals import plural
from mainspring.core.schedules.base import moment
from mainspring.errors import InvalidInput
from mainspring.service.access import access, api_router
from mainspring.service.api import job_operations as operations
from mainspring.service.dependencies import (
    Cursor,
    JobPath,
    Limit,
    ServiceDep,
    list_reply,
    note_detail,
    path_of,
    read_moment,
    read_offset,
)
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.schemas.documents import Reply
from mainspring.service.schemas.fields import query_of
from mainspring.service.schemas.health import Firing, JobHealth, JobMetrics
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
    etag,
)
from mainspring.service.schemas.json_format import to_iso
from mainspring.service.schemas.run import Backfill, BackfillBody, Explanation, Run, Workflow
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
    bool, Query(description="Even if no worker is alive to say which handlers exist.")
]
SlotTime = Annotated[
    str | None,
    Query(max_length=64, description="A slot, as an ISO 8601 date-time: why not at that time?"),
]


@router.post("", status_code=201, summary="Create a job")
@access("write")
async def create_job(
    body: JobBody,
    service: ServiceDep,
    request: Request,
    dry_run: RequestDryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Reply[Job] | Reply[RenderedRequest]:
    if dry_run:
        return Reply(await operations.preview_request(service, body))
    created = await operations.create_job(service, request, body, idempotency_key)
    headers = {"Location": path_of(request, f"/api/v1/jobs/{created.job.id}")}
    if created.replayed:
        headers["Idempotency-Replayed"] = "true"
    return _job(created.job, created.secret, status=201, headers=headers)


_ORDERS: dict[str, JobOrder] = {
    "id": "id",
    "nextRunAt": "next_run_at",
    "lastRunAt": "last_run_at",
    "updatedAt": "updated_at",
}


@router.get("", summary="List jobs")
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
    offset: Annotated[int, Query(ge=0, le=1_000_000, description="Leave out this many.")] = 0,
    cursor: Cursor = None,
) -> Reply[JobList]:
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

    def document(job: model.Job) -> Job:
        return Job.of(job, brief=not payloads)

    return await list_reply(JobList, read, document, limit=limit, cursor=cursor)


@router.post("/bulk", summary="Change many jobs; create, pause, resume, trigger or delete them")
@access("write")
async def bulk_jobs(
    body: JobsBulkBody, service: ServiceDep, request: Request
) -> Reply[JobsBulkResult]:
    items = await operations.bulk_jobs(service, body)
    ids = [str(item.id) for item in items if item.succeeded]
    done = len(ids)
    note_detail(request, f"{body.action} {done} of {plural(len(items), 'job')}: {', '.join(ids)}")
    return Reply(
        JobsBulkResult(matched=len(items), succeeded=done, failed=len(items) - done, items=items)
    )


@router.post("/prune-orphans", summary="Delete the jobs of code that is gone")
@access("write")
async def prune_orphans(
    service: ServiceDep, request: Request, dry_run: PruneDryRun = False, force: Force = False
) -> Reply[PrunedOrphans]:
    orphans = await service.client.prune_orphans(dry_run=dry_run, force=force)
    note_detail(request, ", ".join(job.id for job in orphans))
    return Reply(PrunedOrphans(jobs=[job.id for job in orphans], removed=not dry_run))


@router.get("/{id}", summary="Read a job")
@access("read")
async def get_job(id: JobPath, service: ServiceDep) -> Reply[Job]:
    return _job(await service.client.get_job(id))


@router.patch("/{id}", summary="Change a job; what is left out stays")
@access("write")
async def update_job(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    request: Request,
    if_match: IfMatch = None,
) -> Reply[Job]:
    return _job(*await operations.update_job(service, request, id, body, if_match))


@router.delete("/{id}", status_code=204, summary="Delete a job; running work may end")
@access("write")
async def delete_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    await operations.remove_job(service, id, if_match)
    return Response(status_code=204)


@router.post("/{id}/trigger", status_code=202, summary="Run a job now")
@access("write")
async def trigger_job(
    id: JobPath,
    service: ServiceDep,
    request: Request,
    body: TriggerBody | None = None,
    dry_run: RequestDryRun = False,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Reply[Run] | Reply[RenderedRequest]:
    if dry_run:
        return Reply(await operations.preview_trigger(service, id, body, if_match))
    run, replayed = await operations.trigger_job(
        service, request, id, body, idempotency_key, if_match
    )
    headers = {"Location": path_of(request, f"/api/v1/runs/{run.id}")}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return Reply(Run.whole(run), 202, headers)


@router.post("/{id}/backfill", status_code=202, summary="Run past slots of a job that have not run")
@access("write")
async def backfill_job(
    id: JobPath, body: BackfillBody, service: ServiceDep, dry_run: BackfillDryRun = False
) -> Reply[Backfill]:
    sent = body.sent  # the times as they were read; one without an offset is in UTC
    backfill = await service.client.backfill(
        id,
        moment(sent["start"], "UTC", "start"),
        moment(sent["end"], "UTC", "end"),
        limit=body.limit,
        priority=body.priority,
        dry_run=dry_run,
    )
    return Reply(Backfill.of(backfill), 200 if dry_run else 202)


@router.post("/{id}/pause", summary="Pause a job; its slots fire no more until it is resumed")
@access("write")
async def pause_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Reply[Job]:
    return _job(await operations.set_job_enabled(service, id, if_match, enabled=False))


@router.post("/{id}/resume", summary="Resume a job; it goes on with its next slot")
@access("write")
async def resume_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Reply[Job]:
    return _job(await operations.set_job_enabled(service, id, if_match, enabled=True))


@router.post(
    "/{id}/breaker/reset", summary="Reset the circuit breaker of a job; its waiting runs start"
)
@access("write")
async def reset_breaker(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Reply[Job]:
    return _job(await operations.close_breaker(service, id, if_match))


@router.get("/{id}/health", summary="Show the health of a job")
@access("read")
async def get_job_health(id: JobPath, service: ServiceDep) -> Reply[JobHealth]:
    return Reply(JobHealth.of(await service.client.job_health(id)))


@router.get("/{id}/metrics", summary="Show the metrics of a job")
@access("read")
async def get_job_metrics(
    id: JobPath, service: ServiceDep, window: Window = "24h"
) -> Reply[JobMetrics]:
    try:
        return Reply(JobMetrics.of(await service.client.job_metrics(id, window)))
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError("window", str(error))) from None


@router.get("/{id}/workflow", summary="Show the workflow that a job belongs to")
@access("read")
async def get_job_workflow(id: JobPath, service: ServiceDep) -> Reply[Workflow]:
    job = await service.client.get_job(id)
    return Reply(Workflow.of(await service.client.workflow(job)))


@router.get("/{id}/explain", summary="Say why a job does not run, or did not")
@access("read")
async def explain_job(id: JobPath, service: ServiceDep, at: SlotTime = None) -> Reply[Explanation]:
    await service.client.get_job(id)
    return Reply(Explanation.of(await service.client.explain(id, read_moment(at, "at"))))


def _job(
    job: model.Job,
    secret: str | None = None,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Reply[Job]:
    return Reply(Job.of(job, secret), status, {"ETag": etag(job), **(headers or {})})


# -- all jobs -------------------------------------------------------------------------------------

firing = api_router(prefix="/api/v1", tags=["jobs"])


@firing.post("/pause", summary="Pause all firing; no node fires slots until it is resumed")
@access("write")
async def pause_all(service: ServiceDep) -> Reply[Firing]:
    return Reply(Firing(paused_since=to_iso(await service.client.pause_all())))


@firing.post("/resume", summary="Resume all firing; slots fire from now on")
@access("write")
async def resume_all(service: ServiceDep) -> Reply[Firing]:
    await service.client.resume_all()
    return Reply(Firing(paused_since=None))
