"""What clients can do with jobs. The routes of `/api/v1` and `compat.py` call these functions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from fastapi import Request
from msgspec import UNSET, Struct
from pydantic import ValidationError

from mainspring.core.model import Job, Run
from mainspring.errors import (
    Conflict,
    HandlerNotFound,
    InvalidInput,
    JobChanged,
    JobNotFound,
    MainspringError,
)
from mainspring.scheduler.definitions import is_stored_as
from mainspring.service.dependencies import Service, caller, note_created, note_detail
from mainspring.service.idempotency import REFUSALS, IdempotentRequest
from mainspring.service.problems import (
    ApiError,
    FieldError,
    Problem,
    from_library_error,
    from_validation_error,
)
from mainspring.service.schemas.job import (
    JobBody,
    JobBulkItem,
    JobFields,
    JobsBulkBody,
    JobUpdateBody,
    RenderedRequest,
    TriggerBody,
    etag,
)
from mainspring.service.schemas.job_options import (
    job_options,
    library_faults,
    new_job_faults,
    new_job_id,
    read_edit,
)
from mainspring.service.schemas.json_format import to_iso
from mainspring.webhooks.definition import check_payload
from mainspring.webhooks.vault import new_signing_secret

BULK_CHUNK = 50
"""How many jobs of a bulk request are worked on at once; those of a chunk share their commits."""

MAX_EDIT_TRIES = 100
"""How often an edit is repeated because another edit came first. Each of those was done, so edits
always make progress."""


class CreatedJob(Struct, frozen=True):
    """A new job and its signing secret, or one that an earlier request with the same
    Idempotency-Key made."""

    job: Job
    secret: str | None = None
    replayed: bool = False


async def create_job(
    service: Service, request: Request, body: JobBody, idempotency_key: str | None
) -> CreatedJob:
    created = await _create_once(service, request, body, idempotency_key)
    note_created(request, created.job.id)
    return created


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
        return CreatedJob(job, replayed=True)
    try:
        job, secret = await _add_job(service, once.job_id, body)
    except (MainspringError, ApiError) as error:
        job = await once.recover(error, lambda job: _is_created_by(service, job, body))
        return CreatedJob(job, replayed=True)
    await once.finish({"jobId": job.id})
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
    service: Service, request: Request, id: str, body: JobUpdateBody, if_match: str | None
) -> tuple[Job, str | None]:
    """Change a job. Returns it, and its new signing secret if one was asked for."""
    secret = new_signing_secret() if body.sent.get("rotate_secret") else None
    await service.client.load_secret_key(make=False)
    for _ in range(MAX_EDIT_TRIES):
        job = await service.client.get_job(id)
        _check_if_match(job, if_match)
        edit = read_edit(job, body)
        changes = edit.options
        if edit.faults:  # the client gets the library's errors beside them, as for a new job
            with _named_fields(body, edit.faults):
                service.client.edited(job, service.client.store_time(), changes)
        if secret is not None:  # in the same edit as the others: all is done, or nothing
            changes["signing_secret"] = secret
        note_detail(request, ", ".join(edit.fields))
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


async def preview_trigger(
    service: Service, id: str, body: TriggerBody | None, if_match: str | None
) -> RenderedRequest:
    """The request that a trigger would send."""
    job = await service.client.get_job(id)
    _check_if_match(job, if_match)
    return await _request_of(service, job, body.payload if body else None)


async def bulk_jobs(service: Service, body: JobsBulkBody) -> list[JobBulkItem]:
    items: list[JobBulkItem] = []
    if body.action == "create":
        jobs = list(enumerate(body.jobs or []))
        for start in range(0, len(jobs), BULK_CHUNK):
            creations = (_create_one(service, *job) for job in jobs[start : start + BULK_CHUNK])
            items += await asyncio.gather(*creations)
        return items
    names = [name async for name in _chosen_ids(service, body)]
    if body.action != "trigger":
        return await _apply_to_all(service, body.action, names)
    for start in range(0, len(names), BULK_CHUNK):
        triggers = (_trigger_one(service, name) for name in names[start : start + BULK_CHUNK])
        items += await asyncio.gather(*triggers)
    return items


# -- steps ----------------------------------------------------------------------------------


async def _add_job(
    service: Service, job_id: str, body: JobBody, *, dry_run: bool = False
) -> tuple[Job, str | None]:
    """Create the job. Returns it, and the secret that signs its requests.

    The library checks the rules of a job, once. Where the document is wrong already it stores
    nothing, and the client gets its errors beside those of the document.
    """
    faults = new_job_faults(body)
    if dry_run and "endpoint" not in body.sent:
        why = "only a job that calls an endpoint has a request to show"
        faults.append(FieldError("endpoint", why))
    options = job_options(body, service.settings, service.client.defaults)
    secret = None
    if "webhook" in options:
        await service.client.load_secret_key(make=False)
        if service.client.webhooks.can_sign:
            secret = options["webhook"]["signing_secret"] = new_signing_secret()
    with _named_fields(body, faults):
        dry_run = dry_run or bool(faults)
        job = await service.client.add_job(job_id, dry_run=dry_run, **options)
    return job, secret


@contextlib.contextmanager
def _named_fields(body: JobFields, faults: Sequence[FieldError] = ()) -> Iterator[None]:
    """Report the library's errors under the names of the fields that the client sent, beside the
    faults that the service found itself."""
    errors: list[FieldError] = []
    try:
        yield
    except InvalidInput as error:
        errors = library_faults(error, body)
        if not errors and not faults:
            raise
    except MainspringError as error:
        if not faults:
            raise
        if isinstance(error, HandlerNotFound):
            errors = [FieldError("handler", str(error))]
    if errors or faults:
        merged = {fault.field: fault for fault in (*errors, *faults)}
        raise ApiError.of_fields(*merged.values())


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


def _check_if_match(job: Job, if_match: str | None) -> Job | None:
    """Refuse if the job is not the one that the client read. Returns the job if it named one."""
    if if_match is None or if_match.strip() == "*":
        return None
    tags = [tag.strip().removeprefix("W/") for tag in if_match.split(",")]
    if etag(job) not in tags:
        raise ApiError(412, f"job {job.id!r} was changed after you read it: read it again")
    return job


async def preview_request(service: Service, body: JobBody) -> RenderedRequest:
    job, _ = await _add_job(service, new_job_id(body), body, dry_run=True)
    return await _request_of(service, job)


async def _request_of(service: Service, job: Job, body: Any = None) -> RenderedRequest:
    if job.webhook is None:
        raise ApiError(
            422, f"job {job.id!r} runs the handler {job.handler!r}: it calls no endpoint"
        )
    if body is not None:  # as a real trigger checks it
        check_payload(body)
    await service.client.load_secret_key(make=False)
    rendered = service.client.webhooks.preview(job, await service.client.now(), body=body)
    return RenderedRequest(
        job_id=job.id,
        method=rendered.method,
        url=rendered.url,
        headers=rendered.masked_headers(),
        body=rendered.body.decode("utf-8", "replace"),
        next_run_at=to_iso(job.next_run_at),
    )


async def _create_one(service: Service, at: int, document: Any) -> JobBulkItem:
    try:
        body = JobBody.model_validate(document)
        job, secret = await _add_job(service, new_job_id(body), body)
    except (ValidationError, MainspringError, ApiError) as error:
        return JobBulkItem(index=at, succeeded=False, problem=_problem(error))
    return JobBulkItem(index=at, id=job.id, succeeded=True, signing_secret=secret or UNSET)


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


async def _trigger_one(service: Service, name: str) -> JobBulkItem:
    try:
        run = await service.client.trigger(name)
    except MainspringError as error:
        return JobBulkItem(id=name, succeeded=False, problem=_problem(error))
    return JobBulkItem(id=name, succeeded=True, run_id=run.id)


async def _apply_to_all(service: Service, action: str, names: list[str]) -> list[JobBulkItem]:
    """Pause, resume or delete: the store commits a thousand jobs at once."""
    client = service.client
    act = {"pause": client.pause_jobs, "resume": client.resume_jobs}.get(action, client.remove_jobs)
    return [
        JobBulkItem(
            id=name, succeeded=error is None, problem=UNSET if error is None else _problem(error)
        )
        for name, error in (await act(names)).items()
    ]


def _problem(error: ValidationError | MainspringError | ApiError) -> Problem:
    if isinstance(error, ValidationError):
        details = [{**part, "loc": ("body", *part["loc"])} for part in error.errors()]
        return Problem.of(from_validation_error(details))
    return Problem.of(from_library_error(error) if isinstance(error, MainspringError) else error)
