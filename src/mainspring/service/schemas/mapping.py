"""From what a client sent to what the scheduler takes."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from pydantic.alias_generators import to_camel

from mainspring.core import schedules
from mainspring.core.model import Job
from mainspring.core.policy import Delivery
from mainspring.core.schedules import Schedule
from mainspring.core.schedules.constructors import at, every
from mainspring.errors import (
    InvalidArguments,
    InvalidInput,
    InvalidPayload,
    InvalidSchedule,
    MainspringError,
    SecretKeyMissing,
)
from mainspring.scheduler.definitions import WEBHOOK_TIMEOUT, zone_of_new_schedule
from mainspring.service.problems import FieldError, Problem
from mainspring.service.schemas import cross_field_rules, documents
from mainspring.service.schemas.cross_field_rules import slug
from mainspring.service.schemas.durations import span
from mainspring.service.schemas.requests import (
    JobBody,
    JobFields,
    JobUpdateBody,
    backoff_of,
    breaker_of,
    misfire_of,
)
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks.headers import MASK
from mainspring.webhooks.service import Webhooks, shown_headers

__all__ = ["arguments", "check_webhook", "edits", "job_id", "named"]

_WEBHOOK = {
    "endpoint": "url",
    "method": "method",
    "headers": "headers",
    "body": "body",
    "success_codes": "success",
    "retry_on": "retry_on",
}
_PLAIN = ("description", "tags", "enabled", "priority", "queue", "overlap", "after", "payload")


def job_id(body: JobBody) -> str:
    """The id that was given, or one made of the name; else a new one that begins with the host
    (not the path: a token may stand there, and ids are in metrics and logs)."""
    if body.id is not None:
        return body.id
    if body.name is not None:
        return slug(body.name)
    words = slug((urlsplit(body.endpoint).hostname if body.endpoint else body.handler) or "")
    return f"{words[:60] or 'job'}-{secrets.token_hex(4)}"


def arguments(body: JobBody, settings: ServiceSettings, zone: str) -> dict[str, Any]:
    """What `add_job` takes beside the id. Of a webhook, what the page promises: it is retried.
    `zone` is the scheduler's: it holds where none is sent."""
    given = _common(body, body)
    if (schedule := _schedule(body, zone)) is not None:
        given["schedule"] = schedule
    if body.endpoint is not None:
        given["webhook"] = _webhook(body)
        _default_timeout(given)
    else:
        given["handler"] = body.handler
    once = body.execution_type == "AT_MOST_ONCE"
    if body.retry_attempts is None:
        given["retries"] = 0 if once or body.endpoint is None else settings.job_retry_attempts
    delay = (
        timedelta(milliseconds=settings.job_retry_delay)
        if body.retry_delay is None
        else span(body.retry_delay, "retryDelay")
    )
    given["backoff"] = backoff_of(body.backoff or "exponential", delay)
    metadata = dict(body.metadata or {})
    if body.name is not None:
        metadata["name"] = body.name
    given["metadata"] = metadata
    return given


def edits(job: Job, body: JobUpdateBody, zone: str) -> dict[str, Any]:
    """What `update_job` takes: only what differs from the job as it is read. `zone` is the
    scheduler's: it holds where neither the body nor the job has one."""
    body = _with_marked(job, _only_changes(job, body))
    given = _common(body, body)
    given |= _rescheduled(job.schedule, body, zone)
    if webhook := _webhook(body):
        if job.webhook is None:
            raise Problem.of_field(
                "endpoint", f"job {job.id!r} runs the handler {job.handler!r}: it calls no endpoint"
            )
        given["webhook"] = webhook
    if job.webhook is not None:
        _default_timeout(given)
    if "handler" in body.model_fields_set and body.handler is not None:
        if job.webhook is not None:
            raise Problem.of_field("handler", "a job that calls an endpoint has no other handler")
        given["handler"] = body.handler
    if {"backoff", "retry_delay"} & body.model_fields_set:
        given["backoff"] = _backoff(job, body)
    if given.get("delivery") is Delivery.AT_MOST_ONCE:
        given.setdefault("retries", 0)
    if faults := list(cross_field_rules.of_a_job(_as_it_would_be(job, body))):
        raise Problem.of_fields([FieldError(*fault) for fault in faults])
    if {"metadata", "name"} & body.model_fields_set:
        metadata = dict(job.metadata)
        if "metadata" in body.model_fields_set:
            metadata = {**(body.metadata or {}), **_named(job.metadata.get("name"))}
        if "name" in body.model_fields_set:
            metadata.pop("name", None)
            metadata |= _named(body.name)
        given["metadata"] = metadata
    return given


