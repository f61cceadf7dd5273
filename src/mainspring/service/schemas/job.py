"""A job: what clients send to create and change one, and what they are answered."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from mainspring.core import model
from mainspring.core.policy import (
    MAX_COUNT,
    MAX_MEMORY,
    MAX_NAME,
    MAX_UPSTREAM,
    Policy,
)
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.cron import Cron
from mainspring.core.schedules.interval import FixedDelay, Interval, Once
from mainspring.core.schedules.recurrence import Recurrence
from mainspring.scheduler.definitions import MAX_DESCRIPTION, MAX_TAGS
from mainspring.service.schemas.fields import (
    LEFT_OUT,
    Body,
    Conditions,
    Count,
    Cursor,
    DateTime,
    Document,
    Duration,
    FieldSpec,
    JobId,
    JsonValue,
    Milliseconds,
    OneLine,
    Priority,
    Time,
    TolerantBody,
    answers,
    document_of,
    field_fault,
    may_be_left_out,
    options_of,
    takes,
    within,
)
from mainspring.service.schemas.json_format import (
    encode_json,
    to_iso,
    to_json_value,
    to_milliseconds,
)
from mainspring.service.schemas.problem import Problem
from mainspring.webhooks.definition import MAX_HEADERS, MAX_STATUS_CODES, MAX_URL
from mainspring.webhooks.service import masked_headers

_DEFAULT = Policy()
Tag = Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": MAX_NAME})]


# -- values within a job --------------------------------------------------------------------------

_BackoffKind = Literal["fixed", "linear", "exponential"]
_MisfireKind = Literal["once", "skip", "all"]
_Isolation = Literal["auto", "thread", "process"]
_Overlap = Literal["skip", "queue", "replace", "allow"]
_ExecutionType = Literal["AT_LEAST_ONCE", "AT_MOST_ONCE", "EFFECT_ONCE"]

BACKOFF: tuple[FieldSpec[Any], ...] = (
    FieldSpec(
        "kind",
        "The wait stays the same, grows by its first length each time, or is multiplied.",
        sent=_BackoffKind,
        default="exponential",
        answered=_BackoffKind,
        read=lambda backoff: str(backoff.kind),
        option="kind",
    ),
    FieldSpec(
        "factor",
        "What an exponential wait is multiplied by.",
        sent=within(float, minimum=1),
        default=2,
        answered=float,
        read=lambda backoff: backoff.factor,
        option="factor",
    ),
    FieldSpec(
        "cap",
        "The longest wait. It is at least `retryDelay`.",
        sent=Duration,
        default="1h",
        answered=Milliseconds,
        read=lambda backoff: to_milliseconds(backoff.cap),
        option="cap",
    ),
    FieldSpec(
        "jitter",
        "The part by which waits are spread. True is a tenth.",
        sent=bool | Annotated[float, Field(ge=0, le=1)],
        default=True,
        answered=float,
        read=lambda backoff: backoff.jitter,
        option="jitter",
    ),
)
MISFIRE: tuple[FieldSpec[Any], ...] = (
    FieldSpec(
        "kind",
        "Which missed slots run: the newest, none, or all.",
        sent=_MisfireKind,
        default="once",
        answered=_MisfireKind,
        read=lambda misfire: str(misfire.kind),
        option="kind",
    ),
    FieldSpec(
        "grace",
        "How late a slot may fire without being missed.",
        sent=Duration,
        default="60s",
        answered=Milliseconds,
        read=lambda misfire: to_milliseconds(misfire.grace),
        option="grace",
    ),
    FieldSpec(
        "limit",
        "With `all`: how many of the newest run at most.",
        sent=Count,
        default=100,
        answered=int,
        read=lambda misfire: misfire.limit,
        option="limit",
    ),
)
BREAKER: tuple[FieldSpec[Any], ...] = (
    FieldSpec(
        "failures",
        "How many failures in a row open the breaker.",
        sent=Count,
        default=5,
        answered=int,
        read=lambda breaker: breaker.failures,
        option="failures",
    ),
    FieldSpec(
        "reset",
        "How long the breaker stays open before one run is tried.",
        sent=Duration,
        default="60s",
        answered=Milliseconds,
        read=lambda breaker: to_milliseconds(breaker.reset),
        option="reset",
    ),
)


@takes(*BACKOFF)
class BackoffBody(Body):
    """How the wait before a retry grows."""


@takes(*MISFIRE)
class MisfireBody(Body):
    """What happens to slots that were not fired in time."""


@takes(*BREAKER)
class BreakerBody(Body):
    """When runs wait because too many failed."""


@answers(*BACKOFF)
class BackoffDocument(Document):
    """How the wait before a retry grows."""


@answers(*MISFIRE)
class MisfireDocument(Document):
    """What happens to slots that were not fired in time."""


@answers(*BREAKER)
class BreakerDocument(Document):
    """When runs wait because too many failed."""


def backoff_options(value: str | BackoffBody) -> dict[str, Any]:
    """The parts of a backoff beside the delay, which is a field of its own. The library checks
    them."""
    if isinstance(value, str):
        return {"kind": value}
    return options_of(BACKOFF, value.sent)


def _misfire(value: str | MisfireBody) -> str | dict[str, Any]:
    return value if isinstance(value, str) else options_of(MISFIRE, value.sent)


def _breaker(value: bool | int | BreakerBody) -> bool | int | dict[str, Any]:
    return options_of(BREAKER, value.sent) if isinstance(value, BreakerBody) else value


# -- the fields of a job --------------------------------------------------------------------------


def stored_name(job: model.Job) -> str | None:
    """The job's name for people, which its metadata keep. Another value of that name, or an empty
    text, is an ordinary part of the metadata."""
    name = job.metadata.get("name")
    return name if isinstance(name, str) and name else None


def own_metadata(job: model.Job) -> dict[str, Any]:
    """The metadata without the job's name for people."""
    named = stored_name(job) is not None
    return {name: one for name, one in job.metadata.items() if not (named and name == "name")}


