"""`mainspring worker`: works until a signal; replaces a process that has too many stuck threads or
holds too much memory. `mainspring workers` lists the processes that work."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import typer

from mainspring.cli.app_loader import load_scheduler
from mainspring.cli.command import (
    APP_TO_LOAD_ARGUMENT,
    APP_TO_LOAD_OPTION,
    FILE_OPTION,
    QUIET_FLAG,
    RUN,
    STORE_OPTION,
    VERBOSE_FLAG,
    Call,
    command,
    duration_option,
    either_app,
    flag,
    memory_option,
    option,
    prune_option,
    run_coroutine,
)
from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.jobs import SCHEDULE_OVER, describe_plan, is_over
from mainspring.cli.output import Column, Output, iso, relative, time_column
from mainspring.cli.processes import (
    Place,
    Replacements,
    end_quietly_on_signals,
    replace_process,
    set_up_log,
    supervise,
    tune_garbage_collector,
)
from mainspring.cli.store_access import LocatedStore, StoreChoice, warn_of_other_store
from mainspring.core.clock import utcnow
from mainspring.core.plurals import plural
from mainspring.engine.jobs_without_worker import without_worker
from mainspring.errors import MainspringError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from mainspring.cli.processes import Place
    from mainspring.core.model import Job, Page
    from mainspring.engine.live_workers import LiveWorker
    from mainspring.scheduler import Scheduler

log = logging.getLogger("mainspring.worker")

Cause = Literal["memory", "threads"]

CHECK_INTERVAL = 1.0
"""Seconds between two checks for stuck threads, memory and the supervisor."""


MOST_JOBS = 20
"""Jobs that are listed, those that run next first; of more only the number is shown."""

MOST_JOBS_IN_JSON = 1000

commands = typer.Typer()
group = typer.Typer(help="List the processes that work on runs.")


@command(
    commands,
    "worker",
    "mainspring worker app:scheduler",
    "mainspring worker --file mainspring.toml",
    "mainspring worker app:scheduler --queues mail,default --workers 20 --processes 4",
    panel=RUN,
    uses_store=False,
)
def worker(
    call: Call,
    app: str | None = APP_TO_LOAD_ARGUMENT,
    app_option: str | None = APP_TO_LOAD_OPTION,
    file: str | None = FILE_OPTION,
    store: str | None = STORE_OPTION,
    queues: str | None = option("Claim runs only from these queues.", "A,B"),
    workers: int | None = option(
        "How many runs a process works on at once. Default: what the code says.",
        "NUMBER",
        min=1,
        max=10000,
    ),
    processes: int = option(
        "How many processes to start and keep running.", "NUMBER", default=1, min=1, max=256
    ),
    leader_election: bool | None = flag(
        "--leader-election/--no-leader-election",
        "Elect one process, in the store, to fire slots first. Default: what the code says.",
        default=None,
    ),
    prune_every: timedelta | None = prune_option(
        "How often old finished runs are deleted, as in 10m. Default: what the code or the file"
        " says."
    ),
    memory_limit: int | None = memory_option(
        "Replace a process that holds so much memory, as in 1GB or 512MiB. Default: what"
        " the code says."
    ),
    drain_timeout: timedelta = duration_option(
        "How long running work may take to end after the first signal, or at the memory"
        " limit, as in 90s or 5m.",
        default="30s",
    ),
    verbose: bool = VERBOSE_FLAG,
    quiet: bool = QUIET_FLAG,
) -> None:
    """Fire schedules and work on runs until SIGTERM or Ctrl+C.

    After the first signal running work may end; a second signal ends the process at once, and
    another worker rescues what was running when its lease lapses. With --json the start is printed
    as one JSON document, and logs are JSON lines.
    """
    app = either_app(app, app_option) or os.environ.get("MAINSPRING_APP") or None
    _check_source(app, file, store)
    settings: dict[str, Any] = {
        "queues": _names(queues),
        "workers": workers,
        "leader_election": leader_election,
        "prune_every": prune_every,
        "memory_limit": memory_limit,
        "drain_timeout": drain_timeout,
        # Each run only on a terminal: a worker may do thousands a second.
        "log_each_run": verbose or sys.stderr.isatty(),
    }

    place = Place.take()

    def start_log() -> None:
        set_up_log(
            verbose=verbose,
            quiet=quiet,
            as_json=call.output.as_json,
            several_processes=processes > 1,
        )

    if processes > 1 and place is None:
        start_log()
        raise typer.Exit(supervise(processes))
    is_first = place is None or place.number == 1
    folder = os.getcwd()
    with end_quietly_on_signals():
        scheduler = _load_scheduler(app, file, store)
        start_log()
        if app is not None and is_first:
            warn_of_other_store(scheduler, app)
        scheduler.configure(**settings)
        if scheduler.workers == 0:
            raise CommandError(
                f"{app or file} has workers=0, so it only enqueues",
                code=BAD_INPUT,
                advice="give the number of runs to work on at once: --workers 10",
            )
        replacements = Replacements()
        shown = call.output if is_first and not quiet else None
        cause = run_coroutine(_run(scheduler, drain_timeout, place, shown))
        if cause == "memory":
            time.sleep(replacements.pause())  # after the drain: no run goes on meanwhile
        if cause is not None:
            replace_process(folder, place)


def _load_scheduler(app: str | None, file: str | None, store: str | None) -> Scheduler:
    """The app's scheduler, or a new one for a file of jobs."""
    from mainspring.scheduler import Scheduler

    if app is None:
        url = StoreChoice.of(store, None).url
        assert url is not None
        return Scheduler(url, jobs=file)
    scheduler = load_scheduler(app)
    if file is not None:
        scheduler.define_jobs(file)
    return scheduler


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