def _as_it_would_be(job: Job, body: JobUpdateBody) -> dict[str, Any]:
    """The job as a client would read it after the edit, as far as its fields bear on each other."""
    sent = {
        field.alias or name: getattr(body, name)
        for name, field in type(body).model_fields.items()
        if name in body.model_fields_set
    }
    now = documents.job_document(job)
    if {"schedule", "every", "runAt"} & sent.keys():
        now |= dict.fromkeys(("schedule", "every", "runAt", "timezone", "jitter"))
    if sent.get("executionType") == "AT_MOST_ONCE":
        now["retryAttempts"] = 0
    return now | sent


def _rescheduled(old: Schedule | None, body: JobUpdateBody, zone: str) -> dict[str, Any]:
    """Another schedule keeps the zone and the jitter of the one it follows, unless they change."""
    given: dict[str, Any] = {}
    sent = body.model_fields_set
    if {"schedule", "every", "run_at"} & sent:
        given["schedule"] = _schedule(body, zone_of_new_schedule(old, zone))
        if given["schedule"] is not None and "jitter" not in sent and old is not None:
            given["jitter"] = old.jitter
    elif "jitter" in sent and body.jitter is None and old is not None:
        given["schedule"] = dataclasses.replace(old, jitter=None)
    return given


def _named(name: object) -> dict[str, Any]:
    return {} if name is None else {"name": name}


def _only_changes(job: Job, body: JobUpdateBody) -> JobUpdateBody:
    """Without the fields that say what is already so: a job that was read, changed in one place
    and sent back whole is an edit of that place."""
    now = documents.job_document(job)
    aliases = {name: field.alias or name for name, field in type(body).model_fields.items()}
    sent = body.model_dump(by_alias=True)
    names = {
        name
        for name in body.model_fields_set
        if name in ("body", "payload")
        or aliases[name] not in now
        or sent[aliases[name]] != now[aliases[name]]
    }
    times = [name for name in ("schedule", "every", "run_at") if name in names]
    said = [name for name in times if getattr(body, name) is not None]
    if len(said) > 1:
        names_said = ", ".join(aliases[name] for name in said)
        raise Problem.of_field("schedule", f"give one of {names_said}: a job has one schedule")
    if said:
        names -= set(times) - set(said)
    if "headers" in body.model_fields_set and ({"headers", "endpoint", "secret_headers"} & names):
        names |= {"headers"} | ({"secret_headers"} & body.model_fields_set)
    return type(body).model_construct(
        names, **{name: getattr(body, name) for name in type(body).model_fields}
    )


def _with_marked(job: Job, body: JobUpdateBody) -> JobUpdateBody:
    """Headers that are marked by their names alone are those that the job has."""
    sent = body.model_fields_set
    if "secret_headers" not in sent or "headers" in sent or job.webhook is None:
        return body
    return body.model_copy(update={"headers": shown_headers(job.webhook)})


def _default_timeout(given: dict[str, Any]) -> None:
    """A null asks for the default, and a call of an endpoint always has a timeout."""
    if "timeout" in given and given["timeout"] is None:
        given["timeout"] = WEBHOOK_TIMEOUT


def _common(body: JobFields, fields: JobFields) -> dict[str, Any]:
    """What is the same in a new job and in a change. A null asks for the default."""
    given: dict[str, Any] = {}
    defaults: dict[str, Any] = {
        "description": "",
        "tags": (),
        "priority": 5,
        "queue": "default",
        "overlap": "skip",
        "after": (),
        "payload": None,
    }
    for name in _PLAIN:
        if name in fields.model_fields_set:
            value = getattr(body, name)
            given[name] = defaults[name] if value is None else value
    for name in ("concurrency", "concurrency_key"):
        if name in fields.model_fields_set:
            given[name] = getattr(body, name)
    for name, alias in (("timeout", "timeout"), ("start_deadline", "startDeadline")):
        if name in fields.model_fields_set:
            value = getattr(body, name)
            given[name] = None if value is None else span(value, alias)
    if "timezone" in fields.model_fields_set and body.timezone is not None:
        given["timezone"] = body.timezone
    if "jitter" in fields.model_fields_set and body.jitter is not None:
        given["jitter"] = span(body.jitter, "jitter")
    if "misfire" in fields.model_fields_set:
        given["misfire"] = misfire_of(body.misfire or "once")
    if "breaker" in fields.model_fields_set:
        given["breaker"] = breaker_of(body.breaker)
    if "retry_attempts" in fields.model_fields_set and body.retry_attempts is not None:
        given["retries"] = body.retry_attempts
    if "execution_type" in fields.model_fields_set and body.execution_type is not None:
        given["delivery"] = Delivery(body.execution_type.lower())
    return given


