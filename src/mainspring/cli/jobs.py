"""`mainspring jobs`: adds, changes, lists, shows, pauses, triggers and removes jobs, resets their
circuit breakers and rotates their secrets."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli import time_format
from mainspring.cli.errors import BAD_INPUT, FAILED, CommandError
from mainspring.cli.job_arguments import (
    DescriptionOption,
    HandlerOption,
    PayloadOption,
    ScheduleOption,
    SetOption,
    TagOption,
    TimezoneOption,
    UrlOption,
    name_fields,
    options_of,
)
from mainspring.cli.job_plan import describe_last_run, describe_plan
from mainspring.cli.options import (
    AppOption,
    CursorOption,
    JobArgument,
    JsonOption,
    LimitOption,
    StoreOption,
    example,
    read_duration,
    run_coroutine,
)
from mainspring.cli.output import Column, Output, when, when_short
from mainspring.cli.store_access import StoreChoice, open_client
from mainspring.core.plurals import plural
from mainspring.errors import InvalidInput, JobExists

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

    from mainspring.core.model import Job, Run
    from mainspring.core.statistics import LastRun
    from mainspring.engine.live_workers import LiveWorker
    from mainspring.scheduler import Client
    from mainspring.scheduler.statistics import JobHealth, JobMetrics, Spread

__all__ = ["group"]

group = typer.Typer(
    help="Add, change, list, show, pause, trigger and remove jobs. Also: reset circuit breakers,"
    " rotate signing secrets, and remove jobs whose code is gone."
)

MOST_ORPHANS = 5
UPCOMING_SHOWN = 5
RECENT_SHOWN = 5


@group.command(
    "list", epilog=example("mainspring jobs list --tag reports", "mainspring jobs list --json")
)
def list_(
    tag: Annotated[str | None, typer.Option("--tag", help="Only jobs with this tag.")] = None,
    limit: LimitOption = 100,
    cursor: CursorOption = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """List jobs in the order of their ids."""
    run_coroutine(_list(StoreChoice.of(store, app), Output(as_json=json), tag, limit, cursor))


async def _list(
    choice: StoreChoice, output: Output, tag: str | None, limit: int, cursor: str | None
) -> None:
    from mainspring.cli.json_output import job_document, page_document
    from mainspring.engine.live_workers import without_worker

    async with open_client(choice) as client:
        page = await client.list_jobs(tag=tag, limit=limit, cursor=cursor)
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
        output.note(
            f"no jobs{named} yet: decorate a function with @scheduler.job() and start"
            " `mainspring worker app:scheduler`"
        )
    else:
        output.table(_columns(orphaned if workers else set(), last_runs), page.items)
        if page.cursor:
            output.note(f"there are more: --cursor {page.cursor}")
        if paused_since is not None:
            since = time_format.seconds(paused_since)
            output.note(f"all firing is paused since {since}: mainspring resume --all resumes it")
        _note_orphans(output, choice, [job for job in page.items if job.id in orphaned], workers)


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


@group.command("show", epilog=example("mainspring jobs show daily_report"))
def show(
    job: JobArgument, store: StoreOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Show a job: its schedule, its runs, how often it succeeds."""
    run_coroutine(_show(StoreChoice.of(store, app), Output(as_json=json), job))


async def _show(choice: StoreChoice, output: Output, job_id: str) -> None:
    from mainspring.cli.json_output import job_document, run_document
    from mainspring.cli.schedule import LOOK_AHEAD
    from mainspring.core.clock import utcnow
    from mainspring.engine.live_workers import without_worker

    async with open_client(choice) as client:
        job = await client.get_job(job_id)
        health = await client.job_health(job_id)
        metrics = await client.job_metrics(job_id)
        why = await client.explain(job_id)
        brief = not output.as_json
        recent = (await client.list_runs(job=job_id, brief=brief, limit=RECENT_SHOWN)).items
        workers = await client.list_workers()
    orphaned = without_worker([job], workers)
    fires = job.enabled and not (orphaned and workers)
    now = utcnow()
    upcoming = job.upcoming(UPCOMING_SHOWN, now) if fires else []
    if output.as_json:
        output.document(
            {
                **job_document(job),
                "has_worker": not orphaned,
                "why": None if why.is_well else why.sentence,
                "upcoming": [time_format.iso(moment) for moment in upcoming],
                "health": health,
                "metrics": metrics,
                "recent": [run_document(run) for run in recent],
            }
        )
        return
    about = _about(job, health, metrics, output)
    about.insert(3, ("why", None if why.is_well else why.sentence))
    output.fields(about)
    if upcoming:
        output.line()
        output.line("next runs", style="bold")
        for moment in upcoming:
            shown = when(moment) if output.pretty else time_format.seconds(moment)
            output.line(f"  {shown}{_in_zone_of(job, moment)}")
        for line in job.schedule.warnings(now, now + LOOK_AHEAD) if job.schedule else []:
            output.line(f"warning: {line}", style="yellow")
    _print_recent(output, recent)
    if orphaned:
        _note_orphans(output, choice, orphaned, workers)


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


