"""The page at `/runs`: all runs, newest first, by job, state and time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from mainspring.core.model import State
from mainspring.dashboard import formats
from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.service.access import access
from mainspring.service.api.runs import find_runs
from mainspring.service.dependencies import Moment, read_moment

__all__ = ["router"]

router = APIRouter(include_in_schema=False, route_class=PageRoute)

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
    states = [one for one in State if one in (state or ())]
    # A form sends the fields that nobody filled in as empty texts.
    first, last = read_moment(since or None, "since"), read_moment(until or None, "until")
    if within:
        first, last = await service.client.now() - WINDOWS[within], None
    # A list from a moment on ends at the first page that is older. A query with `since` would be
    # exact, but the store would scan all runs to fill the last page.
    page = await find_runs(
        service,
        job=job.strip() or None,
        state=states or None,
        failing=failing,
        since=None if last is None else _text(first),
        until=_text(last),
        limit=RUNS_PER_PAGE,
        cursor=cursor,
    )
    shown = [run for run in page.items if first is None or run.created_at >= first]
    chosen = {
        "job": job.strip(),
        "state": [str(one) for one in states],
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
        states=[_chip(one, states, chosen) for one in State],
        is_filtered=any(chosen.values()),
        match=_match(job.strip(), states, failing=failing, first=first, last=last),
        match_text=_match_text(chosen),
        older=page.cursor if shown else None,
        is_newest=cursor is None,
    )


def _chip(state: State, states: list[State], chosen: dict[str, Any]) -> dict[str, Any]:
    """A state that can be chosen: its name, whether it is chosen, and the filters that it leads
    to."""
    left = [str(one) for one in State if (one in states) != (one is state)]
    return {"name": str(state), "is_chosen": state in states, "query": {**chosen, "state": left}}


def _match(
    job: str,
    states: list[State],
    *,
    failing: bool,
    first: datetime | None,
    last: datetime | None,
) -> dict[str, Any]:
    """The same filters as `POST /api/v1/runs/bulk` takes them."""
    match = {
        "job": job,
        "state": [str(one) for one in states],
        "failing": failing,
        "since": _text(first),
        "until": _text(last),
    }
    return {name: value for name, value in match.items() if value}


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