def _schedule(body: JobFields, default_zone: str) -> Schedule | None:
    """What was sent as a schedule: in the zone that was sent, or that its text names, or else in
    the default one."""
    with named(body):
        if body.schedule is not None:
            return schedules.parse(
                body.schedule, timezone=body.timezone, default_timezone=default_zone
            )
        if body.every is not None:
            return every(span(body.every, "every"))
        if body.run_at is not None:
            return at(body.run_at, tz=body.timezone or default_zone)
    return None


def _backoff(job: Job, body: JobUpdateBody) -> Any:
    now = job.policy.backoff
    delay = now.delay if body.retry_delay is None else span(body.retry_delay, "retryDelay")
    if "backoff" in body.model_fields_set:
        assert isinstance(delay, timedelta)
        return backoff_of(body.backoff or "exponential", delay)
    return type(now)(now.kind, delay=delay, factor=now.factor, cap=now.cap, jitter=now.jitter)


def _webhook(body: JobFields) -> dict[str, Any]:
    made = {
        ours: getattr(body, name)
        for name, ours in _WEBHOOK.items()
        if name in body.model_fields_set
    }
    if made.get("url", "") is None:
        raise Problem.of_field("endpoint", "is an address such as https://example.org/hook")
    sent = "secret_headers" in body.model_fields_set
    marked = {name.lower() for name in body.secret_headers or ()} if sent else set()
    if marked:
        headers: Mapping[str, str] = body.headers or {}
        if missing := cross_field_rules.missing_headers(body.secret_headers, headers):
            raise Problem.of_field("secretHeaders", missing)
        made["headers"] = {k: v for k, v in headers.items() if k.lower() not in marked}
        made["secret_headers"] = {k: v for k, v in headers.items() if k.lower() in marked}
    return made


def check_webhook(desk: Webhooks, name: str, given: Mapping[str, Any]) -> None:
    """Have the desk look at each part by itself, so that each wrong one is told by its name."""
    url = given.get("url", "https://example.org/")
    errors: list[FieldError] = []
    for field, ours in _WEBHOOK.items():
        if ours not in given:
            continue
        part: dict[str, Any] = {"url": url if ours == "url" else "https://example.org/"}
        part[ours] = _unmasked(given[ours]) if ours == "headers" else given[ours]
        try:
            desk.define(name, part)
        except MainspringError as error:
            words = str(error).replace("retry_on", "retryOn").replace("success takes", "it takes")
            alias = {"success_codes": "successCodes", "retry_on": "retryOn"}.get(field, field)
            errors.append(FieldError(alias, words))
    if errors:
        raise Problem.of_fields(errors)


@contextmanager
def named(body: JobFields) -> Iterator[None]:
    """What the scheduler refuses is told by the field that it comes from."""
    try:
        yield
    except InvalidSchedule as error:
        said = [name for name in ("every", "run_at") if getattr(body, name) is not None]
        raise Problem.of_field(to_camel(said[0] if said else "schedule"), str(error)) from None
    except SecretKeyMissing as error:
        rotates = isinstance(body, JobUpdateBody) and body.rotate_secret
        raise Problem.of_field("rotateSecret" if rotates else "headers", str(error)) from None
    except (InvalidPayload, InvalidArguments):
        raise
    except InvalidInput as error:
        if str(error).startswith(MASK):
            raise Problem.of_field("headers", str(error)) from None
        if body.after:  # whom it comes after is all that is left to the store's knowledge
            raise Problem.of_field("after", str(error)) from None
        raise


def _unmasked(headers: Any) -> Any:
    """The mask stands for a secret that is there; here only the names are looked at."""
    if not isinstance(headers, Mapping):
        return headers
    return {name: "x" if text == MASK else text for name, text in headers.items()}