async def _run(
    scheduler: Scheduler,
    drain_timeout: timedelta,
    place: Place | None,
    output: Output | None,
) -> Cause | None:
    """Work until a signal; print the start where there is an output. Returns why the process
    should be replaced, if it should."""
    from mainspring.scheduler.run_forever import run_until_signal

    cause: Cause | None = None

    async def watch() -> None:
        nonlocal cause
        tune_garbage_collector()
        if output is not None:
            try:
                await print_start(scheduler, output)
            except MainspringError as error:  # a store that went away again: the engine waits
                log.warning("could not read the jobs: %s", error)
        while (cause := await _cause_to_replace(scheduler)) is None:
            if place is not None and place.supervisor != os.getppid():
                log.warning("the supervising process is gone")
                return
            await asyncio.sleep(CHECK_INTERVAL)

    stopped = await run_until_signal(
        scheduler.start,
        scheduler.stop,
        scheduler.drain_soon,
        scheduler.memory_drained,
        watch=watch,
        drain_timeout=drain_timeout,
    )
    return None if stopped else cause


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


# What is printed at the start


async def print_start(scheduler: Scheduler, output: Output) -> None:
    """Print on stderr, or one JSON document on stdout. Handlers may print there later."""
    from mainspring import __version__
    from mainspring.scheduler.run_forever import HOW_TO_STOP

    limit = MOST_JOBS_IN_JSON if output.as_json else MOST_JOBS
    page = await scheduler.list_jobs(
        order="next_run_at", limit=limit, with_total=True, last_runs=False
    )
    paused_since = await scheduler.paused_since()
    store = LocatedStore(scheduler.store, scheduler.url).name
    output.document(
        {
            "version": __version__,
            "pid": os.getpid(),
            "store": store,
            "workers": scheduler.workers,
            "queues": None if scheduler.queues is None else sorted(scheduler.queues),
            "enabled": scheduler.enabled,
            "paused_since": iso(paused_since),
            "job_count": page.total,
            "jobs": [{"id": job.id, "next_run_at": iso(job.next_run_at)} for job in page.items],
        }
    )
    orphaned = {job.id for job in without_worker(page.items, await scheduler.list_workers())}
    lines = _describe_start(scheduler, page, orphaned, paused_since)
    output.greeting(f"Mainspring {__version__}", store, *lines, HOW_TO_STOP)


def _describe_start(
    scheduler: Scheduler, page: Page[Job], orphaned: set[str], paused_since: datetime | None
) -> Iterator[str]:
    queues = "all queues" if scheduler.queues is None else ", ".join(sorted(scheduler.queues))
    capacity = plural(scheduler.workers, "run")
    yield f"{capacity} at once from {queues}; process {os.getpid()}"
    if not scheduler.enabled:
        yield "it fires no slots, because the code sets enabled=False"
    if paused_since is not None:
        since = relative(paused_since, utcnow())
        yield f"all firing was paused {since}; mainspring resume --all resumes it"
    if not page.items:
        yield "no jobs yet: decorate a function with @scheduler.job()"
    width = max((len(job.id) for job in page.items), default=0)
    for job in page.items:
        plan = "no live worker can run it" if job.id in orphaned else _describe_next(job)
        yield f"{job.id:{width}}  {plan}"
    more = (page.total or 0) - len(page.items)
    if more > 0:
        yield f"and {more:,} more: mainspring jobs list"


def _describe_next(job: Job) -> str:
    if not job.enabled:
        return "paused"
    if is_over(job):
        return SCHEDULE_OVER
    if job.next_run_at is None:
        return describe_plan(job)
    schedule = f": {job.schedule.describe()}" if job.schedule is not None else ""
    now = utcnow()  # a slot that is overdue is fired now
    return relative(max(job.next_run_at, now), now) + schedule


# The list of workers


@command(group, "list", "mainspring workers list", "mainspring workers list --json")
async def list_(call: Call) -> None:
    """List the workers that are alive. One that was killed is listed for up to 15 seconds."""
    async with call.client() as client:
        workers = await client.list_workers()
    call.output.document({"items": [worker.to_dict() for worker in workers]})
    if not workers:
        call.output.note("no worker is alive: start one with `mainspring worker app:scheduler`")
    else:
        call.output.table(WORKER_COLUMNS, workers)


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


WORKER_COLUMNS: list[Column[Any]] = [
    Column("id", lambda worker: worker.id, whole=True, least=12),
    Column("leads", lambda worker: "yes" if worker.is_leader else "", whole=True),
    Column("fires", lambda worker: "yes" if worker.fires else "no", whole=True),
    Column("running", _busy, whole=True),
    Column("memory", _memory, whole=True, hide=2),
    Column("queues", _queues, least=6),
    Column("version", lambda worker: worker.version or "-", whole=True, hide=3),
    time_column("started", lambda worker: worker.started_at, hide=1),
    time_column("seen", lambda worker: worker.seen_at),
]
