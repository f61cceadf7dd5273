"""`mainspring explain` says why a job or a run did not run; `mainspring workflow` draws what
belongs to it."""

from __future__ import annotations

from datetime import datetime, time
from typing import TYPE_CHECKING

import typer
from msgspec import structs

from mainspring.cli.command import INSPECT, Call, argument, command, complete_job
from mainspring.cli.jobs import describe_last_run
from mainspring.cli.runs import find_run_id
from mainspring.core.schedules.base import moment
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import JobNotFound, RunNotFound

if TYPE_CHECKING:
    from mainspring.scheduler import Client

commands = typer.Typer()


@command(
    commands,
    "explain",
    "mainspring explain daily_report",
    "mainspring explain daily_report 2026-11-16T09:00",
    "mainspring explain daily_report@20261116T033000Z",
    panel=INSPECT,
)
async def explain(
    call: Call,
    name: str = argument(
        "The id of a job or of a run; of a run also its beginning.",
        "JOB|RUN",
        autocompletion=complete_job,
    ),
    at: str | None = argument(
        "A slot of the job: ISO 8601, or 09:00 for today; without an offset, in the job's"
        " time zone.",
        "TIME",
        default=None,
    ),
) -> None:
    """Say why a job or a run has not run. With TIME: why the job did not run then.

    Of a job also how its last run ended."""
    async with call.client() as client:
        moment = None if at is None else await _moment(client, name, at)
        try:
            why = await client.explain(name, moment)
        except JobNotFound as unknown:
            why = await client.explain(await _find_run(client, name, unknown), moment)
        is_about_job = why.job_id == name and moment is None
        last = (await client.job_health(name)).last_run if is_about_job else None
    document = structs.asdict(why)
    call.output.document({**document, "last_run": last} if is_about_job else document)
    call.output.line(f"{why.run_id or why.job_id}: {why.sentence}")
    if last is not None and (last.error or last.id not in why.sentence):
        call.output.line(f"its last run {last.id} {describe_last_run(last)}")


async def _find_run(client: Client, name: str, unknown: JobNotFound) -> str:
    """The run whose id begins so. If there is none, a job was probably meant."""
    try:
        return await find_run_id(client, name)
    except RunNotFound:
        raise unknown from None


async def _moment(client: Client, job_id: str, text: str) -> datetime:
    job = await client.get_job(job_id)
    zone = job.schedule.timezone if job.schedule is not None else client.timezone
    try:
        today = (await client.now()).astimezone(zone_named(zone)).date()
        return moment(datetime.combine(today, time.fromisoformat(text)), zone, "TIME")
    except ValueError:
        return moment(text, zone, "TIME")


@command(
    commands,
    "workflow",
    "mainspring workflow extract",
    "mainspring workflow report@20260301T090000Z",
    panel=INSPECT,
)
async def workflow(
    call: Call,
    name: str = argument("The id of a job or of a run.", "JOB|RUN", autocompletion=complete_job),
) -> None:
    """Draw the workflow of a job or a run, with the state of each run."""
    async with call.client() as client:
        tree = await client.workflow(name)
    call.output.document(tree.to_dict())
    for line in tree.text().splitlines():
        call.output.line(line)
    if not tree.complete:
        call.output.line("There may be more runs: only the newest 10,000 were searched.")
