"""A run and its attempts, and what clients send to change many runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from mainspring.core import model
from mainspring.core.model import State
from mainspring.scheduler.queries import MOST_AT_ONCE
from mainspring.service.schemas.fields import (
    Body,
    Conditions,
    Cursor,
    DateTime,
    Document,
    FieldSpec,
    JobId,
    Milliseconds,
    Time,
    answers,
    document_of,
    field_fault,
    may_be_left_out,
)
from mainspring.service.schemas.json_format import seconds_to_milliseconds, to_iso, to_json_value

# -- answers --------------------------------------------------------------------------------------


def _detail(attempt: model.Attempt, name: str) -> Any:
    """A part of what a webhook's attempt keeps."""
    return attempt.detail.get(name) if isinstance(attempt.detail, dict) else None


ATTEMPT: tuple[FieldSpec[model.Attempt], ...] = (
    FieldSpec(
        "number", "The first attempt is 1.", 1, answered=int, read=lambda attempt: attempt.number
    ),
    FieldSpec(
        "worker",
        "The process that ran the attempt.",
        "host:4242:1a2b3c4d",
        answered=str,
        read=lambda attempt: attempt.worker,
    ),
    FieldSpec(
        "started_at",
        "When the attempt started.",
        answered=Time,
        read=lambda attempt: to_iso(attempt.started_at),
    ),
    FieldSpec(
        "finished_at",
        "When the attempt ended.",
        answered=Time,
        read=lambda attempt: to_iso(attempt.finished_at),
    ),
    FieldSpec(
        "outcome",
        "`lost`: the worker died. `released`: the worker stopped and gave the run back.",
        answered=Literal["succeeded", "failed", "timed_out", "cancelled", "lost", "released"],
        read=lambda attempt: str(attempt.outcome),
    ),
    FieldSpec(
        "error",
        "Why the attempt failed.",
        answered=str | None,
        read=lambda attempt: attempt.error,
    ),
    FieldSpec(
        "traceback",
        "The traceback of a handler that raised.",
        answered=str | None,
        read=lambda attempt: attempt.traceback,
    ),
    FieldSpec(
        "log",
        "The last lines that the handler logged.",
        ["sent 3 rows"],
        answered=list[str],
        read=lambda attempt: list(attempt.log),
    ),
    FieldSpec(
        "cpu_time",
        "Milliseconds of CPU that the handler used. Null if not known: webhooks, killed workers.",
        answered=Milliseconds | None,
        read=lambda attempt: seconds_to_milliseconds(attempt.cpu_seconds),
    ),
    FieldSpec(
        "peak_memory",
        "Bytes of memory at the peak, of a handler with a process of its own.",
        answered=int | None,
        read=lambda attempt: attempt.peak_memory,
    ),
    FieldSpec(
        "request",
        "The webhook's request, with its secrets masked.",
        answered=dict[str, Any] | None,
        read=lambda attempt: _detail(attempt, "request"),
    ),
    FieldSpec(
        "response",
        "The status, the headers and the beginning of the endpoint's answer.",
        answered=dict[str, Any] | None,
        read=lambda attempt: _detail(attempt, "response"),
    ),
)


@answers(*ATTEMPT)
class Attempt(Document):
    """One try of a run."""


class Progress(Document):
    done: float
    total: float | None
    message: str | None


def _progress(run: model.Run) -> dict[str, Any] | None:
    if run.progress is None:
        return None
    return {
        "done": run.progress.done,
        "total": run.progress.total,
        "message": run.progress.message,
    }


