"""What clients send, checked field by field: each wrong field gets a message of its own.

Types are pydantic's; what a value means is checked by the library's own readers, so that the
API refuses what `add_job` would, in the same words. Times of the API are milliseconds or texts
such as `"30s"`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache
from secrets import token_bytes
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from mainspring.core import schedules
from mainspring.core.model import State, check_job_id, check_key
from mainspring.core.policy import Backoff, Breaker, Misfire, Policy
from mainspring.core.schedules.base import moment
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidInput
from mainspring.service.id_format import check_run_id
from mainspring.service.problems import FIELD
from mainspring.service.schemas import cross_field_rules
from mainspring.service.schemas.durations import span
from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.definition import define
from mainspring.webhooks.headers import MASK
from mainspring.webhooks.vault import Vault

__all__ = [
    "Body",
    "JobBody",
    "JobUpdateBody",
    "JobsBulkBody",
    "KeyBody",
    "PreviewBody",
    "RunsBulkBody",
    "TriggerBody",
]

WHOLE = 10**9


class Body(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="before")
    @classmethod
    def _text_is_unicode(cls, value: Any) -> Any:
        """JSON can spell half of a surrogate pair, which no store can keep."""
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError) as error:
            why = "it nests too deep" if isinstance(error, RecursionError) else "it is no Unicode"
            raise ValueError(f"the body cannot be kept: {why}") from None
        except (TypeError, ValueError):
            pass  # left to the fields
        return value

    def given(self, *names: str) -> dict[str, Any]:
        """Those of the fields that were sent."""
        return {name: getattr(self, name) for name in names if name in self.model_fields_set}


def _checked(check: Callable[[Any], object], *, known_as: tuple[str, str] | None = None) -> Any:
    """A validator that has the library look at a value, and keeps it as it was sent."""

    def validate(value: Any) -> Any:
        if value is None:
            return None
        try:
            check(value)
        except OverflowError:
            raise ValueError(f"{value!r} is out of range") from None
        except InvalidInput as error:
            text = str(error)
            raise ValueError(text.replace(*known_as) if known_as else text) from None
        return value

    return AfterValidator(validate)


def _wrong(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError(FIELD, "{message}", {"field": field, "message": message})


@cache
def _try_out() -> tuple[Vault, AllowList]:
    """For a look at a webhook's parts: which addresses may be called the operator says, later."""
    return Vault([token_bytes(32)]), AllowList.of(["0.0.0.0/0", "::/0"])


def _webhook_part(name: str, known_as: tuple[str, str] | None = None) -> Any:
    def check(value: Any) -> None:
        if isinstance(value, dict) and name == "headers":
            value = {header: "x" if text == MASK else text for header, text in value.items()}
        given = {"url": "https://example.org/", name: value}
        define("any", given, *_try_out())

    return _checked(check, known_as=known_as)


def _policy(name: str, known_as: str, **beside: Any) -> Any:
    return _checked(lambda value: Policy.make(**beside, **{name: value}), known_as=(name, known_as))


def _span_of(what: str) -> Any:
    return _checked(lambda value: span(value, what))


def _positive_span_of(what: str) -> Any:
    def check(value: Any) -> None:
        if not span(value, what):
            raise InvalidInput(f"{what} is longer than zero (or null for none), not {value!r}")

    return _checked(check)


def _moment_of(what: str) -> Any:
    return _checked(lambda value: moment(value, "UTC", what))


def _no_name(metadata: dict[str, Any]) -> None:
    if "name" in metadata:  # where the job's own is kept
        raise InvalidInput("name is a field of its own: give it beside metadata, not in there")


def _left_out() -> Any:
    """For a field that may be left out, and not be null."""
    return Field(default_factory=lambda: None)


