"""The pages at `/new-job` and `/jobs/{id}/edit`. A script sends the form to the API, which checks
it; the view only fills it in."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from fastapi import APIRouter, Request, Response

from mainspring.core.model import Job, Owner
from mainspring.dashboard.formats import pretty_json
from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.engine.live_workers import LiveWorker
from mainspring.service.access import access
from mainspring.service.dependencies import JobPath
from mainspring.service.schemas.job import etag, job_document
from mainspring.service.schemas.json_format import to_iso
from mainspring.webhooks.service import HANDLER

router = APIRouter(include_in_schema=False, route_class=PageRoute)

METHODS = ("POST", "GET", "PUT", "PATCH", "DELETE", "HEAD")
SLOTS_SHOWN = 10
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))
_DURATIONS = ("jitter", "retryDelay", "timeout", "startDeadline", "retention")
_PARTS = ("backoff", "misfire", "breaker")
_PART_DURATIONS = ("cap", "grace", "reset")


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


def form_values(job: Job) -> dict[str, str]:
    """The texts of the fields, by their names: as a person would write them."""
    document = job_document(job)
    values: dict[str, str] = {}
    for name, value in document.items():
        if name in _PARTS and isinstance(value, dict):
            for part, inner in value.items():
                values[f"{name}.{part}"] = _part_text(part, inner)
        elif value is None or value == [] or value == {}:
            values[name] = ""
        elif name in _DURATIONS:
            values[name] = duration_text(value)
        elif name == "headers":
            values[name] = "\n".join(f"{one}: {text}" for one, text in value.items())
        elif name in ("tags", "after", "successCodes", "retryOn", "secretHeaders"):
            values[name] = ", ".join(_list_item(str(item)) for item in value)
        elif name == "body":
            values[name] = value if _is_plain_text(value) else pretty_json(value)
        elif name in ("payload", "metadata"):
            values[name] = pretty_json(value)
        elif isinstance(value, bool):
            values[name] = "on" if value else ""
        else:
            values[name] = str(value)
    if document.get("every") is not None:
        values["schedule"] = duration_text(document["every"])
    if job.schedule is None:
        values["timezone"] = ""
    return values


def _list_item(text: str) -> str:
    """A text in a list with commas: in quotes if the form would read it as something else."""
    if text and text == text.strip() and "," not in text and not text.startswith('"'):
        return text
    return '"' + text.replace('"', '""') + '"'


def _part_text(part: str, value: Any) -> str:
    if part in _PART_DURATIONS:
        return duration_text(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def duration_text(milliseconds: int | None) -> str:
    """90000 is 90s, 300000 is 5m: the largest unit that divides it."""
    if milliseconds is None:
        return ""
    if milliseconds == 0:
        return "0s"
    size, unit = next(one for one in _UNITS if milliseconds % one[0] == 0)
    return f"{milliseconds // size}{unit}"


def _is_plain_text(body: Any) -> bool:
    """Whether a body is a text that the form reads back as the same text, not as JSON."""
    if not isinstance(body, str) or not body.strip() or body != body.strip():
        return False
    try:
        json.loads(body)
    except ValueError:
        return body[0] not in '{["'
    return False
