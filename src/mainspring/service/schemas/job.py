"""A job: the document that clients are sent, and what they send to create and change one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from msgspec import UNSET, UnsetType
from pydantic import (
    Field,
    StringConstraints,
    model_validator,
)
from pydantic.alias_generators import to_camel

from mainspring.core import model
from mainspring.core.model import Owner
from mainspring.core.policy import (
    MAX_MEMORY,
    MAX_NAME,
    MAX_UPSTREAM,
    AfterFailure,
    BackoffKind,
    Isolation,
    MisfireKind,
    Origin,
    Overlap,
    Policy,
)
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.cron import Cron
from mainspring.core.schedules.interval import FixedDelay, Interval, Once
from mainspring.core.schedules.recurrence import Recurrence
from mainspring.scheduler.definitions import MAX_DESCRIPTION, MAX_TAGS
from mainspring.service.problems import Problem
from mainspring.service.schemas.documents import (
    Cursor,
    Document,
    Milliseconds,
    Time,
    encode_json,
    example,
    to_builtins,
    to_iso,
    to_json_value,
    to_milliseconds,
)
from mainspring.service.schemas.fields import (
    Body,
    Conditions,
    Count,
    CountOrZero,
    DateTime,
    Duration,
    JobId,
    JsonValue,
    OneLine,
    Priority,
    Sent,
    TolerantBody,
    bounds,
    field_fault,
    fields_of,
    may_be_left_out,
    sent_of,
)
from mainspring.webhooks.definition import MAX_HEADERS, MAX_STATUS_CODES, MAX_URL
from mainspring.webhooks.service import masked_headers

ExecutionType = Literal["AT_LEAST_ONCE", "AT_MOST_ONCE", "EFFECT_ONCE"]

# -- what clients are sent ------------------------------------------------------------------------


class BackoffDocument(Document):
    """How the wait before a retry grows."""

    kind: BackoffKind
    """The wait stays the same, grows by its first length each time, or is multiplied."""
    factor: float
    """What an exponential wait is multiplied by."""
    cap: Milliseconds
    """The longest wait. It is at least `retryDelay`."""
    jitter: float
    """The part by which waits are spread. True is a tenth."""


class MisfireDocument(Document):
    """What happens to slots that were not fired in time."""

    kind: MisfireKind
    """Which missed slots run: the newest, none, or all."""
    grace: Milliseconds
    """How late a slot may fire without being missed."""
    limit: int
    """With `all`: how many of the newest run at most."""


class BreakerDocument(Document):
    """When runs wait because too many failed."""

    failures: int
    """How many failures in a row open the breaker."""
    reset: Milliseconds
    """How long the breaker stays open before one run is tried."""


# -- what clients send in a job's fields -----------------------------------------------------------


class BackoffBody(Body):
    """How the wait before a retry grows."""

    document = BackoffDocument
    kind: Literal["fixed", "linear", "exponential"] = "exponential"
    factor: Annotated[float, bounds(minimum=1)] = 2
    cap: Duration = "1h"
    jitter: bool | Annotated[float, Field(ge=0, le=1)] = True


class MisfireBody(Body):
    """What happens to slots that were not fired in time."""

    document = MisfireDocument
    kind: Literal["once", "skip", "all"] = "once"
    grace: Duration = "60s"
    limit: Count = 100


class BreakerBody(Body):
    """When runs wait because too many failed."""

    document = BreakerDocument
    failures: Count = 5
    reset: Duration = "60s"


def choices(kind: type[StrEnum]) -> Any:
    return Literal[tuple(choice.value for choice in kind)]


Text = Annotated[str, StringConstraints(min_length=1)]
ShortText = Annotated[str, Field(max_length=64)]
Description = Annotated[str, bounds(maxLength=MAX_DESCRIPTION)]
Failures = Annotated[int, Field(ge=1)]
Upstream = Annotated[list[str], bounds(maxItems=MAX_UPSTREAM)]
Memory = Annotated[int, bounds(minimum=1, maximum=MAX_MEMORY)]
Tags = Annotated[
    list[Annotated[str, bounds(minLength=1, maxLength=MAX_NAME)]], bounds(maxItems=MAX_TAGS)
]
Url = Annotated[str, bounds(maxLength=MAX_URL)]
Headers = Annotated[dict[str, str], bounds(maxProperties=MAX_HEADERS)]
HeaderNames = Annotated[list[str], bounds(maxItems=MAX_HEADERS)]
StatusCodes = Annotated[
    list[int | Annotated[str, StringConstraints(max_length=16)]], bounds(maxItems=MAX_STATUS_CODES)
]


# -- a job ----------------------------------------------------------------------------------------


class Job(Document, kw_only=True):
    """A job."""

    # `Sent` says as which type a client may send a field. The service sets those without it.

    id: Annotated[str, example("nightly")]
    """The job's name in URLs. If a request leaves it out, the service makes one from `name`, or
    from the endpoint's host."""
    name: Annotated[str, Sent(Text), example("Nightly report")]
    """A name for people. It becomes the id if a new job has none."""
    description: Annotated[str, Sent(Description), example("Sends the report of the day")]
    """What the job is for."""
    schedule: Annotated[str | None, Sent(str), example("0 30 2 * * *")]
    """A cron expression of 5 to 7 fields, `@daily`, an interval (`5m`; `5m after end`: after the
    end of the run before), a date-time or an RRULE. Null: the job runs only when it is
    triggered."""
    every: Annotated[Milliseconds | None, Sent(Duration, "schedule")]
    """Instead of `schedule`: an interval."""
    run_at: Annotated[Time | None, Sent(DateTime, "schedule")]
    """Instead of `schedule`: one date-time."""
    timezone: Annotated[str, Sent(OneLine), example("Europe/Berlin")]
    """The timezone of the schedule, such as `Europe/Berlin`. Without it: the one that the schedule
    names, else the scheduler's (UTC by default)."""
    schedule_description: Annotated[str | None, example("at 02:30:00")]
    """The schedule in words."""
    jitter: Annotated[Milliseconds | None, Sent(Duration)]
    """Each run starts at most this much later than its slot."""
    handler: Annotated[str, Sent(OneLine), example("webhook")]
    """Instead of `endpoint`: the name of a Python function that the program registered."""
    payload: Annotated[Any, Sent(JsonValue, null=False)] = UNSET
    """The handler's arguments. A value that JSON lacks is an object of one key, in responses and
    requests: `{"$datetime": "2030-01-01T09:00:00+00:00"}`, and `$date`, `$uuid`, `$decimal` and
    `$bytes` (base64) alike. An object that has such a name itself gets a second `$`."""
    execution_type: Annotated[
        ExecutionType, Sent(ExecutionType, "delivery"), example("AT_LEAST_ONCE")
    ]
    """A run of an `AT_MOST_ONCE` job is never tried again. The handler of an `EFFECT_ONCE` job
    commits its writes together with the end of its run."""
    enabled: Annotated[bool, Sent(bool, null=False), example(True)]
    """Whether the job's slots fire."""
    retry_attempts: Annotated[int, Sent(CountOrZero, "retries"), example(3)]
    """How often a failed run is tried again. 0: never."""
    retry_delay: Annotated[Milliseconds, Sent(Duration)]
    """The wait before the first retry."""
    backoff: Annotated[BackoffDocument, Sent(choices(BackoffKind) | BackoffBody)]
    """How the wait grows with each retry."""
    timeout: Annotated[Milliseconds | None, Sent(Duration)]
    """How long an attempt may take, by the wall clock. For a job that calls an endpoint: 30s if it
    is left out, at most 1h, and a number below 500 is refused (30 is 30 ms; write 30s)."""
    start_deadline: Annotated[Milliseconds | None, Sent(Duration)]
    """A run that has not started so long after it was due is skipped."""
    priority: Annotated[int, Sent(Priority), example(5)]
    """0 to 9. Runs of a higher priority start first."""
    queue: Annotated[str, Sent(str), example("default")]
    """The queue of the job's runs. A worker takes runs of its own queues."""
    concurrency: Annotated[int | None, Sent(Count)]
    """How many of the job's runs may run at once, over all instances."""
    concurrency_key: Annotated[str | None, Sent(str)]
    """Jobs with the same key share their limit."""
    rate: Annotated[str | None, Sent(ShortText), example("100/m")]
    """How many of the job's runs may start in a span of time, as in `100/m`, over all instances."""
    rate_key: Annotated[str | None, Sent(str)]
    """Jobs with the same key share their rate."""
    overlap: Annotated[Overlap, Sent(choices(Overlap))]
    """What happens to a slot whose predecessor's run has not ended: `skip` the slot, `queue` its
    run behind, `replace` the earlier run, or `allow` both."""
    misfire: Annotated[MisfireDocument, Sent(choices(MisfireKind) | MisfireBody)]
    """What happens to slots that were not fired in time: run the newest `once`, `skip` them, or run
    `all`."""
    breaker: Annotated[BreakerDocument | None, Sent(bool | Failures | BreakerBody)]
    """After this many failures in a row, counted over all nodes, runs wait; then one is tried, and
    if it succeeds the others start. Webhooks have a breaker by default; null: none."""
    after: Annotated[list[str], Sent(Upstream)]
    """The job runs when each of these jobs has succeeded."""
    after_failure: Annotated[AfterFailure, Sent(choices(AfterFailure))]
    """What becomes of a run if one that it comes after did not succeed: `skip` or `run`."""
    each_node: Annotated[bool, Sent(bool)]
    """Whether a slot runs once on each live worker."""
    isolation: Annotated[Isolation, Sent(choices(Isolation), only="handler")]
    """Where the job's handler runs: on the event loop or in a thread, as its function needs
    (`auto`), in a `thread`, or in a `process` of its own. Not for endpoints."""
    memory_limit: Annotated[int | None, Sent(Memory | ShortText, only="handler")]
    """How many bytes of memory a handler in a process of its own may use. A size such as `512MiB`
    may be sent. Null: any number."""
    retention: Annotated[Milliseconds | None, Sent(Duration)]
    """How long the job's finished runs are kept. Null: as long as the service keeps runs."""
    history: Annotated[int | None, Sent(CountOrZero)]
    """How many finished runs of the job are kept, the newest; 0: none. Null: as many as the service
    keeps of each job."""
    tags: Annotated[list[str], Sent(Tags), example(["reports"])]
    """Words to list jobs by."""
    metadata: Annotated[dict[str, Any], Sent(dict[str, JsonValue]), example({"team": "data"})]
    """Any JSON object that you want to keep with the job. In a Python program it also holds the
    `name`, which is a field of its own here."""
    owner: Owner
    """`code` or `file`: a program or a file defines the job, and clients can only pause, resume and
    trigger it."""
    file: str | None
    """The name of the file that defines the job. Null: no file does."""
    origins: Annotated[
        dict[str, Origin] | None,
        example({"retryAttempts": "job", "timeout": "defaults", "priority": "built_in"}),
    ]
    """Where the job's options come from, by field: the `job` itself, the `defaults` of the
    scheduler or service that stored it, or `built_in`. Null: an earlier version stored the job, and
    did not keep this."""
    next_run_at: Time | None
    """The slot that fires next."""
    last_run_at: Time | None
    """When the newest run of the job started."""
    created_at: Time
    """When the job was created."""
    updated_at: Time
    """When the job was last changed."""
    endpoint: Annotated[
        str | UnsetType | None, Sent(Url, "url"), example("https://api.example.com/webhook")
    ] = UNSET
    """The URL that the job calls. It may hold templates such as `{{jobId}}`. Everybody with a read
    key sees it: put secrets into headers, which are masked. A change to another scheme, host or
    port removes the secret headers that are not sent with it: compare `headers` in the response."""
    method: Annotated[str | UnsetType | None, Sent(str, only="endpoint"), example("POST")] = UNSET
    """The method of the request. POST by default."""
    headers: Annotated[
        dict[str, str] | UnsetType | None,
        Sent(Headers, only="endpoint"),
        example({"X-Team": "data"}),
    ] = UNSET
    """The headers of the request. Responses show a mask instead of a secret one's value."""
    secret_headers: Annotated[list[str] | UnsetType | None, Sent(HeaderNames, only="endpoint")] = (
        UNSET
    )
    """The names of headers to encrypt, in addition to `Cookie` and those whose names contain token,
    secret, key, auth, password or credential."""
    body: Annotated[
        Any,
        Sent(Any, only="endpoint", null=False),
        example({"event": "nightly", "timestamp": "{{timestamp}}"}),
    ] = UNSET
    """The body of the request: JSON or text. It may hold the templates `{{timestamp}}`,
    `{{scheduledAt}}`, `{{jobId}}`, `{{executionId}}` and `{{attempt}}`."""
    success_codes: Annotated[
        list[int | str] | UnsetType | None, Sent(StatusCodes, "success", only="endpoint")
    ] = UNSET
    """The status codes of a success: `[200, "202-204"]`. All 2xx by default."""
    retry_on: Annotated[list[int | str] | UnsetType | None, Sent(StatusCodes, only="endpoint")] = (
        UNSET
    )
    """The other status codes that are retried: `["5xx", 429]`. All by default."""
    signing_secret: Annotated[str | UnsetType | None, example("whsec_…")] = UNSET
    """The secret that signs the job's requests. Only the response that made it shows it."""

    @classmethod
    def of(cls, job: model.Job, signing_secret: str | None = None, *, brief: bool = False) -> Self:
        """The document of a job. `brief`: without payload and body, as lists show it."""
        schedule, policy = job.schedule, job.policy
        backoff, misfire, breaker = policy.backoff, policy.misfire, policy.breaker
        document = cls(
            id=job.id,
            name=stored_name(job) or job.id,
            description=job.description,
            schedule=schedule_text(schedule),
            every=to_milliseconds(schedule.interval) if isinstance(schedule, Interval) else None,
            run_at=to_iso(schedule.when) if isinstance(schedule, Once) else None,
            timezone="UTC" if schedule is None else schedule.timezone,
            schedule_description=None if schedule is None else _describe(schedule),
            jitter=None if schedule is None else to_milliseconds(schedule.jitter),
            handler=job.handler,
            payload=UNSET if brief else to_json_value(job.payload),
            execution_type=cast(ExecutionType, policy.delivery.upper()),
            enabled=job.enabled,
            retry_attempts=policy.retries,
            retry_delay=to_milliseconds(backoff.delay),
            backoff=BackoffDocument(
                kind=BackoffKind(backoff.kind),
                factor=backoff.factor,
                cap=to_milliseconds(backoff.cap),
                jitter=backoff.jitter,
            ),
            timeout=to_milliseconds(policy.timeout),
            start_deadline=to_milliseconds(policy.start_deadline),
            priority=policy.priority,
            queue=policy.queue,
            concurrency=policy.concurrency,
            concurrency_key=policy.concurrency_key,
            rate=None if policy.rate is None else str(policy.rate),
            rate_key=policy.rate_key,
            overlap=policy.overlap,
            misfire=MisfireDocument(
                kind=MisfireKind(misfire.kind),
                grace=to_milliseconds(misfire.grace),
                limit=misfire.limit,
            ),
            breaker=None
            if breaker is None
            else BreakerDocument(failures=breaker.failures, reset=to_milliseconds(breaker.reset)),
            after=list(policy.after),
            after_failure=policy.after_failure,
            each_node=policy.each_node,
            isolation=policy.isolation,
            memory_limit=policy.memory_limit,
            retention=to_milliseconds(policy.retention),
            history=policy.history,
            tags=list(job.tags),
            metadata={name: to_json_value(value) for name, value in own_metadata(job).items()},
            owner=job.owner,
            file=job.file,
            origins=_origins(job),
            next_run_at=to_iso(job.next_run_at),
            last_run_at=to_iso(job.last_run_at),
            created_at=to_iso(job.created_at),
            updated_at=to_iso(job.updated_at),
            signing_secret=UNSET if signing_secret is None else signing_secret,
        )
        if (webhook := job.webhook) is not None:
            document.endpoint = webhook.url
            document.method = webhook.method
            document.headers = masked_headers(webhook)
            document.secret_headers = list(webhook.secret_headers)
            document.body = UNSET if brief else webhook.body
            document.success_codes = _codes(webhook.success)
            document.retry_on = None if webhook.retry_on is None else _codes(webhook.retry_on)
        return document


