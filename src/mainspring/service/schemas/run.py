"""A run and its attempts, workflows, backfills and explanations; and what clients send to change
many runs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
from msgspec import UNSET, UnsetType, field
from msgspec.structs import asdict
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from mainspring.core import model
from mainspring.core.events import Event
from mainspring.core.model import Outcome, Source, State
from mainspring.engine import backfill
from mainspring.scheduler import explanation
from mainspring.scheduler.queries import MOST_AT_ONCE
from mainspring.scheduler.workflow import Workflow as Graph
from mainspring.service.schemas.documents import (
    Cursor,
    Document,
    Milliseconds,
    Time,
    camel_case,
    example,
    seconds_to_milliseconds,
    to_iso,
    to_json_value,
)
from mainspring.service.schemas.fields import (
    Body,
    Conditions,
    DateTime,
    JobId,
    JsonValue,
    Priority,
    field_fault,
    may_be_left_out,
)
from mainspring.service.schemas.job import Job

MOST_BACKFILLED = 10_000
"""Runs that one request adds."""

# -- what clients are sent ------------------------------------------------------------------------


class Attempt(Document):
    """One try of a run."""

    number: Annotated[int, example(1)]
    """The first attempt is 1."""
    worker: Annotated[str, example("host:4242:1a2b3c4d")]
    """The process that ran the attempt."""
    started_at: Time
    """When the attempt started."""
    finished_at: Time
    """When the attempt ended."""
    outcome: Outcome
    """`lost`: the worker died. `released`: the worker stopped and gave the run back."""
    error: str | None
    """Why the attempt failed."""
    traceback: str | None
    """The traceback of a handler that raised."""
    log: Annotated[list[str], example(["sent 3 rows"])]
    """The last lines that the handler logged."""
    cpu_time: Milliseconds | None
    """Milliseconds of CPU that the handler used. Null if not known: webhooks, killed workers."""
    peak_memory: int | None
    """Bytes of memory at the peak, of a handler with a process of its own."""
    request: dict[str, Any] | None
    """The webhook's request, with its secrets masked."""
    response: dict[str, Any] | None
    """The status, the headers and the beginning of the endpoint's response."""

    @classmethod
    def of(cls, attempt: model.Attempt) -> Self:
        detail = attempt.detail if isinstance(attempt.detail, dict) else {}
        return cls(
            number=attempt.number,
            worker=attempt.worker,
            started_at=to_iso(attempt.started_at),
            finished_at=to_iso(attempt.finished_at),
            outcome=attempt.outcome,
            error=attempt.error,
            traceback=attempt.traceback,
            log=list(attempt.log),
            cpu_time=seconds_to_milliseconds(attempt.cpu_seconds),
            peak_memory=attempt.peak_memory,
            request=detail.get("request"),
            response=detail.get("response"),
        )


class Progress(Document):
    done: float
    total: float | None
    message: str | None


