"""`mainspring jobs list` and `jobs show`: jobs, when they run, and how they fare."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import typer

from mainspring.cli import time_format
from mainspring.cli.command import Call, command
from mainspring.cli.options import CursorOption, JobArgument, LimitOption, option
from mainspring.cli.output import Column, Output, when, when_short
from mainspring.core.plurals import plural

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from mainspring.cli.store_access import StoreChoice
    from mainspring.core.model import Job, Run
    from mainspring.core.statistics import LastRun
    from mainspring.engine.live_workers import LiveWorker
    from mainspring.scheduler.statistics import JobHealth, JobMetrics, Spread

group = typer.Typer(
    help="Add, change, list, show, pause, trigger and remove jobs. Also: reset circuit breakers,"
    " rotate signing secrets, and remove jobs whose code is gone."
)

MOST_ORPHANS = 5
UPCOMING_SHOWN = 5
RECENT_SHOWN = 5
SCHEDULE_OVER = "its schedule is over"


@command(
    group,
    "list",
    "mainspring jobs list --tag reports",
    "mainspring jobs list --queue mail --search invoice --json",
)
async def list_(
    call: Call,
    tag: str | None = option("Only jobs with this tag."),
    queue: str | None = option("Only jobs of this queue."),
    search: str | None = option("Only jobs with this in their id or description.", "TEXT"),
    limit: LimitOption = 100,
    cursor: CursorOption = None,
) -> None:
    """List jobs in the order of their ids."""
    from mainspring.cli.json_values import job_document, page_document
    from mainspring.engine.live_workers import without_worker

    output = call.output
    async with call.client() as client:
        page = await client.list_jobs(
            tag=tag, queue=queue, search=search, limit=limit, cursor=cursor
        )
        workers = await client.list_workers()
        paused_since = await client.paused_since()
        healths = await client.jobs_health(page.items)
    orphaned = {job.id for job in without_worker(page.items, workers)}
    last_runs = {health.job_id: health.last_run for health in healths}
    if output.as_json:
        document = page_document(
            page,
            lambda job: {
                **job_document(job),
                "has_worker": job.id not in orphaned,
                "last_run": last_runs.get(job.id),
            },
        )
        output.document({**document, "paused_since": time_format.iso(paused_since)})
    elif not page.items and cursor is not None:
        output.note("no more jobs")
    elif not page.items:
        named = f" with the tag {tag!r}" if tag else ""
        if queue or search:
            output.note(f"no jobs{named} match")
            return
        output.note(
            f"no jobs{named} yet: decorate a function with @scheduler.job() and start"
            " `mainspring worker app:scheduler`"
        )
    else:
        output.table(job_columns(orphaned if workers else set(), last_runs), page.items)
        if page.cursor:
            output.note(f"there are more: --cursor {page.cursor}")
        if paused_since is not None:
            since = time_format.seconds(paused_since)
            output.note(f"all firing is paused since {since}: mainspring resume --all resumes it")
        _note_orphans(
            output, call.choice, [job for job in page.items if job.id in orphaned], workers
        )


def _note_orphans(
    output: Output, choice: StoreChoice, orphaned: list[Job], workers: list[LiveWorker]
) -> None:
    """Print which jobs no worker can run, and what to do."""
    from mainspring.engine.live_workers import (
        describe_missing_worker,
        find_orphans,
        keeping_code,
        lacks_only_queue,
        prune_command,
        removal_command,
    )

    if not workers:
        output.note("no worker is alive: no job runs until one starts")
        return
    for job in orphaned[:MOST_ORPHANS]:
        why = describe_missing_worker(job, workers)
        if lacks_only_queue(job, workers):
            output.note(f"{why}: start one that does")
        elif find_orphans([job], workers):
            output.note(
                f"{why}; if its function was renamed: {keeping_code(job)} on the new one keeps the"
                f" job; if its code is gone: {removal_command(job, choice.url)}"
            )
        else:
            output.note(f"{why}; if its code is gone: {removal_command(job, choice.url)}")
    if len(orphaned) > MOST_ORPHANS:
        more = len(orphaned) - MOST_ORPHANS
        output.note(f"and {plural(more, 'more job')} without a worker")
    if len(find_orphans(orphaned, workers)) > 1:
        output.note(f"{prune_command(choice.url)} lists all whose code is gone")


@command(group, "show", "mainspring jobs show daily_report")
async def show(call: Call, job: JobArgument) -> None:
    """Show a job: its schedule, its runs, how often it succeeds."""
    from mainspring.cli.forecast import LOOK_AHEAD
    from mainspring.cli.json_values import job_document, run_document
    from mainspring.core.clock import utcnow
    from mainspring.engine.live_workers import without_worker

    output = call.output
    async with call.client() as client:
        stored = await client.get_job(job)
        health = await client.job_health(job)
        metrics = await client.job_metrics(job)
        why = await client.explain(job)
        brief = not output.as_json
        recent = (await client.list_runs(job=job, brief=brief, limit=RECENT_SHOWN)).items
        workers = await client.list_workers()
    orphaned = without_worker([stored], workers)
    fires = stored.enabled and not (orphaned and workers)
    now = utcnow()
    upcoming = stored.upcoming(UPCOMING_SHOWN, now) if fires else []
    if output.as_json:
        output.document(
            {
                **job_document(stored),
                "has_worker": not orphaned,
                "why": None if why.is_well else why.sentence,
                "upcoming": [time_format.iso(moment) for moment in upcoming],
                "health": health,
                "metrics": metrics,
                "recent": [run_document(run) for run in recent],
            }
        )
        return
    about = _about(stored, health, metrics, output)
    about.insert(3, ("why", None if why.is_well else why.sentence))
    output.fields(about)
    if upcoming:
        output.line()
        output.line("next runs", style="bold")
        for moment in upcoming:
            shown = when(moment) if output.pretty else time_format.seconds(moment)
            output.line(f"  {shown}{_in_zone_of(stored, moment)}")
        for line in stored.schedule.warnings(now, now + LOOK_AHEAD) if stored.schedule else []:
            output.line(f"warning: {line}", style="yellow")
    _print_recent(output, recent)
    if orphaned:
        _note_orphans(output, call.choice, orphaned, workers)


def _in_zone_of(job: Job, moment: datetime) -> str:
    """The moment in the zone of the job's schedule, where that is not UTC."""
    from mainspring.core.schedules.zones import zone_named

    zone = "UTC" if job.schedule is None else job.schedule.timezone
    if zone == "UTC":
        return ""
    there = moment.astimezone(zone_named(zone))
    return f"  {there.isoformat(timespec='seconds')} {zone}"


