"""The nine operations of an earlier scheduler's HTTP API, so that its clients need no change.

Each maps names and envelopes, and calls what `/api/v1` calls. Everything else has one API,
`/api/v1`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

from fastapi import Query, Request
from msgspec import UNSET, UnsetType, field
from pydantic import AfterValidator

from mainspring.core import model
from mainspring.core.model import Attempt, Outcome, Page, Run, State
from mainspring.service.access import access, api_router
from mainspring.service.api.health import Health, Status, read_health, read_statistics
from mainspring.service.api.jobs import (
    IdempotencyKey,
    IfMatch,
    create_once,
    edit_job,
    remove_job,
)
from mainspring.service.dependencies import (
    COMPATIBILITY,
    JobPath,
    Service,
    ServiceDep,
    read_items,
)
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.schemas.documents import (
    Document,
    Milliseconds,
    Reply,
    Time,
    example,
    to_iso,
    to_milliseconds,
)
from mainspring.service.schemas.job import Job, JobBody, JobUpdateBody, etag, schedule_text

router = api_router(prefix="/api", tags=[COMPATIBILITY])

MAX_PAGE = 200
EXECUTIONS_PAGE = 10
"""How many whole runs are read at once to show their attempts."""

PageLimit = Annotated[
    int,
    Query(ge=1, description=f"At most this many; a number above {MAX_PAGE} means {MAX_PAGE}."),
    AfterValidator(lambda limit: min(limit, MAX_PAGE)),
]


# -- jobs -----------------------------------------------------------------------------------------


class CreatedData(Document):
    """A new job."""

    job_id: Annotated[str, example("nightly")]
    schedule: Annotated[str | None, example("0 30 2 * * *")]
    endpoint: Annotated[str | None, example("https://api.example.com/webhook")]
    next_run_at: Time | None
    signing_secret: Annotated[str | UnsetType, example("whsec_…")] = UNSET
    """Only this response shows it."""


class Created(Document, kw_only=True):
    success: bool = True
    data: CreatedData


class JobDocument(Job, kw_only=True):
    """A job."""

    id: Annotated[str, example("nightly")] = field(name="_id")
    """The job's name in URLs."""


class JobAnswer(Document, kw_only=True):
    success: bool = True
    data: JobDocument


class JobPage(Document, kw_only=True):
    success: bool = True
    data: list[JobDocument]
    page: int
    limit: int
    total: int


class Done(Document, kw_only=True):
    success: bool = True
    message: Annotated[str, example("job nightly was deleted")]


@router.post("/jobs", status_code=201, summary="Create a job")
@access("write")
async def create_job(
    body: JobBody, service: ServiceDep, request: Request, idempotency_key: IdempotencyKey = None
) -> Reply[Created]:
    created = await create_once(service, request, body, idempotency_key)
    job = created.job
    data = CreatedData(
        job_id=job.id,
        schedule=schedule_text(job.schedule),
        endpoint=None if job.webhook is None else job.webhook.url,
        next_run_at=to_iso(job.next_run_at),
        signing_secret=created.secret or UNSET,
    )
    return Reply(Created(data=data), 201, created.headers(request, "/api/jobs"))


@router.get("/jobs", summary="List jobs, by page")
@access("read")
async def list_jobs(
    service: ServiceDep,
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    limit: PageLimit = 20,
) -> Reply[JobPage]:
    total = 0

    async def read(count: int, cursor: str | None) -> Page[model.Job]:
        nonlocal total
        start = (page - 1) * limit if cursor is None else int(cursor)
        jobs = await service.client.list_jobs(limit=count, offset=start, with_total=True)
        total = jobs.total or 0
        return Page(jobs.items, str(start + count) if start + count < total else None)

    items, more = await read_items(read, JobDocument.of, limit=limit, cursor=None)
    if more is not None and len(items) < limit:
        why = f"is too large: {len(items)} of these jobs fill a response; ask for fewer"
        raise ApiError.of_fields(FieldError.predicate("limit", why))
    return Reply(JobPage(data=cast(Any, items), page=page, limit=limit, total=total))


