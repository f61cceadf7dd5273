"""The options of jobs and runs as types, for editors and type checkers.

`option_names` gives the same names to the checks at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypedDict

from mainspring.core.model import R, Run, State, Webhook
from mainspring.core.policy import (
    AfterFailure,
    Backoff,
    BackoffKind,
    Breaker,
    Delivery,
    Isolation,
    Misfire,
    MisfireKind,
    Overlap,
    Rate,
    Span,
)
from mainspring.errors import InvalidInput


class JobLike(Protocol):
    """A decorated function or a `Job`: it carries the job's id."""

    @property
    def id(self) -> str: ...


JobRef = str | JobLike
"""A job by its id, as a decorated function, or as a `Job`."""


def job_id_of(job: JobRef) -> str:
    name = getattr(job, "id", job)
    if not isinstance(name, str):
        raise InvalidInput(
            f"a job is named by its id or its decorated function, not {job!r}", field="job"
        )
    return name


RunRef = str | Run[R]
"""A run by its id, or as a `Run`."""


def run_id_of(run: RunRef[Any]) -> str:
    """The id of a run. Of anything else there is no run, which is an error of its own."""
    return run.id if isinstance(run, Run) else run


Errors = type[BaseException] | str | Iterable[type[BaseException] | str]


class PolicyOptions(TypedDict, total=False):
    """How a job's runs are retried, limited and isolated (docs/reference/job-options.md)."""

    retries: int
    backoff: Backoff | BackoffKind | Literal["fixed", "linear", "exponential"] | Mapping[str, Any]
    retry_delay: Span
    retry_on: Errors
    give_up_on: Errors
    timeout: Span | None
    priority: int
    queue: str
    concurrency: int | None
    concurrency_key: str | None
    rate: str | Rate | None
    rate_key: str | None
    overlap: Overlap | Literal["skip", "queue", "replace", "allow"]
    misfire: Misfire | MisfireKind | Literal["once", "skip", "all"] | Mapping[str, Any]
    start_deadline: Span | None
    delivery: Delivery | Literal["at_least_once", "at_most_once", "effect_once"]
    isolation: Isolation | Literal["auto", "thread", "process"]
    memory_limit: int | str | None
    breaker: Breaker | bool | int | Mapping[str, Any] | None
    after: str | JobLike | Iterable[str | JobLike]
    after_failure: AfterFailure | Literal["skip", "run"]
    run_on_start: bool
    each_node: bool
    retention: Span | None
    history: int | None


class JobOptions(PolicyOptions, total=False):
    """What `@scheduler.job(…)` and `add_job` take beside the schedule."""

    payload: Any
    timezone: str | None
    jitter: Span | None
    enabled: bool
    description: str | None
    tags: str | Iterable[str]
    metadata: Mapping[str, Any]


class JobChanges(JobOptions, total=False):
    """What `update_job` takes."""

    handler: str | JobLike
    webhook: str | Mapping[str, Any] | Webhook
    schedule: Any
    signing_secret: str


class EnqueueOptions(TypedDict, total=False):
    """What one enqueue takes."""

    delay: Span | None
    at: datetime | None
    priority: int | None
    queue: str | None
    dedupe_key: str | list[str] | None
    dedupe_for: Span | None
    after: RunRef | Sequence[RunRef] | None
    after_failure: AfterFailure | Literal["skip", "run"] | None


class RunFilter(TypedDict, total=False):
    """Selects the runs that `cancel_runs`, `retry_runs` and `remove_runs` change."""

    job: str | None
    state: State | str | Iterable[State | str] | None
    failing: bool
    since: datetime | None
    until: datetime | None
    limit: int


def option_names(kind: type) -> frozenset[str]:
    """The option names of one of the types above."""
    names: frozenset[str] = kind.__optional_keys__  # type: ignore[attr-defined]
    return names
