"""Jobs: create, list, read, change, delete, trigger, pause, resume; one or many at once.

The routes here are the compatibility operations (`/api/jobs`); those of `/api/v1` are
in `v1.py`. Both call the functions below the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

from fastapi import Header, Query, Request, Response
from msgspec import Struct
from pydantic import ValidationError

from mainspring.core.model import Job, Run
from mainspring.core.schedules.base import moment
from mainspring.errors import (
    Conflict,
    HandlerNotFound,
    InvalidInput,
    JobChanged,
    JobNotFound,
    MainspringError,
)
from mainspring.scheduler.definitions import is_stored_as
from mainspring.service.dependencies import (
    COMPATIBILITY,
    JobPath,
    PageLimit,
    Service,
    ServiceDep,
    caller,
    note_created,
    path_of,
)
from mainspring.service.idempotency import REFUSALS, IdempotentRequest
from mainspring.service.problems import (
    ApiError,
    FieldError,
    from_library_error,
    from_validation_error,
)
from mainspring.service.router import api_router
from mainspring.service.routes.runs import find_executions
from mainspring.service.schemas.backfill import BackfillAnswer, BackfillBody, backfill_document
from mainspring.service.schemas.execution import Executions
from mainspring.service.schemas.fields import TolerantBody, query_of
from mainspring.service.schemas.job import (
    Bulk,
    ChangedAnswer,
    CompatJobPage,
    Created,
    JobAnswer,
    JobBody,
    JobMatchBody,
    JobsBulkBody,
    JobUpdateBody,
    PrunedOrphansAnswer,
    Shown,
    TriggerBody,
    created_document,
    etag,
    job_document,
)
from mainspring.service.schemas.job_health import (
    JobHealthAnswer,
    JobMetricsAnswer,
    metrics_document,
)
from mainspring.service.schemas.job_options import (
    document_faults,
    job_changes,
    job_options,
    library_faults,
    merge_faults,
    new_job_id,
)
from mainspring.service.schemas.json_format import camel_case, json_response, to_iso
from mainspring.service.schemas.problem import Done
from mainspring.service.schemas.run import RunAnswer, run_document
from mainspring.webhooks.definition import check_payload
from mainspring.webhooks.vault import new_signing_secret

__all__ = [
    "BackfillDryRun",
    "BulkItem",
    "CreatedJob",
    "Enabled",
    "Force",
    "IdempotencyKey",
    "IfMatch",
    "PruneDryRun",
    "Queue",
    "RequestDryRun",
    "Search",
    "Tag",
    "Window",
    "backfill_job",
    "bulk_jobs",
    "create_job",
    "preview_request",
    "preview_trigger",
    "read_health",
    "read_metrics",
    "remove_job",
    "remove_orphans",
    "router",
    "set_job_enabled",
    "trigger_job",
    "update_job",
]

router = api_router(prefix="/api/jobs", tags=[COMPATIBILITY])

BULK_CHUNK = 50
"""How many jobs of a bulk request are worked on at once; those of a chunk share their commits."""

MAX_EDIT_TRIES = 100
"""How often an edit is repeated because another edit came first. Each of those was done, so edits
always make progress."""

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


@router.post(
    "",
    status_code=201,
    response_model=Created,
    responses={200: {"model": Shown, "description": "The request that a dry run shows."}},
    summary="Create a job",
)
async def create(
    body: JobBody,
    service: ServiceDep,
    request: Request,
    dry_run: RequestDryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    if dry_run:
        return json_response({"success": True, "data": await preview_request(service, body)})
    made = await create_job(service, request, body, idempotency_key)
    if made.replayed is not None:
        return _replayed_response(request, made.replayed)
    return _created_response(request, made.job, made.secret)


@router.get("", response_model=CompatJobPage, summary="List jobs, by page")
async def list_jobs(
    service: ServiceDep,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    limit: PageLimit = 20,
    tag: Tag = None,
    enabled: Enabled = None,
    search: Search = None,
) -> Response:
    found = await service.client.list_jobs(
        tag=tag,
        enabled=enabled,
        search=search,
        limit=limit,
        offset=(page - 1) * limit,
        with_total=True,
    )
    return json_response(
        {
            "success": True,
            "data": [job_document(job, compatibility=True) for job in found.items],
            "page": page,
            "limit": limit,
            "total": found.total,
        }
    )


@router.post(
    "/bulk", response_model=Bulk, summary="Create, pause, resume, trigger or delete many jobs"
)
async def bulk(body: JobsBulkBody, service: ServiceDep) -> Response:
    items = await bulk_jobs(service, body)
    done = sum(one.problem is None for one in items)
    return json_response(
        {
            "success": done == len(items),
            "data": [_bulk_result(one) for one in items],
            "matched": len(items),
            "done": done,
        }
    )


@router.post(
    "/prune-orphans",
    response_model=PrunedOrphansAnswer,
    summary="Delete the jobs of code that is gone",
)
async def prune_orphans(
    service: ServiceDep, dry_run: PruneDryRun = False, force: Force = False
) -> Response:
    found = await remove_orphans(service, dry_run=dry_run, force=force)
    return json_response({"success": True, "data": found})


@router.get("/{id}", response_model=JobAnswer, summary="Read a job")
async def get(id: JobPath, service: ServiceDep) -> Response:
    return _job_response(await service.client.get_job(id))


@router.put("/{id}", response_model=ChangedAnswer, summary="Change a job; what is left out stays")
async def update(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    if_match: IfMatch = None,
) -> Response:
    job, secret = await update_job(service, id, body, if_match)
    return _job_response(job, signing_secret=secret)


@router.delete("/{id}", response_model=Done, summary="Delete a job; runs that are running may end")
async def delete(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    await remove_job(service, id, if_match)
    return json_response({"success": True, "message": f"job {id} was deleted"})


@router.post(
    "/{id}/trigger",
    status_code=202,
    response_model=RunAnswer,
    responses={200: {"model": Shown, "description": "The request that a dry run shows."}},
    summary="Run a job now",
)
async def trigger(
    id: JobPath,
    service: ServiceDep,
    request: Request,
    body: TriggerBody | None = None,
    dry_run: RequestDryRun = False,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Response:
    if dry_run:
        shown = await preview_trigger(service, id, body, if_match)
        return json_response({"success": True, "data": shown})
    run, replayed = await trigger_job(service, request, id, body, idempotency_key, if_match)
    return _run_response(run, {"Idempotency-Replayed": "true"} if replayed else None)


@router.post(
    "/{id}/backfill",
    status_code=202,
    response_model=BackfillAnswer,
    responses={200: {"model": BackfillAnswer, "description": "What a dry run would add."}},
    summary="Run past slots that have not run",
)
async def backfill(
    id: JobPath, body: BackfillBody, service: ServiceDep, dry_run: BackfillDryRun = False
) -> Response:
    found = await backfill_job(service, id, body, dry_run=dry_run)
    return json_response({"success": True, "data": found}, 200 if dry_run else 202)


@router.get("/{id}/health", response_model=JobHealthAnswer, summary="Show the health of a job")
async def health(id: JobPath, service: ServiceDep) -> Response:
    return json_response({"success": True, "data": await read_health(service, id)})


@router.get("/{id}/metrics", response_model=JobMetricsAnswer, summary="Show the metrics of a job")
async def metrics(id: JobPath, service: ServiceDep, window: Window = "24h") -> Response:
    return json_response({"success": True, "data": await read_metrics(service, id, window)})


@router.post(
    "/{id}/pause", response_model=JobAnswer, summary="Fire no more slots until the job is resumed"
)
async def pause(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job_response(await set_job_enabled(service, id, if_match, enabled=False))


@router.post("/{id}/resume", response_model=JobAnswer, summary="Go on with the next slot")
async def resume(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job_response(await set_job_enabled(service, id, if_match, enabled=True))


@router.post(
    "/{id}/breaker/reset",
    response_model=JobAnswer,
    summary="Close the circuit breaker and let its waiting runs start",
)
async def reset_breaker(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _job_response(await close_breaker(service, id, if_match))


@router.get("/{id}/executions", response_model=Executions, summary="Attempts, newest first")
async def executions(id: JobPath, service: ServiceDep, limit: PageLimit = 5) -> Response:
    await service.client.get_job(id)
    found = await find_executions(service, {"job": id, "tried": True}, limit=limit)
    return json_response({"success": True, "data": found})


# -- operations, for `/api/v1` too --------------------------------------------------------------


class CreatedJob(Struct, frozen=True):
    """A new job and its signing secret, or one that an earlier request with the same
    Idempotency-Key made: `replayed` is what is kept of the first answer."""

    job: Job
    secret: str | None = None
    replayed: dict[str, Any] | None = None


class BulkItem(Struct, frozen=True, kw_only=True):
    """The result for one job of many. `index` is its place in the jobs to create."""

    index: int | None = None
    job_id: str | None = None
    job: Job | None = None
    secret: str | None = None
    run_id: str | None = None
    problem: ApiError | None = None


async def create_job(
    service: Service, request: Request, body: JobBody, idempotency_key: str | None
) -> CreatedJob:
    made = await _create_once(service, request, body, idempotency_key)
    note_created(request, made.job.id)
    return made


async def _create_once(
    service: Service, request: Request, body: JobBody, idempotency_key: str | None
) -> CreatedJob:
    if idempotency_key is None:
        return CreatedJob(*await _add_job(service, new_job_id(body), body))
    once = await IdempotentRequest.begin(
        service.client, caller(request), idempotency_key, await request.body(), new_job_id(body)
    )
    if once.answer is not None:
        job = await _created_before(service, once.answer["jobId"])
        return CreatedJob(job, replayed=once.answer)
    try:
        job, secret = await _add_job(service, once.job_id, body)
    except (MainspringError, ApiError) as error:
        found = await once.recover(error, lambda job: _is_created_by(service, job, body))
        return CreatedJob(found, replayed=created_document(found, None))
    await once.finish(created_document(job, None))
    return CreatedJob(job, secret)


async def _created_before(service: Service, id: str) -> Job:
    """The job that an earlier request with the same Idempotency-Key made."""
    try:
        return await service.client.get_job(id)
    except JobNotFound:
        why = (
            f"the job {id!r}, which this Idempotency-Key created, was deleted: use a new key to"
            " create another"
        )
        raise ApiError(409, why, code="job_deleted") from None


async def update_job(
    service: Service, id: str, body: JobUpdateBody, if_match: str | None
) -> tuple[Job, str | None]:
    """Change a job. Returns it, and its new signing secret if one was asked for."""
    secret = new_signing_secret() if body.sent.get("rotate_secret") else None
    for _ in range(MAX_EDIT_TRIES):
        job = await service.client.get_job(id)
        _check_if_match(job, if_match)
        faults = document_faults(body, job)
        changes = job_changes(job, body)
        if faults:  # the client gets the library's errors beside them, as for a new job
            with _named_fields(body, faults):
                service.client.edited(job, service.client.store_time(), changes)
            raise ApiError.of_fields(*faults)
        if secret is not None:  # in the same edit as the others: all is done, or nothing
            changes["signing_secret"] = secret
        with _named_fields(body), contextlib.suppress(JobChanged):
            return await service.client.update_job(id, expected_version=job, **changes), secret
    raise Conflict(f"job {id!r} is changed by other requests all the time; try again")


async def remove_job(service: Service, id: str, if_match: str | None) -> None:
    job = await service.client.get_job(id)
    await service.client.remove_job(id, expected_version=_check_if_match(job, if_match))


async def set_job_enabled(service: Service, id: str, if_match: str | None, *, enabled: bool) -> Job:
    expected = _check_if_match(await service.client.get_job(id), if_match)
    switch = service.client.resume_job if enabled else service.client.pause_job
    return await switch(id, expected_version=expected)


async def close_breaker(service: Service, id: str, if_match: str | None) -> Job:
    job = await service.client.get_job(id)
    _check_if_match(job, if_match)
    await service.client.reset_breaker(id)
    return job


async def trigger_job(
    service: Service,
    request: Request,
    id: str,
    body: TriggerBody | None,
    idempotency_key: str | None,
    if_match: str | None,
) -> tuple[Run, bool]:
    """The run, and whether an earlier request with this key made it."""
    payload = body.payload if body else None
    if if_match is not None:
        _check_if_match(await service.client.get_job(id), if_match)
    if idempotency_key is None:
        run = await service.client.trigger(id, payload)
        note_created(request, run.id)
        return run, False
    key_and_job = f"{caller(request)}\0{id}"
    once = await IdempotentRequest.begin(
        service.client, key_and_job, idempotency_key, await request.body(), id
    )
    if once.answer is not None:
        return await service.client.get_run(once.answer["run"]), True
    try:
        run = await service.client.trigger(id, payload, **once.dedupe)
    except REFUSALS:
        await once.free()
        raise
    await once.finish({"run": run.id})
    note_created(request, run.id)
    return run, False


async def read_health(service: Service, job_id: str) -> dict[str, Any]:
    return camel_case(await service.client.job_health(job_id))


async def read_metrics(service: Service, job_id: str, window: str) -> dict[str, Any]:
    """Raises `ApiError` for a window that cannot be used."""
    try:
        return metrics_document(await service.client.job_metrics(job_id, window))
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError("window", str(error))) from None


async def backfill_job(
    service: Service, id: str, body: BackfillBody, *, dry_run: bool
) -> dict[str, Any]:
    sent = body.sent  # the times as they were read; one without an offset is in UTC
    found = await service.client.backfill(
        id,
        moment(sent["start"], "UTC", "start"),
        moment(sent["end"], "UTC", "end"),
        limit=body.limit,
        priority=body.priority,
        dry_run=dry_run,
    )
    return backfill_document(found)


async def remove_orphans(service: Service, *, dry_run: bool, force: bool) -> dict[str, Any]:
    found = await service.client.prune_orphans(dry_run=dry_run, force=force)
    return {"jobs": [job.id for job in found], "removed": not dry_run}


async def preview_trigger(
    service: Service, id: str, body: TriggerBody | None, if_match: str | None
) -> dict[str, Any]:
    """The request that a trigger would send."""
    job = await service.client.get_job(id)
    _check_if_match(job, if_match)
    return await _request_of(service, job, body.payload if body else None)


async def bulk_jobs(service: Service, body: JobsBulkBody) -> list[BulkItem]:
    items: list[BulkItem] = []
    if body.action == "create":
        given = list(enumerate(body.jobs or []))
        for start in range(0, len(given), BULK_CHUNK):
            made = (_create_one(service, *one) for one in given[start : start + BULK_CHUNK])
            items += await asyncio.gather(*made)
        return items
    names = [name async for name in _chosen_ids(service, body)]
    if body.action != "trigger":
        return await _apply_to_all(service, body.action, names)
    for start in range(0, len(names), BULK_CHUNK):
        made = (_trigger_one(service, name) for name in names[start : start + BULK_CHUNK])
        items += await asyncio.gather(*made)
    return items


# -- steps ----------------------------------------------------------------------------------


async def _add_job(
    service: Service, job_id: str, body: JobBody, *, dry_run: bool = False
) -> tuple[Job, str | None]:
    """Create the job. Returns it, and the secret that signs its requests.

    The library checks the rules of a job, once. Where the document is wrong already, it checks the
    fields that can be read, so that the client gets every error at once. What depends on the store
    (whether the jobs of `after` exist, whether the schedule is over) is checked when all else is
    right.
    """
    faults = document_faults(body)
    if dry_run and body.as_sent.get("endpoint") is None:
        why = "only a job that calls an endpoint has a request to show"
        faults = merge_faults(faults, [FieldError("endpoint", why)])
    options = job_options(body, service.settings, service.client.defaults)
    secret = None
    if "webhook" in options and service.client.webhooks.vault.is_usable:
        secret = options["webhook"]["signing_secret"] = new_signing_secret()
    with _named_fields(body, faults):
        if faults:
            service.client.draft(job_id, **options)
            raise ApiError.of_fields(*faults)
        return await service.client.add_job(job_id, dry_run=dry_run, **options), secret


@contextlib.contextmanager
def _named_fields(body: TolerantBody, faults: Sequence[FieldError] = ()) -> Iterator[None]:
    """Report the library's errors under the names of the fields that the client sent, beside the
    faults that the service found itself."""
    try:
        yield
    except InvalidInput as error:
        found = merge_faults(library_faults(error, body), faults)
        if not found:
            raise
        raise ApiError.of_fields(*found) from None
    except HandlerNotFound as error:
        if not faults:
            raise
        raise ApiError.of_fields(*faults, FieldError("handler", str(error))) from None


def _is_created_by(service: Service, job: Job, body: JobBody) -> bool:
    """Whether the stored job is what this body makes."""
    if body.sent.get("id") is None and body.sent.get("name") is None:
        return True  # its random id was made for this request
    client = service.client
    try:
        options = job_options(body, service.settings, client.defaults)
        draft = client.draft(job.id, **options)
        return is_stored_as(draft, job, client.webhooks)
    except (MainspringError, ApiError):
        return False


def _created_response(request: Request, job: Job, secret: str | None) -> Response:
    headers = {"Location": path_of(request, f"/api/jobs/{job.id}"), "ETag": etag(job)}
    return json_response({"success": True, "data": created_document(job, secret)}, 201, headers)


def _replayed_response(request: Request, data: dict[str, Any]) -> Response:
    headers = {
        "Location": path_of(request, f"/api/jobs/{data['jobId']}"),
        "Idempotency-Replayed": "true",
    }
    return json_response({"success": True, "data": data}, 201, headers)


def _run_response(run: Run, headers: dict[str, str] | None = None) -> Response:
    document = {"success": True, "data": run_document(run, whole=True)}
    return json_response(document, 202, headers)


def _job_response(job: Job, *, signing_secret: str | None = None) -> Response:
    document = job_document(job, compatibility=True)
    if signing_secret is not None:
        document["signingSecret"] = signing_secret
    return json_response({"success": True, "data": document}, headers={"ETag": etag(job)})


def _check_if_match(job: Job, if_match: str | None) -> Job | None:
    """Refuse if the job is not the one that the client read. Returns the job if it named one."""
    if if_match is None or if_match.strip() == "*":
        return None
    tags = [one.strip().removeprefix("W/") for one in if_match.split(",")]
    if etag(job) not in tags:
        raise ApiError(412, f"job {job.id!r} was changed after you read it: read it again")
    return job


async def preview_request(service: Service, body: JobBody) -> dict[str, Any]:
    job, _ = await _add_job(service, new_job_id(body), body, dry_run=True)
    return await _request_of(service, job)


async def _request_of(service: Service, job: Job, body: Any = None) -> dict[str, Any]:
    if job.webhook is None:
        raise ApiError(
            422, f"job {job.id!r} runs the handler {job.handler!r}: it calls no endpoint"
        )
    if body is not None:  # as a real trigger checks it
        check_payload(body)
    made = service.client.webhooks.preview(job, await service.client.now(), body=body)
    return {
        "jobId": job.id,
        "method": made.method,
        "url": made.url,
        "headers": made.masked_headers(),
        "body": made.body.decode("utf-8", "replace"),
        "nextRunAt": to_iso(job.next_run_at),
    }


async def _create_one(service: Service, at: int, given: Any) -> BulkItem:
    try:
        body = JobBody.model_validate(given)
        job, secret = await _add_job(service, new_job_id(body), body)
    except (ValidationError, MainspringError, ApiError) as error:
        return BulkItem(index=at, problem=_api_error(error))
    return BulkItem(index=at, job_id=job.id, job=job, secret=secret)


async def _chosen_ids(service: Service, body: JobsBulkBody) -> AsyncIterator[str]:
    if body.ids is not None:
        for name in dict.fromkeys(body.ids):
            yield name
        return
    assert body.match is not None
    cursor: str | None = None
    while True:
        page = await service.client.list_jobs(**body.match.sent, limit=500, cursor=cursor)
        for job in page.items:
            yield job.id
        if (cursor := page.cursor) is None:
            return


async def _trigger_one(service: Service, name: str) -> BulkItem:
    try:
        run = await service.client.trigger(name)
    except MainspringError as error:
        return BulkItem(job_id=name, problem=_api_error(error))
    return BulkItem(job_id=name, run_id=run.id)


async def _apply_to_all(service: Service, action: str, names: list[str]) -> list[BulkItem]:
    """Pause, resume or delete: the store commits a thousand jobs at once."""
    client = service.client
    act = {"pause": client.pause_jobs, "resume": client.resume_jobs}.get(action, client.remove_jobs)
    return [
        BulkItem(job_id=name, problem=None if error is None else _api_error(error))
        for name, error in (await act(names)).items()
    ]


def _api_error(error: Exception) -> ApiError:
    if isinstance(error, ValidationError):
        return from_validation_error(
            [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
        )
    if isinstance(error, MainspringError):
        return from_library_error(error)
    assert isinstance(error, ApiError)
    return error


def _bulk_result(item: BulkItem) -> dict[str, Any]:
    """One result, as the compatibility operation answers it."""
    result: dict[str, Any] = {"success": item.problem is None}
    if item.index is not None:
        result["index"] = item.index
    if item.job is not None:
        return {**result, **created_document(item.job, item.secret)}
    if item.job_id is not None:
        result["jobId"] = item.job_id
    if item.run_id is not None:
        result["runId"] = item.run_id
    if (problem := item.problem) is not None:
        result |= {"error": str(problem), "status": problem.status}
        if problem.errors:
            result["errors"] = [
                {"field": one.field, "message": one.message} for one in problem.errors
            ]
    return result