BRIEF_RUN: tuple[FieldSpec[model.Run], ...] = (
    FieldSpec(
        "id",
        "The run of a slot has the job's id, `@` and the slot.",
        "nightly@2026-03-01T01:30:00Z",
        answered=str,
        read=lambda run: run.id,
    ),
    FieldSpec(
        "job_id", "The job of the run.", "nightly", answered=str, read=lambda run: run.job_id
    ),
    FieldSpec(
        "handler",
        "What runs it. `webhook` calls the endpoint.",
        "webhook",
        answered=str,
        read=lambda run: run.handler,
    ),
    FieldSpec(
        "state",
        "`failed` and `cancelled` runs can be retried.",
        "succeeded",
        answered=Literal[
            "waiting", "pending", "running", "succeeded", "failed", "cancelled", "skipped"
        ],
        read=lambda run: str(run.state),
    ),
    FieldSpec(
        "source",
        "What made the run.",
        "schedule",
        answered=Literal["schedule", "enqueue", "trigger", "start", "after", "backfill"],
        read=lambda run: str(run.source),
    ),
    FieldSpec(
        "queue",
        "The queue of the run. A worker takes runs of its own queues.",
        "default",
        answered=str,
        read=lambda run: run.queue,
    ),
    FieldSpec(
        "priority",
        "0 to 9. Runs of a higher priority start first.",
        5,
        answered=int,
        read=lambda run: run.priority,
    ),
    FieldSpec(
        "attempt", "The number of the last attempt.", 1, answered=int, read=lambda run: run.attempt
    ),
    FieldSpec(
        "failures",
        "How many attempts failed since the run was made or retried by hand.",
        answered=int,
        read=lambda run: run.failures,
    ),
    FieldSpec(
        "scheduled_at",
        "The slot, or when the run was first to start.",
        answered=Time,
        read=lambda run: to_iso(run.scheduled_at),
    ),
    FieldSpec(
        "run_at",
        "When the run is due, or was. A retry moves it.",
        answered=Time,
        read=lambda run: to_iso(run.run_at),
    ),
    FieldSpec(
        "created_at",
        "When the run was made.",
        answered=Time,
        read=lambda run: to_iso(run.created_at),
    ),
    FieldSpec(
        "started_at",
        "When the last attempt started.",
        answered=Time | None,
        read=lambda run: to_iso(run.started_at),
    ),
    FieldSpec(
        "finished_at",
        "When the run ended.",
        answered=Time | None,
        read=lambda run: to_iso(run.finished_at),
    ),
    FieldSpec(
        "duration",
        "How long the last attempt took, in milliseconds.",
        212.5,
        answered=Milliseconds | None,
        read=lambda run: None if run.duration is None else round(run.duration * 1000, 3),
    ),
    FieldSpec(
        "worker",
        "The process that runs it, or ran it last.",
        "host:4242:1a2b3c4d",
        answered=str | None,
        read=lambda run: run.worker,
    ),
    FieldSpec(
        "error", "Why the last attempt failed.", answered=str | None, read=lambda run: run.error
    ),
    FieldSpec(
        "reason",
        "Why the run was skipped, cancelled or given up.",
        answered=str | None,
        read=lambda run: run.reason,
    ),
    FieldSpec(
        "cancel_requested",
        "Whether a cancellation was requested.",
        answered=bool,
        read=lambda run: run.cancel_requested,
    ),
    FieldSpec(
        "dedupe_key",
        "While this run is unfinished, an enqueue with the same key returns this run.",
        answered=str | None,
        read=lambda run: run.dedupe_key,
    ),
    FieldSpec(
        "progress",
        "The progress that the handler reports.",
        answered=Progress | None,
        read=_progress,
    ),
)
WHOLE_RUN: tuple[FieldSpec[model.Run], ...] = (
    FieldSpec(
        "payload",
        "The handler's arguments. Lists leave it out.",
        answered=Any,
        optional=True,
        read=lambda run: to_json_value(run.payload),
    ),
    FieldSpec(
        "result",
        "What the handler returned. Lists leave it out.",
        answered=Any,
        optional=True,
        read=lambda run: to_json_value(run.result),
    ),
    FieldSpec(
        "after",
        "The runs that it waits for.",
        answered=list[str] | None,
        optional=True,
        read=lambda run: list(run.after),
    ),
    FieldSpec(
        "attempts",
        "The attempts, oldest first. The last 20 are kept.",
        answered=list[Attempt] | None,
        optional=True,
        read=lambda run: [document_of(ATTEMPT, attempt) for attempt in run.attempts],
    ),
)
WHY: FieldSpec[Any] = FieldSpec(
    "why",
    "Why the run did not start, or not yet. Lists leave it out.",
    answered=str | None,
    optional=True,
)
RUN = (*BRIEF_RUN, *WHOLE_RUN)


@answers(*RUN, WHY)
class Run(Document):
    """A run."""


class RunList(Document):
    items: list[Run]
    next_cursor: Cursor


class RunsBulkResult(Document):
    matched: Annotated[
        int,
        Field(
            description="How many of the runs that were named or match are in a state that the"
            " action is for; with `match` at most `limit`."
        ),
    ]
    done: Annotated[int, Field(description="For how many it was done.")]
    more: Annotated[bool, Field(description="Whether more match than `limit`: call again.")]


def run_document(run: model.Run, *, whole: bool = False) -> dict[str, Any]:
    """A run as it is answered. `whole`: with payload, result and attempts, which lists leave
    out."""
    return document_of(RUN if whole else BRIEF_RUN, run)


# -- requests -------------------------------------------------------------------------------------


def can_be_run_id(text: str) -> bool:
    """Whether a run can have this id: a job's id and a time, or random characters."""
    return 1 <= len(text) <= 400 and text.isascii() and text.isprintable() and " " not in text


def _run_id(text: str) -> str:
    if not can_be_run_id(text):
        raise ValueError(
            f"a run id is 1 to 400 printable ASCII characters without spaces, not {text!r}"
        )
    return text


RunId = Annotated[str, StringConstraints(min_length=1, max_length=400), AfterValidator(_run_id)]


class MatchBody(Conditions):
    model_config = ConfigDict(strict=False)

    job: Annotated[JobId, Field(description="Runs of this job.")] = may_be_left_out()
    state: Annotated[
        State | list[State], Field(description="Runs in this state, or in one of these.")
    ] = may_be_left_out()
    failing: Annotated[
        bool, Field(strict=True, description="Only runs with a failed attempt, in any state.")
    ] = may_be_left_out()
    since: Annotated[DateTime, Field(description="Runs made then or later.")] = may_be_left_out()
    until: Annotated[DateTime, Field(description="Runs made before then.")] = may_be_left_out()


class RunsBulkBody(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"action": "retry", "match": {"job": "nightly", "state": "failed"}}],
        }
    )

    action: Annotated[
        Literal["cancel", "retry", "delete"], Field(description="What is done with each run.")
    ]
    ids: Annotated[
        Annotated[list[RunId], Field(min_length=1, max_length=MOST_AT_ONCE)] | None,
        Field(description="These runs."),
    ] = None
    match: Annotated[
        MatchBody | None, Field(description="All runs that match. `{}`: every run.")
    ] = None
    limit: Annotated[
        int,
        Field(
            ge=1,
            le=MOST_AT_ONCE,
            description="At most so many runs. `more` in the answer says if more match.",
        ),
    ] = MOST_AT_ONCE

    @model_validator(mode="after")
    def _names_its_runs_once(self) -> Self:
        if (self.ids is None) == (self.match is None):
            why = "give either ids or match; an empty match ({}) selects every run"
            raise field_fault("match", why, predicate=False)
        return self