@router.get("/jobs/{id}", summary="Read a job")
@access("read")
async def get_job(id: JobPath, service: ServiceDep) -> Reply[JobAnswer]:
    return _job_answer(await service.client.get_job(id))


@router.put("/jobs/{id}", summary="Change a job; what is left out stays")
@access("write")
async def update_job(
    id: JobPath,
    body: JobUpdateBody,
    service: ServiceDep,
    request: Request,
    if_match: IfMatch = None,
) -> Reply[JobAnswer]:
    return _job_answer(*await edit_job(service, request, id, body, if_match))


@router.delete("/jobs/{id}", summary="Delete a job; running work may end")
@access("write")
async def delete_job(id: JobPath, service: ServiceDep, if_match: IfMatch = None) -> Reply[Done]:
    await remove_job(service, id, if_match)
    return Reply(Done(message=f"job {id} was deleted"))


def _job_answer(job: model.Job, signing_secret: str | None = None) -> Reply[JobAnswer]:
    document = JobDocument.of(job, signing_secret)
    return Reply(JobAnswer(data=document), headers={"ETag": etag(job)})


# -- executions -----------------------------------------------------------------------------------

_WHY = {
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.CANCELLED: "cancelled",
    Outcome.LOST: "the worker died or lost its lease",
    Outcome.RELEASED: "the worker stopped and gave the run back",
}


class Execution(Document, kw_only=True):
    """An attempt of a run."""

    id: Annotated[str, example("nightly@2026-03-01T01:30:00Z:1")] = field(name="_id")
    """The run's id, `:` and the number of the attempt."""
    job_id: Annotated[str, example("nightly")]
    """The job of the run."""
    status: Literal["success", "failure", "running"]
    """Whether the response was a success."""
    started_at: Time
    """When the attempt started."""
    completed_at: Time | None = None
    """When the attempt ended."""
    duration: Annotated[int | None, example(212)] = None
    """How long the attempt took, in whole milliseconds."""
    response_code: Annotated[int | None, example(200)] = None
    """The status of the endpoint's response. Null if no response came."""
    response_body: Annotated[str | None, example('{"ok": true}')] = None
    """The beginning of the endpoint's response."""
    truncated: bool = False
    """Whether `responseBody` is only a part of the response."""
    encoding: str | None = None
    """The encoding of `responseBody`: base64. Null: it is text."""
    error_message: str | None = None
    """Why the attempt failed."""
    attempt: Annotated[int, example(1)]
    """The number of the attempt. The first is 1."""
    scheduled_at: Time
    """The slot."""

    @classmethod
    def running(cls, run: Run) -> Self:
        """The attempt that is running."""
        return cls(
            id=f"{run.id}:{run.attempt}",
            job_id=run.job_id,
            status="running",
            started_at=to_iso(run.started_at or run.run_at),
            attempt=run.attempt,
            scheduled_at=to_iso(run.scheduled_at),
        )

    @classmethod
    def ended(cls, run: Run, attempt: Attempt) -> Self:
        succeeded = attempt.outcome is Outcome.SUCCEEDED
        detail = attempt.detail if isinstance(attempt.detail, dict) else {}
        response = detail.get("response") or {}
        return cls(
            id=f"{run.id}:{attempt.number}",
            job_id=run.job_id,
            status="success" if succeeded else "failure",
            started_at=to_iso(attempt.started_at),
            completed_at=to_iso(attempt.finished_at),
            duration=round(to_milliseconds(attempt.finished_at - attempt.started_at)),
            response_code=response.get("status"),
            response_body=response.get("body"),
            truncated=response.get("truncated", False),
            encoding=response.get("encoding"),
            error_message=None if succeeded else attempt.error or _WHY[attempt.outcome],
            attempt=attempt.number,
            scheduled_at=to_iso(run.scheduled_at),
        )


class Executions(Document, kw_only=True):
    success: bool = True
    data: list[Execution]