Span = float | Annotated[str, StringConstraints(max_length=64)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Tag = Annotated[Word, _checked(lambda text: check_key(text, "a tag"))]
JobId = Annotated[str, _checked(check_job_id)]
RunId = Annotated[str, StringConstraints(min_length=1, max_length=400), _checked(check_run_id)]
Code = int | Annotated[str, StringConstraints(max_length=16)]
Moment = Annotated[str, StringConstraints(max_length=64)]


class BackoffBody(Body):
    kind: Literal["fixed", "linear", "exponential"] = "exponential"
    factor: Annotated[float, Field(ge=1, le=1000)] = 2
    cap: Annotated[Span, _span_of("cap")] = "1h"
    jitter: bool | Annotated[float, Field(ge=0, le=1)] = True


class MisfireBody(Body):
    kind: Literal["once", "skip", "all"] = "once"
    grace: Annotated[Span, _span_of("grace")] = "60s"
    limit: Annotated[int, Field(ge=1, le=10_000)] = 100


class BreakerBody(Body):
    failures: Annotated[int, Field(ge=1, le=WHOLE)] = 5
    reset: Annotated[Span, _span_of("reset")] = "60s"


class JobFields(Body):
    """What may be said of a job when it is made and when it is changed."""

    name: Word | None = None
    description: Annotated[str, StringConstraints(max_length=4000)] | None = None
    tags: Annotated[list[Tag], Field(max_length=50)] | None = None
    metadata: Annotated[dict[str, Any], _checked(_no_name)] | None = None
    schedule: Annotated[str, _checked(lambda text: schedules.parse(text))] | None = None
    every: Annotated[Span, _positive_span_of("every")] | None = None
    run_at: Annotated[Moment, _moment_of("runAt")] | None = None
    timezone: Annotated[Word, _checked(zone_named)] | None = None
    jitter: Annotated[Span, _span_of("jitter")] | None = None
    endpoint: Annotated[str, StringConstraints(max_length=8192), _webhook_part("url")] | None = None
    method: Annotated[str, StringConstraints(max_length=32), _webhook_part("method")] | None = None
    headers: Annotated[dict[str, str], Field(max_length=100), _webhook_part("headers")] | None = (
        None
    )
    secret_headers: Annotated[list[Word], Field(max_length=100)] | None = None
    body: Annotated[Any, _webhook_part("body")] = None
    success_codes: (
        Annotated[
            list[Code], Field(max_length=100), _webhook_part("success", ("success takes", "takes"))
        ]
        | None
    ) = None
    retry_on: (
        Annotated[
            list[Code], Field(max_length=100), _webhook_part("retry_on", ("retry_on", "retryOn"))
        ]
        | None
    ) = None
    handler: Word | None = None
    payload: Any = None
    execution_type: Literal["AT_LEAST_ONCE", "AT_MOST_ONCE"] | None = None
    enabled: bool = _left_out()
    retry_attempts: Annotated[int, Field(ge=0, le=1000)] | None = None
    retry_delay: Annotated[Span, _span_of("retryDelay")] | None = None
    backoff: Literal["fixed", "linear", "exponential"] | BackoffBody | None = None
    timeout: Annotated[Span, _positive_span_of("timeout")] | None = None
    priority: Annotated[int, Field(ge=0, le=9)] | None = None
    queue: Annotated[str, _policy("queue", "queue")] | None = None
    concurrency: Annotated[int, Field(ge=1, le=WHOLE)] | None = None
    concurrency_key: (
        Annotated[str, _policy("concurrency_key", "concurrencyKey", concurrency=1)] | None
    ) = None
    overlap: Literal["skip", "queue", "replace", "allow"] | None = None
    misfire: Literal["once", "skip", "all"] | MisfireBody | None = None
    start_deadline: Annotated[Span, _positive_span_of("startDeadline")] | None = None
    breaker: bool | Annotated[int, Field(ge=1, le=WHOLE)] | BreakerBody | None = None
    after: Annotated[list[JobId], Field(max_length=100)] | None = None


class JobBody(JobFields):
    id: JobId | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _every_fault(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """A wrong field hides none that is missing, nor two that do not go together."""
        faults = cross_field_rules.of_a_new_job(value) if isinstance(value, dict) else ()
        found = [InitErrorDetails(type=_wrong(*fault), input=None) for fault in faults]
        made = None
        try:
            made = read(value)
        except ValidationError as error:
            found = [*map(_again, error.errors()), *found]
        if made is None or found:
            raise ValidationError.from_exception_data(cls.__name__, found)
        return made


def _again(error: ErrorDetails) -> InitErrorDetails:
    return InitErrorDetails(
        type=error["type"],
        loc=error["loc"],
        input=error["input"],
        ctx=error.get("ctx", {}),
    )


_READ_ONLY = frozenset(
    {
        *("_id", "jobId", "id", "owner", "nextRunAt", "lastRunAt", "createdAt", "updatedAt"),
        *("scheduleDescription", "signingSecret", "version"),
    }
)


class JobUpdateBody(JobFields):
    """Whatever is left out stays. What the service itself sets (`_id`, `nextRunAt`, …) may be sent
    back as it was read, and changes nothing."""

    rotate_secret: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_ours(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: item for name, item in value.items() if name not in _READ_ONLY}


class TriggerBody(Body):
    payload: Any = None


class Conditions(Body):
    """Which are meant: all that fit every condition given."""

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, value: Any) -> Any:
        """A condition that was to be filled in, and was not, must not mean everything."""
        for name, item in value.items() if isinstance(value, dict) else ():
            if item is None:
                raise _wrong(f"match.{name}", "is null: leave it out where it does not matter")
        return value


class MatchBody(Conditions):
    job: JobId = _left_out()
    state: State | list[State] = _left_out()
    since: Annotated[Moment, _moment_of("since")] = _left_out()
    until: Annotated[Moment, _moment_of("until")] = _left_out()

    model_config = ConfigDict(strict=False)


class RunsBulkBody(Body):
    action: Literal["cancel", "retry", "delete"]
    ids: Annotated[list[RunId], Field(min_length=1, max_length=10_000)] | None = None
    match: MatchBody | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 10_000

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.ids is None) == (self.match is None):
            raise _wrong("match", "give ids, or match: {} with conditions (none: every run)")
        return self


