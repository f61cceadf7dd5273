"""An execution: an attempt as the compatibility operations show it."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from mainspring.core.model import Attempt, Outcome, Run, State
from mainspring.service.schemas.fields import Document, FieldSpec, Time, answers, document_of
from mainspring.service.schemas.json_format import to_iso, to_milliseconds

__all__ = ["EXECUTION", "Execution", "Executions", "execution_documents"]

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