def job_document(job: model.Job) -> dict[str, Any]:
    """A job as a client reads it from JSON."""
    document: dict[str, Any] = to_builtins(Job.of(job))
    return document


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


class JobBulkItem(Document, kw_only=True):
    """The result for one job of many."""

    index: int | UnsetType = UNSET
    """With `create`: the place in `jobs`."""
    id: str | UnsetType = UNSET
    succeeded: bool
    run_id: str | UnsetType = UNSET
    """The run that a trigger made."""
    signing_secret: str | UnsetType = UNSET
    """The secret of a new job, shown only here."""
    problem: Problem | UnsetType = UNSET
    """Why it was not done."""


class JobsBulkResult(Document):
    matched: int
    """How many jobs were named or matched."""
    succeeded: int
    """For how many it was done."""
    failed: int
    """For how many it was not done."""
    items: list[JobBulkItem]


class PrunedOrphans(Document):
    jobs: list[str]
    """The jobs whose code is gone."""
    removed: bool
    """Whether they were removed."""


def etag(job: model.Job) -> str:
    """The ETag of the definition: a job that fires keeps it. It covers every part as it is stored,
    also the secrets, which no document shows."""
    webhook = job.webhook
    parts = [
        *(job.id, job.handler, job.enabled, job.description, job.tags, job.owner, job.file),
        *(job.origins and dict(job.origins), to_iso(job.created_at), to_json_value(job.payload)),
        {name: to_json_value(value) for name, value in job.metadata.items()},
        None if job.schedule is None else job.schedule.to_dict(),
        job.policy.to_dict(),
    ]
    if webhook is not None:
        parts += [webhook.url, webhook.method, dict(webhook.headers), webhook.body, webhook.success]
        parts += [webhook.retry_on, [secret.sealed.box for secret in webhook.signing]]
        parts.append({name: sealed.box for name, sealed in webhook.secret_headers.items()})
    return f'"{hashlib.sha256(encode_json(parts)).hexdigest()[:32]}"'


