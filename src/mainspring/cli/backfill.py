"""`mainspring backfill`: runs past slots of a job that have not run."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import typer
from msgspec import structs

from mainspring.cli import time_format
from mainspring.cli.command import RUN, Call, command
from mainspring.cli.errors import FAILED, CommandError
from mainspring.cli.options import JOB_ARGUMENT, flag, option
from mainspring.cli.output import Output, progress_bar
from mainspring.core.plurals import plural
from mainspring.core.schedules.base import moment

if TYPE_CHECKING:
    from mainspring.engine.backfill import Backfill
    from mainspring.scheduler import Client

commands = typer.Typer()


@command(
    commands,
    "backfill",
    "mainspring backfill daily_report --from 2026-11-01 --to 2026-11-08 --dry-run",
    "mainspring backfill import_hour --from 2026-01-01 --limit 5000",
    panel=RUN,
)
async def backfill(
    call: Call,
    job: str = JOB_ARGUMENT,
    start: str = option(
        "The first slot: ISO 8601; without an offset, in the job's time zone.",
        "TIME",
        "--from",
        default=...,
    ),
    end: str | None = option("Slots before this time. Default: now.", "TIME", "--to"),
    limit: int | None = option(
        "Add at most this many, earliest slot first. Needed above 1,000 slots.", "NUMBER", min=1
    ),
    priority: int = option("0 to 9; higher runs first.", "NUMBER", default=0),
    dry_run: bool = flag("--dry-run", "Only say what would be run."),
) -> None:
    """Run the slots of a job that have not run. Slots that have a run are left alone."""
    async with call.client() as client:
        first, last = await _range(client, job, start, end)
        done = 0
        with progress_bar(quiet=call.output.as_json) as move:

            def count(slots: int, total: int) -> None:
                nonlocal done
                done = slots
                move(slots, total)

            try:
                result = await client.backfill(
                    job,
                    first,
                    last,
                    limit=limit,
                    priority=priority,
                    dry_run=dry_run,
                    progress=count,
                )
            except asyncio.CancelledError:
                raise CommandError(
                    f"stopped after {plural(done, 'slot')}",
                    code=FAILED,
                    advice="the same command goes on: slots that have a run are left alone",
                ) from None
    output = call.output
    output.document({"job_id": job, "dry_run": dry_run, **structs.asdict(result)})
    _print(output, result, dry_run=dry_run)


async def _range(
    client: Client, job_id: str, start: str, end: str | None
) -> tuple[datetime, datetime]:
    job = await client.get_job(job_id)
    zone = job.schedule.timezone if job.schedule is not None else "UTC"
    first = moment(start, zone, "--from")
    return first, await client.now() if end is None else moment(end, zone, "--to")


def _print(output: Output, result: Backfill, *, dry_run: bool) -> None:
    verb = "would be added" if dry_run else "added"
    count = len(result.added)
    output.line(
        f"{plural(result.slots, 'slot')} of {result.job_id}:"
        f" {plural(count, 'run')} {verb}, {len(result.existing):,} left alone"
    )
    states = Counter(state.value for state in result.existing.values())
    for state, number in sorted(states.items()):
        output.line(f"  {number:,} {state}")
    if result.first_slot is not None:
        output.note(
            f"the schedule, as it is now, has no slot before {time_format.iso(result.first_slot)}:"
            " an interval counts from when its job was first stored, or from its start"
        )
    if result.may_have_run:
        output.note(
            f"{result.may_have_run:,} of these slots are older than the runs that are kept: if they"
            " ran, their runs have been deleted since, and they run again"
        )
    if states.get("failed"):
        output.note("a failed run is tried again by `mainspring runs retry`")
    if result.next_slot is not None:
        output.note(f"the limit is reached; the next slot is {time_format.iso(result.next_slot)}")
