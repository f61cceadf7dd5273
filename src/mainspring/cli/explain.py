"""`mainspring explain`: says why a job or a run did not run."""

from __future__ import annotations

from datetime import datetime, time
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from mainspring.cli import completion
from mainspring.cli.job_plan import describe_last_run
from mainspring.cli.options import AppOption, JsonOption, StoreOption, example, run_coroutine
from mainspring.cli.output import Output
from mainspring.cli.run_lookup import find_run_id
from mainspring.cli.store_access import StoreChoice, open_client
from mainspring.errors import JobNotFound, RunNotFound

if TYPE_CHECKING:
    from mainspring.scheduler import Client

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    app.command(
        "explain",
        epilog=example(
            "mainspring explain daily_report",
            "mainspring explain daily_report 2026-11-16T09:00",
            "mainspring explain daily_report@20261116T033000Z",
        ),
    )(explain)


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="JOB|RUN",
            help="The id of a job or of a run; of a run also its beginning.",
            autocompletion=completion.job_ids,
        ),
    ],
    at: Annotated[
        str | None,
        typer.Argument(
            metavar="TIME",
            help="A slot of the job: ISO 8601, or 09:00 for today; without an offset, in the job's"
            " time zone.",
            show_default=False,
        ),
    ] = None,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a job or a run has not run. With TIME: why the job did not run then.

    Of a job also how its last run ended."""
    run_coroutine(_explain(StoreChoice.of(store, app), Output(as_json=json), name, at))


async def _explain(choice: StoreChoice, output: Output, name: str, at: str | None) -> None:
    async with open_client(choice) as client:
        moment = None if at is None else await _moment(client, name, at)
        try:
            found = await client.explain(name, moment)
        except JobNotFound as unknown:
            found = await client.explain(await _find_run(client, name, unknown), moment)
        is_about_job = found.job_id == name and moment is None
        last = (await client.job_health(name)).last_run if is_about_job else None
    if output.as_json:
        document = structs.asdict(found)
        output.document({**document, "last_run": last} if is_about_job else document)
        return
    output.line(f"{found.run_id or found.job_id}: {found.sentence}")
    if last is not None and (last.error or last.id not in found.sentence):
        output.line(f"its last run {last.id} {describe_last_run(last)}")


async def _find_run(client: Client, name: str, unknown: JobNotFound) -> str:
    """The run whose id begins so. If there is none, a job was probably meant."""
    try:
        return await find_run_id(client, name)
    except RunNotFound:
        raise unknown from None


async def _moment(client: Client, job_id: str, text: str) -> datetime:
    from mainspring.core.schedules.base import moment
    from mainspring.core.schedules.zones import zone_named

    job = await client.get_job(job_id)
    zone = job.schedule.timezone if job.schedule is not None else client.timezone
    try:
        today = (await client.now()).astimezone(zone_named(zone)).date()
        return moment(datetime.combine(today, time.fromisoformat(text)), zone, "TIME")
    except ValueError:
        return moment(text, zone, "TIME")
