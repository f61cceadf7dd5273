"""`mainspring jobs list` and `jobs show`: jobs, when they run, and how they fare."""

from __future__ import annotations

import json as jsonlib
import shlex
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import typer

from mainspring.cli.command import (
    CHANGE,
    CURSOR_OPTION,
    JOB_ARGUMENT,
    YES_FLAG,
    Call,
    argument,
    command,
    duration_option,
    flag,
    limit_option,
    option,
)
from mainspring.cli.errors import BAD_INPUT, FAILED, CommandError
from mainspring.cli.forecast import LOOK_AHEAD
from mainspring.cli.output import (
    Column,
    Output,
    iso,
    iso_seconds,
    job_document,
    plain_json,
    run_document,
    span,
    time_column,
)
from mainspring.cli.runs import COLUMNS
from mainspring.core.clock import utcnow
from mainspring.core.model import Owner, State
from mainspring.core.plurals import plural
from mainspring.core.schedules.zones import zone_named
from mainspring.engine.jobs_without_worker import (
    describe_missing_worker,
    find_orphans,
    keeping_code,
    lacks_only_queue,
    runs_code,
    without_worker,
)
from mainspring.errors import InvalidInput, JobExists, UnknownOption
from mainspring.stores.url import without_password

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from mainspring.cli.store_access import StoreChoice
    from mainspring.core.model import Job, Run
    from mainspring.core.statistics import LastRun
    from mainspring.engine.live_workers import LiveWorker
    from mainspring.scheduler import Client
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
    tag: str | None = option("Only jobs with this tag.", "TAG"),
    queue: str | None = option("Only jobs of this queue.", "QUEUE"),
    search: str | None = option("Only jobs with this in their id or description.", "TEXT"),
    limit: int = limit_option(100),
    cursor: str | None = CURSOR_OPTION,
) -> None:
    """List jobs in the order of their ids."""
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
    items = [
        {
            **job_document(job),
            "has_worker": job.id not in orphaned,
            "last_run": last_runs.get(job.id),
        }
        for job in page.items
    ]
    pause = {"paused_since": iso(paused_since)}
    output.document({"items": items, "cursor": page.cursor, **pause})
    if not page.items:
        named = f" with the tag {tag!r}" if tag else ""
        if cursor is not None:
            output.note("no more jobs")
        elif queue or search:
            output.note(f"no jobs{named} match")
        else:
            output.note(
                f"no jobs{named} yet: decorate a function with @scheduler.job() and start"
                " `mainspring worker app:scheduler`"
            )
        return
    output.table(job_columns(orphaned if workers else set(), last_runs), page.items)
    if page.cursor:
        output.note(f"there are more: --cursor {page.cursor}")
    if paused_since is not None:
        since = iso_seconds(paused_since)
        output.note(f"all firing is paused since {since}: mainspring resume --all resumes it")
    _note_orphans(output, call.choice, [job for job in page.items if job.id in orphaned], workers)


def removal_command(job: Job, store_url: str | None) -> str:
    """The command line that removes a job whose code is gone."""
    forced = ["--force"] if job.owner is not Owner.API else []
    return _command_line("remove", job.id, *forced, store_url=store_url)


def prune_command(store_url: str | None) -> str:
    """The command line that lists the jobs whose code is gone."""
    return _command_line("prune-orphans", "--dry-run", store_url=store_url)


def _command_line(*words: str, store_url: str | None) -> str:
    store = [] if store_url is None else ["--store", without_password(store_url)]
    return shlex.join(["mainspring", "jobs", *words, *store])


def _note_orphans(
    output: Output, choice: StoreChoice, orphaned: list[Job], workers: list[LiveWorker]
) -> None:
    """Print which jobs no worker can run, and what to do."""
    if not workers:
        output.note("no worker is alive: no job runs until one starts")
        return
    for job in orphaned[:MOST_ORPHANS]:
        advice = describe_rescue(job, workers, choice.url)
        output.note(f"{describe_missing_worker(job, workers)}; {advice}")
    if len(orphaned) > MOST_ORPHANS:
        more = len(orphaned) - MOST_ORPHANS
        output.note(f"and {plural(more, 'more job')} without a worker")
    if len(find_orphans(orphaned, workers)) > 1:
        output.note(f"{prune_command(choice.url)} lists all whose code is gone")


