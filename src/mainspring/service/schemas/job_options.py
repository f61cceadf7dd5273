"""From a job that a client sent to the options of `add_job` and `update_job`, and back from the
library's errors to the fields that the client knows.

The library checks the rules of a job. What is checked here concerns the document alone: fields that
stand for the same option, and fields of the two kinds of job.
"""

from __future__ import annotations

import dataclasses
import re
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from mainspring.core.model import Job
from mainspring.core.policy import Backoff, Policy
from mainspring.errors import InvalidInput
from mainspring.scheduler.definitions import WEBHOOK_TIMEOUT
from mainspring.service.problems import FieldError, field_errors
from mainspring.service.schemas.fields import Body, TolerantBody
from mainspring.service.schemas.job import (
    OPTION_OF,
    SCHEDULE_FORMS,
    BackoffBody,
    JobBody,
    JobUpdateBody,
    job_document,
    own_metadata,
    stored_name,
)
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks.service import HANDLER, masked_headers

SHORTEST_BARE_TIMEOUT = 500
"""Milliseconds. A smaller number without a unit was most likely meant as seconds."""

_ALIAS = {name: field.alias or name for name, field in JobUpdateBody.model_fields.items()}
_REQUEST = ("method", "headers", "secret_headers", "body", "success_codes", "retry_on")
"""The fields that only a job with an endpoint has."""
_READ_APART = {
    *("id", "name", *SCHEDULE_FORMS, "metadata", "retry_delay", "backoff"),
    *("endpoint", "rotate_secret", *_REQUEST),
}
"""The fields that are not one option of the library each."""
_NULL_IS_LEFT_OUT = {"timezone", "jitter", "handler", "execution_type", "retry_attempts"}
_BUILT_IN = Policy()


def new_job_id(body: JobBody) -> str:
    """The id that was sent, or one made from the name. Else a random one that begins with the host:
    not with the path, where a token may stand, because ids are in metrics and logs."""
    sent = body.sent
    if sent.get("id") is not None:
        return str(sent["id"])
    if sent.get("name") is not None and _slug(sent["name"]):
        return _slug(sent["name"])
    endpoint = sent.get("endpoint")
    try:
        target = urlsplit(endpoint).hostname if endpoint else sent.get("handler")
    except ValueError:
        target = None
    return f"{_slug(target or '')[:60] or 'job'}-{secrets.token_hex(4)}"


