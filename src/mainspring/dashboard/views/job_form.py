"""The pages at `/new-job` and `/jobs/{id}/edit`. A script sends the form to the API, which checks
it; the view only fills it in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from fastapi import Request, Response
from msgspec import Struct, UnsetType
from pydantic.alias_generators import to_camel

from mainspring.core.model import Job, Owner
from mainspring.dashboard.formats import pretty_json
from mainspring.dashboard.pages import page_router, render, service_of
from mainspring.engine.live_workers import LiveWorker
from mainspring.service.access import access
from mainspring.service.dependencies import JobPath
from mainspring.service.schemas.documents import Document, Milliseconds, field_descriptions, to_iso
from mainspring.service.schemas.job import SENT, etag, interval_text, job_document
from mainspring.service.schemas.job import Job as JobDocument
from mainspring.webhooks.service import HANDLER

router = page_router()

METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD")
SLOTS_SHOWN = 10
LAID_OUT = frozenset(
    {
        *("name", "description", "schedule", "every", "run_at", "timezone", "handler", "payload"),
        *("enabled", "tags", "metadata", "endpoint", "method", "headers", "body", "success_codes"),
    }
)
"""Fields that have their own place in the form, or none. All others are options: a new field of a
job has an input without another line here."""
COMMON = ("retryAttempts", "retryDelay", "timeout", "overlap", "concurrency", "priority", "queue")
"""Options that are shown at once."""

Kind = Literal[
    "text", "number", "duration", "choice", "tick", "list", "codes", "lines", "json", "body"
]


class Input(Struct, frozen=True):
    """An input of the form."""

    name: str
    """As the API has it: `backoff.kind` for a part of a field."""
    label: str
    help: str
    kind: Kind
    choices: Sequence[tuple[str, str]] = ()
    """Each value, and its words."""
    only: str | None = None
    """The kind of job that it is for. None: both."""


def _inputs_of(
    document: type[Document], names: Iterable[str], within: str = "", only: str | None = None
) -> Iterator[Input]:
    """The inputs of fields of a document, with one for each part of a field."""
    texts = field_descriptions(document)
    types = {field.name: field.type for field in msgspec.structs.fields(document)}
    for name in names:
        alias, value_type = f"{within}{to_camel(name)}", _plain_type(types[name])
        only = SENT[name].only if not within else only
        if isinstance(value_type, type) and issubclass(value_type, Document):
            parts = value_type.__struct_fields__
            yield from _inputs_of(value_type, parts, f"{alias}.", only)
            continue
        label = f"{within.replace('.', ': ')}{name.replace('_', ' ')}"
        kind: Kind = "body" if name == "body" else _kind(value_type)
        help = texts.get(name, "").replace("`", "")
        choices = [(value, value.replace("_", " ").lower()) for value in _choices(value_type)]
        yield Input(alias, label.capitalize(), help, kind, choices, only)


def _plain_type(annotation: Any) -> Any:
    """The type without None, `UNSET` and what is only said about it."""
    while get_origin(annotation) is Annotated:
        if {*Milliseconds.__metadata__} <= {*annotation.__metadata__}:  # type: ignore[attr-defined]
            return Milliseconds
        annotation = annotation.__origin__
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind not in (NoneType, UnsetType)]
        return _plain_type(kinds[0])
    return annotation


def _kind(value_type: Any) -> Kind:
    if _choices(value_type):
        return "choice"
    kinds: dict[Any, Kind] = {
        Milliseconds: "duration",
        bool: "tick",
        int: "number",
        float: "number",
        list[str]: "list",
        list[int | str]: "codes",
        dict[str, str]: "lines",
        dict[str, Any]: "json",
        Any: "json",
    }
    return kinds.get(value_type, "text")


def _choices(value_type: Any) -> tuple[str, ...]:
    if get_origin(value_type) is Literal:
        return get_args(value_type)
    if isinstance(value_type, type) and issubclass(value_type, StrEnum):
        return tuple(choice.value for choice in value_type)
    return ()


INPUTS = tuple(_inputs_of(JobDocument, SENT))
OPTIONS = tuple(_inputs_of(JobDocument, [name for name in SENT if name not in LAID_OUT]))


@router.get("/new-job")
@access("write")
async def new_job(request: Request) -> Response:
    service = service_of(request)
    workers = await service.client.list_workers()
    return render(
        request,
        "job_form.html",
        page="jobs",
        title="New job",
        job=None,
        values={},
        owned=None,
        handlers=_handlers(workers),
        tag=None,
        slots=[],
        scheduler_zone=service.client.timezone,
        signs=service.client.webhooks.can_sign,
        options=_options(None),
        methods=_methods(None),
    )


@router.get("/jobs/{id}/edit")
@access("write")
async def edit_job(request: Request, id: JobPath) -> Response:
    service = service_of(request)
    job, workers, now = await asyncio.gather(
        service.client.get_job(id), service.client.list_workers(), service.client.now()
    )
    slots = [] if job.schedule is None else job.schedule.upcoming(SLOTS_SHOWN, now)
    return render(
        request,
        "job_form.html",
        page="jobs",
        title=f"Edit {id}",
        job=job,
        values=form_values(job),
        owned=_why_not_editable(job),
        handlers=_handlers(workers),
        tag=etag(job),
        slots=[to_iso(slot) for slot in slots],
        scheduler_zone=service.client.timezone,
        signs=service.client.webhooks.can_sign,
        options=_options(job),
        methods=_methods(job),
    )


def _methods(job: Job | None) -> list[tuple[str, str]]:
    """The methods to choose from, with the one that the job has."""
    own = [] if job is None or job.webhook is None else [job.webhook.method]
    return [(method, method) for method in dict.fromkeys([*METHODS, *own])]


def _handlers(workers: Iterable[LiveWorker]) -> list[str]:
    return sorted({name for worker in workers for name in worker.handlers} - {HANDLER})


def _why_not_editable(job: Job) -> str | None:
    if job.owner is Owner.CODE:
        return (
            "A program defines this job, and each start of the program sets it again. Change it in"
            " the code."
        )
    if job.owner is Owner.FILE:
        return f"The file {job.file} defines this job. Change it there and apply the file again."
    if job.unreadable is not None:
        return f"This version cannot read the job: {job.unreadable}"
    return None


def _options(job: Job | None) -> dict[str, list[Input]]:
    """The options that a job of this kind has: the common ones, and more."""
    other = None if job is None else "handler" if job.webhook is not None else "endpoint"
    shown = [option for option in OPTIONS if job is None or option.only != other]
    common = [option for option in shown if option.name in COMMON]
    return {"common": common, "more": [option for option in shown if option not in common]}


def form_values(job: Job) -> dict[str, str]:
    """The texts of the inputs, by their names: as a person would write them."""
    document = job_document(job)
    values: dict[str, str] = {}
    for field in INPUTS:
        first, _, part = field.name.partition(".")
        value = document.get(first)
        if part and value is not None:
            value = value[part]
        values[field.name] = "" if value in (None, [], {}) else _text(field.kind, value)
    if document.get("every") is not None:
        values["schedule"] = interval_text(timedelta(milliseconds=document["every"]))
    if job.schedule is None:
        values["timezone"] = ""
    return values


def _text(kind: Kind, value: Any) -> str:
    match kind:
        case "duration":
            return interval_text(timedelta(milliseconds=value))
        case "tick":
            return "on" if value else ""
        case "list" | "codes":
            return ", ".join(_list_item(str(item)) for item in value)
        case "lines":
            return "\n".join(f"{name}: {text}" for name, text in value.items())
        case "json":
            return pretty_json(value)
        case "body":
            return value if _is_plain_text(value) else pretty_json(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _list_item(text: str) -> str:
    """A text in a list with commas: in quotes if the form would read it as something else."""
    if text and text == text.strip() and "," not in text and not text.startswith('"'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _is_plain_text(body: Any) -> bool:
    """Whether a body is a text that the form reads back as the same text, not as JSON."""
    if not isinstance(body, str) or not body.strip() or body != body.strip():
        return False
    try:
        json.loads(body)
    except ValueError:
        return body[0] not in '{["'
    return False
