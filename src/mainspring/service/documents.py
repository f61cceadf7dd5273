"""What answers look like, for the API's description. Answers are written from `shapes.py`; the
tests hold both against each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

__all__ = [
    "Bulk",
    "ChangedAnswer",
    "Created",
    "Done",
    "Executions",
    "Failures",
    "Health",
    "JobAnswer",
    "JobPage",
    "KeyAnswer",
    "KeyList",
    "Preview",
    "ProblemDocument",
    "RunAnswer",
    "RunPage",
    "RunsBulk",
    "Shown",
    "Stats",
]

Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Milliseconds = Annotated[float, Field(description="Milliseconds.")]


class Document(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, extra="forbid", protected_namespaces=(), serialize_by_alias=True
    )


class FieldErrorDocument(Document):
    field: str
    message: str


class ProblemDocument(Document):
    """An error: `error` says what to do about it, the rest is RFC 9457."""

    success: Literal[False]
    error: str
    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[FieldErrorDocument] | None = None


class Done(Document):
    success: Literal[True]
    message: str


class CreatedData(Document):
    job_id: str
    schedule: str | None
    endpoint: str | None
    next_run_at: Time | None
    handler: Annotated[str, Field(description="Of a job that calls no endpoint.")] | None = None
    signing_secret: Annotated[str, Field(description="Shown this once.")] | None = None


class RequestData(Document):
    """What a dry run shows."""

    job_id: str
    method: str
    url: str
    headers: dict[str, str]
    body: str
    next_run_at: Time | None


class Created(Document):
    success: Literal[True]
    data: CreatedData


class Shown(Document):
    success: Literal[True]
    data: RequestData


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


class JobDocument(Document):
    id: Annotated[str, Field(alias="_id")]
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


class JobAnswer(Document):
    success: Literal[True]
    data: JobDocument


class ChangedJob(JobDocument):
    signing_secret: (
        Annotated[str, Field(description="With rotateSecret; shown this once.")] | None
    ) = None


class ChangedAnswer(Document):
    success: Literal[True]
    data: ChangedJob


class JobPage(Document):
    success: Literal[True]
    data: list[JobDocument]
    page: int
    limit: int
    total: int


class BulkResult(Document):
    """Of one job: what creating it alone would answer, or which run a trigger made, or why not."""

    success: bool
    index: Annotated[int, Field(description="Its place in `jobs`.")] | None = None
    job_id: str | None = None
    schedule: str | None = None
    endpoint: str | None = None
    next_run_at: Time | None = None
    handler: str | None = None
    signing_secret: str | None = None
    run_id: str | None = None
    error: str | None = None
    status: int | None = None
    errors: list[FieldErrorDocument] | None = None


class Bulk(Document):
    """`success` is true where it was done for every one."""

    success: bool
    data: list[BulkResult]
    matched: int
    done: int


class Execution(Document):
    id: Annotated[str, Field(alias="_id")]
    job_id: str
    status: Literal["success", "failure", "running"]
    started_at: Time
    completed_at: Time | None
    duration: int | None
    response_code: int | None
    response_body: str | None
    truncated: Annotated[bool, Field(description="Whether responseBody is a part of it.")]
    encoding: Annotated[
        Literal["base64"] | None, Field(description="Of responseBody; null: it is text.")
    ]
    error_message: str | None
    attempt: int
    scheduled_at: Time


class Executions(Document):
    success: Literal[True]
    data: list[Execution]


Failures = Executions


class AttemptDocument(Document):
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


class ProgressDocument(Document):
    done: float
    total: float | None
    message: str | None


class RunDocument(Document):
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
    progress: ProgressDocument | None
    payload: Annotated[Any, Field(description="Of one run; lists leave it out.")] = None
    result: Annotated[Any, Field(description="Of one run; lists leave it out.")] = None
    after: list[str] | None = None
    attempts: list[AttemptDocument] | None = None
    why: str | None = None


class RunAnswer(Document):
    success: Literal[True]
    data: RunDocument


class RunPage(Document):
    success: Literal[True]
    data: list[RunDocument]
    cursor: str | None


class RunsBulkData(Document):
    matched: int
    done: int
    more: bool


class RunsBulk(Document):
    success: Literal[True]
    data: RunsBulkData


class SchedulerState(Document):
    is_running: bool
    running_jobs: int
    max_concurrent_jobs: int


class SchedulerHealth(SchedulerState):
    poll_interval: Milliseconds
    is_leader: bool
    stuck_threads: int


class Health(Document):
    success: bool
    status: Literal["healthy", "degraded", "stopping"]
    timestamp: Time
    store: Literal["ok", "away"]
    scheduler: SchedulerHealth
    jobs_without_worker: list[str]


class ExecutionCounts(Document):
    total: int
    successful: int
    failed: int
    last24_hours: Annotated[int, Field(alias="last24Hours")]


class StatsData(Document):
    executions: ExecutionCounts
    scheduler: SchedulerState
    jobs: dict[str, int]
    runs: dict[str, int]
    due: int


class Stats(Document):
    success: Literal[True]
    data: StatsData


class Slot(Document):
    utc: Time
    local: str


class PreviewData(Document):
    schedule: str
    description: str
    timezone: str
    slots: list[Slot]
    warnings: list[str]


class Preview(Document):
    success: Literal[True]
    data: PreviewData


class KeyDocument(Document):
    id: str
    name: str
    scope: Literal["read", "write", "admin"]
    state: Literal["active", "expired", "revoked"]
    created_at: Time
    expires_at: Time | None
    key: str | None = None


class KeyAnswer(Document):
    success: Literal[True]
    data: KeyDocument


class KeyList(Document):
    success: Literal[True]
    data: list[KeyDocument]


class Probe(Document):
    status: str