# -- values within a job --------------------------------------------------------------------------


def stored_name(job: model.Job) -> str | None:
    """The job's name for people, which its metadata keep. Another value of that name, or an empty
    text, is an ordinary part of the metadata."""
    name = job.metadata.get("name")
    return name if isinstance(name, str) and name else None


def own_metadata(job: model.Job) -> dict[str, Any]:
    """The metadata without the job's name for people."""
    named = stored_name(job) is not None
    return {name: value for name, value in job.metadata.items() if not (named and name == "name")}


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
        return interval_text(schedule.interval)
    if isinstance(schedule, FixedDelay):
        return f"{interval_text(schedule.interval)} after end"
    if isinstance(schedule, Once):
        return to_iso(schedule.when)
    return schedule.text if isinstance(schedule, Recurrence) else schedule.describe()


def interval_text(interval: timedelta) -> str:
    """In the largest unit that gives a whole number: 7s, 90s, 15m."""
    for size, unit in _UNITS if interval else _UNITS[-1:]:
        count, rest = divmod(interval, size)
        if not rest:
            return f"{count}{unit}"
    return f"{to_milliseconds(interval)}ms"


@lru_cache(maxsize=10_000)
def _describe(schedule: Schedule) -> str:
    return schedule.describe()  # half of the time that a job's document takes, and rarely new