_UNITS = (
    (timedelta(days=1), "d"),
    (timedelta(hours=1), "h"),
    (timedelta(minutes=1), "m"),
    (timedelta(seconds=1), "s"),
)


def schedule_text(schedule: Schedule | None) -> str | None:
    """A text that makes the same schedule when it is sent back with the timezone."""
    if schedule is None:
        return None
    if isinstance(schedule, Cron):
        return schedule.expression
    if isinstance(schedule, Interval):
        return _interval_text(schedule.interval)
    if isinstance(schedule, FixedDelay):
        return f"{_interval_text(schedule.interval)} after end"
    if isinstance(schedule, Once):
        return to_iso(schedule.when)
    return schedule.text if isinstance(schedule, Recurrence) else schedule.describe()


def _interval_text(interval: timedelta) -> str:
    """In the largest unit that gives a whole number: 7s, 90s, 15m."""
    for size, unit in _UNITS:
        count, rest = divmod(interval, size)
        if not rest:
            return f"{count}{unit}"
    return f"{to_milliseconds(interval)}ms"


@lru_cache(maxsize=10_000)
def _describe(schedule: Schedule) -> str:
    return schedule.describe()  # half of the time that a job's document takes, and rarely new


def _origins(job: model.Job) -> dict[str, str] | None:
    """By the API's names of the options."""
    origins = job.policy_origins()
    if origins is None:
        return None
    names = {spec.option or spec.name: spec.alias for spec in JOB}
    return {names[name]: str(origin) for name, origin in origins.items() if name in names}


def _codes(bounds: tuple[int, int]) -> int | str:
    low, high = bounds
    return low if low == high else f"{low}-{high}"


_StatusCodes = Annotated[
    list[int | Annotated[str, StringConstraints(max_length=16)]],
    Field(json_schema_extra={"maxItems": MAX_STATUS_CODES}),
]

