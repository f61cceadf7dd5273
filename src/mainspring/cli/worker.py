"""`mainspring worker`: works until a signal; replaces a process that has too many stuck threads or
holds too much memory."""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import (
    FileOption,
    JsonOption,
    QuietOption,
    StoreOption,
    VerboseOption,
    check_memory_limit,
    example,
    read_duration,
    read_prune_interval,
    run_coroutine,
)
from mainspring.cli.worker_command import WorkerCommand

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler

__all__ = ["register"]

log = logging.getLogger("mainspring.worker")

Cause = Literal["memory", "threads"]

CHECK_INTERVAL = 1.0
"""Seconds between two checks for stuck threads, memory and the supervisor."""


def register(app: typer.Typer) -> None:
    app.command(
        "worker",
        epilog=example(
            "mainspring worker app:scheduler",
            "mainspring worker --file mainspring.toml",
            "mainspring worker app:scheduler --queues mail,default --workers 20 --processes 4",
        ),
    )(worker)


def worker(
    scheduler: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:ATTR",
            envvar="MAINSPRING_APP",
            help="A Scheduler, or a function without arguments that returns one.",
        ),
    ] = None,
    file: FileOption = None,
    store: StoreOption = None,
    queues: Annotated[
        str | None,
        typer.Option("--queues", metavar="A,B", help="Claim runs only from these queues."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            max=10_000,
            help="How many runs a process works on at once. Default: what the code says.",
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes", min=1, max=256, help="How many processes to start and keep running."
        ),
    ] = 1,
    leader_election: Annotated[
        bool | None,
        typer.Option(
            "--leader-election/--no-leader-election",
            help="Elect one process, in the store, to fire slots first. Default: what the code"
            " says.",
            show_default=False,
        ),
    ] = None,
    prune_every: Annotated[
        str | None,
        typer.Option(
            "--prune-every",
            metavar="DURATION",
            help="How often finished runs are deleted that need not be kept, as in 10m. Default:"
            " what the code or the file says.",
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            "--memory-limit",
            metavar="SIZE",
            help="Replace a process that holds so much memory, as in 1GB or 512MiB. Default: what"
            " the code says.",
        ),
    ] = None,
    drain_timeout: Annotated[
        str,
        typer.Option(
            "--drain-timeout",
            metavar="DURATION",
            help="How long running work may take to end after the first signal, or at the memory"
            " limit, as in 90s or 5m.",
        ),
    ] = "30s",
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
    supervisor: Annotated[int | None, typer.Option(hidden=True)] = None,
    process_number: Annotated[int, typer.Option(hidden=True)] = 1,
) -> None:
    """Fire schedules and work on runs until SIGTERM or Ctrl+C.

    After the first signal running work may end; a second signal ends the process at once, and
    another worker rescues what was running when its lease lapses. With --json the start is printed
    as one JSON document, and logs are JSON lines.
    """
    _check_source(scheduler, file, store)
    command = WorkerCommand(
        app=scheduler,
        file=file,
        store=store,
        queues=_names(queues),
        workers=workers,
        leader_election=leader_election,
        prune_every=read_prune_interval(prune_every),
        memory_limit=check_memory_limit(memory_limit),
        drain_timeout=read_duration(drain_timeout, "--drain-timeout"),
        verbose=verbose,
        quiet=quiet,
        as_json=json,
        supervisor=supervisor,
        process_number=process_number,
    )
    if processes > 1:
        from mainspring.cli.supervisor import supervise

        raise typer.Exit(supervise(command, processes))
    _work(command)


def _work(command: WorkerCommand) -> None:
    from mainspring.cli.replacement import (
        Replacements,
        end_quietly_on_signals,
        replace_process,
    )

    folder = os.getcwd()
    with end_quietly_on_signals():
        scheduler = _prepare_scheduler(command)
        replacements = Replacements()
        cause = run_coroutine(_run(scheduler, command))
        if cause == "memory":
            time.sleep(replacements.pause())  # after the drain: no run goes on meanwhile
        if cause is not None:
            replace_process(command.line(), folder)


