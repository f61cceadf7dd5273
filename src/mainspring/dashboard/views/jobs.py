"""The pages at `/jobs` (searched, filtered and sorted, and what can be done with many jobs) and at
`/jobs/{id}` (definition, health and next slots, charts, and why the job did not run)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from fastapi import Query, Request, Response
from msgspec import Struct

from mainspring.core.model import Job, Page, Run, State
from mainspring.core.policy import Backoff, Breaker, Misfire, Origin, Policy
from mainspring.core.schedules.base import moment
from mainspring.dashboard.demo import sample_job
from mainspring.dashboard.formats import TONES, percent, plural, span
from mainspring.dashboard.pages import page_router, render, service_of
from mainspring.errors import InvalidInput
from mainspring.scheduler.client import Client
from mainspring.scheduler.explanation import Explanation
from mainspring.scheduler.statistics import JobHealth
from mainspring.scheduler.workflow import Workflow, WorkflowNode
from mainspring.service.access import access
from mainspring.service.dependencies import JobPath
from mainspring.service.schemas.documents import field_descriptions
from mainspring.service.schemas.job import OPTION_FIELDS, job_document
from mainspring.service.schemas.job import Job as JobDocument
from mainspring.stores.protocol import JobOrder

router = page_router()

JOBS_PER_PAGE = 25
RUNS_SHOWN = 20
STARTED_STATES = (State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED)
"""The states of runs whose time has come."""

Sort = Literal["id", "next", "last", "updated"]
ORDERS: dict[str, JobOrder] = {
    "id": "id",
    "next": "next_run_at",
    "last": "last_run_at",
    "updated": "updated_at",
}
Text = Annotated[str, Query(max_length=200)]


@router.get("/jobs")
@access("read")
async def jobs(
    request: Request,
    q: Text = "",
    state: Annotated[Literal["", "enabled", "paused"], Query()] = "",
    tag: Text = "",
    queue: Text = "",
    sort: Annotated[Sort, Query()] = "id",
    desc: Annotated[bool, Query()] = False,
    page: Annotated[int, Query(ge=1, le=100_000)] = 1,
) -> Response:
    client = service_of(request).client
    filters = {"q": q.strip(), "state": state, "tag": tag.strip(), "queue": queue.strip()}
    match: dict[str, Any] = {
        "search": filters["q"] or None,
        "enabled": {"enabled": True, "paused": False}.get(state),
        "tag": filters["tag"] or None,
        "queue": filters["queue"] or None,
    }

    async def read_page(number: int) -> Page[Job]:
        return await client.list_jobs(
            **match,
            order=ORDERS[sort],
            descending=desc,
            limit=JOBS_PER_PAGE,
            offset=(number - 1) * JOBS_PER_PAGE,
            with_total=True,
            last_runs=False,
        )

    listed, paused_since, workers = await asyncio.gather(
        read_page(page), client.paused_since(), client.list_workers()
    )
    if page > 1 and not listed.items and listed.total:  # past the end: jobs may have been deleted
        page = -(-listed.total // JOBS_PER_PAGE)
        listed = await read_page(page)
    health, runs = await asyncio.gather(
        client.jobs_health(listed.items),
        client.newest_runs(listed.items, state=STARTED_STATES, limit=RUNS_SHOWN),
    )
    rows = [
        {
            "job": job,
            "health": of_job,
            "last": next(iter(runs.get(job.id, ())), None),
            "spark": draw_runs(runs.get(job.id, ()), RUNS_SHOWN),
        }
        for job, of_job in zip(listed.items, health, strict=True)
    ]
    total = listed.total or 0
    return render(
        request,
        "jobs.html",
        page="jobs",
        title="Jobs",
        rows=rows,
        total=total,
        number=page,
        pages=max(1, -(-total // JOBS_PER_PAGE)),
        first=(page - 1) * JOBS_PER_PAGE + 1,
        filters=filters,
        is_filtered=any(filters.values()),
        match={name: value for name, value in match.items() if value is not None},
        sort=sort,
        desc=desc,
        tags=sorted({tag_of_job for job in listed.items for tag_of_job in job.tags}),
        queues=_queues(listed.items, workers),
        paused_since=paused_since,
        sample=sample_job(workers),
    )


def _queues(jobs: Any, workers: Any) -> list[str]:
    """Queues to choose from: those of the jobs that are shown, and of the live workers."""
    of_workers = {name for worker in workers for name in worker.queues or ()}
    return sorted({job.policy.queue for job in jobs} | of_workers)


RUNS_LISTED = 20
BARS_SHOWN, LEAST_BARS = 60, 30
SLOTS_SHOWN = 10
WARNED_AHEAD = timedelta(days=366)
WINDOWS = (("1h", "1 hour"), ("24h", "24 hours"), ("7d", "7 days"))
BAR_STATES = (State.SUCCEEDED, State.FAILED, State.CANCELLED, State.RUNNING)


@router.get("/jobs/{id}")
@access("read")
async def job(
    request: Request,
    id: JobPath,
    window: Annotated[Literal["1h", "24h", "7d"], Query()] = "24h",
    at: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    client = service_of(request).client
    stored = await client.get_job(id)
    [health], metrics, runs, ended, workflow, now = await asyncio.gather(
        client.jobs_health([stored]),
        client.job_metrics(id, window),
        client.list_runs(job=id, brief=True, limit=RUNS_LISTED),
        client.list_runs(job=id, state=BAR_STATES, brief=True, limit=BARS_SHOWN),
        client.workflow(id),
        client.now(),
    )
    explanation, wrong_time = await _explain(client, stored, at.strip())
    slots, warnings = await asyncio.to_thread(_upcoming, stored, now)
    return render(
        request,
        "job.html",
        page="jobs",
        title=id,
        job=stored,
        document=job_document(stored),
        health=health,
        reasons=health_reasons(stored, health),
        metrics=metrics,
        window=window,
        windows=WINDOWS,
        runs=runs.items,
        picture=draw_runs(ended.items, max(LEAST_BARS, len(ended.items)), height=96),
        longest=max((run.duration or 0.0 for run in ended.items), default=0.0),
        options=policy_options(stored),
        slots=slots,
        warnings=warnings,
        workflow=workflow if len(workflow.nodes) > 1 else None,
        graph=draw_workflow(workflow),
        explanation=explanation,
        wrong_time=wrong_time,
        at=at.strip(),
    )


def _upcoming(job: Job, now: datetime) -> tuple[list[datetime], list[str]]:
    """The next slots, and what changes of the clock do to the schedule within a year."""
    if job.schedule is None:
        return [], []
    try:
        slots = job.upcoming(SLOTS_SHOWN, now) or job.schedule.upcoming(SLOTS_SHOWN, now)
        return slots, job.schedule.warnings(now, now + WARNED_AHEAD)
    except (InvalidInput, OverflowError):  # the end of the calendar
        return [], []


async def _explain(client: Client, job: Job, at: str) -> tuple[Explanation, str | None]:
    """The answer for the job, or for its slot at a time; and what is wrong with that time."""
    if at:
        zone = client.timezone if job.schedule is None else job.schedule.timezone
        try:
            return await client.explain(job.id, moment(at, zone, "time")), None
        except InvalidInput as error:
            return await client.explain(job.id), str(error)
    return await client.explain(job.id), None


# -- health -----------------------------------------------------------------------------------

STATUS_WORDS = {
    "orphaned": "Code defined this job, and no live worker has its handler any more.",
    "no_worker": "No live worker has the job's handler and takes its queue: no run can start.",
    "overdue": "Its next slot is past, and no scheduler has fired it.",
    "unknown": "No run has succeeded or failed yet.",
    "healthy": "At least 95 % of its runs succeed.",
    "warning": "Between 80 % and 95 % of its runs succeed.",
    "unhealthy": "Less than 80 % of its runs succeed.",
}


def health_reasons(job: Job, health: JobHealth) -> list[str]:
    """Sentences that say why the health is as it is."""
    if health.status == "paused":
        reasons = [
            "All firing is paused."
            if job.enabled
            else "The job is paused: none of its slots fires."
        ]
    else:
        reasons = [STATUS_WORDS[health.status]]
    if health.success_rate is not None:
        when = "of all" if health.rated_since is None else "in the last 24 hours"
        reasons.append(f"Success rate: {percent(health.success_rate)} {when}.")
    if health.consecutive_failures:
        reasons.append(
            f"The last {plural(health.consecutive_failures, 'run')} failed, one after the other."
            if health.consecutive_failures > 1
            else "The last run failed."
        )
    if health.breaker == "open":
        reasons.append("Its circuit breaker is open: runs wait until one may try again.")
    if health.breaker == "half_open":
        reasons.append("Its circuit breaker lets one run try whether the others may start.")
    return reasons


# -- policy -----------------------------------------------------------------------------------

ORIGIN_WORDS = {
    Origin.JOB: "this job",
    Origin.DEFAULTS: "defaults",
    Origin.BUILT_IN: "built in",
}


def policy_options(job: Job) -> list[dict[str, Any]]:
    """Each option of the policy in words, what it means, and where its value comes from."""
    origins = job.policy_origins()
    texts = field_descriptions(JobDocument)
    rows = []
    for name in (field.name for field in fields(Policy)):
        origin = None if origins is None else origins.get(name)
        rows.append(
            {
                "name": name,
                "label": name.replace("_", " ").capitalize(),
                "meaning": texts.get(OPTION_FIELDS.get(name, ""), "").replace("`", ""),
                "value": option_words(getattr(job.policy, name)),
                "origin": "not known" if origin is None else ORIGIN_WORDS[Origin(origin)],
                "is_own": origin == Origin.JOB,
                "is_set": origin != Origin.BUILT_IN,
            }
        )
    return rows


def option_words(value: Any) -> str:
    """The value of an option, or of a part of one."""
    if value is None or value == ():
        return "not set" if value is None else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, timedelta):
        return span(value)
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, Backoff | Misfire | Breaker):
        parts = ((part.name, getattr(value, part.name)) for part in fields(value))
        return ", ".join(f"{name} {option_words(part)}" for name, part in parts)
    return str(value).replace("_", " ") if isinstance(value, StrEnum) else str(value)


# -- small charts, as inline SVG: the last runs of a job, and a workflow --------------------------

SHORTEST_BAR = 3


class Bar(Struct, frozen=True):
    """One run. `title` says in words what height and colour show."""

    x: int
    y: int
    height: int
    tone: str
    title: str


class Sparkline(Struct, frozen=True):
    """The last runs of a job, the newest at the right. `text` says the same in words."""

    width: int
    height: int
    bars: tuple[Bar, ...]
    text: str


def draw_runs(runs: Sequence[Run], most: int = 20, *, step: int = 6, height: int = 24) -> Sparkline:
    """Bars for these runs, which are given newest first: the height is the duration, the colour is
    the outcome."""
    shown = list(reversed(runs[:most]))
    longest = max((run.duration or 0.0 for run in shown), default=0.0) or 1.0
    first = most - len(shown)
    bars = []
    for at, run in enumerate(shown, first):
        share = (run.duration or 0.0) / longest
        tall = max(SHORTEST_BAR, round(share * height))
        took = "" if run.duration is None else f", {span(run.duration)}"
        tone = TONES.get(run.state, "grey")
        bars.append(Bar(at * step, height - tall, tall, tone, f"{run.state}{took}"))
    return Sparkline(most * step - 1, height, tuple(bars), _describe_runs(shown))


def _describe_runs(runs: Sequence[Run]) -> str:
    if not runs:
        return "no runs yet"
    counts = Counter(str(run.state) for run in runs).most_common()
    states = ", ".join(f"{count} {state}" for state, count in counts)
    times = sorted(run.duration for run in runs if run.duration is not None)
    spread = f"; {span(times[0])} to {span(times[-1])}" if times else ""
    return f"last {plural(len(runs), 'run')}: {states}{spread}"


# -- workflows --------------------------------------------------------------------------------

BOX_WIDTH, BOX_HEIGHT = 190, 44
GAP_X, GAP_Y = 56, 16
MARGIN = 6
LONGEST_NAME = 24
MOST_BOXES = 60
"""A picture of more boxes is too small to read: the list beside it has them all."""


class Box(Struct, frozen=True):
    node: WorkflowNode
    x: int
    y: int
    name: str
    detail: str


class Graph(Struct, frozen=True):
    """Boxes in columns, each to the right of those that it comes after, and lines between them."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    lines: tuple[str, ...]
    text: str