def _print_recent(output: Output, recent: list[Run]) -> None:
    from mainspring.cli.runs import COLUMNS

    output.line()
    if not recent:
        output.line("it has not run yet")
        return
    output.line("last runs", style="bold")
    output.table([c for c in COLUMNS if c.title != "job"], recent)


def is_over(job: Job) -> bool:
    """Whether a job's schedule has no further slot."""
    return job.enabled and job.schedule is not None and job.next_run_at is None


def describe_plan(job: Job) -> str:
    """The schedule of a job, or what else makes it run."""
    if job.schedule is not None:
        described = job.schedule.describe()
        return f"{SCHEDULE_OVER} ({described})" if is_over(job) else described
    reasons = [f"after {', '.join(job.policy.after)}"] if job.policy.after else []
    if job.policy.run_on_start:
        reasons.append("when a worker starts")
    return ", ".join(reasons) or "when enqueued"


def describe_last_run(run: LastRun, moment: Callable[[datetime], str] = time_format.seconds) -> str:
    """`failed 2026-11-16T09:00:00Z (by schedule): ValueError: …`: the first line of the error."""
    error = f": {run.error.splitlines()[0]}" if run.error else ""
    return f"{run.state} {moment(run.finished_at)} (by {run.source}){error}"


def _state(job: Job) -> str:
    return "enabled" if job.enabled else "paused"