@router.get("/jobs/{id}/executions", summary="List attempts, newest first")
@access("read")
async def list_executions(
    id: JobPath, service: ServiceDep, limit: PageLimit = 5
) -> Reply[Executions]:
    await service.client.get_job(id)
    executions = await _find_executions(service, {"job": id, "tried": True}, limit=limit)
    return Reply(Executions(data=executions))


@router.get("/observability/failures", summary="List failed attempts")
@access("read")
async def list_failures(service: ServiceDep, limit: PageLimit = 10) -> Reply[Executions]:
    # A run can fail without a failed attempt: its workers died.
    queries: list[dict[str, Any]] = [{"failing": True}, {"state": State.FAILED}]
    executions = await _find_executions(service, *queries, limit=limit, status="failure")
    return Reply(Executions(data=executions))


def executions_of(run: Run) -> list[Execution]:
    """The run's attempts, newest first, with the one that is running."""
    ended = [Execution.ended(run, attempt) for attempt in reversed(run.attempts)]
    return [Execution.running(run), *ended] if run.state is State.RUNNING else ended


async def _find_executions(
    service: Service, *queries: dict[str, Any], limit: int, status: str | None = None
) -> list[Execution]:
    """The newest attempts of the runs that any of the queries finds, `limit` of each. Only attempts
    of that status, if one is given.

    Runs are read in small pages, and only documents of attempts are kept: a run can hold 20 logs of
    64 KiB beside its payload, and 200 whole runs took 735 MB."""
    executions: dict[str, Execution] = {}
    for query in queries:
        left, cursor = limit, None
        while left > 0:
            size = min(left, EXECUTIONS_PAGE)
            page = await service.client.list_runs(**query, limit=size, cursor=cursor)
            for run in page.items:
                for execution in executions_of(run):
                    if status is None or execution.status == status:
                        executions[execution.id] = execution
            newest = sorted(
                executions.values(), key=lambda execution: execution.started_at, reverse=True
            )
            executions = {execution.id: execution for execution in newest[:limit]}
            left, cursor = left - size, page.cursor
            if cursor is None:
                break
    return list(executions.values())


# -- observability --------------------------------------------------------------------------------


class SchedulerState(Document):
    is_running: bool
    running_jobs: int
    max_concurrent_jobs: int

    @classmethod
    def of(cls, health: Health) -> Self:
        return cls(
            is_running=health.status != "stopping",
            running_jobs=health.running,
            max_concurrent_jobs=health.capacity,
        )


class SchedulerHealth(SchedulerState):
    poll_interval: Milliseconds = 0


class HealthAnswer(Document):
    success: bool
    status: Annotated[Status, example("healthy")]
    timestamp: Time
    scheduler: SchedulerHealth


class ExecutionCounts(Document):
    total: int
    successful: int
    failed: int
    last24_hours: int


class StatsData(Document):
    executions: ExecutionCounts
    scheduler: SchedulerState


class Stats(Document, kw_only=True):
    success: bool = True
    data: StatsData


@router.get("/observability/health", summary="Show the health of the service")
@access("read")
async def get_health(service: ServiceDep) -> Reply[HealthAnswer]:
    health = await read_health(service)
    scheduler = SchedulerHealth.of(health)
    scheduler.poll_interval = health.poll_interval
    return Reply(
        HealthAnswer(
            success=health.status == "healthy",
            status=health.status,
            timestamp=health.time,
            scheduler=scheduler,
        )
    )


@router.get("/observability/stats", summary="Show figures of the system")
@access("read")
async def get_stats(service: ServiceDep) -> Reply[Stats]:
    health, statistics = await read_health(service), await read_statistics(service)
    succeeded, failed = statistics.runs[State.SUCCEEDED], statistics.runs[State.FAILED]
    counts = ExecutionCounts(
        total=succeeded + failed,
        successful=succeeded,
        failed=failed,
        last24_hours=statistics.last_day.succeeded + statistics.last_day.failed,
    )
    return Reply(Stats(data=StatsData(executions=counts, scheduler=SchedulerState.of(health))))
