"""`mainspring pause --all` and `mainspring resume --all`: stop and restart all firing."""

from __future__ import annotations

from typing import Annotated

import typer

from mainspring.cli import time_format
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import AppOption, JsonOption, StoreOption, example, run_coroutine
from mainspring.cli.output import Output
from mainspring.cli.store_access import StoreChoice, open_client

__all__ = ["register"]

AllOption = Annotated[bool, typer.Option("--all", help="All jobs, on every node.")]


def register(app: typer.Typer) -> None:
    app.command("pause", epilog=example("mainspring pause --all"))(pause)
    app.command("resume", epilog=example("mainspring resume --all"))(resume)


def pause(
    everything: AllOption = False,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Fire no slots of any job until `mainspring resume --all`.

    That holds on every node. Jobs are not changed. What is queued or triggered still runs. Slots
    that pass meanwhile do not run later.
    """
    _need_all("pause", everything)
    run_coroutine(_pause(StoreChoice.of(store, app), Output(as_json=json)))


def resume(
    everything: AllOption = False,
    store: StoreOption = None,
    app: AppOption = None,
    json: JsonOption = False,
) -> None:
    """Fire slots again, from now on. A job that was paused by itself stays paused."""
    _need_all("resume", everything)
    run_coroutine(_resume(StoreChoice.of(store, app), Output(as_json=json)))


async def _pause(choice: StoreChoice, output: Output) -> None:
    async with open_client(choice) as client:
        since = await client.pause_all()
    if output.as_json:
        output.document({"paused_since": time_format.iso(since)})
    else:
        output.line(f"all firing is paused since {time_format.seconds(since)}")


async def _resume(choice: StoreChoice, output: Output) -> None:
    async with open_client(choice) as client:
        resumed = await client.resume_all()
    if output.as_json:
        output.document({"paused_since": None, "resumed": resumed})
    else:
        output.line("firing is resumed" if resumed else "firing was not paused")


def _need_all(verb: str, everything: bool) -> None:
    if not everything:
        raise CommandError(
            f"`mainspring {verb}` needs --all",
            code=BAD_INPUT,
            advice=f"one job: mainspring jobs {verb} JOB; all firing: mainspring {verb} --all",
        )