def describe_rescue(job: Job, workers: list[LiveWorker], url: str | None) -> str:
    """What to do about a job that no live worker can run."""
    if lacks_only_queue(job, workers):
        return f"start a worker that takes queue {job.policy.queue!r}"
    if job.owner is Owner.CODE and not runs_code(workers):
        return "start the program that defines it"
    remove = f"if its code is gone: {removal_command(job, url)}"
    if not find_orphans([job], workers):
        return f"start a worker that has it; {remove}"
    kept = f"{keeping_code(job)} on the new function keeps the job with its history"
    return f"start its program if it is down; if its function was renamed: {kept}; {remove}"


@command(group, "show", "mainspring jobs show daily_report")
async def show(call: Call, job: str = JOB_ARGUMENT) -> None:
    """Show a job: its schedule, its runs, how often it succeeds."""
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
    output.document(
        {
            **job_document(stored),
            "has_worker": not orphaned,
            "why": None if why.is_well else why.sentence,
            "upcoming": [iso(moment) for moment in upcoming],
            "health": health,
            "metrics": metrics,
            "recent": [run_document(run) for run in recent],
        }
    )
    about = _about(stored, health, metrics, output)
    about.insert(3, ("why", None if why.is_well else why.sentence))
    output.fields(about)
    if upcoming:
        output.line()
        output.line("next runs", style="bold")
        for moment in upcoming:
            output.line(f"  {output.moment(moment)}{_in_zone_of(stored, moment)}")
        for line in stored.schedule.warnings(now, now + LOOK_AHEAD) if stored.schedule else []:
            output.line(f"warning: {line}", style="yellow")
    _print_recent(output, recent)
    if orphaned:
        _note_orphans(output, call.choice, orphaned, workers)


def _in_zone_of(job: Job, moment: datetime) -> str:
    """The moment in the zone of the job's schedule, where that is not UTC."""
    zone = "UTC" if job.schedule is None else job.schedule.timezone
    if zone == "UTC":
        return ""
    there = moment.astimezone(zone_named(zone))
    return f"  {there.isoformat(timespec='seconds')} {zone}"


def _print_recent(output: Output, recent: list[Run]) -> None:
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


def describe_last_run(run: LastRun, moment: Callable[[datetime], str] = iso_seconds) -> str:
    """`failed 2026-11-16T09:00:00Z (by schedule): ValueError: …`: the first line of the error."""
    error = f": {run.error.splitlines()[0]}" if run.error else ""
    return f"{run.state} {moment(run.finished_at)} (by {run.source}){error}"


def _state(job: Job) -> str:
    return "enabled" if job.enabled else "paused"


def _about(
    job: Job, health: JobHealth, metrics: JobMetrics, output: Output
) -> list[tuple[str, str | None]]:
    moment = output.moment
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
    average, p95, most = map(span, (spread.average, spread.p95, spread.max))
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
        time_column("next run", lambda job: job.next_run_at),
        time_column("last run", lambda job: job.last_run_at, hide=1),
        Column("result", result, state=True),
        Column("schedule", describe_plan, least=12),
    ]


commands = typer.Typer()

_UNSET: dict[str, Any] = {
    "schedule": None,
    "payload": None,
    "description": "",
    "tags": [],
    "metadata": {},
}
"""What `none` means for options that are no policy."""


