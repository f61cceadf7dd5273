"""The routes of `/api/v1`, the API's own form.

Documents have no envelope, lists are `items` with `nextCursor`, and errors are RFC 9457 problems
with a `code`.

The routes call the same functions as the compatibility operations, in `jobs.py`, `runs.py` and
the others.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response

from mainspring.core.model import Job
from mainspring.service.dependencies import JobPath, RunPath, Service, ServiceDep, path_of
from mainspring.service.problems import ApiError, FieldError, problem_document
from mainspring.service.router import api_router
from mainspring.service.routes import (
    events,
    explanations,
    firing,
    health,
    jobs,
    keys,
    runs,
    schedules,
    workers,
    workflows,
)
from mainspring.service.routes.jobs import (
    BackfillDryRun,
    Enabled,
    Force,
    IdempotencyKey,
    IfMatch,
    PruneDryRun,
    Queue,
    RequestDryRun,
    Search,
    Tag,
    Window,
)
from mainspring.service.schemas import job as job_schema
from mainspring.service.schemas.audit import AuditList, audit_document
from mainspring.service.schemas.backfill import Backfill, BackfillBody
from mainspring.service.schemas.explanation import Explanation
from mainspring.service.schemas.forecast import Forecast
from mainspring.service.schemas.health import Firing, Health, History, OpenBreakerList, Statistics
from mainspring.service.schemas.job import (
    JobBody,
    JobList,
    JobsBulkBody,
    JobsBulkResult,
    JobUpdateBody,
    PrunedOrphans,
    RenderedRequest,
    TriggerBody,
    etag,
    job_document,
)
from mainspring.service.schemas.job_health import JobHealth, JobMetrics
from mainspring.service.schemas.json_format import camel_case, json_response
from mainspring.service.schemas.key import ApiKey, ApiKeyList, KeyBody
from mainspring.service.schemas.preview import Preview, PreviewBody
from mainspring.service.schemas.run import Run, RunList, RunsBulkBody, RunsBulkResult, run_document
from mainspring.service.schemas.worker import WorkerList
from mainspring.service.schemas.workflow import ChainBody, ChainResult, Workflow
from mainspring.stores.protocol import JobOrder

__all__ = ["router"]

router = api_router(prefix="/api/v1")

Limit = Annotated[int, Query(ge=1, le=500, description="At most so many on a page.")]
Cursor = Annotated[
    str | None, Query(max_length=500, description="The `nextCursor` of the page before.")
]
_DRY_RUN: dict[int | str, dict[str, Any]] = {
    200: {"model": RenderedRequest, "description": "The request that a dry run shows."}
}

# -- jobs -----------------------------------------------------------------------------------


@router.post(
    "/jobs",
    status_code=201,
    response_model=job_schema.Job,
    responses=_DRY_RUN,
    tags=["jobs"],
    summary="Create a job",
)
async def create_job(
    body: JobBody,
    service: ServiceDep,
    request: Request,
    dry_run: RequestDryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    if dry_run:
        return json_response(await jobs.preview_request(service, body))
    made = await jobs.create_job(service, request, body, idempotency_key)
    headers = {"Location": path_of(request, f"/api/v1/jobs/{made.job.id}")}
    if made.replayed is not None:
        headers["Idempotency-Replayed"] = "true"
    return _job(made.job, made.secret, status=201, headers=headers)


_ORDERS: dict[str, JobOrder] = {
    "id": "id",
    "nextRunAt": "next_run_at",
    "lastRunAt": "last_run_at",
    "updatedAt": "updated_at",
}


@router.get("/jobs", response_model=JobList, tags=["jobs"], summary="List jobs")
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
    limit: Limit = 50,
    offset: Annotated[
        int, Query(ge=0, le=1_000_000, description="Leave out so many. For any order.")
    ] = 0,
    cursor: Annotated[
        str | None,
        Query(
            max_length=500,
            description="The `nextCursor` of the page before. Only in the order of ids.",
        ),
    ] = None,
) -> Response:
    if cursor is not None and (order != "id" or descending):
        why = "is for lists in the order of ids; use offset"
        raise ApiError.of_fields(FieldError.predicate("cursor", why))
    page = await service.client.list_jobs(
        tag=tag,
        queue=queue,
        enabled=enabled,
        search=search,
        order=_ORDERS[order],
        descending=descending,
        limit=limit,
        cursor=cursor,
        offset=offset,
    )
    items = [job_document(job) for job in page.items]
    return json_response({"items": items, "nextCursor": page.cursor})


@router.post(
    "/jobs/bulk",
    response_model=JobsBulkResult,
    tags=["jobs"],
    summary="Create, pause, resume, trigger or delete many jobs",
)
async def bulk_jobs(body: JobsBulkBody, service: ServiceDep) -> Response:
    items = await jobs.bulk_jobs(service, body)
    done = sum(one.problem is None for one in items)
    return json_response(
        {
            "matched": len(items),
            "succeeded": done,
            "failed": len(items) - done,
            "items": [_bulk_item(one) for one in items],
        }
    )


@router.post(
    "/jobs/prune-orphans",
    response_model=PrunedOrphans,
    tags=["jobs"],
    summary="Delete the jobs of code that is gone",
)
async def prune_orphans(
    service: ServiceDep, dry_run: PruneDryRun = False, force: Force = False
) -> Response:
    return json_response(await jobs.remove_orphans(service, dry_run=dry_run, force=force))


@router.get("/jobs/{id}", response_model=job_schema.Job, tags=["jobs"], summary="Read a job")
async def get_job(id: JobPath, service: ServiceDep) -> Response:
    return _job(await service.client.get_job(id))


@router.patch(
    "/jobs/{id}",
    response_model=job_schema.Job,
    tags=["jobs"],
    summary="Change a job; what is left out stays",
)
async def update_job(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    if_match: IfMatch = None,
) -> Response:
    return _job(*await jobs.update_job(service, id, body, if_match))


@router.delete(
    "/jobs/{id}", status_code=204, tags=["jobs"], summary="Delete a job; running work may end"
)
async def delete_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    await jobs.remove_job(service, id, if_match)
    return Response(status_code=204)


@router.post(
    "/jobs/{id}/trigger",
    status_code=202,
    response_model=Run,
    responses=_DRY_RUN,
    tags=["jobs"],
    summary="Run a job now",
)
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
        return json_response(await jobs.preview_trigger(service, id, body, if_match))
    run, replayed = await jobs.trigger_job(service, request, id, body, idempotency_key, if_match)
    headers = {"Location": path_of(request, f"/api/v1/runs/{run.id}")}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return json_response(run_document(run, whole=True), 202, headers)


@router.post(
    "/jobs/{id}/backfill",
    status_code=202,
    response_model=Backfill,
    responses={200: {"model": Backfill, "description": "What a dry run would add."}},
    tags=["jobs"],
    summary="Run past slots that have not run",
)
async def backfill_job(
    id: JobPath, body: BackfillBody, service: ServiceDep, dry_run: BackfillDryRun = False
) -> Response:
    found = await jobs.backfill_job(service, id, body, dry_run=dry_run)
    return json_response(found, 200 if dry_run else 202)


@router.post(
    "/jobs/{id}/pause",
    response_model=job_schema.Job,
    tags=["jobs"],
    summary="Fire no more slots until the job is resumed",
)
async def pause_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await jobs.set_job_enabled(service, id, if_match, enabled=False))


@router.post(
    "/jobs/{id}/resume",
    response_model=job_schema.Job,
    tags=["jobs"],
    summary="Go on with the next slot",
)
async def resume_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await jobs.set_job_enabled(service, id, if_match, enabled=True))


@router.get(
    "/jobs/{id}/health",
    response_model=JobHealth,
    tags=["jobs"],
    summary="Show the health of a job",
)
async def get_job_health(id: JobPath, service: ServiceDep) -> Response:
    return json_response(await jobs.read_health(service, id))


@router.get(
    "/jobs/{id}/metrics",
    response_model=JobMetrics,
    tags=["jobs"],
    summary="Show the metrics of a job",
)
async def get_job_metrics(id: JobPath, service: ServiceDep, window: Window = "24h") -> Response:
    return json_response(await jobs.read_metrics(service, id, window))


@router.get(
    "/jobs/{id}/workflow",
    response_model=Workflow,
    tags=["jobs"],
    summary="Show the workflow that a job belongs to",
)
async def get_job_workflow(id: JobPath, service: ServiceDep) -> Response:
    return json_response(await workflows.read_job_workflow(service, id))


@router.post(
    "/chains",
    status_code=202,
    response_model=ChainResult,
    tags=["jobs"],
    summary="Run jobs one after the other",
)
async def enqueue_chain(body: ChainBody, service: ServiceDep) -> Response:
    made = await workflows.enqueue_chain(service, body)
    return json_response({"items": [run_document(run, whole=True) for run in made]}, 202)


@router.post(
    "/jobs/{id}/breaker/reset",
    response_model=job_schema.Job,
    tags=["jobs"],
    summary="Close the circuit breaker and let its waiting runs start",
)
async def reset_breaker(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await jobs.close_breaker(service, id, if_match))


@router.get(
    "/jobs/{id}/explain",
    response_model=Explanation,
    tags=["jobs"],
    summary="Say why a job does not run, or did not",
)
async def explain_job(
    id: JobPath, service: ServiceDep, at: explanations.SlotTime = None
) -> Response:
    return json_response(await explanations.explain_job(service, id, at))


# -- runs -----------------------------------------------------------------------------------


@router.get("/runs", response_model=RunList, tags=["runs"], summary="List runs, newest first")
async def list_runs(
    service: ServiceDep,
    job: runs.OfJob = None,
    state: runs.States = None,
    failing: runs.Failing = False,
    since: runs.Moment = None,
    until: runs.Moment = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    page = await runs.find_runs(
        service,
        job=job,
        state=state,
        failing=failing,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
    )
    items = [run_document(run) for run in page.items]
    return json_response({"items": items, "nextCursor": page.cursor})


@router.post(
    "/runs/bulk",
    response_model=RunsBulkResult,
    tags=["runs"],
    summary="Cancel, retry or delete many runs",
)
async def bulk_runs(body: RunsBulkBody, service: ServiceDep) -> Response:
    done = await runs.bulk_runs(service, body)
    return json_response(camel_case(done))


@router.get("/runs/{id}", response_model=Run, tags=["runs"], summary="Read a run with its attempts")
async def get_run(id: RunPath, service: ServiceDep) -> Response:
    return await _run(service, id)


@router.get(
    "/runs/{id}/workflow",
    response_model=Workflow,
    tags=["runs"],
    summary="Show the workflow that a run belongs to",
)
async def get_run_workflow(id: RunPath, service: ServiceDep) -> Response:
    return json_response(await workflows.read_run_workflow(service, id))


@router.get(
    "/runs/{id}/explain",
    response_model=Explanation,
    tags=["runs"],
    summary="Say why a run has not run",
)
async def explain_run(id: RunPath, service: ServiceDep) -> Response:
    return json_response(await explanations.explain_run(service, id))


@router.post("/runs/{id}/cancel", response_model=Run, tags=["runs"], summary="Cancel a run")
async def cancel_run(id: RunPath, service: ServiceDep) -> Response:
    await runs.cancel_run(service, id)
    return await _run(service, id)


@router.post(
    "/runs/{id}/retry", response_model=Run, tags=["runs"], summary="Try a failed run again"
)
async def retry_run(id: RunPath, service: ServiceDep) -> Response:
    await service.client.retry(id)
    return await _run(service, id)


@router.delete("/runs/{id}", status_code=204, tags=["runs"], summary="Delete a finished run")
async def delete_run(id: RunPath, service: ServiceDep) -> Response:
    await runs.remove_run(service, id)
    return Response(status_code=204)


@router.get(
    "/workers",
    response_model=WorkerList,
    tags=["health"],
    summary="List the workers that are alive",
)
async def list_workers(service: ServiceDep) -> Response:
    return json_response({"items": await workers.list_workers(service), "nextCursor": None})


# -- the rest ---------------------------------------------------------------------------------


@router.post(
    "/schedules/preview",
    response_model=Preview,
    tags=["schedules"],
    summary="Show the next slots of a schedule",
)
async def preview_schedule(body: PreviewBody, service: ServiceDep) -> Response:
    return json_response(await schedules.compute_preview(service, body))


@router.get(
    "/schedules/forecast",
    response_model=Forecast,
    tags=["schedules"],
    summary="Forecast the load that the schedules of all jobs make",
)
async def forecast_schedules(
    service: ServiceDep,
    days: schedules.ForecastDays = 30,
    start: schedules.ForecastStart = None,
    timezone: schedules.ForecastZone = None,
) -> Response:
    return json_response(await schedules.compute_forecast(service, days, start, timezone))


@router.get(
    "/events",
    tags=["events"],
    summary="Follow events (server-sent events)",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def follow_events(
    service: ServiceDep,
    request: Request,
    event: events.EventNames = None,
    job: events.OfJob = None,
) -> Response:
    return events.open_stream(service, request, event, job)


@router.get(
    "/health", response_model=Health, tags=["health"], summary="Show the health of the service"
)
async def get_health(service: ServiceDep) -> Response:
    return json_response(await health.read_health(service))


@router.post(
    "/pause",
    response_model=Firing,
    tags=["jobs"],
    summary="Fire no slots of any job, on any node, until firing is resumed",
)
async def pause_all(service: ServiceDep) -> Response:
    return json_response(await firing.pause_firing(service))


@router.post(
    "/resume", response_model=Firing, tags=["jobs"], summary="Fire slots again, from now on"
)
async def resume_all(service: ServiceDep) -> Response:
    return json_response(await firing.resume_firing(service))


@router.get(
    "/statistics", response_model=Statistics, tags=["health"], summary="Count jobs and runs"
)
async def get_statistics(service: ServiceDep) -> Response:
    found, last_day = await health.read_stats(service)
    kept = {name: found[name] for name in ("jobs", "runs", "due")}
    return json_response({**kept, "lastDay": last_day})


@router.get(
    "/statistics/history",
    response_model=History,
    tags=["health"],
    summary="Show how runs ended over time",
)
async def get_history(
    service: ServiceDep,
    window: Annotated[
        Literal["1h", "24h", "7d"],
        Query(description="How far back: by the minute, the quarter of an hour, or two hours."),
    ] = "24h",
) -> Response:
    return json_response(await health.read_history(service, window))


@router.get(
    "/breakers",
    response_model=OpenBreakerList,
    tags=["health"],
    summary="List the circuit breakers that are open",
)
async def list_open_breakers(service: ServiceDep) -> Response:
    items = await health.read_open_breakers(service)
    return json_response({"items": items, "nextCursor": None})


@router.get("/audit", response_model=AuditList, tags=["keys"], summary="List changes, newest first")
async def list_audit(service: ServiceDep, limit: Limit = 50, cursor: Cursor = None) -> Response:
    page = await service.audit.list(limit, cursor)
    items = [audit_document(one) for one in page.items]
    return json_response({"items": items, "nextCursor": page.cursor})


@router.post(
    "/keys", status_code=201, response_model=ApiKey, tags=["keys"], summary="Create an API key"
)
async def create_key(body: KeyBody, service: ServiceDep, request: Request) -> Response:
    return json_response(await keys.create_key(service, request, body), 201)


@router.get("/keys", response_model=ApiKeyList, tags=["keys"], summary="List API keys")
async def list_keys(service: ServiceDep) -> Response:
    return json_response({"items": await keys.list_all_keys(service), "nextCursor": None})


@router.delete("/keys/{id}", status_code=204, tags=["keys"], summary="Revoke an API key")
async def revoke_key(id: str, service: ServiceDep) -> Response:
    await keys.revoke_key(service, id)
    return Response(status_code=204)


# -- steps ------------------------------------------------------------------------------------


def _job(
    job: Job,
    secret: str | None = None,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    document = job_document(job)
    if secret is not None:
        document["signingSecret"] = secret
    return json_response(document, status, {"ETag": etag(job), **(headers or {})})


async def _run(service: Service, run_id: str) -> Response:
    return json_response(await runs.read_whole_run(service, run_id))


def _bulk_item(item: jobs.BulkItem) -> dict[str, Any]:
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
