"""The pages at `/runs` (newest first, by job, state and time) and at `/runs/{id}` (what happened to
a run, and why it has not run if it has not)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from shlex import quote
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from msgspec import Struct

from mainspring.core.model import LIVE, MAX_ATTEMPTS_KEPT, Attempt, Run, State
from mainspring.dashboard import formats
from mainspring.dashboard.formats import TONES
from mainspring.dashboard.pages import page_router, render, service_of, viewer_of
from mainspring.errors import JobNotFound
from mainspring.scheduler.client import Client
from mainspring.scheduler.workflow import Workflow, WorkflowNode
from mainspring.service.access import access
from mainspring.service.dependencies import Moment, RunPath, read_moment
from mainspring.service.schemas.documents import to_json_value

router = page_router()

RUNS_PER_PAGE = 50
WINDOWS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}


@router.get("/runs")
@access("read")
async def runs(
    request: Request,
    job: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[list[State] | None, Query()] = None,
    failing: Annotated[bool, Query()] = False,
    within: Annotated[Literal["", "1h", "24h", "7d"], Query()] = "",
    since: Moment = None,
    until: Moment = None,
    cursor: Annotated[str | None, Query(max_length=500)] = None,
) -> Response:
    service = service_of(request)
    states = [known_state for known_state in State if known_state in (state or ())]
    # A form sends the fields that nobody filled in as empty texts.
    first, last = read_moment(since or None, "since"), read_moment(until or None, "until")
    if within:
        first, last = await service.client.now() - WINDOWS[within], None
    # A list from a moment on ends at the first page that is older. A query with `since` would be
    # exact, but the store would scan all runs to fill the last page.
    page = await service.client.list_runs(
        job=job.strip() or None,
        state=states or None,
        failing=failing,
        since=None if last is None else first,
        until=last,
        brief=True,
        limit=RUNS_PER_PAGE,
        cursor=cursor,
    )
    shown = [run for run in page.items if first is None or run.created_at >= first]
    # The same filters as `POST /api/v1/runs/bulk` takes them.
    match = {
        "job": job.strip(),
        "state": [str(chosen_state) for chosen_state in states],
        "failing": failing,
        "since": _text(first),
        "until": _text(last),
    }
    chosen = {
        "job": match["job"],
        "state": match["state"],
        "failing": "true" if failing else "",
        "within": within,
        "since": "" if within else _field(first),
        "until": "" if within else _field(last),
    }
    return render(
        request,
        "runs.html",
        page="runs",
        title="Runs",
        runs=shown,
        chosen=chosen,
        states=[_chip(known_state, states, chosen) for known_state in State],
        is_filtered=any(chosen.values()),
        match={name: value for name, value in match.items() if value},
        match_text=_match_text(chosen),
        older=page.cursor if shown else None,
        is_newest=cursor is None,
    )


def _chip(state: State, states: list[State], chosen: dict[str, Any]) -> dict[str, Any]:
    """A state that can be chosen: its name, whether it is chosen, and the filters that it leads
    to."""
    left = [str(other) for other in State if (other in states) != (other is state)]
    return {"name": str(state), "is_chosen": state in states, "query": {**chosen, "state": left}}


def _match_text(chosen: dict[str, Any]) -> str:
    """The filters in words, for the question before something is done with all that match."""
    within = {"1h": "the last hour", "24h": "the last 24 hours", "7d": "the last 7 days"}
    parts = [
        f"job {chosen['job']}" if chosen["job"] else "",
        " or ".join(chosen["state"]),
        "with a failed attempt" if chosen["failing"] else "",
        f"created within {within[chosen['within']]}" if chosen["within"] else "",
        f"created since {chosen['since']} UTC" if chosen["since"] else "",
        f"created before {chosen['until']} UTC" if chosen["until"] else "",
    ]
    return ", ".join(part for part in parts if part) or "every run, there is no filter"


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _field(moment: datetime | None) -> str:
    """As a field for a date and a time shows it, in UTC."""
    return "" if moment is None else formats.absolute(moment)[:19].replace(" ", "T")


SHORTENED_TO = 2 * 1024
"""Characters of each text of an attempt, unless the attempt is the one that is looked at. A run
keeps up to 20 attempts with 64 KiB of log lines each."""

RELATED_SHOWN = 50
SEARCHED_RUNS = 1000
"""Of the newest runs so many are searched for those that were enqueued with `after`."""


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
        attempts=[_show_attempt(kept, shown) for kept in reversed(run.attempts)],
        attempts_gone=max(0, run.attempt - MAX_ATTEMPTS_KEPT),
        upstream=_upstream(run, workflow),
        downstream=[node for node in workflow.nodes if run.id in node.after],
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
    known = {node.id: node for node in workflow.nodes}
    return [known.get(name) or WorkflowNode(id=name, job_id="") for name in run.after]


# -- what happened, in order ------------------------------------------------------------------


class Phase(Struct, frozen=True):
    """A part of a run's life. `left` and `width` are per cent of the picture."""

    name: str
    tone: str
    start: datetime
    seconds: float
    left: float = 0.0
    width: float = 0.0


