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
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct
from pydantic.alias_generators import to_camel

from mainspring.core.model import Job
from mainspring.core.policy import Backoff, Policy
from mainspring.errors import InvalidInput
from mainspring.scheduler.definitions import WEBHOOK_TIMEOUT
from mainspring.service.problems import FieldError, field_errors
from mainspring.service.schemas.fields import Body
from mainspring.service.schemas.job import (
    ID_NAMES,
    SCHEDULE_FORMS,
    SENT,
    BackoffBody,
    JobBody,
    JobFields,
    JobUpdateBody,
    interval_text,
    job_document,
    own_metadata,
    stored_name,
)
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks.service import HANDLER, masked_headers

FORMS = tuple(map(to_camel, SCHEDULE_FORMS))
ALIAS = {name: field.alias or name for name, field in JobUpdateBody.model_fields.items()}
ENDPOINT_ONLY = tuple(name for name, sent in SENT.items() if sent.only == "endpoint")
HANDLER_ONLY = tuple(name for name, sent in SENT.items() if sent.only == "handler")
_READ_APART = {
    *("name", *SCHEDULE_FORMS, "metadata", "retry_delay", "backoff"),
    *("endpoint", *ENDPOINT_ONLY),
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


def schedule_forms(sent: Mapping[str, Any]) -> list[str]:
    """The API's names of the fields that give a schedule. A job that was read has its interval or
    its date-time also as the text in `schedule`."""
    forms = [name for name in FORMS if sent.get(name) is not None]
    if len(forms) == 2 and forms[0] == "schedule":
        other = sent[forms[1]]
        if isinstance(other, int | float):
            other = interval_text(timedelta(milliseconds=other))
        if other == sent["schedule"]:
            return forms[:1]
    return forms


def job_options(
    body: JobBody, settings: ServiceSettings, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of `add_job` beside the id. `defaults` are those of the scheduler."""
    sent = body.sent
    options = _options(sent)
    calls = sent.get("endpoint") is not None or sent.get("handler") is None
    options["defaults"] = default_options(settings, defaults, calls=calls)
    if forms := [name for name in SCHEDULE_FORMS if sent.get(name) is not None]:
        options["schedule"] = sent[forms[0]]
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


def default_options(
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
        if name not in SENT or name in _READ_APART or (value is None and name in _NULL_IS_LEFT_OUT):
            continue
        option = SENT[name].option or name
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
    as_sent = {name: body.as_sent[name] for name in map(ALIAS.get, changed) if name in body.as_sent}
    faults = [*_edit_rules(job, body.as_sent, as_sent)]
    faults += _rules(_edited_document(job, document, as_sent), as_sent)
    faults += field_errors(body.type_errors)
    return JobEdit(sorted(ALIAS[name] for name in changed), _changed_options(job, changed), faults)


def _changed_fields(job: Job, document: Mapping[str, Any], body: JobUpdateBody) -> dict[str, Any]:
    """A job that was read, changed in one field and sent back whole is an edit of that field."""
    as_sent, sent = body.as_sent, body.sent
    changed = {
        name
        for name in sent
        if name in ("body", "payload")
        or ALIAS[name] not in document
        or as_sent[ALIAS[name]] != document[ALIAS[name]]
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


# -- errors ---------------------------------------------------------------------------------------


def library_faults(error: InvalidInput, body: JobFields) -> list[FieldError]:
    """The errors of the library, under the names that the client sent."""
    names = {sent.option or name: ALIAS[name] for name, sent in SENT.items()}
    forms = [name for name in SCHEDULE_FORMS if body.sent.get(name) is not None]
    names |= {
        "schedule": ALIAS[forms[0] if forms else "schedule"],
        "secret_headers": "headers",
        "signing_secret": "rotateSecret",
        "webhook": "endpoint",
    }
    return [
        FieldError.of_library(_client_name(fault.field, names), fault)
        for fault in error.each()
        if fault.field is not None
    ]


def _client_name(option: str, names: Mapping[str, str]) -> str:
    """`webhook.url` is `endpoint`, and `tags.1` stays so."""
    first, dot, rest = option.removeprefix("webhook.").partition(".")
    return f"{names.get(first, first)}{dot}{rest}"


def new_job_faults(body: JobBody) -> list[FieldError]:
    """What is wrong with the document of a new job: types, and fields that do not fit each
    other."""
    rules = [*_new_job_rules(body.as_sent), *_rules(body.as_sent, body.as_sent)]
    return [*rules, *field_errors(body.type_errors)]


def _new_job_rules(sent: Mapping[str, Any]) -> Iterator[FieldError]:
    calls, handler = sent.get("endpoint") is not None, sent.get("handler")
    runs = handler is not None and not (calls and handler == HANDLER)
    if calls is runs:
        why = (
            "give endpoint (the address to call) or handler (the name of a registered Python"
            f" function){', not both' if calls else ''}"
        )
        yield FieldError("endpoint", why)
        if runs:
            yield FieldError("handler", why)
    if not {*FORMS, "after"} & sent.keys():
        yield FieldError(
            "schedule",
            "give schedule (such as '0 */5 * * * *'), every or runAt; schedule: null makes a job"
            " that only runs when it is triggered",
        )
    name = sent.get("name")
    if name is not None and sent.get("id") is None and not _slug(name):
        yield FieldError(
            "name", f"no id can be made of {name!r}: give one as id, as in 'report-eu'"
        )


def _edit_rules(
    job: Job, sent: Mapping[str, Any], changed: Mapping[str, Any]
) -> Iterator[FieldError]:
    for name in ID_NAMES:
        if sent.get(name) not in (None, job.id):
            why = f"is not {job.id!r}, and a job keeps its id: leave it out"
            yield FieldError.predicate(name, why)
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


def _rules(document: Mapping[str, Any], sent: Mapping[str, Any]) -> Iterator[FieldError]:
    """Of a new job, or of a job as an edit would leave it. `sent`: what is new in it."""
    calls, handler = document.get("endpoint") is not None, document.get("handler")
    if not calls and handler == HANDLER:
        yield FieldError(
            "handler", f"{HANDLER!r} is what calls an endpoint: give endpoint, and no handler"
        )
    elif calls or handler is not None:
        yield from _kind_rules(document, calls=calls)
    if len(forms := schedule_forms(sent)) > 1:
        for name in forms:
            yield FieldError(name, f"give one of {', '.join(forms)}: a job has one schedule")
    has_schedule = any(document.get(name) is not None for name in FORMS)
    if not has_schedule and document.get("timezone") not in (None, "UTC"):
        yield FieldError.predicate("timezone", "is for a schedule, and this job has none")
    if calls and isinstance(timeout := sent.get("timeout"), int | float) and 0 < timeout < 500:
        why = (
            f'{timeout:g} is milliseconds: write "{timeout:g}s" or {timeout * 1000:.0f} for'
            f' seconds, "{timeout:g}ms" if you mean milliseconds'
        )
        yield FieldError("timeout", why)
    headers = {name.lower() for name in document.get("headers") or ()}
    if missing := sorted({name.lower() for name in sent.get("secretHeaders") or ()} - headers):
        yield FieldError(
            "secretHeaders", f"{', '.join(missing)}: there is no such header in headers"
        )
    in_metadata = (sent.get("metadata") or {}).get("name")
    if in_metadata and (isinstance(in_metadata, str) or "name" in sent):
        why = "name is a field of its own: give it next to metadata, not in it"
        yield FieldError("metadata", why)


def _kind_rules(document: Mapping[str, Any], *, calls: bool) -> Iterator[FieldError]:
    """A field of the other kind of job may be there only if it says nothing."""
    kinds = ("calls an endpoint", "runs a handler")
    this, other = kinds if calls else kinds[::-1]
    for name in HANDLER_ONLY if calls else ENDPOINT_ONLY:
        if document.get(ALIAS[name]) not in (None, "auto"):
            why = f"is for a job that {other}, and this job {this}"
            yield FieldError.predicate(ALIAS[name], why)


def _edited_document(
    job: Job, document: dict[str, Any], changed: Mapping[str, Any]
) -> dict[str, Any]:
    """The job as a client would read it after the edit."""
    if {*FORMS} & changed.keys():
        document = document | dict.fromkeys((*FORMS, "timezone", "jitter"))
    kept = {"handler"} if job.webhook is not None else {"endpoint"}
    if changed.get("endpoint") is None:
        kept.add("endpoint")
    return document | {name: value for name, value in changed.items() if name not in kept}


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
    names = ("endpoint", *ENDPOINT_ONLY) if sent.get("endpoint") is not None else ENDPOINT_ONLY
    options = {
        SENT[name].option or name: sent[name]
        for name in names
        if name in sent and name != "secret_headers"
    }
    marked = {name.lower() for name in sent.get("secret_headers") or ()}
    if marked:
        headers: Mapping[str, str] = sent.get("headers") or {}
        options["headers"] = {k: v for k, v in headers.items() if k.lower() not in marked}
        options["secret_headers"] = {k: v for k, v in headers.items() if k.lower() in marked}
    return options