def _about(
    job: Job, health: JobHealth, metrics: JobMetrics, output: Output
) -> list[tuple[str, str | None]]:
    moment = when if output.pretty else time_format.seconds
    rate = metrics.success_rate
    counted = f"{metrics.succeeded} of {metrics.total} succeeded"
    return [
        ("id", job.id),
        ("description", job.description),
        ("state", _state(job)),
        ("health", health.status.replace("_", " ")),
        ("handler", job.handler),
        ("defined by", _owner(job)),
        ("schedule", describe_plan(job)),
        ("next run", moment(job.next_run_at) if job.next_run_at else None),
        ("last run", moment(job.last_run_at) if job.last_run_at else None),
        ("last 24 hours", None if rate is None else f"{counted} ({rate:.0%})"),
        (
            "last ended",
            None if health.last_run is None else describe_last_run(health.last_run, moment),
        ),
        ("failing", _failing(metrics.consecutive_failures)),
        ("breaker", _breaker(health, moment)),
        ("takes", _describe_spread(metrics.duration)),
        ("starts late", _describe_spread(metrics.lateness)),
        ("payload", None if job.payload is None else _one_line(job.payload)),
        ("calls", f"{job.webhook.method} {job.webhook.url}" if job.webhook else None),
        *_policy(job),
        ("tags", ", ".join(job.tags)),
        ("metadata", _one_line(dict(job.metadata)) if job.metadata else None),
    ]


_ORIGINS = {
    "job": "given by the job",
    "defaults": "the scheduler's defaults",
    "built_in": "built in",
}


def _policy(job: Job) -> Iterator[tuple[str, str | None]]:
    """The options by where they come from. Of a job that an earlier version stored that is not
    known: what differs from the built-in values is shown then."""

    origins = job.policy_origins()
    if origins is None:
        options = job.policy.to_dict().items()
        yield "options", ", ".join(f"{name}={_one_line(value)}" for name, value in options)
        return
    values = job.policy.to_dict(complete=True)
    for origin, title in _ORIGINS.items():
        names = [name for name in values if origins[name] == origin]
        if origin == "defaults" and job.file is not None:
            title = "defaults of the file or the scheduler"
        yield title, ", ".join(f"{name}={_one_line(values[name])}" for name in names)


def _describe_spread(spread: Spread) -> str | None:
    if spread.average is None or spread.p95 is None or spread.max is None:
        return None
    average, p95, most = map(time_format.span, (spread.average, spread.p95, spread.max))
    return f"{average} on average, 95 % within {p95}, at most {most}"


def _owner(job: Job) -> str:
    if job.owner == "file":
        return f"the file {job.file!r}"
    return "code" if job.owner == "code" else "the API"


def _failing(count: int) -> str | None:
    return f"the last {count} in a row" if count > 1 else None


def _breaker(health: JobHealth, moment: Callable[[datetime], str]) -> str | None:
    if health.breaker == "none":
        return None
    if health.breaker_until is not None:
        return f"open until {moment(health.breaker_until)}: no run starts before"
    return "half open: one run tries" if health.breaker == "half_open" else health.breaker


def _one_line(value: Any) -> str:
    from mainspring.cli.json_values import plain_json

    return jsonlib.dumps(plain_json(value), ensure_ascii=False)


def job_columns(orphaned: set[str], last_runs: Mapping[str, LastRun | None]) -> list[Column[Any]]:
    def state(job: Job) -> str:
        return "no worker" if job.enabled and job.id in orphaned else _state(job)

    def result(job: Job) -> str:
        last = last_runs.get(job.id)
        return "-" if last is None else last.state.value

    return [
        Column("id", lambda job: job.id, whole=True, least=16),
        Column("state", state, state=True),
        Column(
            "next run",
            lambda job: time_format.seconds(job.next_run_at),
            lambda job: when(job.next_run_at),
            short=lambda job: when_short(job.next_run_at),
            whole=True,
        ),
        Column(
            "last run",
            lambda job: time_format.seconds(job.last_run_at),
            lambda job: when(job.last_run_at),
            short=lambda job: when_short(job.last_run_at),
            whole=True,
            hide=1,
        ),
        Column("result", result, state=True),
        Column("schedule", describe_plan, least=12),
    ]