def job_options(
    body: JobBody, settings: ServiceSettings, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of `add_job` beside the id. `defaults` are those of the scheduler."""
    sent = body.sent
    options = _options(sent)
    # Without a handler it is a call, even if the endpoint is missing or has a wrong type: so the
    # other fields of the call are checked.
    as_sent = body.as_sent
    calls = as_sent.get("endpoint") is not None or as_sent.get("handler") is None
    options["defaults"] = _defaults(settings, defaults, calls=calls)
    for name in SCHEDULE_FORMS:
        if sent.get(name) is not None:
            options["schedule"] = sent[name]
    if calls:
        options.pop("handler", None)
        options["webhook"] = _webhook_options(sent)
        if options.get("timeout", "") is None:  # null means the default
            del options["timeout"]
    delay = sent.get("retry_delay")
    if sent.get("backoff") is not None:
        usual = Policy.make_unchecked(**options["defaults"]).backoff.delay
        options["backoff"] = _backoff(sent["backoff"], usual if delay is None else delay)
    elif delay is not None:
        options["retry_delay"] = delay
    options["metadata"] = {**(sent.get("metadata") or {}), **_name(sent.get("name"))}
    return options


def _defaults(
    settings: ServiceSettings, defaults: Mapping[str, Any], *, calls: bool
) -> dict[str, Any]:
    """The policy options of a job that sends none: what the operator has set for the service, then
    the scheduler's, then the service's own. Only calls of endpoints are retried by default."""
    own = {
        "job_retry_delay": ("retry_delay", timedelta(milliseconds=settings.job_retry_delay)),
        "job_retry_attempts": ("retries", settings.job_retry_attempts),
    }
    if not calls:
        del own["job_retry_attempts"]
    merged: dict[str, Any] = {name: value for name, value in own.values() if name not in defaults}
    if "backoff" in defaults:
        merged.pop("retry_delay", None)
    merged |= defaults
    merged |= {
        name: value for key, (name, value) in own.items() if key in settings.model_fields_set
    }
    if isinstance(merged.get("backoff"), Backoff | Mapping) and "retry_delay" in merged:
        backoff = Policy.make_unchecked(backoff=merged["backoff"]).backoff
        merged["backoff"] = backoff.with_delay(merged.pop("retry_delay"))
    return merged


def _options(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are one option of the library each, under its names and in its forms."""
    options: dict[str, Any] = {}
    for name, value in sent.items():
        option = OPTION_OF.get(name, name)
        if name in _READ_APART or (value is None and name in _NULL_IS_LEFT_OUT):
            continue
        if value is None:  # the built-in value
            value = {"description": "", "tags": ()}.get(name, getattr(_BUILT_IN, option, None))
        elif isinstance(value, Body):
            value = value.sent
        options[option] = value.lower() if name == "execution_type" else value
    return options


# -- edits ----------------------------------------------------------------------------------------


class JobEdit(Struct, frozen=True):
    """What an edit does with a job."""

    fields: list[str]
    """The API's names of the fields that change."""
    options: dict[str, Any]
    """For `update_job`."""
    faults: list[FieldError]


def read_edit(job: Job, body: JobUpdateBody) -> JobEdit:
    """The edit: what was sent and differs from the job as it is read. What is for the other kind of
    job is left out of the options: the faults report it."""
    document = job_document(job)
    changed = _changed_fields(job, document, body)
    aliases = {_ALIAS[name]: value for name, value in changed.items()}
    return JobEdit(
        sorted(aliases), _changed_options(job, changed), _edit_faults(job, document, aliases, body)
    )


def _changed_fields(job: Job, document: Mapping[str, Any], body: TolerantBody) -> dict[str, Any]:
    """A job that was read, changed in one field and sent back whole is an edit of that field."""
    as_sent, sent = body.as_sent, body.sent
    changed = {
        name
        for name in sent
        if name in ("body", "payload")
        or _ALIAS[name] not in document
        or as_sent[_ALIAS[name]] != document[_ALIAS[name]]
    }
    schedules = [name for name in SCHEDULE_FORMS if name in changed and sent[name] is not None]
    if schedules:
        changed -= set(SCHEDULE_FORMS) - set(schedules)
    if "headers" in sent and ({"headers", "endpoint", "secret_headers"} & changed):
        changed |= {"headers"} | ({"secret_headers"} & sent.keys())
    fields = {name: sent[name] for name in sent if name in changed}
    if "secret_headers" in fields and "headers" not in fields and job.webhook is not None:
        fields["headers"] = masked_headers(job.webhook)  # the names mark headers that the job has
    return fields


def _changed_options(job: Job, changed: Mapping[str, Any]) -> dict[str, Any]:
    options = _options(changed) | _schedule_changes(job, changed)
    if job.webhook is not None:
        options.pop("handler", None)
        if webhook := _webhook_options(changed):
            options["webhook"] = webhook
        if options.get("timeout", "") is None:  # null means the default
            options["timeout"] = WEBHOOK_TIMEOUT
    if {"backoff", "retry_delay"} & changed.keys():
        options["backoff"] = _changed_backoff(job, changed)
    if options.get("delivery") == "at_most_once":
        options.setdefault("retries", 0)
    if {"metadata", "name"} & changed.keys():
        metadata = (changed["metadata"] or {}) if "metadata" in changed else own_metadata(job)
        name = changed["name"] if "name" in changed else stored_name(job)
        options["metadata"] = {**metadata, **_name(name)}
    return options


def _edit_faults(
    job: Job, document: dict[str, Any], changed: Mapping[str, Any], body: TolerantBody
) -> list[FieldError]:
    sent = {name: body.as_sent.get(name) for name in changed}
    faults = [*field_errors(body.type_errors), *_edit_rules(job, body.as_sent, changed)]
    faults += _document_rules(_edited_document(job, document, changed), sent, body)
    return merge_faults(reversed(faults))[::-1]


# -- errors ---------------------------------------------------------------------------------------


def document_faults(body: JobBody) -> list[FieldError]:
    """What is wrong with the document of a new job: types, and fields that do not fit each
    other."""
    sent = body.as_sent
    faults = [*field_errors(body.type_errors), *_new_job_rules(sent)]
    faults += _document_rules(sent, sent, body)
    return merge_faults(reversed(faults))[::-1]


def _document_rules(
    document: Mapping[str, Any], sent: Mapping[str, Any], body: TolerantBody
) -> Iterator[FieldError]:
    """Of a job as the request would leave it. `sent`: what is new in it."""
    yield from _rules(document)
    if "secretHeaders" in sent:
        yield from _secret_header_rules(document)
    if "timeout" in sent and document.get("endpoint") is not None:
        yield from _timeout_rules(sent["timeout"])
    in_metadata = (body.sent.get("metadata") or {}).get("name")
    if in_metadata and (isinstance(in_metadata, str) or "name" in sent):
        why = "name is a field of its own: give it beside metadata, not in it"
        yield FieldError("metadata", why)


def merge_faults(*groups: Iterable[FieldError]) -> list[FieldError]:
    """One error of each field: that of the last group. An error inside a field says more than one
    of the field itself."""
    merged = {fault.field: fault for group in groups for fault in group}
    return [
        fault
        for field, fault in merged.items()
        if not any(other.startswith(f"{field}.") for other in merged)
    ]


def library_faults(error: InvalidInput, body: TolerantBody) -> list[FieldError]:
    """The errors of the library, under the names that the client sent."""
    names = _field_names(body)
    return [
        FieldError.of_library(_client_name(fault.field, names), fault)
        for fault in error.each()
        if fault.field is not None
    ]


def _client_name(option: str, names: Mapping[str, str]) -> str:
    """`webhook.url` is `endpoint`, and `tags.1` stays so."""
    first, dot, rest = option.removeprefix("webhook.").partition(".")
    return f"{names.get(first, first)}{dot}{rest}"


def _field_names(body: TolerantBody) -> dict[str, str]:
    """The client's name for each option of the library."""
    sent = [name for name in SCHEDULE_FORMS if body.sent.get(name) is not None]
    return {
        **{OPTION_OF.get(name, name): alias for name, alias in _ALIAS.items()},
        "schedule": _ALIAS[sent[0] if sent else "schedule"],
        "secret_headers": "headers",
        "signing_secret": "rotateSecret",
        "webhook": "endpoint",
    }


def _new_job_rules(sent: Mapping[str, Any]) -> Iterator[FieldError]:
    calls, runs = sent.get("endpoint") is not None, sent.get("handler") is not None
    if calls is runs:
        why = (
            "give endpoint (the address to call) or handler (the name of a registered Python"
            f" function){', not both' if calls else ''}"
        )
        yield FieldError("endpoint", why)
        if runs:
            yield FieldError("handler", why)
    yield from _one_schedule(sent)
    if not {*SCHEDULE_FORMS.values(), "after"} & sent.keys():
        yield FieldError(
            "schedule",
            "give schedule (such as '0 */5 * * * *'), every or runAt; schedule: null makes a job"
            " that only runs when it is triggered",
        )
    name = sent.get("name")
    if isinstance(name, str) and sent.get("id") is None and not _slug(name):
        yield FieldError(
            "name", f"no id can be made of {name!r}: give one as id, as in 'report-eu'"
        )


def _edit_rules(
    job: Job, sent: Mapping[str, Any], changed: Mapping[str, Any]
) -> Iterator[FieldError]:
    for name in ("id", "_id", "jobId"):
        if sent.get(name) not in (None, job.id):
            why = f"is not {job.id!r}, and a job keeps its id: leave it out"
            yield FieldError.predicate(name, why)
    yield from _one_schedule(changed)
    if job.webhook is None:
        if changed.get("endpoint") is not None:
            why = f"job {job.id!r} runs the handler {job.handler!r}: it calls no endpoint"
            yield FieldError("endpoint", why)
        return
    if "endpoint" in changed and changed["endpoint"] is None:
        why = (
            "cannot be null: this job calls an endpoint, and a job's kind cannot change. Delete the"
            " job and create a new one."
        )
        yield FieldError.predicate("endpoint", why)
    if changed.get("handler") is not None:
        yield FieldError("handler", "a job that calls an endpoint has no other handler")


def _one_schedule(sent: Mapping[str, Any]) -> Iterator[FieldError]:
    forms = [alias for alias in SCHEDULE_FORMS.values() if sent.get(alias) is not None]
    if len(forms) > 1:
        for name in forms:
            yield FieldError(name, f"give one of {', '.join(forms)}: a job has one schedule")


def _rules(document: Mapping[str, Any]) -> Iterator[FieldError]:
    """Of a new job, or of a job as an edit would leave it."""
    handler = document.get("handler")
    if document.get("endpoint") is None and handler == HANDLER:
        yield FieldError(
            "handler", f"{HANDLER!r} is what calls an endpoint: give endpoint, and no handler"
        )
    elif document.get("endpoint") is None and handler is not None:
        for name in _REQUEST:
            if document.get(_ALIAS[name]) is not None:
                yield FieldError.predicate(
                    _ALIAS[name], "is for a job that calls an endpoint, and this job runs a handler"
                )
    if document.get("endpoint") is not None:
        for name, usual in (("isolation", (None, "auto")), ("memoryLimit", (None,))):
            if document.get(name) not in usual:
                why = "is for a job that runs a handler, and this job calls an endpoint"
                yield FieldError.predicate(name, why)
    has_schedule = any(document.get(_ALIAS[name]) is not None for name in SCHEDULE_FORMS)
    if not has_schedule and document.get("timezone") not in (None, "UTC"):
        yield FieldError.predicate("timezone", "is for a schedule, and this job has none")


def _edited_document(
    job: Job, document: dict[str, Any], changed: Mapping[str, Any]
) -> dict[str, Any]:
    """The job as a client would read it after the edit."""
    if set(SCHEDULE_FORMS.values()) & changed.keys():
        document = document | dict.fromkeys((*SCHEDULE_FORMS.values(), "timezone", "jitter"))
    kept = {"handler"} if job.webhook is not None else {"endpoint"}
    if changed.get("endpoint") is None:
        kept.add("endpoint")
    return document | {name: value for name, value in changed.items() if name not in kept}


def _secret_header_rules(document: Mapping[str, Any]) -> Iterator[FieldError]:
    marked, headers = document["secretHeaders"], document.get("headers")
    names = [name for name in marked if isinstance(name, str)] if isinstance(marked, list) else []
    there = {name.lower() for name in headers} if isinstance(headers, Mapping) else set()
    if missing := sorted({name.lower() for name in names} - there):
        yield FieldError(
            "secretHeaders", f"{', '.join(missing)}: there is no such header in headers"
        )


def _timeout_rules(timeout: Any) -> Iterator[FieldError]:
    """Refuse a number that is meant as seconds: no endpoint answers reliably in 30 ms."""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        return
    if 0 < timeout < SHORTEST_BARE_TIMEOUT:
        why = (
            f'{timeout:g} is milliseconds: write "{timeout:g}s" or {timeout * 1000:.0f} for'
            f' seconds, "{timeout:g}ms" if you mean milliseconds'
        )
        yield FieldError("timeout", why)


# -- steps ----------------------------------------------------------------------------------------


def _slug(text: str) -> str:
    """A readable id: `Daily report (EU)` is `daily-report-eu`."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9._:]+", "-", plain).strip("-.:_")[:100]


def _name(name: object) -> dict[str, Any]:
    """The name as it is kept: in the job's metadata."""
    return {} if name is None else {"name": name}


def _backoff(sent: str | BackoffBody | None, delay: Any) -> dict[str, Any]:
    """The delay is a field of its own."""
    parts = sent.sent if isinstance(sent, BackoffBody) else {"kind": sent or "exponential"}
    return {"delay": delay, **parts}


def _changed_backoff(job: Job, sent: Mapping[str, Any]) -> Backoff | dict[str, Any]:
    now = job.policy.backoff
    delay = now.delay if sent.get("retry_delay") is None else sent["retry_delay"]
    if "backoff" in sent:
        return _backoff(sent["backoff"], delay)
    return now.with_delay(delay)


def _schedule_changes(job: Job, sent: Mapping[str, Any]) -> dict[str, Any]:
    """Another schedule keeps the jitter of the former one, unless it is changed too."""
    former = job.schedule
    named = [name for name in SCHEDULE_FORMS if name in sent]
    if named:
        schedule = next((sent[name] for name in named if sent[name] is not None), None)
        changes = {"schedule": schedule}
        if schedule is not None and "jitter" not in sent and former is not None:
            changes["jitter"] = former.jitter
        return changes
    if "jitter" in sent and sent["jitter"] is None and former is not None:
        return {"schedule": dataclasses.replace(former, jitter=None)}
    return {}


def _webhook_options(sent: Mapping[str, Any]) -> dict[str, Any]:
    names = ("endpoint", *_REQUEST) if sent.get("endpoint") is not None else _REQUEST
    options = {
        OPTION_OF.get(name, name): sent[name]
        for name in names
        if name in sent and name != "secret_headers"
    }
    marked = {name.lower() for name in sent.get("secret_headers") or ()}
    if marked:
        headers: Mapping[str, str] = sent.get("headers") or {}
        options["headers"] = {k: v for k, v in headers.items() if k.lower() not in marked}
        options["secret_headers"] = {k: v for k, v in headers.items() if k.lower() in marked}
    return options