ID: FieldSpec[model.Job] = FieldSpec(
    "id",
    "The job's name in URLs. If a request leaves it out, the service makes one from `name`, or from"
    " the endpoint's host.",
    "nightly",
    sent=str | None,
    answered=str,
    read=lambda job: job.id,
)
SCHEDULE: tuple[FieldSpec[model.Job], ...] = (
    FieldSpec(
        "schedule",
        "A cron expression of 5 to 7 fields, `@daily`, an interval (`5m`; `5m after end`: after the"
        " end of the run before), a date-time or an RRULE. Null: the job runs only when it is"
        " triggered.",
        "0 30 2 * * *",
        sent=str | None,
        answered=str | None,
        read=lambda job: schedule_text(job.schedule),
    ),
    FieldSpec(
        "every",
        "Instead of `schedule`: an interval.",
        sent=Duration | None,
        answered=Milliseconds | None,
        read=lambda job: (
            to_milliseconds(job.schedule.interval) if isinstance(job.schedule, Interval) else None
        ),
    ),
    FieldSpec(
        "run_at",
        "Instead of `schedule`: one date-time.",
        sent=DateTime | None,
        answered=Time | None,
        read=lambda job: to_iso(job.schedule.when) if isinstance(job.schedule, Once) else None,
    ),
    FieldSpec(
        "timezone",
        "The timezone of the schedule, such as `Europe/Berlin`. Without it: the one that the"
        " schedule names, else the scheduler's (UTC by default).",
        "Europe/Berlin",
        sent=OneLine | None,
        answered=str,
        read=lambda job: "UTC" if job.schedule is None else job.schedule.timezone,
        option="timezone",
        null=LEFT_OUT,
    ),
)
SCHEDULE_FORMS: Mapping[str, str] = {
    spec.name: spec.alias for spec in SCHEDULE if spec.name != "timezone"
}
"""The fields that each stand for the option `schedule`, and the API's name of each."""