def _phases(run: Run, now: datetime) -> list[Phase]:
    """The run's life in parts, each as wide as the logarithm of its time: a wait of a day beside an
    attempt of a millisecond."""
    parts: list[tuple[str, str, datetime, float]] = []
    at = run.created_at

    def until(moment: datetime, name: str, tone: str = "") -> None:
        nonlocal at
        if moment > at or tone:
            parts.append((name, tone, at, max(0.0, (moment - at).total_seconds())))
            at = max(at, moment)

    ended = run.finished_at or now
    waits = "waiting for other runs" if run.state is State.WAITING else "not yet due"
    if run.scheduled_at > at:
        until(min(run.scheduled_at, ended), waits)
    waited = "due, waiting for a worker"
    for attempt in run.attempts:
        until(attempt.started_at, waited)
        name = f"attempt {attempt.number}: {attempt.outcome}".replace("_", " ")
        until(attempt.finished_at, name, TONES.get(attempt.outcome, "grey"))
        waited = "waiting for the next attempt"
    if run.state is State.RUNNING and run.started_at is not None:
        until(run.started_at, waited)
        until(now, f"attempt {run.attempt}: running", "blue")
    elif run.state in LIVE:
        is_due = run.state is State.PENDING and run.run_at <= now
        until(now, waited if run.attempts or is_due else waits)
    elif not run.attempts:
        until(ended, f"{run.state} without an attempt")
    weights = [1 + math.log1p(seconds * 20) for *_, seconds in parts]
    total, left, phases = sum(weights), 0.0, []
    for part, weight in zip(parts, weights, strict=True):
        width = 100 * weight / total
        phases.append(Phase(*part, round(left, 2), round(width, 2)))
        left += width
    return phases


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
    return Message(line, header_pairs(kept.get("headers")), *_body(kept, whole=whole))


def _show_response(kept: dict[str, Any], *, whole: bool) -> Message:
    line = f"{kept.get('status', '')} {kept.get('reason') or ''}".strip()
    if kept.get("address"):
        line += f" from {kept['address']}"
    return Message(line, header_pairs(kept.get("headers")), *_body(kept, whole=whole))


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
            return request_command(sent)
    service = str(request.base_url).rstrip("/")
    with_key = viewer_of(request).name is not None
    return trigger_command(service, run.job_id, to_json_value(run.payload), with_key=with_key)


_SET_BY_CURL = frozenset({"host", "content-length", "connection", "accept-encoding"})
"""Headers that curl sets by itself."""

LARGEST_BODY = 32 * 1024
"""Characters of a body that are written into a command."""


def request_command(request: Mapping[str, Any]) -> str:
    """Sends the request of a webhook's attempt again, as far as it was kept."""
    lines = [
        # -g: brackets and braces in a URL are no patterns
        f"curl -g -X {quote(str(request.get('method', 'POST')))} {quote(str(request['url']))}"
    ]
    for name, value in header_pairs(request.get("headers")):
        if name.lower() not in _SET_BY_CURL:
            lines.append(f"-H {quote(f'{name}: {value}')}")
    body = str(request.get("body") or "")
    if request.get("encoding") == "base64":
        lines.append("--data-binary @-")
        return f"echo {quote(body)} | base64 -d | " + _join_lines(lines)
    if body:
        lines.append(f"--data-raw {quote(body)}")
    return _join_lines(lines)


def trigger_command(service: str, job_id: str, payload: Any, *, with_key: bool) -> str:
    """Runs the job again with this payload, through the HTTP API of this service."""
    lines = [f"curl -X POST {quote(f'{service}/api/v1/jobs/{job_id}/trigger')}"]
    if with_key:
        lines.append('-H "Authorization: Bearer $MAINSPRING_API_KEY"')
    body = json.dumps({} if payload is None else {"payload": payload}, ensure_ascii=False)
    lines.append("-H 'Content-Type: application/json'")
    if len(body) > LARGEST_BODY:
        lines.append("--data-binary @payload.json")
    else:
        lines.append(f"--data-raw {quote(body)}")
    return _join_lines(lines)


def header_pairs(headers: Any) -> list[tuple[str, str]]:
    """Headers as pairs: they are kept as a mapping, or as a list where a name may occur twice."""
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [(str(name), str(value)) for name, value in pairs]


def _join_lines(lines: list[str]) -> str:
    return " \\\n  ".join(lines)
