"""The page at `/runs/{id}`: what happened to a run, and why it has not run if it has not."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from msgspec import Struct

from mainspring.core.model import LIVE, MAX_ATTEMPTS_KEPT, Attempt, Run, State
from mainspring.core.workflow_graph import Workflow, WorkflowNode
from mainspring.dashboard import curl, formats
from mainspring.dashboard.pages import PageRoute, render, service_of, viewer_of
from mainspring.errors import JobNotFound
from mainspring.scheduler.client import Client
from mainspring.service.access import access
from mainspring.service.dependencies import RunPath
from mainspring.service.schemas.json_format import to_json_value

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=PageRoute)

SHORTENED_TO = 2 * 1024
"""Characters of each text of an attempt, unless the attempt is the one that is looked at. A run
keeps up to 20 attempts with 64 KiB of log lines each."""

RELATED_SHOWN = 50
SEARCHED_RUNS = 1000
"""Of the newest runs so many are searched for those that were enqueued with `after`."""

TONES = {
    "succeeded": "green",
    "failed": "red",
    "timed_out": "red",
    "running": "blue",
    "lost": "amber",
    "released": "amber",
    "skipped": "amber",
}


@router.get("/runs/{id}")
@access("read")
async def run_page(
    request: Request,
    id: RunPath,
    attempt: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    client = service_of(request).client
    run, now = await asyncio.gather(client.get_run(id), client.now())
    explanation, workflow, job = await asyncio.gather(
        client.explain(id),
        client.workflow(id, searched=SEARCHED_RUNS),
        _job_of(client, run),
    )
    shown = attempt or (run.attempts[-1].number if run.attempts else 0)
    phases = _phases(run, now)
    payload, payload_is_cut = _json(run.payload)
    result, result_is_cut = _json(run.result)
    return render(
        request,
        "run.html",
        page="runs",
        title=f"Run of {run.job_id}",
        run=run,
        job=job,
        why=explanation.problem if run.state in LIVE else None,
        is_well=explanation.is_well,
        phases=phases,
        events=_milestones(run),
        attempts=[_show_attempt(one, shown) for one in reversed(run.attempts)],
        attempts_gone=max(0, run.attempt - MAX_ATTEMPTS_KEPT),
        upstream=_upstream(run, workflow),
        downstream=[one for one in workflow.nodes if run.id in one.after],
        related_shown=RELATED_SHOWN,
        workflow_is_complete=workflow.complete,
        payload=payload,
        payload_is_cut=payload_is_cut,
        result=result,
        result_is_cut=result_is_cut,
        command=_command(request, run),
    )


async def _job_of(client: Client, run: Run) -> Any:
    try:
        return await client.get_job(run.job_id)
    except JobNotFound:
        return None


def _upstream(run: Run, workflow: Workflow) -> list[WorkflowNode]:
    """The runs that it comes after, also those that are no longer kept."""
    known = {one.id: one for one in workflow.nodes}
    return [known.get(name) or WorkflowNode(id=name, job_id="") for name in run.after]


# -- what happened, in order ------------------------------------------------------------------


class Phase(Struct, frozen=True):
    """A part of a run's life. `left` and `width` are per cent of the picture."""

    name: str
    tone: str
    seconds: float
    left: float = 0.0
    width: float = 0.0


class Milestone(Struct, frozen=True):
    name: str
    at: datetime
    tone: str = ""
    note: str = ""


def _phases(run: Run, now: datetime) -> list[Phase]:
    """The run's life in parts, each as wide as the logarithm of its time: a wait of a day beside an
    attempt of a millisecond."""
    found: list[tuple[str, str, float]] = []
    at = run.created_at

    def until(moment: datetime, name: str, tone: str = "") -> None:
        nonlocal at
        if moment > at or tone:
            found.append((name, tone, max(0.0, (moment - at).total_seconds())))
            at = max(at, moment)

    ended = run.finished_at or now
    waits = "waiting for other runs" if run.state is State.WAITING else "not yet due"
    if run.scheduled_at > at:
        until(min(run.scheduled_at, ended), waits)
    spans = [(one.number, one.started_at, one.finished_at, one.outcome) for one in run.attempts]
    for place, (number, started, finished, outcome) in enumerate(spans):
        until(started, "waiting for the next attempt" if place else "due, waiting for a worker")
        until(
            finished, f"attempt {number}: {outcome}".replace("_", " "), TONES.get(outcome, "grey")
        )
    if run.state is State.RUNNING and run.started_at is not None:
        until(
            run.started_at, "waiting for the next attempt" if spans else "due, waiting for a worker"
        )
        until(now, f"attempt {run.attempt}: running", "blue")
    elif run.state in LIVE:
        due = run.state is State.PENDING and run.run_at <= now
        name = "due, waiting for a worker" if due else waits
        until(now, "waiting for the next attempt" if spans else name)
    elif not spans:
        until(ended, f"{run.state} without an attempt")
    weights = [1 + math.log1p(seconds * 20) for _, _, seconds in found]
    total, left, phases = sum(weights), 0.0, []
    for (name, tone, seconds), weight in zip(found, weights, strict=True):
        width = 100 * weight / total
        phases.append(Phase(name, tone, seconds, round(left, 2), round(width, 2)))
        left += width
    return phases


