"""`/api/v1`: the API in its own form. Documents stand alone, lists are `items` with `nextCursor`,
and errors are RFC 9457 problems with a `code`.

What is done is the same as in the forms of the compatibility page: the functions of `jobs.py`,
`runs.py` and the others.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from mainspring.core.model import Job, State
from mainspring.errors import InvalidInput
from mainspring.service import problems
from mainspring.service.dependencies import JobPath, RunPath, Service, ServiceDep
from mainspring.service.problems import Problem
from mainspring.service.routes import events, health, jobs, keys, runs, schedules
from mainspring.service.routes.jobs import DryRun, IdempotencyKey, IfMatch, NoIdempotencyKey
from mainspring.service.schemas import documents, v1
from mainspring.service.schemas.requests import (
    JobBody,
    JobsBulkBody,
    JobUpdateBody,
    KeyBody,
    PreviewBody,
    RunsBulkBody,
    TriggerBody,
)

__all__ = ["router"]

router = APIRouter(prefix="/api/v1")

Limit = Annotated[int, Query(ge=1, le=500, description="At most so many on a page.")]
Cursor = Annotated[
    str | None, Query(max_length=500, description="`nextCursor` of the page before.")
]
_DRY_RUN: dict[int | str, dict[str, Any]] = {
    200: {"model": v1.RenderedRequest, "description": "What a dry run shows."}
}

# -- jobs -----------------------------------------------------------------------------------


@router.post(
    "/jobs",
    status_code=201,
    response_model=v1.Job,
    responses=_DRY_RUN,
    tags=["jobs"],
    summary="Create a job",
)
async def create_job(
    body: JobBody,
    service: ServiceDep,
    request: Request,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    if dry_run:
        return documents.answer(await jobs.would_send(service, body))
    made = await jobs.create_job(service, request, body, idempotency_key)
    job = made.job
    if job is None:  # what the first answer told was kept in short; the job itself tells more
        assert made.replayed is not None
        job = await jobs.created_before(service, made.replayed["jobId"])
    headers = {"Location": _address(request, f"jobs/{job.id}")}
    if made.replayed is not None:
        headers["Idempotency-Replayed"] = "true"
    return _job(job, made.secret, status=201, headers=headers)


@router.get("/jobs", response_model=v1.JobList, tags=["jobs"], summary="List jobs, by id")
async def list_jobs(
    service: ServiceDep,
    tag: Annotated[str | None, Query(max_length=200, description="With this tag.")] = None,
    enabled: Annotated[bool | None, Query(description="Switched on, or off.")] = None,
    search: Annotated[
        str | None, Query(max_length=200, description="A part of the id or the description.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    try:
        page = await service.scheduler.list_jobs(
            tag=tag, enabled=enabled, search=search, limit=limit, cursor=cursor
        )
    except (InvalidInput, OverflowError):
        raise Problem.of_field("cursor", f"{cursor!r} is no cursor that a page gave") from None
    items = [documents.job_document(job) for job in page.items]
    return documents.answer({"items": items, "nextCursor": page.cursor})


@router.post(
    "/jobs/bulk",
    response_model=v1.JobsBulkResult,
    tags=["jobs"],
    summary="Create, pause, resume, trigger or delete many jobs",
)
async def bulk_jobs(
    body: JobsBulkBody, service: ServiceDep, idempotency_key: NoIdempotencyKey = None
) -> Response:
    jobs.refuse_idempotency_key(idempotency_key)
    items = await jobs.bulk_jobs(service, body)
    done = sum(one.problem is None for one in items)
    return documents.answer(
        {
            "matched": len(items),
            "succeeded": done,
            "failed": len(items) - done,
            "items": [_bulk_item(one) for one in items],
        }
    )


@router.get("/jobs/{id}", response_model=v1.Job, tags=["jobs"], summary="Read a job")
async def get_job(id: JobPath, service: ServiceDep) -> Response:
    return _job(await service.job(id))


@router.patch(
    "/jobs/{id}",
    response_model=v1.Job,
    tags=["jobs"],
    summary="Change a job; what is left out stays",
)
async def update_job(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    request: Request,
    if_match: IfMatch = None,
    idempotency_key: NoIdempotencyKey = None,
) -> Response:
    jobs.refuse_idempotency_key(idempotency_key)
    await jobs.refuse_other_id(request, id)
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
    response_model=v1.Run,
    responses=_DRY_RUN,
    tags=["jobs"],
    summary="Run a job now",
)
async def trigger_job(
    id: JobPath,
    service: ServiceDep,
    request: Request,
    body: TriggerBody | None = None,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Response:
    if dry_run:
        return documents.answer(await jobs.would_trigger(service, id, body, if_match))
    run, replayed = await jobs.trigger_job(service, request, id, body, idempotency_key, if_match)
    headers = {"Location": _address(request, f"runs/{run.id}")}
    if replayed:
        headers["Idempotency-Replayed"] = "true"
    return documents.answer(documents.run_document(run, whole=True), 202, headers)


@router.post(
    "/jobs/{id}/pause",
    response_model=v1.Job,
    tags=["jobs"],
    summary="Fire no more slots until the job is resumed",
)
async def pause_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await jobs.switch_job(service, id, if_match, enabled=False))


@router.post(
    "/jobs/{id}/resume",
    response_model=v1.Job,
    tags=["jobs"],
    summary="Go on with the next slot",
)
async def resume_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job(await jobs.switch_job(service, id, if_match, enabled=True))


# -- runs -----------------------------------------------------------------------------------


@router.get("/runs", response_model=v1.RunList, tags=["runs"], summary="List runs, newest first")
async def list_runs(
    service: ServiceDep,
    job: Annotated[str | None, Query(max_length=200, description="Of this job.")] = None,
    state: Annotated[list[State] | None, Query(description="In one of these states.")] = None,
    failing: Annotated[
        bool, Query(description="Only those with a failed attempt, whatever became of them.")
    ] = False,
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
    items = [documents.run_document(run) for run in page.items]
    return documents.answer({"items": items, "nextCursor": page.cursor})


@router.post(
    "/runs/bulk",
    response_model=v1.RunsBulkResult,
    tags=["runs"],
    summary="Cancel, retry or delete many runs",
)
async def bulk_runs(
    body: RunsBulkBody, service: ServiceDep, idempotency_key: NoIdempotencyKey = None
) -> Response:
    jobs.refuse_idempotency_key(idempotency_key)
    done = await runs.bulk_runs(service, body)
    return documents.answer({"matched": done.matched, "done": done.done, "more": done.more})


@router.get(
    "/runs/{id}", response_model=v1.Run, tags=["runs"], summary="Read a run with its attempts"
)
async def get_run(id: RunPath, service: ServiceDep) -> Response:
    return await _run(service, id)


@router.post("/runs/{id}/cancel", response_model=v1.Run, tags=["runs"], summary="Cancel a run")
async def cancel_run(id: RunPath, service: ServiceDep) -> Response:
    await runs.cancel_run(service, id)
    return await _run(service, id)


@router.post(
    "/runs/{id}/retry", response_model=v1.Run, tags=["runs"], summary="Try a failed run again"
)
async def retry_run(id: RunPath, service: ServiceDep) -> Response:
    await service.scheduler.retry(id)
    return await _run(service, id)


@router.delete("/runs/{id}", status_code=204, tags=["runs"], summary="Delete a finished run")
async def delete_run(id: RunPath, service: ServiceDep) -> Response:
    await runs.remove_run(service, id)
    return Response(status_code=204)


# -- the rest ---------------------------------------------------------------------------------


@router.post(
    "/schedules/preview",
    response_model=v1.Preview,
    tags=["schedules"],
    summary="Show the next slots of a schedule",
)
async def preview_schedule(body: PreviewBody, service: ServiceDep) -> Response:
    return documents.answer(await schedules.preview_of(service, body))


@router.get(
    "/events",
    tags=["events"],
    summary="Follow what happens (server-sent events)",
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


@router.get("/health", response_model=v1.Health, tags=["health"], summary="Tell how it stands")
async def get_health(service: ServiceDep) -> Response:
    found = await health.health_of(service)
    state = found["scheduler"]
    return documents.answer(
        {
            "status": found["status"],
            "time": found["timestamp"],
            "store": found["store"],
            "running": state["runningJobs"],
            "capacity": state["maxConcurrentJobs"],
            **{name: state[name] for name in ("pollInterval", "isLeader", "stuckThreads")},
            "jobsWithoutWorker": found["jobsWithoutWorker"],
        }
    )


@router.get(
    "/statistics", response_model=v1.Statistics, tags=["health"], summary="Count jobs and runs"
)
async def get_statistics(service: ServiceDep) -> Response:
    found, last_day = await health.stats_of(service)
    kept = {name: found[name] for name in ("jobs", "runs", "due")}
    return documents.answer({**kept, "lastDay": last_day})


@router.post(
    "/keys", status_code=201, response_model=v1.ApiKey, tags=["keys"], summary="Create an API key"
)
async def create_key(body: KeyBody, service: ServiceDep) -> Response:
    return documents.answer(await keys.create_key(service, body), 201)


@router.get("/keys", response_model=v1.ApiKeyList, tags=["keys"], summary="List API keys")
async def list_keys(service: ServiceDep) -> Response:
    return documents.answer({"items": await keys.all_keys(service), "nextCursor": None})


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
    document = documents.job_document(job)
    if secret is not None:
        document["signingSecret"] = secret
    return documents.answer(document, status, {"ETag": documents.etag(job), **(headers or {})})


async def _run(service: Service, run_id: str) -> Response:
    return documents.answer(await runs.whole_run(service, run_id))


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
        document["problem"] = problems.problem_document(item.problem)
    return document


def _address(request: Request, path: str) -> str:
    """Where something is found, also where the API is mounted below a path."""
    return f"{request.scope.get('root_path', '')}/api/v1/{path}"