def _prepare_scheduler(command: WorkerCommand) -> Scheduler:
    from mainspring.cli import log_format
    from mainspring.cli.store_access import warn_of_other_store

    scheduler = _load_scheduler(command)
    log_format.set_up(
        verbose=command.verbose,
        quiet=command.quiet,
        as_json=command.as_json,
        several_processes=command.supervisor is not None,
    )
    if command.app is not None and command.process_number == 1:
        warn_of_other_store(scheduler, command.app)
    scheduler.configure(
        workers=command.workers,
        queues=command.queues,
        leader_election=command.leader_election,
        prune_every=command.prune_every,
        memory_limit=command.memory_limit,
        drain_timeout=command.drain_timeout,
        # Each run only on a terminal: a worker may do thousands a second.
        log_each_run=command.verbose or sys.stderr.isatty(),
    )
    if scheduler.workers == 0:
        raise CommandError(
            f"{command.app or command.file} has workers=0, so it only enqueues",
            code=BAD_INPUT,
            advice="give the number of runs to work on at once: --workers 10",
        )
    return scheduler


def _load_scheduler(command: WorkerCommand) -> Scheduler:
    """The app's scheduler, or a new one for a file of jobs."""
    from mainspring.cli.app_loader import load_scheduler
    from mainspring.cli.store_access import StoreChoice
    from mainspring.scheduler import Scheduler

    if command.app is not None:
        scheduler = load_scheduler(command.app)
        if command.file is not None:
            scheduler.define_jobs(command.file)
        return scheduler
    assert command.file is not None
    url = StoreChoice.of(command.store, None).url
    assert url is not None
    return Scheduler(url, jobs=command.file)


def _check_source(app: str | None, file: str | None, store: str | None) -> None:
    if app is None and file is None:
        raise CommandError(
            "name the scheduler to run, or a file of jobs",
            code=BAD_INPUT,
            advice="mainspring worker app:scheduler, or mainspring worker --file mainspring.toml",
        )
    if app is not None and store is not None:
        raise CommandError(
            f"the scheduler {app} names its own store: use --store only with --file, without an"
            " app",
            code=BAD_INPUT,
        )


async def _run(scheduler: Scheduler, command: WorkerCommand) -> Cause | None:
    """Work until a signal. Returns why the process should be replaced, if it should."""
    import asyncio

    from mainspring.cli.gc_tuning import tune_garbage_collector
    from mainspring.scheduler.run_forever import run_until_signal

    cause: Cause | None = None

    async def watch() -> None:
        nonlocal cause
        tune_garbage_collector()
        if command.process_number == 1 and not command.quiet:
            await _start_printed(scheduler, command)
        while (cause := await _cause_to_replace(scheduler)) is None:
            if command.supervisor not in (None, os.getppid()):
                log.warning("the supervising process is gone")
                return
            await asyncio.sleep(CHECK_INTERVAL)

    stopped = await run_until_signal(
        scheduler.start,
        scheduler.stop,
        scheduler.drain_soon,
        scheduler.memory_drained,
        watch=watch,
        drain_timeout=command.drain_timeout,
    )
    return None if stopped else cause


async def _start_printed(scheduler: Scheduler, command: WorkerCommand) -> None:
    from mainspring.cli.start_output import print_start
    from mainspring.errors import MainspringError

    try:
        await print_start(scheduler, as_json=command.as_json)
    except MainspringError as error:  # a store that went away again: the engine waits for it
        log.warning("could not read the jobs: %s", error)


async def _cause_to_replace(scheduler: Scheduler) -> Cause | None:
    """Why the process has to be replaced: it has reached its memory limit, or threads that outlived
    their attempt take half of the capacity or more."""
    try:
        health = await scheduler.health()
    except Exception:
        log.exception("could not check the worker's health")
        return None
    if health.memory_limit_reached:
        return "memory"
    if not health.stuck_threads or 2 * health.stuck_threads < health.workers:
        return None
    log.warning(
        "threads that outlived their timeout take %d of the worker's capacity of %d: this process"
        " is replaced",
        health.stuck_threads,
        health.workers,
    )
    return "threads"


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise CommandError(
            "--queues names no queue",
            code=BAD_INPUT,
            advice="give names, as in --queues mail,default",
        )
    return names
