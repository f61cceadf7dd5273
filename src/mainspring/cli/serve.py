"""`mainspring serve`: the HTTP API, the scheduler and a worker in one process."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import typer

from mainspring import __version__
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
from mainspring.cli.output import Output
from mainspring.cli.processes import (
    Replacements,
    end_quietly_on_signals,
    replace_process,
    set_up_log,
    share_the_interpreter,
    tune_garbage_collector,
)
from mainspring.cli.store_access import LocatedStore, StoreChoice, warn_of_other_store
from mainspring.core.durations import duration
from mainspring.core.plurals import plural
from mainspring.errors import InvalidInput, MainspringError

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler
    from mainspring.service.settings import ServiceSettings

commands = typer.Typer()


def _at_most_an_hour(given: str | float) -> timedelta:
    span = duration(given)
    if span > timedelta(hours=1):
        raise InvalidInput("longer than an hour")
    return span


@command(
    commands,
    "serve",
    "mainspring serve",
    "mainspring serve app:scheduler",
    "mainspring serve --store mongodb://db.example.org/jobs --port 8080",
    "mainspring serve --allow-private 10.0.0.0/8",
    "mainspring serve --file mainspring.toml",
    "mainspring serve --demo",
    panel=RUN,
    uses_store=False,
)
@end_quietly_on_signals()
def serve(
    call: Call,
    app: str | None = APP_TO_LOAD_ARGUMENT,
    app_option: str | None = APP_TO_LOAD_OPTION,
    store: str | None = STORE_OPTION,
    file: str | None = FILE_OPTION,
    host: str | None = option("Address to listen on (env HOST). Default: 127.0.0.1", "HOST"),
    port: int | None = option(
        "Port to listen on (env PORT). Default: 3000", "PORT", min=0, max=65535
    ),
    workers: int | None = option(
        "How many runs to work on at once (env MAX_CONCURRENT_JOBS). Default: 10", "NUMBER", min=0
    ),
    drain_timeout: timedelta | None = duration_option(
        "How long running work may take to end after the first signal, or at the memory"
        " limit, as in 90s or 5m (env DRAIN_TIMEOUT, in milliseconds). Default: 30s",
        read=_at_most_an_hour,
        allowed="a duration of at most 1 hour, such as 90s or 5m",
    ),
    prune_every: timedelta | None = prune_option(
        "How often old finished runs are deleted, as in 10m (env PRUNE_EVERY). Default: 1m"
    ),
    memory_limit: int | None = memory_option(
        "Replace the process when it holds so much memory, as in 1GB or 512MiB (env"
        " MEMORY_LIMIT). Default: no limit."
    ),
    leader_election: bool | None = flag(
        "--leader-election/--no-leader-election",
        "Elect one process, in the store, to fire slots first (env LEADER_ELECTION, true or"
        " false). Default: --leader-election",
        default=None,
    ),
    allow_private: list[str] | None = option(
        "Let webhooks call this private host or range; may be given several times.", "HOST|CIDR"
    ),
    demo: bool = flag(
        "--demo",
        "Try the dashboard: serve a made-up fleet of 200 jobs with a week of history, from"
        " a store that is deleted at the end.",
    ),
    verbose: bool = VERBOSE_FLAG,
    quiet: bool = QUIET_FLAG,
) -> None:
    """Serve the HTTP API and the dashboard, and work on runs.

    It fires schedules and works until SIGTERM or Ctrl+C. By default it keeps jobs in mainspring.db
    and listens on 127.0.0.1:3000, where no API key is needed until you create one. To listen on
    another address, or to be reached by a proxy's name (ALLOWED_HOSTS), create a key first:
    mainspring keys create.

    After the first signal running work may end; a second signal ends the process at once.
    """
    from mainspring.service import require_server

    require_server()
    folder = os.getcwd()
    from mainspring.dashboard.app import create_app
    from mainspring.service.server import serve as serving
    from mainspring.service.settings import ServiceSettings

    drain = timedelta(0) if demo and drain_timeout is None else drain_timeout
    settings = ServiceSettings.read(
        host=host,
        port=port,
        max_concurrent_jobs=workers,
        drain_timeout=None if drain is None else drain // timedelta(milliseconds=1),
        leader_election=leader_election,
        prune_every=prune_every,
        memory_limit=memory_limit,
    )
    app = either_app(app, app_option)
    if demo and (store or app or file):
        named = {"--store": store, "the app": app, "--file": file}
        given = " and ".join(name for name, value in named.items() if value)
        raise CommandError(
            f"--demo uses a temporary store and its own jobs: leave out {given}", code=BAD_INPUT
        )
    demo_folder = tempfile.TemporaryDirectory(prefix="mainspring-demo-") if demo else None
    if demo_folder is not None:
        choice = StoreChoice(f"sqlite:///{demo_folder.name}/demo.db", None)
        scheduler = _demo_scheduler(settings, choice)
    else:
        choice = StoreChoice.of(store, app)
        scheduler = make_scheduler(settings, choice, allow_private or [])
    if file is not None:
        scheduler.define_jobs(file)
    # The first wins over the file's.
    scheduler.configure(prune_every=settings.prune_every, drain_timeout=settings.drain)
    set_up_log(verbose=verbose, quiet=quiet, as_json=call.output.as_json)
    logging.getLogger("uvicorn").setLevel(logging.DEBUG if verbose else logging.WARNING)
    scheduler.configure(log_each_run=verbose or sys.stderr.isatty())

    log = logging.getLogger("mainspring")
    filling: list[asyncio.Future[None]] = []  # the loop keeps no task alive by itself

    async def on_listening(url: str) -> None:
        tune_garbage_collector()
        share_the_interpreter()
        if not quiet:
            _greet(url, scheduler, call.output, demo=demo)
        if demo:
            filling.append(asyncio.ensure_future(_fill_demo(scheduler, log)))

    replacements = Replacements()
    try:
        must_replace = run_coroutine(
            serving(
                scheduler,
                settings,
                create_app,
                first_key=_first_key(scheduler, choice),
                on_listening=on_listening,
                replacement_pause=replacements.pause,
            )
        )
    finally:
        if demo_folder is not None:
            demo_folder.cleanup()
    if must_replace:
        replace_process(folder)


def make_scheduler(settings: ServiceSettings, choice: StoreChoice, allow: list[str]) -> Scheduler:
    from mainspring.dashboard.demo import SAMPLE_HANDLER, run_sample
    from mainspring.scheduler import Scheduler
    from mainspring.webhooks.service import WebhookSettings

    if choice.url is not None:
        webhooks = WebhookSettings.from_environment()
        if allow:
            webhooks = replace(webhooks, allow=[*webhooks.allow, *allow])
        scheduler = Scheduler(
            choice.url,
            workers=settings.max_concurrent_jobs,
            poll=settings.poll,
            retention=settings.retention,
            history=settings.history,
            leader_election=settings.leader_election,
            memory_limit=settings.memory_limit,
            webhooks=webhooks,
        )
        scheduler.add_handler(SAMPLE_HANDLER, run_sample)
        return scheduler
    assert choice.app is not None
    if allow:
        raise CommandError(
            f"{choice.app} has settings of its own: --allow-private cannot be used with it",
            code=BAD_INPUT,
            advice="set it in the code: Scheduler(url, webhooks=WebhookSettings(allow=[…]))",
        )
    given = settings.model_fields_set
    scheduler = load_scheduler(choice.app)
    warn_of_other_store(scheduler, choice.app)
    return scheduler.configure(
        workers=settings.max_concurrent_jobs if "max_concurrent_jobs" in given else None,
        poll=settings.poll if "scheduler_poll_interval" in given else None,
        retention=settings.retention if "retention" in given else None,
        history=settings.history,
        leader_election=settings.leader_election if "leader_election" in given else None,
        memory_limit=settings.memory_limit,
    )


def _demo_scheduler(settings: ServiceSettings, choice: StoreChoice) -> Scheduler:
    from mainspring.dashboard.demo import demo_scheduler, log_failures_in_one_line

    assert choice.url is not None
    log_failures_in_one_line()
    return demo_scheduler(choice.url, workers=settings.max_concurrent_jobs, poll=settings.poll)


async def _fill_demo(scheduler: Scheduler, log: logging.Logger) -> None:
    from mainspring.dashboard.demo import fill

    try:
        await fill(scheduler, log.info)
    except MainspringError as error:
        log.error("the demo could not be filled: %s", error)


def _first_key(scheduler: Scheduler, choice: StoreChoice) -> str:
    """The command that makes a key in the scheduler's store, and in no other."""
    url = LocatedStore(scheduler.store, scheduler.url).from_anywhere
    option = ["--store", url] if url is not None else ["--app", choice.app or "MODULE:ATTR"]
    return f"mainspring keys create NAME --scope admin {shlex.join(option)}"


def _greet(url: str, scheduler: Scheduler, output: Output, *, demo: bool) -> None:
    from mainspring.scheduler.run_forever import HOW_TO_STOP

    store = LocatedStore(scheduler.store, scheduler.url).name
    facts = {"pid": os.getpid(), "url": url, "store": store, "workers": scheduler.workers}
    output.document({"version": __version__, **facts})
    made_up = ["this is a demo: its jobs, their history and the failures in this log are made up"]
    output.greeting(
        f"Mainspring {__version__}",
        url,
        *(made_up if demo else []),
        f"jobs in {store}; {plural(scheduler.workers, 'run')} at once; process {os.getpid()}",
        f"the dashboard: {url}/    the API's reference: {url}/docs",
        HOW_TO_STOP,
    )