def _codes(ranges: tuple[tuple[int, int], ...]) -> list[int | str]:
    return [low if low == high else f"{low}-{high}" for low, high in ranges]


# -- what clients send ----------------------------------------------------------------------------

SCHEDULE_FORMS = ("schedule", "every", "run_at")
"""The fields that each stand for the option `schedule`."""

SENT: Mapping[str, Sent] = sent_of(Job)
"""The fields that clients may send. All that is made of a job's fields goes by it: the bodies, the
options for the library, the dashboard's form and its table of the policy."""

OPTION_FIELDS = {
    sent.option or name: name
    for name, sent in SENT.items()
    if sent.only != "endpoint" and (sent.option or name) in Policy.__dataclass_fields__
}
"""The fields that are a policy option each, by the option."""


def _origins(job: model.Job) -> Any:
    if (origins := job.origins) is None:
        return None
    return {
        to_camel(name): origins.get(option, "built_in") for option, name in OPTION_FIELDS.items()
    }


_SET_BY_SERVICE = {to_camel(name) for name in (*Job.__struct_fields__, "version")} - {
    *("id", *map(to_camel, SENT))
}
ID_NAMES = ("id", "_id", "jobId")


class ScheduleFields(TolerantBody, fields_of(Job, (*SCHEDULE_FORMS, "timezone"))):  # type: ignore[misc]
    """The fields of a schedule."""


