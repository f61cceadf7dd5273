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

from mainspring.core.model import Job
from mainspring.core.policy import Backoff, Policy
from mainspring.errors import InvalidInput
from mainspring.scheduler.definitions import WEBHOOK_TIMEOUT
from mainspring.service.problems import FieldError, field_errors
from mainspring.service.schemas.fields import FieldSpec, TolerantBody, options_of
from mainspring.service.schemas.job import (
    JOB,
    ROTATE_SECRET,
    SCHEDULE_FORMS,
    WEBHOOK,
    JobBody,
    JobUpdateBody,
    backoff_options,
    job_document,
    own_metadata,
    stored_name,
)
from mainspring.service.settings import ServiceSettings
from mainspring.webhooks.service import HANDLER, masked_headers

__all__ = [
    "changed_names",
    "document_faults",
    "job_changes",
    "job_options",
    "library_faults",
    "merge_faults",
    "new_job_id",
]

SHORTEST_BARE_TIMEOUT = 500
"""Milliseconds. A smaller number without a unit was most likely meant as seconds."""

_SPECS: tuple[FieldSpec[Any], ...] = (*JOB, *WEBHOOK)
_ALIAS = {spec.name: spec.alias for spec in (*_SPECS, ROTATE_SECRET)}
_REQUEST = tuple(spec.name for spec in WEBHOOK if spec.name != "endpoint")


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
    options = options_of(JOB, sent)
    # Without a handler it is a call, even if the endpoint is missing or has a wrong type: so the
    # other fields of the call are checked.
    given = body.as_sent
    calls = given.get("endpoint") is not None or given.get("handler") is None
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
    made: dict[str, Any] = {name: value for name, value in own.values() if name not in defaults}
    if "backoff" in defaults:
        made.pop("retry_delay", None)
    made |= defaults
    made |= {name: value for key, (name, value) in own.items() if key in settings.model_fields_set}
    if isinstance(made.get("backoff"), Backoff | Mapping) and "retry_delay" in made:
        backoff = Policy.make_unchecked(backoff=made["backoff"]).backoff
        made["backoff"] = backoff.with_delay(made.pop("retry_delay"))
    return made


def job_changes(job: Job, body: JobUpdateBody) -> dict[str, Any]:
    """The changes of `update_job`: what was sent and differs from the job as it is read. What is
    for the other kind of job is left out: `document_faults` reports it."""
    sent = _changed_fields(job, body)
    changes = options_of(JOB, sent)
    changes |= _schedule_changes(job, sent)
    if job.webhook is not None:
        changes.pop("handler", None)
        if webhook := _webhook_options(sent):
            changes["webhook"] = webhook
        _set_default_timeout(changes)
    if {"backoff", "retry_delay"} & sent.keys():
        changes["backoff"] = _changed_backoff(job, sent)
    if changes.get("delivery") == "at_most_once":
        changes.setdefault("retries", 0)
    if {"metadata", "name"} & sent.keys():
        metadata = (sent["metadata"] or {}) if "metadata" in sent else own_metadata(job)
        name = sent["name"] if "name" in sent else stored_name(job)
        changes["metadata"] = {**metadata, **_name(name)}
    return changes


# -- errors ---------------------------------------------------------------------------------------


def document_faults(body: TolerantBody, job: Job | None = None) -> list[FieldError]:
    """What is wrong with the document: types, and fields that do not fit each other. Of an edit,
    the `job` fills in what was not sent."""
    sent = body.as_sent
    found = field_errors(body.type_errors)
    if job is None:
        document = sent
        changed_or_new = sent.keys()
        found += _new_job_rules(sent)
    else:
        changed = {_ALIAS[name]: value for name, value in _changed_fields(job, body).items()}
        found += _edit_rules(job, sent, changed)
        document = _edited_document(job, changed)
        sent = {name: sent.get(name) for name in changed}
        changed_or_new = sent.keys()
    found += _rules(document)
    if "secretHeaders" in sent:
        found += _secret_header_rules(document)
    if "timeout" in sent and document.get("endpoint") is not None:
        found += _timeout_rules(sent["timeout"])
    in_metadata = (body.sent.get("metadata") or {}).get("name")
    if in_metadata and (isinstance(in_metadata, str) or "name" in changed_or_new):
        why = "name is a field of its own: give it beside metadata, not in it"
        found.append(FieldError("metadata", why))
    return merge_faults(reversed(found))[::-1]