def _milestones(run: Run) -> list[Milestone]:
    events = [Milestone("Created", run.created_at, note=f"by {run.source}")]
    events.append(Milestone("Due", run.scheduled_at))
    for one in run.attempts:
        seconds = (one.finished_at - one.started_at).total_seconds()
        ended = str(one.outcome).replace("_", " ")
        events.append(Milestone(f"Attempt {one.number} started", one.started_at, note=one.worker))
        events.append(
            Milestone(
                f"Attempt {one.number} {ended}",
                one.finished_at,
                TONES.get(one.outcome, ""),
                f"after {formats.span(max(seconds, 0.0))}",
            )
        )
    if run.state is State.RUNNING and run.started_at is not None:
        events.append(
            Milestone(f"Attempt {run.attempt} started", run.started_at, "blue", run.worker or "")
        )
    if run.state is State.PENDING and run.attempts:
        events.append(Milestone("Due again", run.run_at))
    if run.finished_at is not None:
        name = str(run.state).capitalize()
        events.append(Milestone(name, run.finished_at, TONES.get(run.state, ""), run.reason or ""))
    return sorted(events, key=lambda one: one.at)


# -- attempts ---------------------------------------------------------------------------------


class Text(Struct, frozen=True):
    """A text as it is shown: `cut` is how many characters it has in all, if it is not all here."""

    text: str
    cut: int = 0


class Message(Struct, frozen=True):
    """The request of a webhook, or its response."""

    line: str
    headers: list[tuple[str, str]]
    body: Text
    note: str = ""


class ShownAttempt(Struct, frozen=True):
    attempt: Attempt
    seconds: float
    is_whole: bool
    error: Text
    traceback: Text
    log: Text
    lines: int
    request: Message | None
    response: Message | None
    detail: Text


def _show_attempt(attempt: Attempt, shown: int) -> ShownAttempt:
    whole = attempt.number == shown
    detail = attempt.detail if isinstance(attempt.detail, dict) else {}
    request, response = detail.get("request"), detail.get("response")
    is_call = "request" in detail and (request is None or "url" in request)
    other = None if attempt.detail is None or is_call else attempt.detail
    return ShownAttempt(
        attempt=attempt,
        seconds=max(0.0, (attempt.finished_at - attempt.started_at).total_seconds()),
        is_whole=whole,
        error=_beginning(attempt.error or "", whole=whole),
        traceback=_end(attempt.traceback or "", whole=whole),
        log=_end("\n".join(attempt.log), whole=whole),
        lines=len(attempt.log),
        request=_show_request(request, whole=whole) if is_call and request else None,
        response=_show_response(response, whole=whole) if is_call and response else None,
        detail=_beginning("" if other is None else formats.pretty_json(other), whole=whole),
    )


def _show_request(kept: dict[str, Any], *, whole: bool) -> Message:
    line = f"{kept.get('method', '')} {kept['url']}"
    return Message(line, curl.header_pairs(kept.get("headers")), *_body(kept, whole=whole))


def _show_response(kept: dict[str, Any], *, whole: bool) -> Message:
    line = f"{kept.get('status', '')} {kept.get('reason') or ''}".strip()
    if kept.get("address"):
        line += f" from {kept['address']}"
    return Message(line, curl.header_pairs(kept.get("headers")), *_body(kept, whole=whole))


def _body(kept: dict[str, Any], *, whole: bool) -> tuple[Text, str]:
    notes = []
    if kept.get("encoding") == "base64":
        notes.append("not text: in base64")
    if kept.get("truncated"):
        notes.append("only its beginning is kept")
    return _beginning(str(kept.get("body") or ""), whole=whole), ", ".join(notes)


def _beginning(text: str, *, whole: bool) -> Text:
    return (
        Text(text) if whole or len(text) <= SHORTENED_TO else Text(text[:SHORTENED_TO], len(text))
    )


def _end(text: str, *, whole: bool) -> Text:
    """The end of a log or a traceback says most; it begins with a whole line."""
    if whole or len(text) <= SHORTENED_TO:
        return Text(text)
    end = text[-SHORTENED_TO:]
    return Text(end.partition("\n")[2] or end, len(text))


def _json(value: Any) -> tuple[str | None, bool]:
    """A value as it is shown, and whether that is only its beginning."""
    if value is None:
        return None, False
    shown = to_json_value(value)
    return formats.short_json(formats.pretty_json(shown))


def _command(request: Request, run: Run) -> str:
    """The request of a webhook's newest attempt, else the call that triggers the job again."""
    for attempt in reversed(run.attempts):
        detail = attempt.detail if isinstance(attempt.detail, dict) else {}
        sent = detail.get("request")
        if isinstance(sent, dict) and "url" in sent:
            return curl.request_command(sent)
    service = str(request.base_url).rstrip("/")
    with_key = viewer_of(request).name is not None
    return curl.trigger_command(service, run.job_id, to_json_value(run.payload), with_key=with_key)