class JobFields(TolerantBody, fields_of(Job, SENT)):  # type: ignore[misc]
    """What can be sent of a job."""

    ignored = _SET_BY_SERVICE


class JobBody(JobFields):
    """A new job. It needs `endpoint` or `handler`, and `schedule`, `every`, `runAt` or `after`; a
    null `schedule` makes a job that runs only when it is triggered. Fields that the service sets
    (`owner`, `nextRunAt`, …) may be sent as they were read from another job, and mean nothing."""

    example: ClassVar = {
        "id": "nightly",
        "schedule": "0 30 2 * * *",
        "timezone": "Europe/Berlin",
        "tags": ["reports"],
        "endpoint": "https://api.example.com/webhook",
        "method": "POST",
        "headers": {"X-Team": "data"},
        "body": {"event": "nightly", "timestamp": "{{timestamp}}"},
    }
    id: str | None = None


class JobUpdateBody(JobFields):
    """Changes of a job. What is left out stays. Fields that the service sets (`_id`, `nextRunAt`,
    …) may be sent back as they were read, and change nothing."""

    example: ClassVar = {"schedule": "0 */10 * * * *", "enabled": True}
    ignored = _SET_BY_SERVICE.union(ID_NAMES)
    rotate_secret: bool | None = None
    """True: sign with a new secret. The former one signs too for a day."""