class JobMatchBody(Conditions):
    tag: Word = _left_out()
    enabled: bool = _left_out()
    search: Word = _left_out()


class JobsBulkBody(Body):
    """`create` takes `jobs`; the others take `ids`, or `match` for all that fit."""

    action: Literal["create", "pause", "resume", "trigger", "delete"] = "create"
    jobs: Annotated[list[Any], Field(min_length=1, max_length=1000)] | None = None
    ids: Annotated[list[JobId], Field(min_length=1, max_length=1000)] | None = None
    match: JobMatchBody | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.action == "create":
            if self.jobs is None or self.ids is not None or self.match is not None:
                raise _wrong("jobs", "is what create takes: a list of what POST /api/jobs takes")
        elif self.jobs is not None or (self.ids is None) == (self.match is None):
            raise _wrong(
                "ids",
                f"give ids to {self.action}, or match: {{}} with conditions (none: every job)",
            )
        return self


class PreviewBody(Body):
    schedule: Annotated[str, _checked(lambda text: schedules.parse(text))] | None = None
    every: Annotated[Span, _positive_span_of("every")] | None = None
    run_at: Annotated[Moment, _moment_of("runAt")] | None = None
    timezone: Annotated[Word, _checked(zone_named)] | None = None
    count: Annotated[int, Field(ge=1, le=1000)] = 10
    after: Annotated[Moment, _moment_of("after")] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [self.schedule, self.every, self.run_at]
        if sum(one is not None for one in given) != 1:
            raise _wrong("schedule", "give one of schedule, every, runAt")
        return self


class KeyBody(Body):
    name: Word
    scope: Literal["read", "write", "admin"] = "read"
    expires_in: Annotated[Span, _positive_span_of("expiresIn")] | None = None


def backoff_of(value: str | BackoffBody, delay: timedelta) -> Backoff:
    if isinstance(value, str):
        return Backoff(value, delay=delay)
    return Backoff(
        value.kind,
        delay=delay,
        factor=value.factor,
        cap=span(value.cap, "cap"),
        jitter=value.jitter,
    )


def misfire_of(value: str | MisfireBody) -> Misfire:
    if isinstance(value, str):
        return Misfire(value)
    return Misfire(value.kind, grace=span(value.grace, "grace"), limit=value.limit)


def breaker_of(value: bool | int | BreakerBody | None) -> Breaker | None:
    if isinstance(value, BreakerBody):
        return Breaker(value.failures, reset=span(value.reset, "reset"))
    if value is None or value is False:
        return None
    return Breaker() if value is True else Breaker(value)


def moment_of(value: str | None, what: str) -> datetime | None:
    return None if value is None else moment(value, "UTC", what)