class Run(Document):
    """A run."""

    id: Annotated[str, example("nightly@2026-03-01T01:30:00Z")]
    """The run of a slot has the job's id, `@` and the slot."""
    job_id: Annotated[str, example("nightly")]
    """The job of the run."""
    handler: Annotated[str, example("webhook")]
    """What runs it. `webhook` calls the endpoint."""
    state: Annotated[State, example("succeeded")]
    """`failed` and `cancelled` runs can be retried."""
    source: Annotated[Source, example("schedule")]
    """What made the run."""
    queue: Annotated[str, example("default")]
    """The queue of the run. A worker takes runs of its own queues."""
    priority: Annotated[int, example(5)]
    """0 to 9. Runs of a higher priority start first."""
    attempt: Annotated[int, example(1)]
    """The number of the last attempt."""
    failures: int
    """How many attempts failed since the run was made or retried by hand."""
    scheduled_at: Time
    """The slot, or when the run was first to start."""
    run_at: Time
    """When the run is due, or was. A retry moves it."""
    created_at: Time
    """When the run was made."""
    started_at: Time | None
    """When the last attempt started."""
    finished_at: Time | None
    """When the run ended."""
    duration: Annotated[Milliseconds | None, example(212.5)]
    """How long the last attempt took, in milliseconds."""
    worker: Annotated[str | None, example("host:4242:1a2b3c4d")]
    """The process that runs it, or ran it last."""
    error: str | None
    """Why the last attempt failed."""
    reason: str | None
    """Why the run was skipped, cancelled or given up."""
    cancel_requested: bool
    """Whether a cancellation was requested."""
    dedupe_key: str | None
    """While this run is unfinished, an enqueue with the same key returns this run."""
    progress: Progress | None
    """The progress that the handler reports."""
    payload: Any = UNSET
    """The handler's arguments. Lists leave it out."""
    result: Any = UNSET
    """What the handler returned. Lists leave it out."""
    after: list[str] | UnsetType | None = UNSET
    """The runs that it waits for."""
    attempts: list[Attempt] | UnsetType | None = UNSET
    """The attempts, oldest first. The last 20 are kept."""
    why: str | UnsetType | None = UNSET
    """Why the run did not start, or not yet. Lists leave it out."""

    @classmethod
    def of(cls, run: model.Run) -> Self:
        """The run as lists show it: without payload, result and attempts."""
        return cls(
            id=run.id,
            job_id=run.job_id,
            handler=run.handler,
            state=run.state,
            source=run.source,
            queue=run.queue,
            priority=run.priority,
            attempt=run.attempt,
            failures=run.failures,
            scheduled_at=to_iso(run.scheduled_at),
            run_at=to_iso(run.run_at),
            created_at=to_iso(run.created_at),
            started_at=to_iso(run.started_at),
            finished_at=to_iso(run.finished_at),
            duration=seconds_to_milliseconds(run.duration),
            worker=run.worker,
            error=run.error,
            reason=run.reason,
            cancel_requested=run.cancel_requested,
            dedupe_key=run.dedupe_key,
            progress=None if (done := run.progress) is None else Progress(**asdict(done)),
        )

    @classmethod
    def whole(cls, run: model.Run, why: str | UnsetType | None = UNSET) -> Self:
        document = cls.of(run)
        document.payload = to_json_value(run.payload)
        document.result = to_json_value(run.result)
        document.after = list(run.after)
        document.attempts = [Attempt.of(attempt) for attempt in run.attempts]
        document.why = why
        return document


class RunList(Document):
    items: list[Run]
    next_cursor: Cursor


class RunsBulkResult(Document):
    matched: int
    """How many of the runs that were named or match are in a state that the action is for; with
    `match` at most `limit`."""
    done: int
    """For how many it was done."""
    more: bool
    """Whether more match than `limit`: call again."""


class Explanation(Document):
    """Why a run, a job or a slot has not run, or not yet; or that it has."""

    code: Annotated[explanation.Reason, example("overlap")]
    """The reason, for programs."""
    sentence: str
    """The reason, for people."""
    job_id: str
    run_id: str | None
    """The run that the response is about."""
    at: Time | None
    """The slot that was asked about."""
    facts: dict[str, Any]
    """Ids of runs, times and names behind the sentence."""

    @classmethod
    def of(cls, reason: explanation.Explanation) -> Self:
        document = super().of(reason)
        document.facts = camel_case(reason.facts)
        return document


class Backfill(Document):
    """What a backfill did, or what a dry run would do."""

    job_id: str
    slots: int
    """How many slots lie between `start` and `end`."""
    added: list[str]
    """The runs of the slots that had none."""
    existing: dict[str, State]
    """Runs that were there already, and their states."""
    may_have_run: int
    """How many of the added slots are older than the runs that are kept: if they ran, their runs
    have been deleted since."""
    next_slot: Time | None
    """The first slot that was not looked at; null at the end."""
    first_slot: Time | None
    """The first slot of the schedule, if that is later than `start`: an interval counts from when
    its job was first stored."""


class WorkflowNode(Document):
    id: str
    job_id: str
    run_id: str | None
    state: State | None
    detail: str | None
    """Why a run did not succeed, or the schedule of a job."""


