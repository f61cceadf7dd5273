"""The options of jobs and runs as types, for editors and type checkers, and the options of one
enqueue, checked.

`option_names` gives the names of the types to the checks at run time. `Policy` reads what a job
gives for its options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from typing import Any, Literal, Protocol, TypedDict, Unpack

from mainspring.core.durations import duration
from mainspring.core.model import R, Run, State, Webhook, check_key
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
    Policy,
    Rate,
    Span,
)
from mainspring.core.schedules import dst
from mainspring.errors import InvalidInput, UnknownOption, refused


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
    within: Any


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEnqueueOptions:
    """The options of one enqueue. Making it raises `InvalidInput` for values that cannot be used;
    `EnqueueOptions` has the same names for type checkers."""

    delay: Span | None = None
    at: datetime | None = None
    priority: int | None = None
    queue: str | None = None
    dedupe_key: str | list[str] | None = None
    dedupe_for: Span | None = None
    after: RunRef | Sequence[RunRef] | None = None
    after_failure: AfterFailure | str | None = None
    within: Any = None
    """The connection or session whose transaction the runs are added in."""

    def __post_init__(self) -> None:
        if self.delay is not None and self.at is not None:
            raise InvalidInput("give delay or at, not both", field="at")
        if self.dedupe_for is not None and self.dedupe_key is None:
            raise InvalidInput("dedupe_for needs a dedupe_key", field="dedupe_for")
        if self.at is not None and not isinstance(self.at, datetime):
            raise refused("at", self.at, "is a datetime")
        keys = self.dedupe_key
        for key in keys if isinstance(keys, list) else [] if keys is None else [keys]:
            if not isinstance(key, str) or not 1 <= len(key) <= 500:
                rule = "is text of 1 to 500 characters"
                raise refused("dedupe_key", key, rule, subject="a dedupe_key")
            check_key(key, "a dedupe_key", "dedupe_key")
        if not isinstance(self.after, str | Run | list | tuple | None):
            raise refused("after", self.after, "takes a run, its id, or a list of them")
        if self.after_failure is not None and not self.after:
            why = "after_failure needs after: the runs that this one comes after"
            raise InvalidInput(why, field="after_failure", given=self.after_failure)
        names = ("priority", "queue", "after_failure")
        policy = {name: value for name in names if (value := getattr(self, name)) is not None}
        if policy:
            Policy.make(**policy)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> CheckedEnqueueOptions:
        """The options given by name. Raises `UnknownOption` for any other name."""
        if not given:  # most enqueues
            return _NO_OPTIONS
        try:
            return _NO_OPTIONS.changed(given)
        except UnknownOption as error:
            error.add_advice(
                'a run\'s arguments go in its payload, as in enqueue("job", {"to": "ada"})'
            )
            raise

    def changed(self, given: Mapping[str, Any]) -> CheckedEnqueueOptions:
        allowed = option_names(EnqueueOptions)
        if unknown := given.keys() - allowed:
            raise UnknownOption(unknown, allowed)
        return replace(self, **given)

    def run_at(self, now: datetime, zone: tzinfo) -> datetime:
        if self.delay is not None:
            return _later(now, self.delay, "delay")
        if self.at is None:
            return now
        try:
            if self.at.utcoffset() is None:
                return dst.instant_of(self.at.replace(tzinfo=None), zone)
            return self.at.astimezone(UTC)
        except OverflowError:
            why = f"at {self.at} lies outside the calendar"
            raise InvalidInput(why, field="at", given=self.at) from None

    def dedupe_until(self, now: datetime) -> datetime | None:
        """Until when the key is held after its run has ended; None: only while the run is live."""
        held = self.dedupe_for
        return None if held is None else _later(now, held, "dedupe_for")

    def keys(self, count: int) -> list[str | None]:
        """The dedupe key of each of `count` payloads, or None."""
        if not isinstance(self.dedupe_key, list):
            if self.dedupe_key is not None and count > 1:
                why = "give a list of dedupe keys, one for each payload"
                raise InvalidInput(why, field="dedupe_key")
            return [self.dedupe_key] * count
        if len(self.dedupe_key) != count:
            why = f"{len(self.dedupe_key)} dedupe keys were given for {count} payloads"
            raise InvalidInput(why, field="dedupe_key")
        return list(self.dedupe_key)

    def upstream(self) -> tuple[str, ...]:
        after = [self.after] if isinstance(self.after, str | Run) else self.after or ()
        return tuple(map(run_id_of, after))


_NO_OPTIONS = CheckedEnqueueOptions()


class Enqueue:
    """One run to queue, with options of its own, for `enqueue_many`:

    `Enqueue("send_email", {"to": "ada@example.org"}, delay="5m")`
    """

    def __init__(self, job: JobRef, payload: Any = None, **options: Unpack[EnqueueOptions]) -> None:
        self.job_id = job_id_of(job)
        self.payload = payload
        self.options = CheckedEnqueueOptions.of(options)

    def __repr__(self) -> str:
        return f"<Enqueue {self.job_id}>"


def _later(now: datetime, span: Span, what: str) -> datetime:
    try:
        return now + duration(span, what=what)
    except OverflowError:
        why = f"{what} {span!r} ends outside the calendar"
        raise InvalidInput(why, field=what, given=span) from None
