"""Jobs: make, list, read, change, delete, trigger, pause, resume, and many at once.

The routes here are the forms of the compatibility page (`/api/jobs`); `api_v1.py` has those of the
API. Both do the same by the functions below the routes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import Struct
from pydantic import ValidationError

from mainspring.core import codec
from mainspring.core.model import Job, Run
from mainspring.errors import Conflict, JobChanged, JobNotFound, MainspringError
from mainspring.scheduler.definitions import is_stored_as
from mainspring.service import problems
from mainspring.service.dependencies import (
    COMPATIBILITY,
    JobPath,
    PageLimit,
    Service,
    ServiceDep,
    caller,
)
from mainspring.service.idempotency import REFUSALS, Once
from mainspring.service.problems import Problem
from mainspring.service.schemas import documents
from mainspring.service.schemas import envelopes as docs
from mainspring.service.schemas.mapping import arguments, check_webhook, edits, job_id, named
from mainspring.service.schemas.requests import JobBody, JobsBulkBody, JobUpdateBody, TriggerBody
from mainspring.webhooks.definition import check_body
from mainspring.webhooks.vault import new_signing_secret

__all__ = [
    "BulkItem",
    "CreatedJob",
    "DryRun",
    "IdempotencyKey",
    "IfMatch",
    "NoIdempotencyKey",
    "bulk_jobs",
    "create_job",
    "created_before",
    "refuse_idempotency_key",
    "refuse_other_id",
    "remove_job",
    "router",
    "switch_job",
    "trigger_job",
    "update_job",
    "would_send",
    "would_trigger",
]

router = APIRouter(prefix="/api/jobs", tags=[COMPATIBILITY])

TOGETHER = 50

TRIES = 100
"""How often an edit is worked out anew for those of others that came before it. Each of these is
done, so somebody always gets on; so many on one job at once are no use to anybody."""

DryRun = Annotated[
    bool, Query(alias="dryRun", description="Show the request, filled in and signed; send nothing.")
]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", description="The ETag that the job was read with.")
]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Sent again with the same body within 24 h, it makes nothing new.",
    ),
]

NoIdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", include_in_schema=False)]


@router.post(
    "",
    status_code=201,
    response_model=docs.Created,
    responses={200: {"model": docs.Shown, "description": "What a dry run shows."}},
    summary="Create a job",
)
async def create(
    body: JobBody,
    service: ServiceDep,
    request: Request,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    if dry_run:
        return documents.answer({"success": True, "data": await would_send(service, body)})
    made = await create_job(service, request, body, idempotency_key)
    if made.replayed is not None:
        return _replayed(request, made.replayed)
    assert made.job is not None
    return _created(request, made.job, made.secret)


@router.get("", response_model=docs.JobPage, summary="List jobs, by page")
async def list_jobs(
    service: ServiceDep,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    limit: PageLimit = 20,
    tag: Annotated[str | None, Query(max_length=200)] = None,
    enabled: bool | None = None,
    search: Annotated[
        str | None, Query(max_length=200, description="A part of the id or the description.")
    ] = None,
) -> Response:
    found = await service.scheduler.list_jobs(
        tag=tag,
        enabled=enabled,
        search=search,
        limit=limit,
        offset=(page - 1) * limit,
        with_total=True,
    )
    return documents.answer(
        {
            "success": True,
            "data": [documents.job_document(job, id_name="_id") for job in found.items],
            "page": page,
            "limit": limit,
            "total": found.total,
        }
    )


@router.post("/bulk", response_model=docs.Bulk, summary="Do the same with many jobs")
async def bulk(
    body: JobsBulkBody, service: ServiceDep, idempotency_key: NoIdempotencyKey = None
) -> Response:
    refuse_idempotency_key(idempotency_key)
    items = await bulk_jobs(service, body)
    done = sum(one.problem is None for one in items)
    return documents.answer(
        {
            "success": done == len(items),
            "data": [_bulk_result(one) for one in items],
            "matched": len(items),
            "done": done,
        }
    )


@router.get("/{id}", response_model=docs.JobAnswer, summary="Read a job")
async def get(id: JobPath, service: ServiceDep) -> Response:
    return _whole(await service.job(id))


@router.put(
    "/{id}", response_model=docs.ChangedAnswer, summary="Change a job; what is left out stays"
)
async def update(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    request: Request,
    if_match: IfMatch = None,
    idempotency_key: NoIdempotencyKey = None,
) -> Response:
    refuse_idempotency_key(idempotency_key)
    await refuse_other_id(request, id)
    job, secret = await update_job(service, id, body, if_match)
    return _whole(job, signing_secret=secret)


@router.delete("/{id}", response_model=docs.Done, summary="Delete a job; running work may end")
async def delete(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    await remove_job(service, id, if_match)
    return documents.answer({"success": True, "message": f"job {id} was deleted"})


@router.post(
    "/{id}/trigger",
    status_code=202,
    response_model=docs.RunAnswer,
    responses={200: {"model": docs.Shown, "description": "What a dry run shows."}},
    summary="Run it now",
)
async def trigger(
    id: JobPath,
    service: ServiceDep,
    request: Request,
    body: TriggerBody | None = None,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
    if_match: IfMatch = None,
) -> Response:
    if dry_run:
        shown = await would_trigger(service, id, body, if_match)
        return documents.answer({"success": True, "data": shown})
    run, replayed = await trigger_job(service, request, id, body, idempotency_key, if_match)
    return _triggered(run, {"Idempotency-Replayed": "true"} if replayed else None)


@router.post("/{id}/pause", response_model=docs.JobAnswer, summary="No more slots until resumed")
async def pause(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _whole(await switch_job(service, id, if_match, enabled=False))


@router.post("/{id}/resume", response_model=docs.JobAnswer, summary="Go on with the next slot")
async def resume(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    return _whole(await switch_job(service, id, if_match, enabled=True))


@router.get("/{id}/executions", response_model=docs.Executions, summary="Attempts, newest first")
async def executions(id: JobPath, service: ServiceDep, limit: PageLimit = 5) -> Response:
    await service.job(id)
    page = await service.scheduler.list_runs(job=id, tried=True, limit=limit)
    found = [one for run in page.items for one in documents.executions(run)]
    found.sort(key=lambda one: one["startedAt"], reverse=True)
    return documents.answer({"success": True, "data": found[:limit]})


# -- what is done, for `/api/v1` too ----------------------------------------------------------


class CreatedJob(Struct, frozen=True):
    """A new job and its signing secret; or of a request that is sent again, what it was told."""

    job: Job | None
    secret: str | None = None
    replayed: dict[str, Any] | None = None


class BulkItem(Struct, frozen=True, kw_only=True):
    """What became of one job of many. `index` is its place in the jobs to create."""

    index: int | None = None
    job_id: str | None = None
    job: Job | None = None
    secret: str | None = None
    run_id: str | None = None
    problem: Problem | None = None


async def create_job(
    service: Service, request: Request, body: JobBody, idempotency_key: str | None
) -> CreatedJob:
    if idempotency_key is None:
        return CreatedJob(*await _made(service, job_id(body), body))
    once = await Once.begin(
        service.scheduler, caller(request), idempotency_key, await request.body(), job_id(body)
    )
    if once.answer is not None:
        return CreatedJob(None, replayed=once.answer)
    try:
        job, secret = await _made(service, once.job_id, body)
    except (MainspringError, Problem) as error:
        found = await once.found_instead(error, lambda job: _asked_for(service, job, body))
        return CreatedJob(found, replayed=documents.created(found, None))
    await once.finish(documents.created(job, None))
    return CreatedJob(job, secret)


async def created_before(service: Service, id: str) -> Job:
    """The job that an earlier request with the same Idempotency-Key made."""
    try:
        return await service.job(id)
    except JobNotFound:
        why = (
            f"the job {id!r}, which this Idempotency-Key created, was deleted: take a new key to"
            " create another"
        )
        raise Problem(409, why, code="job_deleted") from None


async def update_job(
    service: Service, id: str, body: JobUpdateBody, if_match: str | None
) -> tuple[Job, str | None]:
    """The job after the edit, and its new signing secret where one was asked for."""
    secret = new_signing_secret() if body.rotate_secret else None
    for _ in range(TRIES):
        job = await service.job(id)
        _seen(job, if_match)
        changes = edits(job, body, service.scheduler.timezone)
        if "webhook" in changes:
            check_webhook(service.scheduler.webhooks, id, changes["webhook"])
        if secret is not None:  # in one edit with the others: all of it is done, or nothing
            changes["signing_secret"] = secret
        with named(body), contextlib.suppress(JobChanged):  # what differs is worked out anew
            return await service.scheduler.update_job(id, expected_version=job, **changes), secret
    raise Conflict(f"job {id!r} is being changed by others all the time; try again")


async def remove_job(service: Service, id: str, if_match: str | None) -> None:
    job = await service.job(id)
    await service.scheduler.remove_job(id, expected_version=_seen(job, if_match))


async def switch_job(service: Service, id: str, if_match: str | None, *, enabled: bool) -> Job:
    seen = _seen(await service.job(id), if_match)
    switch = service.scheduler.resume_job if enabled else service.scheduler.pause_job
    return await switch(id, expected_version=seen)


async def trigger_job(
    service: Service,
    request: Request,
    id: str,
    body: TriggerBody | None,
    idempotency_key: str | None,
    if_match: str | None,
) -> tuple[Run, bool]:
    """The run, and whether a request with this key had made it before."""
    payload = body.payload if body else None
    if if_match is not None:
        _seen(await service.job(id), if_match)
    if idempotency_key is None:
        return await service.scheduler.trigger(id, payload), False
    asker = f"{caller(request)}\0{id}"
    once = await Once.begin(service.scheduler, asker, idempotency_key, await request.body(), id)
    if once.answer is not None:
        return await service.scheduler.get_run(once.answer["run"]), True
    try:
        run = await service.scheduler.trigger(id, payload, **once.dedupe)
    except REFUSALS:
        await once.free()
        raise
    await once.finish({"run": run.id})
    return run, False


async def would_trigger(
    service: Service, id: str, body: TriggerBody | None, if_match: str | None
) -> dict[str, Any]:
    """The request that a trigger would send."""
    job = await service.job(id)
    _seen(job, if_match)
    return await _request_of(service, job, body.payload if body else None)


async def bulk_jobs(service: Service, body: JobsBulkBody) -> list[BulkItem]:
    items: list[BulkItem] = []
    if body.action == "create":
        given = list(enumerate(body.jobs or []))
        for start in range(0, len(given), TOGETHER):  # those of a chunk share their commits
            made = (_created_one(service, *one) for one in given[start : start + TOGETHER])
            items += await asyncio.gather(*made)
        return items
    names = [name async for name in _chosen(service, body)]
    if body.action != "trigger":
        return await _done_all(service, body.action, names)
    for start in range(0, len(names), TOGETHER):
        made = (_triggered_one(service, name) for name in names[start : start + TOGETHER])
        items += await asyncio.gather(*made)
    return items


def refuse_idempotency_key(given: str | None) -> None:
    if given is not None:
        why = "Idempotency-Key is for creating or triggering one job: nothing was done here"
        raise Problem(422, why)


async def refuse_other_id(request: Request, id: str) -> None:
    """A job that was read may be sent back whole, with its id; to another id it cannot be moved."""
    sent = await request.json()
    for name in ("id", "_id", "jobId"):
        if sent.get(name) not in (None, id):
            raise Problem.of_field(name, f"is not {id!r}, and a job keeps its id: leave it out")


# -- steps ----------------------------------------------------------------------------------


async def _made(
    service: Service, name: str, body: JobBody, *, dry_run: bool = False
) -> tuple[Job, str | None]:
    """The job, and the secret that its requests are signed with: shown this once."""
    given = arguments(body, service.settings, service.scheduler.timezone)
    secret = None
    if "webhook" in given:
        check_webhook(service.scheduler.webhooks, name, given["webhook"])
        if service.scheduler.webhooks.vault.ready:
            secret = given["webhook"]["signing_secret"] = new_signing_secret()
    with named(body):
        return await service.scheduler.add_job(name, dry_run=dry_run, **given), secret


def _asked_for(service: Service, job: Job, body: JobBody) -> bool:
    """Whether the job is what this body makes."""
    if body.id is None and body.name is None:
        return True  # its id was made for this request: nobody else has it
    scheduler = service.scheduler
    try:
        draft = scheduler.draft(job.id, **arguments(body, service.settings, scheduler.timezone))
        return is_stored_as(draft, job, scheduler.webhooks)
    except (MainspringError, Problem):
        return False


def _created(request: Request, job: Job, secret: str | None) -> Response:
    headers = {"Location": _address(request, job.id), "ETag": documents.etag(job)}
    return documents.answer({"success": True, "data": documents.created(job, secret)}, 201, headers)


def _replayed(request: Request, data: dict[str, Any]) -> Response:
    headers = {"Location": _address(request, data["jobId"]), "Idempotency-Replayed": "true"}
    return documents.answer({"success": True, "data": data}, 201, headers)


def _triggered(run: Run, headers: dict[str, str] | None = None) -> Response:
    document = {"success": True, "data": documents.run_document(run, whole=True)}
    return documents.answer(document, 202, headers)


def _address(request: Request, job: str) -> str:
    """Where the job is found, also where the API is mounted below a path."""
    return f"{request.scope.get('root_path', '')}/api/jobs/{job}"


def _whole(job: Job, *, signing_secret: str | None = None) -> Response:
    document = documents.job_document(job, id_name="_id")
    if signing_secret is not None:
        document["signingSecret"] = signing_secret
    return documents.answer(
        {"success": True, "data": document}, headers={"ETag": documents.etag(job)}
    )


def _seen(job: Job, if_match: str | None) -> Job | None:
    """The job as the client saw it, where it said so; refused at once where it is another."""
    if if_match is None or if_match.strip() == "*":
        return None
    tags = [one.strip().removeprefix("W/") for one in if_match.split(",")]
    if documents.etag(job) not in tags:
        raise Problem(412, f"job {job.id!r} was changed since you read it: read it again")
    return job


async def would_send(service: Service, body: JobBody) -> dict[str, Any]:
    if body.endpoint is None:
        raise Problem.of_field(
            "endpoint", "only a job that calls an endpoint has a request to show"
        )
    job, _ = await _made(service, job_id(body), body, dry_run=True)
    return await _request_of(service, job)


async def _request_of(service: Service, job: Job, body: Any = None) -> dict[str, Any]:
    if job.webhook is None:
        raise Problem(422, f"job {job.id!r} runs the handler {job.handler!r}: it calls no endpoint")
    if body is not None:  # what a real trigger refuses is refused here, in the same words
        codec.encode(body)
        check_body(body)
    made = service.scheduler.webhooks.preview(job, await service.scheduler.now(), body=body)
    return {
        "jobId": job.id,
        "method": made.method,
        "url": made.url,
        "headers": made.shown_headers(),
        "body": made.body.decode("utf-8", "replace"),
        "nextRunAt": documents.when(job.next_run_at),
    }


async def _created_one(service: Service, at: int, given: Any) -> BulkItem:
    try:
        body = JobBody.model_validate(given)
        job, secret = await _made(service, job_id(body), body)
    except (ValidationError, MainspringError, Problem) as error:
        return BulkItem(index=at, problem=_problem_of(error))
    return BulkItem(index=at, job_id=job.id, job=job, secret=secret)


async def _chosen(service: Service, body: JobsBulkBody) -> AsyncIterator[str]:
    if body.ids is not None:
        for name in dict.fromkeys(body.ids):
            yield name
        return
    assert body.match is not None
    cursor: str | None = None
    while True:
        page = await service.scheduler.list_jobs(
            tag=body.match.tag,
            enabled=body.match.enabled,
            search=body.match.search,
            limit=500,
            cursor=cursor,
        )
        for job in page.items:
            yield job.id
        if (cursor := page.cursor) is None:
            return


async def _triggered_one(service: Service, name: str) -> BulkItem:
    try:
        run = await service.scheduler.trigger(name)
    except MainspringError as error:
        return BulkItem(job_id=name, problem=_problem_of(error))
    return BulkItem(job_id=name, run_id=run.id)


async def _done_all(service: Service, action: str, names: list[str]) -> list[BulkItem]:
    """Pause, resume or delete: a thousand jobs in one commit."""
    scheduler = service.scheduler
    act = {"pause": scheduler.pause_jobs, "resume": scheduler.resume_jobs}.get(
        action, scheduler.remove_jobs
    )
    return [
        BulkItem(job_id=name, problem=None if error is None else _problem_of(error))
        for name, error in (await act(names)).items()
    ]


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, ValidationError):
        return problems.of_invalid(
            RequestValidationError(
                [{**one, "loc": ("body", *one["loc"])} for one in error.errors()]
            )
        )
    if isinstance(error, MainspringError):
        return problems.of_error(error)
    assert isinstance(error, Problem)
    return error


def _bulk_result(item: BulkItem) -> dict[str, Any]:
    """One result as the compatibility page's form has it."""
    result: dict[str, Any] = {"success": item.problem is None}
    if item.index is not None:
        result["index"] = item.index
    if item.job is not None:
        return {**result, **documents.created(item.job, item.secret)}
    if item.job_id is not None:
        result["jobId"] = item.job_id
    if item.run_id is not None:
        result["runId"] = item.run_id
    if (problem := item.problem) is not None:
        result |= {"error": str(problem), "status": problem.status}
        if problem.errors:
            told = [{"field": one.field, "message": one.message} for one in problem.errors]
            result["errors"] = told
    return result
