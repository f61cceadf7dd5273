"""The documents of the nine operations: those of `/api/v1` under other names, in an envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import Field

from mainspring.core import model
from mainspring.core.model import Attempt, Outcome, Run, State
from mainspring.service.schemas.fields import (
    Document,
    FieldSpec,
    Milliseconds,
    Time,
    answers,
    document_of,
)
from mainspring.service.schemas.job import JOB, SIGNING_SECRET, WEBHOOK, job_document
from mainspring.service.schemas.json_format import to_iso, to_milliseconds

ID: FieldSpec[model.Job] = FieldSpec(
    "id", "The job's name in URLs.", "nightly", answered=str, other_alias="_id"
)


class Done(Document):
    success: bool
    message: Annotated[str, Field(examples=["job nightly was deleted"])]


# -- jobs -----------------------------------------------------------------------------------------


class CreatedData(Document):
    """A new job."""

    job_id: Annotated[str, Field(examples=["nightly"])]
    schedule: Annotated[str | None, Field(examples=["0 30 2 * * *"])]
    endpoint: Annotated[str | None, Field(examples=["https://api.example.com/webhook"])]
    next_run_at: Time | None
    signing_secret: Annotated[
        str | None, Field(description="Only this response shows it.", examples=["whsec_…"])
    ] = None


class Created(Document):
    success: bool
    data: CreatedData


@answers(ID, *JOB, *WEBHOOK, SIGNING_SECRET)
class JobDocument(Document):
    """A job."""


class JobAnswer(Document):
    success: bool
    data: JobDocument


class JobPage(Document):
    success: bool
    data: list[JobDocument]
    page: int
    limit: int
    total: int


def compat_job(job: model.Job) -> dict[str, Any]:
    """The document of `/api/v1` with `_id` instead of `id`."""
    document = job_document(job)
    return {"_id": document.pop("id"), **document}


def created_document(job: model.Job, signing_secret: str | None) -> dict[str, Any]:
    document = job_document(job)
    created = {
        "jobId": job.id,
        "schedule": document["schedule"],
        "endpoint": document.get("endpoint"),
        "nextRunAt": document["nextRunAt"],
    }
    return created if signing_secret is None else {**created, "signingSecret": signing_secret}


# -- executions -----------------------------------------------------------------------------------

_WHY = {
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed out",
    Outcome.CANCELLED: "cancelled",
    Outcome.LOST: "the worker died or lost its lease",
    Outcome.RELEASED: "the worker stopped and gave the run back",
}


class _Source(Struct, frozen=True):
    """A run and one of its attempts; None: the attempt that is running."""

    run: Run
    attempt: Attempt | None

    @property
    def number(self) -> int:
        return self.run.attempt if self.attempt is None else self.attempt.number

    @property
    def status(self) -> str:
        if self.attempt is None:
            return "running"
        return "success" if self.attempt.outcome is Outcome.SUCCEEDED else "failure"

    @property
    def duration(self) -> int | None:
        if self.attempt is None:
            return None
        span = to_milliseconds(self.attempt.finished_at - self.attempt.started_at)
        return None if span is None else round(span)

    @property
    def error(self) -> str | None:
        if self.attempt is None or self.status == "success":
            return None
        return self.attempt.error or _WHY[self.attempt.outcome]

    def response(self, name: str, otherwise: Any = None) -> Any:
        detail = None if self.attempt is None else self.attempt.detail
        response = detail.get("response") if isinstance(detail, dict) else None
        return (response or {}).get(name, otherwise)


EXECUTION: tuple[FieldSpec[_Source], ...] = (
    FieldSpec(
        "id",
        "The run's id, `:` and the number of the attempt.",
        "nightly@2026-03-01T01:30:00Z:1",
        answered=str,
        read=lambda source: f"{source.run.id}:{source.number}",
        other_alias="_id",
    ),
    FieldSpec(
        "job_id",
        "The job of the run.",
        "nightly",
        answered=str,
        read=lambda source: source.run.job_id,
    ),
    FieldSpec(
        "status",
        "Whether the answer was a success.",
        answered=Literal["success", "failure", "running"],
        read=lambda source: source.status,
    ),
    FieldSpec(
        "started_at",
        "When the attempt started.",
        answered=Time,
        read=lambda source: to_iso((source.attempt or source.run).started_at),
    ),
    FieldSpec(
        "completed_at",
        "When the attempt ended.",
        answered=Time | None,
        read=lambda source: source.attempt and to_iso(source.attempt.finished_at),
    ),
    FieldSpec(
        "duration",
        "How long the attempt took, in whole milliseconds.",
        212,
        answered=int | None,
        read=lambda source: source.duration,
    ),
    FieldSpec(
        "response_code",
        "The status of the endpoint's answer. Null if no answer came.",
        200,
        answered=int | None,
        read=lambda source: source.response("status"),
    ),
    FieldSpec(
        "response_body",
        "The beginning of the endpoint's answer.",
        '{"ok": true}',
        answered=str | None,
        read=lambda source: source.response("body"),
    ),
    FieldSpec(
        "truncated",
        "Whether `responseBody` is only a part of the answer.",
        answered=bool,
        read=lambda source: source.response("truncated", False),
    ),
    FieldSpec(
        "encoding",
        "The encoding of `responseBody`: base64. Null: it is text.",
        answered=str | None,
        read=lambda source: source.response("encoding"),
    ),
    FieldSpec(
        "error_message",
        "Why the attempt failed.",
        answered=str | None,
        read=lambda source: source.error,
    ),
    FieldSpec(
        "attempt",
        "The number of the attempt. The first is 1.",
        1,
        answered=int,
        read=lambda source: source.number,
    ),
    FieldSpec(
        "scheduled_at",
        "The slot.",
        answered=Time,
        read=lambda source: to_iso(source.run.scheduled_at),
    ),
)


@answers(*EXECUTION)
class Execution(Document):
    """An attempt of a run."""


class Executions(Document):
    success: bool
    data: list[Execution]


def execution_documents(run: Run) -> list[dict[str, Any]]:
    """The run's attempts, newest first, with the one that is running."""
    attempts: list[Attempt | None] = list(run.attempts)
    if run.state is State.RUNNING:
        attempts.append(None)
    return [document_of(EXECUTION, _Source(run, attempt)) for attempt in reversed(attempts)]


# -- observability --------------------------------------------------------------------------------


class SchedulerState(Document):
    is_running: bool
    running_jobs: int
    max_concurrent_jobs: int


class SchedulerHealth(SchedulerState):
    poll_interval: Milliseconds


class HealthAnswer(Document):
    success: bool
    status: Annotated[Literal["healthy", "degraded", "stopping"], Field(examples=["healthy"])]
    timestamp: Time
    scheduler: SchedulerHealth


class ExecutionCounts(Document):
    total: int
    successful: int
    failed: int
    last24_hours: Annotated[int, Field(alias="last24Hours")]


class StatsData(Document):
    executions: ExecutionCounts
    scheduler: SchedulerState


class Stats(Document):
    success: bool
    data: StatsData


def scheduler_state(health: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the scheduler, from the document of `/api/v1/health`."""
    return {
        "isRunning": health["status"] != "stopping",
        "runningJobs": health["running"],
        "maxConcurrentJobs": health["capacity"],
    }


def execution_counts(statistics: Mapping[str, Any]) -> dict[str, int]:
    """The counts, from the document of `/api/v1/statistics`."""
    runs = statistics["runs"]
    return {
        "total": runs["succeeded"] + runs["failed"],
        "successful": runs["succeeded"],
        "failed": runs["failed"],
        "last24Hours": sum(statistics["lastDay"].values()),
    }