JOB: tuple[FieldSpec[model.Job], ...] = (
    FieldSpec(
        "name",
        "A name for people. It becomes the id if a new job has none.",
        "Nightly report",
        sent=Annotated[str, StringConstraints(min_length=1)] | None,
        answered=str,
        read=lambda job: stored_name(job) or job.id,
    ),
    FieldSpec(
        "description",
        "What the job is for.",
        "Sends the report of the day",
        sent=within(str, maxLength=MAX_DESCRIPTION) | None,
        answered=str,
        read=lambda job: job.description,
        option="description",
        null="",
    ),
    *SCHEDULE,
    FieldSpec(
        "schedule_description",
        "The schedule in words.",
        "at 02:30:00",
        answered=str | None,
        read=lambda job: None if job.schedule is None else _describe(job.schedule),
    ),
    FieldSpec(
        "jitter",
        "Each run starts up to so much later than its slot.",
        sent=Duration | None,
        answered=Milliseconds | None,
        read=lambda job: None if job.schedule is None else to_milliseconds(job.schedule.jitter),
        option="jitter",
        null=LEFT_OUT,
    ),
    FieldSpec(
        "handler",
        "Instead of `endpoint`: the name of a Python function that the program registered.",
        "webhook",
        sent=OneLine | None,
        answered=str,
        read=lambda job: job.handler,
        option="handler",
        null=LEFT_OUT,
    ),
    FieldSpec(
        "payload",
        "The handler's arguments. A value that JSON lacks is an object of one key, in answers and"
        ' requests: `{"$datetime": "2030-01-01T09:00:00+00:00"}`, and `$date`, `$uuid`, `$decimal`'
        " and `$bytes` (base64) alike. An object that has such a name itself gets a second `$`.",
        sent=JsonValue,
        answered=Any,
        optional=True,
        read=lambda job: to_json_value(job.payload),
        option="payload",
    ),
    FieldSpec(
        "execution_type",
        "A run of an `AT_MOST_ONCE` job is never tried again. The handler of an `EFFECT_ONCE` job"
        " commits its writes together with the end of its run.",
        "AT_LEAST_ONCE",
        sent=_ExecutionType | None,
        answered=_ExecutionType,
        read=lambda job: job.policy.delivery.upper(),
        option="delivery",
        to_option=str.lower,
        null=LEFT_OUT,
    ),
    FieldSpec(
        "enabled",
        "Whether the job's slots fire.",
        True,
        sent=bool,
        nullable=False,
        answered=bool,
        read=lambda job: job.enabled,
        option="enabled",
    ),
    FieldSpec(
        "retry_attempts",
        "How often a failed run is tried again. 0: never.",
        3,
        sent=within(int, minimum=0, maximum=MAX_COUNT) | None,
        answered=int,
        read=lambda job: job.policy.retries,
        option="retries",
        null=LEFT_OUT,
    ),
    FieldSpec(
        "retry_delay",
        "The wait before the first retry.",
        sent=Duration | None,
        answered=Milliseconds,
        read=lambda job: to_milliseconds(job.policy.backoff.delay),
    ),
    FieldSpec(
        "backoff",
        "How the wait grows with each retry.",
        sent=_BackoffKind | BackoffBody | None,
        answered=BackoffDocument,
        read=lambda job: document_of(BACKOFF, job.policy.backoff),
    ),
    FieldSpec(
        "timeout",
        "How long an attempt may take, by the wall clock. For a job that calls an endpoint: 30s if"
        " it is left out, at most 1h, and a number below 500 is refused (30 is 30 ms; write 30s).",
        sent=Duration | None,
        answered=Milliseconds | None,
        read=lambda job: to_milliseconds(job.policy.timeout),
        option="timeout",
    ),
    FieldSpec(
        "start_deadline",
        "A run that has not started so long after it was due is skipped.",
        sent=Duration | None,
        answered=Milliseconds | None,
        read=lambda job: to_milliseconds(job.policy.start_deadline),
        option="start_deadline",
    ),
    FieldSpec(
        "priority",
        "0 to 9. Runs of a higher priority start first.",
        5,
        sent=Priority | None,
        answered=int,
        read=lambda job: job.policy.priority,
        option="priority",
        null=_DEFAULT.priority,
    ),
    FieldSpec(
        "queue",
        "The queue of the job's runs. A worker takes runs of its own queues.",
        "default",
        sent=str | None,
        answered=str,
        read=lambda job: job.policy.queue,
        option="queue",
        null=_DEFAULT.queue,
    ),
    FieldSpec(
        "concurrency",
        "How many of the job's runs may run at once, over all instances.",
        sent=Count | None,
        answered=int | None,
        read=lambda job: job.policy.concurrency,
        option="concurrency",
    ),
    FieldSpec(
        "concurrency_key",
        "Jobs with the same key share their limit.",
        sent=str | None,
        answered=str | None,
        read=lambda job: job.policy.concurrency_key,
        option="concurrency_key",
    ),
    FieldSpec(
        "rate",
        "How many of the job's runs may start in a span of time, over all instances.",
        "100/m",
        sent=Annotated[str, Field(max_length=64)] | None,
        answered=str | None,
        read=lambda job: job.policy.rate and str(job.policy.rate),
        option="rate",
    ),
    FieldSpec(
        "rate_key",
        "Jobs with the same key share their rate.",
        sent=str | None,
        answered=str | None,
        read=lambda job: job.policy.rate_key,
        option="rate_key",
    ),
    FieldSpec(
        "overlap",
        "What happens to a slot whose predecessor's run has not ended: `skip` the slot, `queue` its"
        " run behind, `replace` the earlier run, or `allow` both.",
        sent=_Overlap | None,
        answered=_Overlap,
        read=lambda job: str(job.policy.overlap),
        option="overlap",
        null=_DEFAULT.overlap,
    ),
    FieldSpec(
        "misfire",
        "What happens to slots that were not fired in time: run the newest `once`, `skip` them, or"
        " run `all`.",
        sent=_MisfireKind | MisfireBody | None,
        answered=MisfireDocument,
        read=lambda job: document_of(MISFIRE, job.policy.misfire),
        option="misfire",
        to_option=_misfire,
        null=_DEFAULT.misfire,
    ),
    FieldSpec(
        "breaker",
        "After so many failures in a row, counted over all nodes, runs wait; then one is tried, and"
        " if it succeeds the others start. Webhooks have a breaker by default; null: none.",
        sent=bool | Annotated[int, Field(ge=1)] | BreakerBody | None,
        answered=BreakerDocument | None,
        read=lambda job: job.policy.breaker and document_of(BREAKER, job.policy.breaker),
        option="breaker",
        to_option=_breaker,
    ),
    FieldSpec(
        "after",
        "The job runs when each of these jobs has succeeded.",
        sent=within(list[str], maxItems=MAX_UPSTREAM) | None,
        answered=list[str],
        read=lambda job: list(job.policy.after),
        option="after",
        null=(),
    ),
    FieldSpec(
        "after_failure",
        "What becomes of a run if one that it comes after did not succeed: `skip` or `run`.",
        sent=Literal["skip", "run"] | None,
        answered=Literal["skip", "run"],
        read=lambda job: job.policy.after_failure,
        option="after_failure",
        null=_DEFAULT.after_failure,
    ),
    FieldSpec(
        "each_node",
        "Whether a slot runs once on each live worker.",
        sent=bool | None,
        answered=bool,
        read=lambda job: job.policy.each_node,
        option="each_node",
        null=_DEFAULT.each_node,
    ),
    FieldSpec(
        "isolation",
        "Where the job's handler runs: on the event loop or in a thread, as its function needs"
        " (`auto`), in a `thread`, or in a `process` of its own. Not for endpoints.",
        sent=_Isolation | None,
        answered=_Isolation,
        read=lambda job: str(job.policy.isolation),
        option="isolation",
        null=_DEFAULT.isolation,
    ),
    FieldSpec(
        "memory_limit",
        "How many bytes of memory a handler in a process of its own may use. A size such as"
        " `512MiB` may be sent. Null: any number.",
        sent=within(int, minimum=1, maximum=MAX_MEMORY)
        | Annotated[str, Field(max_length=64)]
        | None,
        answered=int | None,
        read=lambda job: job.policy.memory_limit,
        option="memory_limit",
    ),
    FieldSpec(
        "retention",
        "How long the job's finished runs are kept. Null: as long as the service keeps runs.",
        sent=Duration | None,
        answered=Milliseconds | None,
        read=lambda job: to_milliseconds(job.policy.retention),
        option="retention",
    ),
    FieldSpec(
        "history",
        "How many finished runs of the job are kept, the newest; 0: none. Null: as many as the"
        " service keeps of each job.",
        sent=within(int, minimum=0, maximum=MAX_COUNT) | None,
        answered=int | None,
        read=lambda job: job.policy.history,
        option="history",
    ),
    FieldSpec(
        "tags",
        "Words to list jobs by.",
        ["reports"],
        sent=within(list[Tag], maxItems=MAX_TAGS) | None,
        answered=list[str],
        read=lambda job: list(job.tags),
        option="tags",
        null=(),
    ),
    FieldSpec(
        "metadata",
        "Any JSON object that you want to keep with the job. In a Python program it also holds the"
        " `name`, which is a field of its own here.",
        {"team": "data"},
        sent=dict[str, JsonValue] | None,
        answered=dict[str, Any],
        read=lambda job: {name: to_json_value(value) for name, value in own_metadata(job).items()},
    ),
    FieldSpec(
        "owner",
        "`code` or `file`: a program or a file defines the job, and clients can only pause, resume"
        " and trigger it.",
        answered=Literal["code", "api", "file"],
        read=lambda job: str(job.owner),
    ),
    FieldSpec(
        "file",
        "The name of the file that defines the job. Null: no file does.",
        answered=str | None,
        read=lambda job: job.file,
    ),
    FieldSpec(
        "origins",
        "Where the job's options come from, by field: the `job` itself, the `defaults` of the"
        " scheduler or service that stored it, or `built_in`. Null: an earlier version stored the"
        " job, and did not keep this.",
        {"retryAttempts": "job", "timeout": "defaults", "priority": "built_in"},
        answered=dict[str, Literal["job", "defaults", "built_in"]] | None,
        read=lambda job: _origins(job),
    ),
    FieldSpec(
        "next_run_at",
        "The slot that fires next.",
        answered=Time | None,
        read=lambda job: to_iso(job.next_run_at),
    ),
    FieldSpec(
        "last_run_at",
        "When the newest run of the job started.",
        answered=Time | None,
        read=lambda job: to_iso(job.last_run_at),
    ),
    FieldSpec(
        "created_at",
        "When the job was created.",
        answered=Time,
        read=lambda job: to_iso(job.created_at),
    ),
    FieldSpec(
        "updated_at",
        "When the job was last changed.",
        answered=Time,
        read=lambda job: to_iso(job.updated_at),
    ),
)
WEBHOOK: tuple[FieldSpec[model.Webhook], ...] = (
    FieldSpec(
        "endpoint",
        "The URL that the job calls. It may hold templates such as `{{jobId}}`. Everybody with a"
        " read key sees it: put secrets into headers, which are masked. A change to another scheme,"
        " host or port removes the secret headers that are not sent with it: compare `headers` in"
        " the answer.",
        "https://api.example.com/webhook",
        sent=within(str, maxLength=MAX_URL) | None,
        answered=str | None,
        optional=True,
        read=lambda webhook: webhook.url,
        option="url",
        null=LEFT_OUT,
    ),
    FieldSpec(
        "method",
        "The method of the request. POST by default.",
        "POST",
        sent=str | None,
        answered=str | None,
        optional=True,
        read=lambda webhook: webhook.method,
        option="method",
    ),
    FieldSpec(
        "headers",
        "The headers of the request. Answers show a mask instead of a secret one's value.",
        {"X-Team": "data"},
        sent=within(dict[str, str], maxProperties=MAX_HEADERS) | None,
        answered=dict[str, str] | None,
        optional=True,
        read=masked_headers,
        option="headers",
    ),
    FieldSpec(
        "secret_headers",
        "The names of headers to encrypt beside `Cookie` and those whose names contain token,"
        " secret, key, auth, password or credential.",
        sent=within(list[str], maxItems=MAX_HEADERS) | None,
        answered=list[str] | None,
        optional=True,
        read=lambda webhook: list(webhook.secret_headers),
    ),
    FieldSpec(
        "body",
        "The body of the request: JSON or text. It may hold the templates `{{timestamp}}`,"
        " `{{scheduledAt}}`, `{{jobId}}`, `{{executionId}}` and `{{attempt}}`.",
        {"event": "nightly", "timestamp": "{{timestamp}}"},
        sent=Any,
        answered=Any,
        optional=True,
        read=lambda webhook: webhook.body,
        option="body",
    ),
    FieldSpec(
        "success_codes",
        'The status codes of a success: `[200, "202-204"]`. All 2xx by default.',
        sent=_StatusCodes | None,
        answered=list[int | str] | None,
        optional=True,
        read=lambda webhook: [_codes(one) for one in webhook.success],
        option="success",
    ),
    FieldSpec(
        "retry_on",
        'The other status codes that are retried: `["5xx", 429]`. All by default.',
        sent=_StatusCodes | None,
        answered=list[int | str] | None,
        optional=True,
        read=lambda webhook: (
            None if webhook.retry_on is None else [_codes(one) for one in webhook.retry_on]
        ),
        option="retry_on",
    ),
)
ROTATE_SECRET: FieldSpec[Any] = FieldSpec(
    "rotate_secret",
    "True: sign with a new secret. The former one signs beside it for a day.",
    sent=bool | None,
)
SIGNING_SECRET: FieldSpec[Any] = FieldSpec(
    "signing_secret",
    "The secret that signs the job's requests. Only the answer that made it shows it.",
    "whsec_…",
    answered=str | None,
    optional=True,
)

