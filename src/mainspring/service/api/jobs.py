"""`/api/v1/jobs`: create, list, read, change, delete, trigger, pause and resume jobs; and stop and
restart all firing. `compat.py` calls the same functions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import Header, Query, Request, Response
from msgspec import UNSET, Struct
from pydantic import ValidationError

from mainspring.core import model
from mainspring.core.plurals import plural
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
from mainspring.service.access import access, api_router
from mainspring.service.api.health import Firing, JobHealth, JobMetrics
from mainspring.service.dependencies import (
    Cursor,
    JobPath,
    Limit,
    Service,
    ServiceDep,
    caller,
    list_reply,
    note_created,
    note_detail,
    path_of,
    read_moment,
    read_offset,
)
from mainspring.service.idempotency import REFUSALS, IdempotentRequest
from mainspring.service.problems import (
    ApiError,
    FieldError,
    Problem,
    from_library_error,
    from_validation_error,
)
from mainspring.service.schemas.documents import Reply, to_iso
from mainspring.service.schemas.fields import query_of
from mainspring.service.schemas.job import (
    Job,
    JobBody,
    JobBulkItem,
    JobFields,
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
from mainspring.service.schemas.job_options import (
    job_options,
    library_faults,
    new_job_faults,
    new_job_id,
    read_edit,
)
from mainspring.service.schemas.run import Backfill, BackfillBody, Explanation, Run, Workflow
from mainspring.stores.protocol import JobOrder
from mainspring.webhooks.definition import check_payload
from mainspring.webhooks.vault import new_signing_secret

BULK_CHUNK = 50
"""How many jobs of a bulk request are worked on at once; those of a chunk share their commits."""

MAX_EDIT_TRIES = 100
"""How often an edit is repeated because another edit came first. Each of those was done, so edits
always make progress."""

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
        job, _ = await _add_job(service, new_job_id(body), body, dry_run=True)
        return Reply(await _request_of(service, job))
    created = await create_once(service, request, body, idempotency_key)
    headers = created.headers(request, "/api/v1/jobs")
    return Reply(Job.of(created.job, created.secret), 201, headers)


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
    items = await _act_on_jobs(service, body)
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
    return _job(*await edit_job(service, request, id, body, if_match))


@router.delete("/{id}", status_code=204, summary="Delete a job; running work may end")
@access("write")
async def delete_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Response:
    await remove_job(service, id, if_match)
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
        job = await service.client.get_job(id)
        _check_if_match(job, if_match)
        return Reply(await _request_of(service, job, body.payload if body else None))
    run, replayed = await _trigger_once(service, request, id, body, idempotency_key, if_match)
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
    return await _set_enabled(service, id, if_match, enabled=False)


@router.post("/{id}/resume", summary="Resume a job; it goes on with its next slot")
@access("write")
async def resume_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Reply[Job]:
    return await _set_enabled(service, id, if_match, enabled=True)


@router.post(
    "/{id}/breaker/reset", summary="Reset the circuit breaker of a job; its waiting runs start"
)
@access("write")
async def reset_breaker(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Reply[Job]:
    job = await service.client.get_job(id)
    _check_if_match(job, if_match)
    await service.client.reset_breaker(id)
    return _job(job)


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


def _job(job: model.Job, secret: str | None = None) -> Reply[Job]:
    return Reply(Job.of(job, secret), headers={"ETag": etag(job)})


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


# -- what the routes do ---------------------------------------------------------------------------


class CreatedJob(Struct, frozen=True):
    """A new job and its signing secret, or one that an earlier request with the same
    Idempotency-Key made."""

    job: model.Job
    secret: str | None = None
    replayed: bool = False

    def headers(self, request: Request, prefix: str) -> dict[str, str]:
        """The headers of the response. The audit log is told of the job, too."""
        note_created(request, self.job.id)
        location = path_of(request, f"{prefix}/{self.job.id}")
        replayed = {"Idempotency-Replayed": "true"} if self.replayed else {}
        return {"Location": location, "ETag": etag(self.job), **replayed}


async def create_once(
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


async def _created_before(service: Service, id: str) -> model.Job:
    """The job that an earlier request with the same Idempotency-Key made."""
    try:
        return await service.client.get_job(id)
    except JobNotFound:
        why = (
            f"the job {id!r}, which this Idempotency-Key created, was deleted: use a new key to"
            " create another"
        )
        raise ApiError(409, why, code="job_deleted") from None


async def edit_job(
    service: Service, request: Request, id: str, body: JobUpdateBody, if_match: str | None
) -> tuple[model.Job, str | None]:
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


async def _set_enabled(
    service: Service, id: str, if_match: str | None, *, enabled: bool
) -> Reply[Job]:
    expected = _check_if_match(await service.client.get_job(id), if_match)
    switch = service.client.resume_job if enabled else service.client.pause_job
    return _job(await switch(id, expected_version=expected))


async def _trigger_once(
    service: Service,
    request: Request,
    id: str,
    body: TriggerBody | None,
    idempotency_key: str | None,
    if_match: str | None,
) -> tuple[model.Run, bool]:
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


async def _act_on_jobs(service: Service, body: JobsBulkBody) -> list[JobBulkItem]:
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


async def _add_job(
    service: Service, job_id: str, body: JobBody, *, dry_run: bool = False
) -> tuple[model.Job, str | None]:
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


def _is_created_by(service: Service, job: model.Job, body: JobBody) -> bool:
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


def _check_if_match(job: model.Job, if_match: str | None) -> model.Job | None:
    """Refuse if the job is not the one that the client read. Returns the job if it named one."""
    if if_match is None or if_match.strip() == "*":
        return None
    tags = [tag.strip().removeprefix("W/") for tag in if_match.split(",")]
    if etag(job) not in tags:
        raise ApiError(412, f"job {job.id!r} was changed after you read it: read it again")
    return job


async def _request_of(service: Service, job: model.Job, body: Any = None) -> RenderedRequest:
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