def read_options(
    schedule: str | None = option(
        "A cron expression, an interval such as 5m or '5m after end', a date-time, an RRULE; or"
        " none.",
        "SCHEDULE",
    ),
    timezone: str | None = option(
        "The zone of the schedule, as in Europe/Berlin.", "ZONE", "--timezone", "--tz"
    ),
    handler: str | None = option("The name of a handler that workers have.", "NAME"),
    url: str | None = option("Instead of a handler: the URL to call.", "URL"),
    payload: str | None = option("The handler's arguments; - reads them from stdin.", "JSON"),
    description: str | None = option("What the job is for.", "TEXT"),
    tags: list[str] | None = option("A tag; may be given several times.", "TAG", "--tag"),
    settings: list[str] | None = option(
        "Any other option, as in --set retries=3 --set timeout=5m --set webhook.method=GET;"
        " `none` empties one that may be empty, as in --set timeout=none. May be given several"
        " times.",
        "KEY=VALUE",
        "--set",
    ),
) -> dict[str, Any]:
    """The options of `add_job` and `update_job` that were given."""
    named: dict[str, Any] = {
        "schedule": schedule,
        "timezone": timezone,
        "handler": handler,
        "description": description,
        "tags": tags,
    }
    options = {name: value for name, value in named.items() if value is not None}
    if schedule == "none":
        options["schedule"] = None
    if payload is not None:
        from mainspring.cli.enqueue import read_payload

        options["payload"] = read_payload(payload, "--payload")
    for text in settings or ():
        path, value = _read_setting(text)
        _put(options, path, value, text)
    if url is not None:
        webhook = options.setdefault("webhook", {})
        if not isinstance(webhook, dict) or "url" in webhook:
            raise CommandError("give the url once", code=BAD_INPUT)
        webhook["url"] = url
    return options


