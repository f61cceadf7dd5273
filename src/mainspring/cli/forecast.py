"""`mainspring schedule` lists the next runs of a schedule; `mainspring forecast` shows the load of
all schedules. They run nothing and write nothing."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import typer

from mainspring.cli.app_loader import load_scheduler
from mainspring.cli.command import (
    APP_TO_LOAD_OPTION,
    PLAN,
    STORE_OPTION,
    Call,
    argument,
    command,
    either_app,
    option,
    run_coroutine,
)
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.output import Column, Output, iso, iso_seconds, relative
from mainspring.cli.store_access import StoreChoice, open_client
from mainspring.core.clock import utcnow
from mainspring.core.durations import humanize, humanize_measured
from mainspring.core.forecast import forecast_load
from mainspring.core.model import replace
from mainspring.core.plurals import list_some, plural
from mainspring.core.schedules import parse
from mainspring.core.schedules.base import moment
from mainspring.core.schedules.zones import zone_named

if TYPE_CHECKING:
    from mainspring.core.forecast import Collision, Forecast, JobLoad, Overrun

commands = typer.Typer()

LOOK_AHEAD = timedelta(days=366)
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
ASCII_SHADES, SHADES = " .:-=+*#%@", " ░▒▓█"
MOST_ROWS = 10
MOST_JOBS = 3


@command(
    commands,
    "schedule",
    'mainspring schedule "0 9 * * 1-5" --timezone Asia/Kolkata -n 10',
    'mainspring schedule "30 2 * * *" --timezone Europe/Berlin',
    'mainspring schedule "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17"',
    panel=PLAN,
    uses_store=False,
)
def schedule(
    call: Call,
    expression: str = argument("Cron, a macro, an interval, a date-time or an RRULE.", "SCHEDULE"),
    timezone: str | None = option(
        "The time zone. Default: the one that the schedule names, else UTC",
        "ZONE",
        "--timezone",
        "--tz",
    ),
    count: int = option(
        "How many runs to list.", "NUMBER", "-n", "--count", default=5, min=1, max=1000
    ),
) -> None:
    """Describe a schedule and list its next runs. Warns of daylight saving changes."""
    now, output = utcnow(), call.output
    parsed = parse(expression, timezone=timezone)
    slots = parsed.upcoming(count, now)
    warnings = parsed.warnings(now, now + LOOK_AHEAD)
    there = zone_named(parsed.timezone)
    output.document(
        {
            "schedule": parsed.to_dict(),
            "description": parsed.describe(),
            "timezone": parsed.timezone,
            "upcoming": [
                {"utc": iso(slot), "local": slot.astimezone(there).isoformat()} for slot in slots
            ],
            "warnings": warnings,
        }
    )
    output.line(parsed.describe(), style="bold")
    if not slots:
        output.line("the schedule is over: there is no next run")
        return
    local: Column[datetime] = Column(
        parsed.timezone,
        lambda slot: slot.astimezone(there).isoformat(timespec="seconds"),
        lambda slot: f"{slot.astimezone(there):%a %Y-%m-%d %H:%M:%S %Z}",
    )
    columns: list[Column[datetime]] = [
        Column("UTC", iso_seconds, lambda slot: f"{slot:%Y-%m-%d %H:%M:%S}"),
        Column("", lambda slot: relative(slot, now)),
    ]
    output.table(columns if parsed.timezone == "UTC" else [local, *columns], slots)
    for line in warnings:
        output.line(f"warning: {line}", style="yellow")


@command(
    commands,
    "forecast",
    "mainspring forecast app:scheduler",
    "mainspring forecast --store sqlite:///mainspring.db --days 7 --timezone Europe/Berlin",
    "mainspring forecast --file mainspring.toml --from 2027-03-01 --json",
    panel=PLAN,
    uses_store=False,
)
def forecast(
    call: Call,
    app: str | None = argument(
        "The jobs that this scheduler's code defines. Without it: the jobs of the store.",
        "MODULE:ATTR",
        default=None,
    ),
    days: int = option("How many days.", "NUMBER", default=30, min=1, max=366),
    start: str | None = option("The first day, as in 2027-03-01. Default: now", "DATE", "--from"),
    timezone: str | None = option(
        "The zone of hours and weekdays. Default: the app's or the file's, else UTC",
        "ZONE",
        "--timezone",
        "--tz",
    ),
    file: str | None = option(
        "The jobs of this file, such as mainspring.toml. No handler is imported.", "FILE"
    ),
    app_option: str | None = APP_TO_LOAD_OPTION,
    store: str | None = STORE_OPTION,
) -> None:
    """Forecast the load of schedules.

    Shows runs by hour and weekday, collisions, clock changes and overruns. It reads jobs, runs no
    handler and writes nothing. Past runs, which show jobs that take longer than their interval, are
    read from a store.
    """
    app = either_app(app, app_option)
    if sum(given is not None for given in (app, file, store)) > 1:
        raise CommandError("give one of MODULE:ATTR, --file and --store", code=BAD_INPUT)
    if app is not None:
        load = _forecast_code(app, days, start, timezone)
    elif file is not None:
        load = run_coroutine(_forecast_file(file, days, start, timezone))
    else:
        load = run_coroutine(_forecast_store(StoreChoice.of(store, None), days, start, timezone))
    call.output.document(_document(load))
    _print(call.output, load)


def _forecast_code(app: str, days: int, start: str | None, timezone: str | None) -> Forecast:
    scheduler = load_scheduler(app)
    zone = timezone or scheduler.timezone
    now = _parse_start(start, zone) or utcnow()
    jobs = [
        replace(job, schedule=None if job.schedule is None else job.schedule.bind(job.id, now))
        for job in scheduler.code_jobs
    ]
    return forecast_load(jobs, now, days, zone)


async def _forecast_file(file: str, days: int, start: str | None, timezone: str | None) -> Forecast:
    from mainspring.scheduler import Client
    from mainspring.scheduler.job_file import read_job_file

    zone = timezone or read_job_file(file).timezone or "UTC"
    async with Client("memory://", inline=True) as client:
        await client.apply_jobs(file, with_handlers=False)
        return await client.forecast(days, start=_parse_start(start, zone), timezone=zone)


async def _forecast_store(
    choice: StoreChoice, days: int, start: str | None, timezone: str | None
) -> Forecast:
    zone = timezone or "UTC"
    first = _parse_start(start, zone)
    async with open_client(choice) as client:
        return await client.forecast(days, start=first, timezone=zone)


def _parse_start(text: str | None, zone: str) -> datetime | None:
    return None if text is None else moment(text, zone, "--from")


# As JSON


def _document(load: Forecast) -> dict[str, Any]:
    document = asdict(load)
    document["start"], document["end"] = iso(load.start), iso(load.end)
    document["heat"] = dict(zip(WEEKDAYS, document["heat"], strict=True))
    return document


# For people


def _print(output: Output, load: Forecast) -> None:
    zone = zone_named(load.timezone)
    last = f"{(load.end - timedelta(microseconds=1)).astimezone(zone):%Y-%m-%d}"
    first = f"{load.start.astimezone(zone):%Y-%m-%d}"
    output.line(
        f"{plural(load.runs, 'run')} of {plural(len(load.jobs), 'job')} from {first} to {last}"
        f" ({load.timezone})",
        style="bold",
    )
    left_out = [f"{load.paused} paused"] if load.paused else []
    left_out += [f"{load.unscheduled} without a schedule"] if load.unscheduled else []
    if left_out:
        output.line(f"not counted: {', '.join(left_out)}")
    if not load.jobs:
        return
    _print_heat(output, load)
    _print_jobs(output, load)
    _print_collisions(output, load)
    _print_overruns(output, load)
    for change in load.clock_changes[:MOST_ROWS]:
        output.line(
            f"clock change: {change.effect}: {list_some(change.jobs, MOST_JOBS)}", style="yellow"
        )
    for suggestion in load.suggestions[:MOST_ROWS]:
        output.line(
            f"suggestion: {suggestion.advice}. At most {suggestion.most_after} of them start at"
            f" once then, not {suggestion.most_before}",
            style="green",
        )
        for job_id, schedule in list(suggestion.schedules.items())[:MOST_JOBS]:
            output.line(f"    {job_id}: {schedule}")
        if len(suggestion.schedules) > MOST_JOBS:
            output.line(f"    and {len(suggestion.schedules) - MOST_JOBS} more (--json lists them)")
    for note in load.notes:
        output.line(f"note: {note}")


def _print_heat(output: Output, load: Forecast) -> None:
    shades = SHADES if output.pretty else ASCII_SHADES
    most = max(max(row) for row in load.heat)
    output.line()
    output.line("     " + "".join(f"{hour:<3}" for hour in range(24)).rstrip())
    for day, row in zip(WEEKDAYS, load.heat, strict=True):
        cells = "".join(f"{_shade(mean, most, shades) * 2} " for mean in row)
        output.line(f"{day}  {cells.rstrip()}".rstrip())
    output.line(f"darkest: {most:g} {'run' if most == 1 else 'runs'} in an hour")
    output.line()


def _shade(mean: float, most: float, shades: str) -> str:
    if mean <= 0:
        return shades[0]
    return shades[1 + min(int(mean / most * (len(shades) - 1)), len(shades) - 2)]


def _print_jobs(output: Output, load: Forecast) -> None:
    columns: list[Column[JobLoad]] = [
        Column("job", lambda job: job.job_id, whole=True),
        Column("runs", lambda job: f"{job.runs:,}"),
        Column("schedule", lambda job: job.schedule),
    ]
    output.table(columns, load.jobs[:MOST_ROWS])
    if len(load.jobs) > MOST_ROWS:
        output.line(f"and {plural(len(load.jobs) - MOST_ROWS, 'more job')} (--json lists all)")


def _print_collisions(output: Output, load: Forecast) -> None:
    if not load.collisions:
        return
    columns: list[Column[Collision]] = [
        Column("starts at", lambda collision: collision.time, whole=True),
        Column("jobs at once", lambda collision: str(collision.most)),
        Column("days", lambda collision: str(collision.days)),
        Column("jobs", lambda collision: list_some(collision.jobs, MOST_JOBS)),
    ]
    output.line()
    output.table(columns, load.collisions[:MOST_ROWS])


def _print_overruns(output: Output, load: Forecast) -> None:
    if not load.overruns:
        return
    columns: list[Column[Overrun]] = [
        Column("overrun", lambda overrun: overrun.job_id, whole=True),
        Column("takes (p95)", lambda overrun: humanize_measured(overrun.p95_duration)),
        Column("due every", lambda overrun: humanize(timedelta(seconds=overrun.interval))),
        Column("effect", lambda overrun: overrun.effect),
    ]
    output.line()
    output.table(columns, load.overruns[:MOST_ROWS])
