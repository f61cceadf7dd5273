"""The answers of the compatibility page's forms: an envelope around what `/api/v1` answers.
Answers are written from `shapes.py`; the tests hold both against each other."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mainspring.service.schemas import v1
from mainspring.service.schemas.v1 import Document, JobParts, Milliseconds, Time

__all__ = [
    "Bulk",
    "ChangedAnswer",
    "Created",
    "Done",
    "Executions",
    "Failures",
    "JobAnswer",
    "JobPage",
    "KeyAnswer",
    "KeyList",
    "PageHealth",
    "PagePreview",
    "ProblemDocument",
    "RunAnswer",
    "RunPage",
    "RunsBulk",
    "Shown",
    "Stats",
]


class ProblemDocument(v1.Problem):
    """An error: `error` says what to do about it, the rest is RFC 9457."""

    success: bool
    error: str


class Done(Document):
    success: bool
    message: str


class CreatedData(Document):
    job_id: str
    schedule: str | None
    endpoint: str | None
    next_run_at: Time | None
    handler: Annotated[str, Field(description="Of a job that calls no endpoint.")] | None = None
    signing_secret: Annotated[str, Field(description="Shown this once.")] | None = None


class Created(Document):
    success: bool
    data: CreatedData


class Shown(Document):
    success: bool
    data: v1.RenderedRequest


class JobDocument(JobParts):
    id: Annotated[str, Field(alias="_id")]


class JobAnswer(Document):
    success: bool
    data: JobDocument


class ChangedJob(JobDocument):
    signing_secret: (
        Annotated[str, Field(description="With rotateSecret; shown this once.")] | None
    ) = None


class ChangedAnswer(Document):
    success: bool
    data: ChangedJob


class JobPage(Document):
    success: bool
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
    errors: list[v1.FieldProblem] | None = None


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
    encoding: Annotated[str | None, Field(description="Of responseBody: base64; null: it is text.")]
    error_message: str | None
    attempt: int
    scheduled_at: Time


class Executions(Document):
    success: bool
    data: list[Execution]


Failures = Executions


class RunAnswer(Document):
    success: bool
    data: v1.Run


class RunPage(Document):
    success: bool
    data: list[v1.Run]
    cursor: str | None


class RunsBulk(Document):
    success: bool
    data: v1.RunsBulkResult


class SchedulerState(Document):
    is_running: bool
    running_jobs: int
    max_concurrent_jobs: int


class SchedulerHealth(SchedulerState):
    poll_interval: Milliseconds
    is_leader: bool
    stuck_threads: int


class PageHealth(Document):
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
    success: bool
    data: StatsData


class PagePreview(Document):
    success: bool
    data: v1.Preview


class KeyAnswer(Document):
    success: bool
    data: v1.ApiKey


class KeyList(Document):
    success: bool
    data: list[v1.ApiKey]


class Probe(Document):
    status: str