@command(
    group,
    "add",
    "mainspring jobs add ping --schedule 5m --url https://example.org/ping --set retries=3",
    "mainspring jobs add nightly --schedule '0 2 * * *' --handler report --set timeout=10m",
    shared=read_options,
)
async def add(
    call: Call,
    options: dict[str, Any],
    job: str = argument("The id of the new job.", "JOB"),
) -> None:
    """Add a job, for a handler or for a URL to call."""
    async with call.client() as client:
        secret = _make_secret(client, options)
        try:
            added = await client.add_job(job, **options)
        except JobExists:
            raise CommandError(
                f"there is a job {job!r} already",
                code=FAILED,
                advice=f"`mainspring jobs update {job}` changes it",
            ) from None
        except InvalidInput as error:
            if error.field == "handler" and not {"handler", "webhook"} & options.keys():
                error.args = (f"{error}: mainspring jobs add {job} --handler NAME --schedule 5m",)
            raise _name_fields(error) from None
        _print_saved(
            call.output, "added", added, {} if secret is None else {"signing_secret": secret}
        )
        if secret is not None:
            call.output.line(f"signing secret, shown only now: {secret}")
        if added.webhook is not None and not added.webhook.signing:
            call.output.note(
                "its requests are not signed: set MAINSPRING_SECRET_KEY, which encrypts secrets,"
                f" then `mainspring jobs rotate-secret {added.id}`"
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


@command(
    group,
    "update",
    "mainspring jobs update ping --schedule 10m --set retries=5",
    shared=read_options,
)
async def update(call: Call, options: dict[str, Any], job: str = JOB_ARGUMENT) -> None:
    """Change a job that the API or the command line made. What is not named stays."""
    if not options:
        raise CommandError(
            "there is nothing to change",
            code=BAD_INPUT,
            advice=f"name what changes: mainspring jobs update {job} --set retries=3",
        )
    async with call.client() as client:
        before = await client.get_job(job)
        try:
            after = await client.update_job(job, **options)
        except InvalidInput as error:
            raise _name_fields(error) from None
    dropped = _dropped_headers(before, after)
    _print_saved(call.output, "updated", after, {"dropped_headers": dropped} if dropped else {})
    if dropped:
        call.output.note(_describe_dropped(before, after, dropped))


def _dropped_headers(before: Job, after: Job) -> list[str]:
    """The headers that an update has removed, in lower case."""
    from mainspring.webhooks.service import masked_headers

    if before.webhook is None or after.webhook is None:
        return []
    old, new = (
        {name.lower() for name in masked_headers(webhook)}
        for webhook in (before.webhook, after.webhook)
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
    output.document({**job_document(job), **(more or {})})
    if job.next_run_at is None:
        output.line(f"{done} {job.id}")
    else:
        output.line(f"{done} {job.id}: next run {output.moment(job.next_run_at)}")


@command(
    group,
    "rotate-secret",
    "mainspring jobs rotate-secret ping",
    "mainspring jobs rotate-secret ping --old-valid-for 0",
)
async def rotate_secret(
    call: Call,
    job: str = JOB_ARGUMENT,
    old_valid_for: timedelta = duration_option(
        "How long requests are also signed with the old secret, as in 1h.", default="24h"
    ),
) -> None:
    """Give a webhook job a new signing secret, and print it. It cannot be shown again.

    Give it to the receiver while requests are also signed with the old one.
    """
    async with call.client(with_code=True) as client:
        secret = await client.rotate_secret(job, old_valid_for=old_valid_for)
    call.output.document({"id": job, "signing_secret": secret})
    call.output.line(secret)
    call.output.note(f"the new signing secret of {job}, shown only now")


@command(group, "pause", "mainspring jobs pause daily_report")
async def pause(call: Call, job: str = JOB_ARGUMENT) -> None:
    """Pause a job's schedule. The job can still be triggered, and queued runs still run."""
    async with call.client() as client:
        paused = await client.pause_job(job)
    _print_saved(call.output, "paused", paused)


@command(group, "resume", "mainspring jobs resume daily_report")
async def resume(call: Call, job: str = JOB_ARGUMENT) -> None:
    """Resume a paused job's schedule with its next slot."""
    async with call.client() as client:
        resumed = await client.resume_job(job)
    _print_saved(call.output, "resumed", resumed)


ALL_FLAG = flag("--all", "Required: all jobs, on every node. For one job: mainspring jobs.")


@command(commands, "pause", "mainspring pause --all", panel=CHANGE)
async def pause_all(call: Call, everything: bool = ALL_FLAG) -> None:
    """Fire no slots of any job until `mainspring resume --all`.

    That holds on every node. Jobs are not changed. What is queued or triggered still runs. Slots
    that pass meanwhile do not run later.
    """
    _need_all("pause", everything)
    async with call.client() as client:
        since = await client.pause_all()
    call.output.document({"paused_since": iso(since)})
    call.output.line(f"all firing is paused since {iso_seconds(since)}")


@command(commands, "resume", "mainspring resume --all", panel=CHANGE)
async def resume_all(call: Call, everything: bool = ALL_FLAG) -> None:
    """Fire slots again, from now on. A job that was paused by itself stays paused."""
    _need_all("resume", everything)
    async with call.client() as client:
        resumed = await client.resume_all()
    call.output.document({"paused_since": None, "resumed": resumed})
    call.output.line("firing is resumed" if resumed else "firing was not paused")


def _need_all(verb: str, everything: bool) -> None:
    if not everything:
        raise CommandError(
            f"`mainspring {verb}` needs --all",
            code=BAD_INPUT,
            advice=f"one job: mainspring jobs {verb} JOB; all firing: mainspring {verb} --all",
        )


@command(group, "reset-breaker", "mainspring jobs reset-breaker call_api")
async def reset_breaker(call: Call, job: str = JOB_ARGUMENT) -> None:
    """Close a job's circuit breaker on all nodes. Its runs that are due start."""
    async with call.client() as client:
        opened = await client.reset_breaker(job)
    call.output.document({"id": job, "was_open": opened})
    if opened:
        call.output.line(f"closed the circuit breaker of {job}: its runs start again")
    else:
        call.output.line(
            f"the circuit breaker of {job} was closed already: its failures are forgotten"
        )


@command(group, "trigger", "mainspring jobs trigger daily_report")
async def trigger(call: Call, job: str = JOB_ARGUMENT) -> None:
    """Run a job now with its own payload, even if it is paused."""
    async with call.client(with_code=True) as client:
        run = await client.trigger(job)
    call.output.document(run_document(run))
    call.output.line(f"triggered {job}: run {run.id}" if call.output.pretty else run.id)


@command(group, "remove", "mainspring jobs remove old_report --force")
async def remove(
    call: Call,
    job: str = JOB_ARGUMENT,
    force: bool = flag(
        "--force", "Also remove a job that code defines, for when that code is gone."
    ),
) -> None:
    """Delete a job and cancel its pending runs. Running ones may end."""
    async with call.client() as client:
        await client.remove_job(job, force=force)
    call.output.document({"id": job, "removed": True})
    call.output.line(f"removed {job}")


@command(
    group,
    "prune-orphans",
    "mainspring jobs prune-orphans --dry-run",
    "mainspring jobs prune-orphans --yes --json",
)
async def prune_orphans(
    call: Call,
    dry_run: bool = flag("--dry-run", "List the jobs; remove none."),
    yes: bool = YES_FLAG,
    force: bool = flag("--force", "Even if no worker is alive to say which handlers exist."),
) -> None:
    """Remove jobs whose code is gone.

    These are jobs that code defined and whose handler no live worker has. Jobs that the API made
    stay. Pending runs of a removed job are cancelled.
    """
    output = call.output
    if not (yes or dry_run):
        call.check_can_ask("it removes jobs", "--dry-run lists the jobs, --yes removes them")
    async with call.client() as client:
        orphans = await client.prune_orphans(dry_run=dry_run or not yes, force=force)
        pending = 0 if yes or not orphans else await _count_unstarted(client, orphans)
        jobs, runs = plural(len(orphans), "job"), plural(pending, "pending run")
        if orphans and not yes:
            columns = job_columns(set(), {})
            output.table([c for c in columns if c.title not in ("state", "result")], orphans)
        if orphans and not (dry_run or yes):
            typer.confirm(f"Remove {jobs}, and cancel {runs}?", abort=True)
            orphans = await client.prune_orphans(force=force)
    names = [job.id for job in orphans]
    document = {"jobs": names, "removed": not dry_run}
    output.document({**document, "pending_runs": pending} if dry_run else document)
    if not orphans:
        output.note(
            "every job that code defines has its handler in a live worker: nothing to remove"
        )
    elif dry_run:
        output.note(
            f"{jobs} would be removed, and {runs} cancelled; --yes does both. If a function was"
            f" only renamed, {keeping_code(orphans[0])} on the new one keeps its job"
        )
    else:
        output.line(f"removed {plural(len(names), 'job')}: {', '.join(names)}")


async def _count_unstarted(client: Client, jobs: list[Job]) -> int:
    """How many runs the removal of these jobs would cancel."""
    counts = (await client.counts()).runs
    by_state = [counts.get(job.id, {}) for job in jobs]
    return sum(by.get(State.PENDING, 0) + by.get(State.WAITING, 0) for by in by_state)


def _read_setting(text: str) -> tuple[list[str], Any]:
    """The path and the value of one `--set`: `webhook.method=GET`."""
    from mainspring.scheduler.job_file import JOB_KEYS, read_value

    key, equals, value = text.partition("=")
    if not equals:
        raise CommandError(
            f"--set {text} gives no value",
            code=BAD_INPUT,
            advice=f"write KEY=VALUE, as in --set {key}=3",
        )
    path = key.split(".")
    if path[0] not in JOB_KEYS:
        raise UnknownOption([path[0]], JOB_KEYS, "key")
    if value != "none":
        return path, _value(value)
    if len(path) > 1:
        return path, None
    if key in _UNSET:
        return path, _UNSET[key]
    return path, read_value(key, value)


def _put(options: dict[str, Any], path: list[str], value: Any, text: str) -> None:
    held = options
    for part in path[:-1]:
        held = held.setdefault(part, {})
        if not isinstance(held, dict):
            raise CommandError(f"--set {text}: {part} has a value already", code=BAD_INPUT)
    if path[-1] in held:
        raise CommandError(f"--set {text}: {'.'.join(path)} is given twice", code=BAD_INPUT)
    held[path[-1]] = value


def _name_fields(error: InvalidInput) -> InvalidInput:
    """The error with the option at fault in each message that does not name it."""
    for fault in error.each():
        if fault.field and fault.subject is None and not isinstance(fault, UnknownOption):
            fault.args = (f"{fault.field}: {fault}",)
    error.__notes__ = []  # each is shown by itself
    return error


def _value(text: str) -> Any:
    """A JSON value, or the text itself: 3 is a number, 5m a text."""
    try:
        return jsonlib.loads(text)
    except ValueError:
        return text