def draw_workflow(workflow: Workflow) -> Graph | None:
    """None if there is nothing to draw: one node, or too many."""
    nodes = workflow.nodes
    if not 2 <= len(nodes) <= MOST_BOXES:
        return None
    column: dict[str, int] = {}
    for node in nodes:  # each is behind those that it comes after
        column[node.id] = max((column.get(name, -1) + 1 for name in node.after), default=0)
    columns: dict[int, list[WorkflowNode]] = {}
    for node in nodes:
        columns.setdefault(column[node.id], []).append(node)
    tallest = max(map(len, columns.values()))
    height = 2 * MARGIN + tallest * (BOX_HEIGHT + GAP_Y) - GAP_Y
    boxes: dict[str, Box] = {}
    for at, of_column in sorted(columns.items()):
        taken = len(of_column) * (BOX_HEIGHT + GAP_Y) - GAP_Y
        top = MARGIN + (height - 2 * MARGIN - taken) // 2
        for row, node in enumerate(of_column):
            x = MARGIN + at * (BOX_WIDTH + GAP_X)
            y = top + row * (BOX_HEIGHT + GAP_Y)
            when = f"after {', '.join(node.after)}" if node.after else "on demand"
            detail = str(node.state) if node.state is not None else node.detail or when
            boxes[node.id] = Box(node, x, y, _shorten(node.job_id), _shorten(detail, 30))
    lines = tuple(
        _line(boxes[name], boxes[node.id]) for node in nodes for name in node.after if name in boxes
    )
    width = 2 * MARGIN + (max(columns) + 1) * (BOX_WIDTH + GAP_X) - GAP_X
    text = f"{plural(len(nodes), 'step')}, {plural(len(lines), 'dependency', 'dependencies')}"
    return Graph(width, height + GAP_Y, tuple(boxes.values()), lines, text)


def _line(start: Box, end: Box) -> str:
    """A curve from the right edge of one box to the left edge of another."""
    x1, y1 = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2
    x2, y2 = end.x, end.y + BOX_HEIGHT // 2
    bend = max(20, (x2 - x1) // 2)
    # Past the columns between, below the boxes that stand there.
    low = BOX_HEIGHT if x2 - x1 > GAP_X and y1 == y2 else 0
    return f"M{x1} {y1}C{x1 + bend} {y1 + low} {x2 - bend} {y2 + low} {x2} {y2}"


def _shorten(text: str, most: int = LONGEST_NAME) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
