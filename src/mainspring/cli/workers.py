"""`mainspring workers`: lists the processes that work on runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from mainspring.cli import time_format
from mainspring.cli.options import AppOption, JsonOption, StoreOption, example, run_coroutine
from mainspring.cli.output import Column, Output, when, when_short
from mainspring.cli.store_access import StoreChoice, open_client

if TYPE_CHECKING:
    from mainspring.engine.live_workers import LiveWorker

__all__ = ["group"]

group = typer.Typer(help="List the processes that work on runs.")


@group.command("list", epilog=example("mainspring workers list", "mainspring workers list --json"))
def list_(store: StoreOption = None, app: AppOption = None, json: JsonOption = False) -> None:
    """List the workers that are alive. One that was killed is listed for up to 15 seconds."""
    run_coroutine(_list(StoreChoice.of(store, app), Output(as_json=json)))


async def _list(choice: StoreChoice, output: Output) -> None:
    async with open_client(choice) as client:
        workers = await client.list_workers()
    if output.as_json:
        output.document({"items": [worker.to_dict() for worker in workers]})
    elif not workers:
        output.note("no worker is alive: start one with `mainspring worker app:scheduler`")
    else:
        output.table(COLUMNS, workers)


def _queues(worker: LiveWorker) -> str:
    return "all" if worker.queues is None else ", ".join(sorted(worker.queues))


def _busy(worker: LiveWorker) -> str:
    return "-" if worker.capacity is None else f"{worker.running or 0} of {worker.capacity}"


def _memory(worker: LiveWorker) -> str:
    if worker.memory is None:
        return "-"
    used = f"{worker.memory / 1e6:.0f} MB"
    if worker.memory_limit is None:
        return used
    limit = f"{used} of {worker.memory_limit / 1e6:.0f}"
    return f"{limit} (limit reached)" if worker.memory_limit_reached else limit


COLUMNS: list[Column[Any]] = [
    Column("id", lambda worker: worker.id, whole=True, least=12),
    Column("leads", lambda worker: "yes" if worker.is_leader else "", whole=True),
    Column("fires", lambda worker: "yes" if worker.fires else "no", whole=True),
    Column("running", _busy, whole=True),
    Column("memory", _memory, whole=True, hide=2),
    Column("queues", _queues, least=6),
    Column("version", lambda worker: worker.version or "-", whole=True, hide=3),
    Column(
        "started",
        lambda worker: time_format.seconds(worker.started_at),
        lambda worker: when(worker.started_at),
        short=lambda worker: when_short(worker.started_at),
        whole=True,
        hide=1,
    ),
    Column(
        "seen",
        lambda worker: time_format.seconds(worker.seen_at),
        lambda worker: when(worker.seen_at),
        short=lambda worker: when_short(worker.seen_at),
        whole=True,
    ),
]