@group.command(
    "add",
    epilog=example(
        "mainspring jobs add ping --schedule 5m --url https://example.org/ping --set retries=3",
        "mainspring jobs add nightly --schedule '0 2 * * *' --handler report --set timeout=10m",
    ),
)
def add(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The id of the new job.")],
    schedule: ScheduleOption = None,
    timezone: TimezoneOption = None,
    handler: HandlerOption = None,
    url: UrlOption = None,
    payload: PayloadOption = None,
    description: DescriptionOption = None,
    tag: TagOption = None,
    settings: SetOption = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Add a job, for a handler of the workers or for a URL to call."""
    options = options_of(
        schedule=schedule,
        timezone=timezone,
        handler=handler,
        url=url,
        payload=payload,
        description=description,
        tags=tag,
        settings=settings,
    )
    run_coroutine(_add(StoreChoice.of(store, app), Output(as_json=json), job, options))


async def _add(choice: StoreChoice, output: Output, job_id: str, options: dict[str, Any]) -> None:
    async with open_client(choice) as client:
        secret = _make_secret(client, options)
        try:
            job = await client.add_job(job_id, **options)
        except JobExists:
            raise CommandError(
                f"there is a job {job_id!r} already",
                code=FAILED,
                advice=f"`mainspring jobs update {job_id}` changes it",
            ) from None
        except InvalidInput as error:
            raise name_fields(error) from None
        _print_saved(output, "added", job, {} if secret is None else {"signing_secret": secret})
        if secret is not None and not output.as_json:
            output.line(f"signing secret, shown only now: {secret}")
        if job.webhook is not None and not job.webhook.signing:
            output.note(
                "its requests are not signed: set MAINSPRING_SECRET_KEY, which encrypts secrets,"
                f" then `mainspring jobs rotate-secret {job.id}`"
            )


def _make_secret(client: Client, options: dict[str, Any]) -> str | None:
    """Give a new webhook a signing secret that is made here, so that it can be printed. None if
    the caller gave one, or if there is no key to encrypt it with."""
    from mainspring.webhooks.vault import new_signing_secret

    webhook = options.get("webhook")
    if isinstance(webhook, str):
        webhook = {"url": webhook}
    if not isinstance(webhook, dict) or webhook.get("signing_secret") is not None:
        return None
    if not client.webhooks.can_sign:
        return None
    secret = new_signing_secret()
    options["webhook"] = {**webhook, "signing_secret": secret}
    return secret


@group.command(
    "update", epilog=example("mainspring jobs update ping --schedule 10m --set retries=5")
)
def update(
    job: JobArgument,
    schedule: ScheduleOption = None,
    timezone: TimezoneOption = None,
    handler: HandlerOption = None,
    url: UrlOption = None,
    payload: PayloadOption = None,
    description: DescriptionOption = None,
    tag: TagOption = None,
    settings: SetOption = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Change a job that the API or the command line made. What is not named stays."""
    options = options_of(
        schedule=schedule,
        timezone=timezone,
        handler=handler,
        url=url,
        payload=payload,
        description=description,
        tags=tag,
        settings=settings,
    )
    if not options:
        raise CommandError(
            "there is nothing to change",
            code=BAD_INPUT,
            advice=f"name what changes: mainspring jobs update {job} --set retries=3",
        )
    run_coroutine(_update(StoreChoice.of(store, app), Output(as_json=json), job, options))


async def _update(
    choice: StoreChoice, output: Output, job_id: str, options: dict[str, Any]
) -> None:
    async with open_client(choice) as client:
        before = await client.get_job(job_id)
        try:
            job = await client.update_job(job_id, **options)
        except InvalidInput as error:
            raise name_fields(error) from None
    dropped = _dropped_headers(before, job)
    _print_saved(output, "updated", job, {"dropped_headers": dropped} if dropped else {})
    if dropped and not output.as_json:
        output.note(_describe_dropped(before, job, dropped))


def _dropped_headers(before: Job, after: Job) -> list[str]:
    """The headers that an update has removed, in lower case."""
    from mainspring.webhooks.service import masked_headers

    if before.webhook is None or after.webhook is None:
        return []
    old, new = (
        {name.lower() for name in masked_headers(one)} for one in (before.webhook, after.webhook)
    )
    return sorted(old - new)


def _describe_dropped(before: Job, after: Job, dropped: list[str]) -> str:
    from mainspring.webhooks.definition import origin_of

    assert before.webhook is not None
    assert after.webhook is not None
    names = f"{'header' if len(dropped) == 1 else 'headers'} {', '.join(dropped)}"
    if origin_of(before.webhook.url) != origin_of(after.webhook.url):
        command = f'mainspring jobs update {after.id} --set \'webhook.headers={{"Name": "value"}}\''
        return (
            f"removed the {names}: secrets are not sent to another host. Set all headers of the job"
            f" again: {command}"
        )
    return f"removed the {names}: the headers that were given replace all that the job had"


def _print_saved(
    output: Output, done: str, job: Job, more: Mapping[str, Any] | None = None
) -> None:
    """Print what was done. `more` is added to the JSON document."""
    from mainspring.cli.json_output import job_document

    if output.as_json:
        output.document({**job_document(job), **(more or {})})
        return
    if job.next_run_at is None:
        output.line(f"{done} {job.id}")
    else:
        moment = (when if output.pretty else time_format.seconds)(job.next_run_at)
        output.line(f"{done} {job.id}: next run {moment}")


@group.command(
    "rotate-secret",
    epilog=example(
        "mainspring jobs rotate-secret ping", "mainspring jobs rotate-secret ping --old-valid-for 0"
    ),
)
def rotate_secret(
    job: JobArgument,
    old_valid_for: Annotated[
        str,
        typer.Option(
            "--old-valid-for",
            metavar="DURATION",
            help="How long requests are also signed with the old secret, as in 1h.",
        ),
    ] = "24h",
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Give a webhook job a new signing secret, and print it. It cannot be shown again.

    Give it to the receiver while requests are also signed with the old one.
    """
    span = read_duration(old_valid_for, "--old-valid-for")
    run_coroutine(_rotate_secret(StoreChoice.of(store, app), Output(as_json=json), job, span))


async def _rotate_secret(
    choice: StoreChoice, output: Output, job_id: str, old_valid_for: timedelta
) -> None:
    async with open_client(choice, with_code=True) as client:
        secret = await client.rotate_secret(job_id, old_valid_for=old_valid_for)
    if output.as_json:
        output.document({"id": job_id, "signing_secret": secret})
        return
    output.line(secret)
    output.note(f"the new signing secret of {job_id}, shown only now")


@group.command("pause", epilog=example("mainspring jobs pause daily_report"))
def pause(
    job: JobArgument, store: StoreOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Pause a job's schedule. The job can still be triggered, and queued runs still run."""
    run_coroutine(_set_enabled(StoreChoice.of(store, app), Output(as_json=json), job, on=False))


@group.command("resume", epilog=example("mainspring jobs resume daily_report"))
def resume(
    job: JobArgument, store: StoreOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Resume a paused job's schedule with its next slot."""
    run_coroutine(_set_enabled(StoreChoice.of(store, app), Output(as_json=json), job, on=True))


async def _set_enabled(choice: StoreChoice, output: Output, job_id: str, *, on: bool) -> None:
    async with open_client(choice) as client:
        job = await (client.resume_job(job_id) if on else client.pause_job(job_id))
    _print_saved(output, "resumed" if on else "paused", job)


@group.command("reset-breaker", epilog=example("mainspring jobs reset-breaker call_api"))
def reset_breaker(
    job: JobArgument, store: StoreOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Close a job's circuit breaker on all nodes. Its runs that are due start."""
    run_coroutine(_reset_breaker(StoreChoice.of(store, app), Output(as_json=json), job))


async def _reset_breaker(choice: StoreChoice, output: Output, job_id: str) -> None:
    async with open_client(choice) as client:
        opened = await client.reset_breaker(job_id)
    if output.as_json:
        output.document({"id": job_id, "was_open": opened})
    elif opened:
        output.line(f"closed the circuit breaker of {job_id}: its runs start again")
    else:
        output.line(
            f"the circuit breaker of {job_id} was closed already: its failures are forgotten"
        )


@group.command("trigger", epilog=example("mainspring jobs trigger daily_report"))
def trigger(
    job: JobArgument, store: StoreOption = None, app: AppOption = None, json: JsonOption = False
) -> None:
    """Run a job now with its own payload, even if it is paused."""
    run_coroutine(_trigger(StoreChoice.of(store, app), Output(as_json=json), job))


async def _trigger(choice: StoreChoice, output: Output, job_id: str) -> None:
    from mainspring.cli.json_output import run_document

    async with open_client(choice, with_code=True) as client:
        run = await client.trigger(job_id)
    if output.as_json:
        output.document(run_document(run))
    else:
        output.line(f"triggered {job_id}: run {run.id}" if output.pretty else run.id)


@group.command("remove", epilog=example("mainspring jobs remove old_report --force"))
def remove(
    job: JobArgument,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Also remove a job that code defines, for when that code is gone."
        ),
    ] = False,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a job and cancel its pending runs. Running ones may end."""
    run_coroutine(_remove(StoreChoice.of(store, app), Output(as_json=json), job, force=force))


async def _remove(choice: StoreChoice, output: Output, job_id: str, *, force: bool) -> None:
    async with open_client(choice) as client:
        await client.remove_job(job_id, force=force)
    if output.as_json:
        output.document({"id": job_id, "removed": True})
    else:
        output.line(f"removed {job_id}")


@group.command(
    "prune-orphans",
    epilog=example(
        "mainspring jobs prune-orphans --dry-run", "mainspring jobs prune-orphans --yes --json"
    ),
)
def prune_orphans(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the jobs; remove none.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them without asking.")] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if no worker is alive to say which handlers exist."),
    ] = False,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Remove jobs whose code is gone.

    These are jobs that code defined and whose handler no live worker has. Jobs that the API made
    stay. Pending runs of a removed job are cancelled.
    """
    if not (yes or dry_run) and (json or not sys.stdin.isatty()):
        why = "--json was given" if json else "stdin is not a terminal"
        raise CommandError(
            f"{why}, so the command cannot ask for confirmation before it removes jobs",
            code=BAD_INPUT,
            advice="--dry-run lists the jobs, --yes removes them",
        )
    choice, output = StoreChoice.of(store, app), Output(as_json=json)
    run_coroutine(_prune_orphans(choice, output, dry_run=dry_run, yes=yes, force=force))


async def _prune_orphans(
    choice: StoreChoice, output: Output, *, dry_run: bool, yes: bool, force: bool
) -> None:
    async with open_client(choice) as client:
        found = await client.prune_orphans(dry_run=dry_run or not yes, force=force)
        pending = 0 if yes or not found else await _count_unstarted(client, found)
        asked = bool(found) and not (dry_run or yes)
        if asked:
            output.table(_orphan_columns(), found)
            runs = plural(pending, "pending run")
            typer.confirm(f"Remove {_count_jobs(found)}, and cancel {runs}?", abort=True)
            found = await client.prune_orphans(force=force)
    if output.as_json:
        document = {"jobs": [job.id for job in found], "removed": not dry_run}
        output.document({**document, "pending_runs": pending} if dry_run else document)
    elif not found:
        output.note(
            "every job that code defines has its handler in a live worker: nothing to remove"
        )
    elif dry_run:
        output.table(_orphan_columns(), found)
        from mainspring.engine.live_workers import keeping_code

        runs = plural(pending, "pending run")
        output.note(
            f"{_count_jobs(found)} would be removed, and {runs} cancelled; --yes does both. If a"
            f" function was only renamed, {keeping_code(found[0])} on the new one keeps its job"
        )
    else:
        output.line(f"removed {_count_jobs(found)}: {', '.join(job.id for job in found)}")


async def _count_unstarted(client: Client, jobs: list[Job]) -> int:
    """How many runs the removal of these jobs would cancel."""
    from mainspring.core.model import State

    counts = (await client.counts()).runs
    by_state = [counts.get(job.id, {}) for job in jobs]
    return sum(one.get(State.PENDING, 0) + one.get(State.WAITING, 0) for one in by_state)


def _count_jobs(jobs: list[Job]) -> str:
    return plural(len(jobs), "job")


def _orphan_columns() -> list[Column[Any]]:
    return [column for column in _columns(set(), {}) if column.title not in ("state", "result")]


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
    from mainspring.core.policy_defaults import origins_of

    origins = origins_of(job)
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
    from mainspring.cli.json_output import plain_json

    return jsonlib.dumps(plain_json(value), ensure_ascii=False)


def _columns(orphaned: set[str], last_runs: Mapping[str, LastRun | None]) -> list[Column[Any]]:
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