class WorkflowEdge(Document, kw_only=True):
    from_: str = field(name="from")
    """The node that comes first."""
    to: str
    """The node that comes after it."""


class Workflow(Document):
    """The jobs, or the runs, of a workflow, and which comes after which."""

    nodes: list[WorkflowNode]
    edges: list[WorkflowEdge]
    complete: bool
    """False if there may be more runs than are shown here."""
    text: str
    """The graph drawn as a tree."""

    @classmethod
    def of(cls, graph: Graph) -> Self:
        return cls(
            nodes=[WorkflowNode.of(node) for node in graph.nodes],
            edges=[
                WorkflowEdge(from_=upstream, to=node.id)
                for node in graph.nodes
                for upstream in node.after
            ],
            complete=graph.complete,
            text=graph.text(),
        )


class ChainResult(Document):
    items: list[Run]


class EventDocument(Document):
    """An event of the stream at `/api/v1/events`."""

    event: str
    time: Time
    job_id: str | None
    run: Run | None
    job: Job | None
    error: str | None
    data: dict[str, Any]

    @classmethod
    def of(cls, event: Event) -> Self:
        error = event.error
        if isinstance(error, BaseException):
            error = f"{type(error).__name__}: {error}"
        job = event.data.get("job")
        data = {
            name: value for name, value in event.data.items() if not isinstance(value, model.Job)
        }
        return cls(
            event=event.name,
            time=to_iso(event.time),
            job_id=event.job_id,
            run=None if event.run is None else Run.of(event.run),
            job=Job.of(job) if isinstance(job, model.Job) else None,
            error=error,
            data=msgspec.to_builtins(data, enc_hook=str),
        )


# -- what clients send ----------------------------------------------------------------------------


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
    state: State | list[State] = may_be_left_out()
    """Runs in this state, or in one of these."""
    failing: Annotated[
        bool, Field(strict=True, description="Only runs with a failed attempt, in any state.")
    ] = may_be_left_out()
    since: DateTime = may_be_left_out()
    """Runs made then or later."""
    until: DateTime = may_be_left_out()
    """Runs made before then."""


class RunsBulkBody(Body):
    example: ClassVar = {"action": "retry", "match": {"job": "nightly", "state": "failed"}}
    action: Literal["cancel", "retry", "delete"]
    """What is done with each run."""
    ids: Annotated[list[RunId], Field(min_length=1, max_length=MOST_AT_ONCE)] | None = None
    """These runs."""
    match: MatchBody | None = None
    """All runs that match. `{}`: every run."""
    limit: Annotated[int, Field(ge=1, le=MOST_AT_ONCE)] = MOST_AT_ONCE
    """At most this many runs. `more` in the response says if more match."""

    @model_validator(mode="after")
    def _names_its_runs_once(self) -> Self:
        if (self.ids is None) == (self.match is None):
            why = "give either ids or match; an empty match ({}) selects every run"
            raise field_fault("match", why, predicate=False)
        return self


class BackfillBody(Body):
    example: ClassVar = {"start": "2026-11-01T00:00:00Z", "end": "2026-11-08T00:00:00Z"}
    start: DateTime
    """The first slot, or a time before it."""
    end: DateTime
    """Slots before this time. Not later than now."""
    limit: Annotated[int, Field(ge=1, le=MOST_BACKFILLED)] = backfill.MOST_WITHOUT_LIMIT
    """At most this many runs, earliest slot first. `nextSlot`: where to go on."""
    priority: Priority = 0
    """The priority of the runs."""


class LinkBody(Body):
    job_id: Annotated[JobId, Field(examples=["extract"])]
    """The job to run."""
    payload: JsonValue = None
    """Instead of the job's own payload."""


class ChainBody(Body):
    """A run of each job, each after the one before it."""

    example: ClassVar = {"links": [{"jobId": "extract"}, {"jobId": "load"}]}
    links: Annotated[list[LinkBody], Field(min_length=1, max_length=100)]
    """The jobs, in the order in which they run."""
    after_failure: Literal["skip", "run"] | None = None
    """What becomes of a run if the one before it did not succeed. Left out: what its job says."""