_SENT: tuple[FieldSpec[Any], ...] = (ID, *JOB, *WEBHOOK)
_IN_EXAMPLE = ("id", "schedule", "timezone", "endpoint", "method", "headers", "body", "tags")
_EXAMPLE = {spec.alias: spec.example for spec in _SENT if spec.name in _IN_EXAMPLE}


# -- requests -------------------------------------------------------------------------------------


@takes(*_SENT)
class JobBody(TolerantBody):
    """A new job. It needs `endpoint` or `handler`, and `schedule`, `every`, `runAt` or `after`; a
    null `schedule` makes a job that runs only when it is triggered. Fields that the service sets
    (`owner`, `nextRunAt`, …) may be sent as they were read from another job, and mean nothing."""

    model_config = ConfigDict(
        json_schema_extra={"additionalProperties": False, "examples": [_EXAMPLE]}
    )

    @classmethod
    def clean(cls, value: Any) -> Any:
        """A job that was read can be sent as a copy, with another id: its schedule is then in two
        fields that say the same, and `handler` names the built-in one."""
        if not isinstance(value, dict):
            return value
        copied = {name: item for name, item in value.items() if name not in _NEVER_SENT}
        schedule = copied.get("schedule")
        if schedule is not None:
            for name, same in (("every", _same_interval), ("runAt", operator.eq)):
                if copied.get(name) is not None and same(schedule, copied[name]) is True:
                    del copied[name]
        if copied.get("endpoint") is not None and copied.get("handler") == "webhook":
            del copied["handler"]
        return copied