class TriggerBody(Body):
    example: ClassVar = {"payload": {"event": "by hand"}}
    payload: JsonValue = None
    """Instead of the request's body, or of the handler's arguments. Values that JSON lacks are
    written as in a job's `payload`."""


class JobMatchBody(Conditions):
    tag: Annotated[OneLine, Field(description="Jobs with this tag.")] = may_be_left_out()
    queue: Annotated[OneLine, Field(description="Jobs whose runs go to this queue.")] = (
        may_be_left_out()
    )
    enabled: Annotated[bool, Field(description="Enabled jobs, or paused ones.")] = may_be_left_out()
    search: Annotated[
        OneLine, Field(description="Jobs with this string in the id or the description.")
    ] = may_be_left_out()


class JobsBulkBody(Body):
    """`create` takes `jobs`. The other actions take `ids`, or `match` for all that match."""

    example: ClassVar = {"action": "pause", "match": {"tag": "reports"}}
    action: Literal["create", "pause", "resume", "trigger", "delete"] = "create"
    """What is done with each job."""
    jobs: Annotated[list[Any], Field(min_length=1, max_length=1000)] | None = None
    """For `create`: each is what `POST /api/v1/jobs` takes."""
    ids: Annotated[list[JobId], Field(min_length=1, max_length=1000)] | None = None
    """These jobs."""
    match: JobMatchBody | None = None
    """All jobs that match. `{}`: every job."""

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