def changed_names(job: Job, body: TolerantBody) -> list[str]:
    """The API's names of the fields that an edit changes."""
    return sorted(_ALIAS[name] for name in _changed_fields(job, body))


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
        FieldError.of_library(_client_name(one.field, names), one)
        for one in error.each()
        if one.field is not None
    ]


def _client_name(option: str, names: Mapping[str, str]) -> str:
    """`webhook.url` is `endpoint`, and `tags.1` stays so."""
    first, dot, rest = option.removeprefix("webhook.").partition(".")
    return f"{names.get(first, first)}{dot}{rest}"


def _field_names(body: TolerantBody) -> dict[str, str]:
    """The client's name for each option of the library."""
    sent = [name for name in SCHEDULE_FORMS if body.sent.get(name) is not None]
    return {
        **{spec.option: spec.alias for spec in _SPECS if spec.option is not None},
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
    given = [_ALIAS[name] for name in SCHEDULE_FORMS if sent.get(_ALIAS[name]) is not None]
    if len(given) > 1:
        for name in given:
            yield FieldError(name, f"give one of {', '.join(given)}: a job has one schedule")


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


def _edited_document(job: Job, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The job as a client would read it after the edit."""
    document = job_document(job)
    if set(SCHEDULE_FORMS.values()) & changed.keys():
        document |= dict.fromkeys((*SCHEDULE_FORMS.values(), "timezone", "jitter"))
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


def _set_default_timeout(options: dict[str, Any]) -> None:
    """Null means the default, and a call of an endpoint always has a timeout."""
    if "timeout" in options and options["timeout"] is None:
        options["timeout"] = WEBHOOK_TIMEOUT


def _backoff(sent: Any, delay: Any) -> dict[str, Any]:
    return {"delay": delay, **backoff_options(sent or "exponential")}


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


def _changed_fields(job: Job, body: TolerantBody) -> dict[str, Any]:
    """What was sent and differs from the job: a job that was read, changed in one field and sent
    back whole is an edit of that field."""
    now, as_sent, sent = job_document(job), body.as_sent, body.sent
    changed = {
        name
        for name in sent
        if name in ("body", "payload")
        or _ALIAS.get(name) not in now
        or as_sent[_ALIAS[name]] != now[_ALIAS[name]]
    }
    schedules = [name for name in SCHEDULE_FORMS if name in changed and sent[name] is not None]
    if schedules:
        changed -= set(SCHEDULE_FORMS) - set(schedules)
    if "headers" in sent and ({"headers", "endpoint", "secret_headers"} & changed):
        changed |= {"headers"} | ({"secret_headers"} & sent.keys())
    found = {name: sent[name] for name in sent if name in changed}
    if "secret_headers" in found and "headers" not in found and job.webhook is not None:
        found["headers"] = masked_headers(job.webhook)  # the names mark headers that the job has
    return found


def _webhook_options(sent: Mapping[str, Any]) -> dict[str, Any]:
    options = options_of(WEBHOOK, sent)
    marked = {name.lower() for name in sent.get("secret_headers") or ()}
    if marked:
        headers: Mapping[str, str] = sent.get("headers") or {}
        options["headers"] = {k: v for k, v in headers.items() if k.lower() not in marked}
        options["secret_headers"] = {k: v for k, v in headers.items() if k.lower() in marked}
    return options