def _same_interval(schedule: Any, every: Any) -> bool:
    if isinstance(every, bool) or not isinstance(every, int | float):
        return False
    try:
        return bool(_interval_text(timedelta(milliseconds=every)) == schedule)
    except (OverflowError, ValueError):
        return False


_NEVER_SENT = frozenset(
    {*(spec.alias for spec in JOB if spec.sent is None), "signingSecret", "version"}
)
_READ_ONLY = frozenset(
    {
        *(spec.alias for spec in JOB if spec.sent is None),
        *("id", "_id", "jobId", "signingSecret", "version"),
    }
)


@takes(*JOB, *WEBHOOK, ROTATE_SECRET)
class JobUpdateBody(TolerantBody):
    """Changes of a job. What is left out stays. Fields that the service sets (`_id`, `nextRunAt`,
    …) may be sent back as they were read, and change nothing."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"schedule": "0 */10 * * * *", "enabled": True}],
        }
    )

    @model_validator(mode="before")
    @classmethod
    def _without_read_only(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: item for name, item in value.items() if name not in _READ_ONLY}


class TriggerBody(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"payload": {"event": "by hand"}}],
        }
    )

    payload: Annotated[
        JsonValue,
        Field(
            description="Instead of the request's body, or of the handler's arguments. Values that"
            " JSON lacks are written as in a job's `payload`."
        ),
    ] = None


class JobMatchBody(Conditions):
    tag: Annotated[OneLine, Field(description="Jobs with this tag.")] = may_be_left_out()
    queue: Annotated[OneLine, Field(description="Jobs whose runs go to this queue.")] = (
        may_be_left_out()
    )
    enabled: Annotated[bool, Field(description="Enabled jobs, or paused ones.")] = may_be_left_out()
    search: Annotated[
        OneLine, Field(description="Jobs with this text in the id or the description.")
    ] = may_be_left_out()


class JobsBulkBody(Body):
    """`create` takes `jobs`. The other actions take `ids`, or `match` for all that match."""

    model_config = ConfigDict(
        json_schema_extra={
            "additionalProperties": False,
            "examples": [{"action": "pause", "match": {"tag": "reports"}}],
        }
    )

    action: Annotated[
        Literal["create", "pause", "resume", "trigger", "delete"],
        Field(description="What is done with each job."),
    ] = "create"
    jobs: Annotated[
        Annotated[list[Any], Field(min_length=1, max_length=1000)] | None,
        Field(description="For `create`: each is what `POST /api/v1/jobs` takes."),
    ] = None
    ids: Annotated[
        Annotated[list[JobId], Field(min_length=1, max_length=1000)] | None,
        Field(description="These jobs."),
    ] = None
    match: Annotated[
        JobMatchBody | None, Field(description="All jobs that match. `{}`: every job.")
    ] = None

    @model_validator(mode="after")
    def _names_its_jobs_once(self) -> Self:
        if self.action == "create":
            if self.jobs is None or self.ids is not None or self.match is not None:
                raise field_fault(
                    "jobs",
                    "is required with the action create: a list of jobs, each as POST /api/v1/jobs"
                    " takes it",
                )
        elif self.jobs is not None or (self.ids is None) == (self.match is None):
            raise field_fault(
                "ids",
                "give either ids or match; an empty match ({}) selects every job",
                predicate=False,
            )
        return self


# -- answers --------------------------------------------------------------------------------------


@answers(ID, *JOB, *WEBHOOK, SIGNING_SECRET)
class Job(Document):
    """A job."""


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
    """The result for one job of many."""

    index: Annotated[int | None, Field(description="With `create`: the place in `jobs`.")] = None
    id: str | None = None
    succeeded: bool
    run_id: Annotated[str | None, Field(description="The run that a trigger made.")] = None
    signing_secret: Annotated[
        str | None, Field(description="The secret of a new job, shown only here.")
    ] = None
    problem: Annotated[Problem | None, Field(description="Why it was not done.")] = None


class JobsBulkResult(Document):
    matched: Annotated[int, Field(description="How many jobs were named or matched.")]
    succeeded: Annotated[int, Field(description="For how many it was done.")]
    failed: Annotated[int, Field(description="For how many it was not done.")]
    items: list[JobBulkItem]


class PrunedOrphans(Document):
    jobs: Annotated[list[str], Field(description="The jobs whose code is gone.")]
    removed: Annotated[bool, Field(description="Whether they were removed.")]


def job_document(job: model.Job) -> dict[str, Any]:
    document = document_of((ID, *JOB), job)
    if job.webhook is not None:
        document |= document_of(WEBHOOK, job.webhook)
    return document


_BRIEF_JOB = tuple(spec for spec in JOB if spec.name != "payload")
_BRIEF_WEBHOOK = tuple(spec for spec in WEBHOOK if spec.name != "body")


def brief_job_document(job: model.Job) -> dict[str, Any]:
    """A job without its payload and body, as lists show it."""
    document = document_of((ID, *_BRIEF_JOB), job)
    if job.webhook is not None:
        document |= document_of(_BRIEF_WEBHOOK, job.webhook)
    return document


def etag(job: model.Job) -> str:
    """The ETag of the definition: a job that fires keeps it. The document leaves out or rounds some
    parts, so those are added as they are stored."""
    document = job_document(job)
    for name in ("nextRunAt", "lastRunAt", "updatedAt"):
        del document[name]
    signing = [one.sealed.box for one in job.webhook.signing] if job.webhook else []
    sealed = [one.box for one in job.webhook.secret_headers.values()] if job.webhook else []
    schedule = job.schedule.to_dict() if job.schedule else None
    text = encode_json([document, schedule, job.policy.to_dict(), signing, sealed])
    return f'"{hashlib.sha256(text).hexdigest()[:32]}"'
