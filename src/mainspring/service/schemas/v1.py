"""What `/api/v1` answers. Answers are written from `shapes.py`; the tests hold both against each
other. The forms of the compatibility page in `documents.py` are made of these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

__all__ = [
    "ApiKey",
    "ApiKeyList",
    "Attempt",
    "Document",
    "Health",
    "Job",
    "JobList",
    "JobParts",
    "JobsBulkResult",
    "Milliseconds",
    "Preview",
    "Problem",
    "RenderedRequest",
    "Run",
    "RunList",
    "RunsBulkResult",
    "Statistics",
    "Time",
]

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Milliseconds = Annotated[float, Field(description="Milliseconds.")]
Cursor = Annotated[str | None, Field(description="For the next page; null: this is the last.")]


class Document(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", protected_namespaces=(), serialize_by_alias=True
    )


class FieldProblem(Document):
    field: Annotated[str, Field(description="The field or parameter.")]
    message: Annotated[str, Field(description="What is wrong with it.")]


class Problem(Document):
    """An error, as RFC 9457 describes it. Programs go by `code`."""

    type: Annotated[str, Field(description="A URN that ends with the code.")]
    title: Annotated[str, Field(description="The status in words.")]
    status: Annotated[int, Field(description="The status of the answer.")]
    code: Annotated[str, Field(description="Which problem it is, for programs.")]
    detail: Annotated[str, Field(description="What happened, and what to do about it.")]
    instance: Annotated[str | None, Field(description="The path that was asked for.")] = None
    errors: Annotated[
        list[FieldProblem] | None, Field(description="Each wrong field, with a message.")
    ] = None


class BackoffDocument(Document):
    kind: Literal["fixed", "linear", "exponential"]
    factor: float
    cap: Milliseconds
    jitter: float


class MisfireDocument(Document):
    kind: Literal["once", "skip", "all"]
    grace: Milliseconds
    limit: int


class BreakerDocument(Document):
    failures: int
    reset: Milliseconds


class JobParts(Document):
    """Everything of a job but its id."""

    name: str
    description: str
    schedule: str | None
    schedule_description: str | None
    every: Milliseconds | None
    run_at: Time | None
    timezone: str
    jitter: Milliseconds | None
    endpoint: str | None = None
    method: str | None = None
    headers: dict[str, str] | None = None
    secret_headers: list[str] | None = None
    body: Any = None
    success_codes: list[int | str] | None = None
    retry_on: list[int | str] | None = None
    handler: str
    payload: Any = None
    execution_type: Literal["AT_LEAST_ONCE", "AT_MOST_ONCE"]
    enabled: bool
    retry_attempts: int
    retry_delay: Milliseconds
    backoff: BackoffDocument
    timeout: Milliseconds | None
    start_deadline: Milliseconds | None
    priority: int
    queue: str
    concurrency: int | None
    concurrency_key: str | None
    overlap: Literal["skip", "queue", "replace", "allow"]
    misfire: MisfireDocument
    breaker: BreakerDocument | None
    after: list[str]
    tags: list[str]
    metadata: dict[str, Any]
    owner: Literal["code", "api"]
    next_run_at: Time | None
    last_run_at: Time | None
    created_at: Time
    updated_at: Time


class Job(JobParts):
    id: str
    signing_secret: Annotated[
        str | None,
        Field(description="Signs its requests. Only in the answer that made it, this once."),
    ] = None


class JobList(Document):
    items: list[Job]
    next_cursor: Cursor


class RenderedRequest(Document):
    """The request that a job would send, filled in and signed."""

    job_id: str
    method: str
    url: str
    headers: dict[str, str]
    body: str
    next_run_at: Time | None


class JobBulkItem(Document):
    """What became of one job of many."""

    index: Annotated[int | None, Field(description="Its place in `jobs`, of `create`.")] = None
    id: str | None = None
    succeeded: bool
    run_id: Annotated[str | None, Field(description="The run that a trigger made.")] = None
    signing_secret: Annotated[str | None, Field(description="Of a new job, shown this once.")] = (
        None
    )
    problem: Annotated[Problem | None, Field(description="Why it was not done.")] = None


class JobsBulkResult(Document):
    matched: Annotated[int, Field(description="How many jobs were meant.")]
    succeeded: Annotated[int, Field(description="For how many it was done.")]
    failed: Annotated[int, Field(description="For how many it was not.")]
    items: list[JobBulkItem]


class Attempt(Document):
    number: int
    worker: str
    started_at: Time
    finished_at: Time
    outcome: Literal["succeeded", "failed", "timed_out", "cancelled", "lost", "released"]
    error: str | None
    traceback: str | None
    log: list[str]
    request: dict[str, Any] | None
    response: dict[str, Any] | None


class Progress(Document):
    done: float
    total: float | None
    message: str | None


class Run(Document):
    id: str
    job_id: str
    handler: str
    state: Literal["waiting", "pending", "running", "succeeded", "failed", "cancelled", "skipped"]
    source: Literal["schedule", "enqueue", "trigger", "start", "after"]
    queue: str
    priority: int
    attempt: int
    failures: int
    scheduled_at: Time
    run_at: Time
    created_at: Time
    started_at: Time | None
    finished_at: Time | None
    duration: Milliseconds | None
    worker: str | None
    error: str | None
    reason: str | None
    cancel_requested: bool
    dedupe_key: str | None
    progress: Progress | None
    payload: Annotated[Any, Field(description="Of one run; lists leave it out.")] = None
    result: Annotated[Any, Field(description="Of one run; lists leave it out.")] = None
    after: list[str] | None = None
    attempts: list[Attempt] | None = None
    why: str | None = None


class RunList(Document):
    items: list[Run]
    next_cursor: Cursor


class RunsBulkResult(Document):
    matched: Annotated[int, Field(description="How many runs were meant.")]
    done: Annotated[int, Field(description="For how many it was done.")]
    more: Annotated[bool, Field(description="Whether more match than `limit`: call again.")]


class Slot(Document):
    utc: Time
    local: Annotated[str, Field(description="In the schedule's timezone.")]


class Preview(Document):
    schedule: str
    description: Annotated[str, Field(description="The schedule in words.")]
    timezone: str
    slots: list[Slot]
    warnings: Annotated[list[str], Field(description="What daylight saving does to it.")]


class Health(Document):
    status: Literal["healthy", "degraded", "stopping"]
    time: Time
    store: Literal["ok", "away"]
    running: Annotated[int, Field(description="Attempts that run in this process.")]
    capacity: Annotated[int, Field(description="How many may run at once here.")]
    poll_interval: Milliseconds
    is_leader: Annotated[bool, Field(description="Whether this process fires slots first.")]
    stuck_threads: Annotated[int, Field(description="Threads that outlived their attempt.")]
    jobs_without_worker: Annotated[
        list[str], Field(description="Scheduled jobs whose handler no live worker has.")
    ]


class JobCounts(Document):
    total: int
    enabled: int


class LastDay(Document):
    succeeded: int
    failed: int


class Statistics(Document):
    jobs: JobCounts
    runs: Annotated[dict[str, int], Field(description="Runs that are kept, by state.")]
    last_day: Annotated[LastDay, Field(description="Runs that ended within 24 hours.")]
    due: Annotated[int, Field(description="Pending runs whose time has come.")]


class ApiKey(Document):
    id: str
    name: str
    scope: Literal["read", "write", "admin"]
    state: Literal["active", "expired", "revoked"]
    created_at: Time
    expires_at: Time | None
    key: Annotated[str | None, Field(description="Shown this once.")] = None


class ApiKeyList(Document):
    items: list[ApiKey]
    next_cursor: Cursor
