"""`mainspring schedule`: describes a schedule and lists its next runs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from mainspring.cli import time_format
from mainspring.cli.options import JsonOption, example
from mainspring.cli.output import Column, Output

if TYPE_CHECKING:
    from mainspring.core.schedules import Schedule

__all__ = ["register"]

LOOK_AHEAD = timedelta(days=366)


def register(app: typer.Typer) -> None:
    app.command(
        "schedule",
        epilog=example(
            'mainspring schedule "0 9 * * 1-5" --timezone Asia/Kolkata -n 10',
            'mainspring schedule "30 2 * * *" --timezone Europe/Berlin',
            'mainspring schedule "RRULE:FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17"',
        ),
    )(schedule)


def schedule(
    expression: Annotated[
        str,
        typer.Argument(
            metavar="SCHEDULE", help="Cron, a macro, an interval, a date-time or an RRULE."
        ),
    ],
    timezone: Annotated[
        str | None,
        typer.Option(
            "--timezone",
            "--tz",
            metavar="ZONE",
            help="The time zone. Default: the one that the schedule names, else UTC",
        ),
    ] = None,
    count: Annotated[
        int, typer.Option("-n", "--count", min=1, max=1000, help="How many runs to list.")
    ] = 5,
    json: JsonOption = False,
) -> None:
    """Describe a schedule and list its next runs. Warns of daylight saving changes."""
    from mainspring.core.clock import utcnow
    from mainspring.core.schedules import parse

    now = utcnow()
    made = parse(expression, timezone=timezone)
    zone = made.timezone
    slots = made.upcoming(count, now)
    warnings = made.warnings(now, now + LOOK_AHEAD)
    output = Output(as_json=json)
    if json:
        output.document(_document(made, zone, slots, warnings))
    else:
        _print(output, made, zone, slots, warnings, now)


def _document(
    made: Schedule, zone: str, slots: list[datetime], warnings: list[str]
) -> dict[str, object]:
    from mainspring.core.schedules.zones import zone_named

    there = zone_named(zone)
    return {
        "schedule": made.to_dict(),
        "description": made.describe(),
        "timezone": zone,
        "upcoming": [
            {"utc": time_format.iso(slot), "local": slot.astimezone(there).isoformat()}
            for slot in slots
        ],
        "warnings": warnings,
    }


def _print(
    output: Output,
    made: Schedule,
    zone: str,
    slots: list[datetime],
    warnings: list[str],
    now: datetime,
) -> None:
    from mainspring.core.schedules.zones import zone_named

    there = zone_named(zone)
    output.line(made.describe(), style="bold")
    if not slots:
        output.line("the schedule is over: there is no next run")
        return
    utc: Column[datetime] = Column(
        "UTC", time_format.seconds, lambda slot: f"{slot:%Y-%m-%d %H:%M:%S}"
    )
    local: Column[datetime] = Column(
        zone,
        lambda slot: slot.astimezone(there).isoformat(timespec="seconds"),
        lambda slot: f"{slot.astimezone(there):%a %Y-%m-%d %H:%M:%S %Z}",
    )
    away: Column[datetime] = Column("", lambda slot: time_format.relative(slot, now))
    columns = [utc, away] if zone == "UTC" else [local, utc, away]
    output.table(columns, slots)
    for line in warnings:
        output.line(f"warning: {line}", style="yellow")
