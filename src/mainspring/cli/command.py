"""Registers commands: each is a function that gets a `Call` and its own options. Also the options
and arguments that several commands share."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.output import Output
from mainspring.cli.store_access import (
    DEFAULT_STORE,
    StoreChoice,
    existing_store,
    open_client,
    open_existing,
)
from mainspring.core.durations import duration
from mainspring.core.model import State
from mainspring.core.policy import memory_size
from mainspring.engine.settings import read_prune_every
from mainspring.errors import InvalidInput
from mainspring.stores.protocol import JobQuery, RunQuery

if TYPE_CHECKING:
    from mainspring.scheduler import Client
    from mainspring.stores.protocol import Store

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Coroutine[Any, Any, None] | None])

# Options and arguments

COMPLETION_TIMEOUT = 1.0
"""Seconds to wait for a store: a shell must not hang."""


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ask(store: Store) -> list[str]:
        page = await store.jobs(JobQuery(limit=1000))
        return [job.id for job in page.items]

    return _offered(ctx, incomplete, ask)


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    async def ask(store: Store) -> list[str]:
        page = await store.find(RunQuery(brief=True, limit=100))
        return [run.id for run in page.items]

    return _offered(ctx, incomplete, ask)


def complete_state(incomplete: str) -> list[str]:
    return [state for state in State if state.startswith(incomplete)]


def _offered(
    ctx: typer.Context, incomplete: str, ask: Callable[[Store], Awaitable[list[str]]]
) -> list[str]:
    ids: list[str] = []
    with contextlib.suppress(Exception):
        import asyncio

        ids = asyncio.run(asyncio.wait_for(_asked(ctx, ask), COMPLETION_TIMEOUT))
    return [item for item in ids if item.startswith(incomplete)]


async def _asked(ctx: typer.Context, ask: Callable[[Store], Awaitable[list[str]]]) -> list[str]:
    # `.env` is not read: it may name an app, and the Tab key must not run code of a strange folder.
    store = existing_store(StoreChoice.of(ctx.params.get("store"), ctx.params.get("app")))
    await open_existing(store)
    try:
        return await ask(store)
    finally:
        await store.close()


def option(
    help: str, metavar: str | None = None, *names: str, default: Any = None, **how: Any
) -> Any:
    """An option with a value, as the default of the parameter that takes it. Its name is that of
    the parameter, unless others are given. (Options that several commands have are types below.)"""
    return typer.Option(default, *names, metavar=metavar, help=help, **how)


def argument(help: str, metavar: str, *, default: Any = ..., **how: Any) -> Any:
    return typer.Argument(default, metavar=metavar, help=help, **how)


def flag(names: str, help: str, *, default: bool | None = False, **how: Any) -> Any:
    """An option without a value."""
    return typer.Option(default, *names.split(", "), help=help, **how)


STORE_OPTION = option(
    f"The store of jobs and runs (env MAINSPRING_STORE, MONGODB_URI). Default: {DEFAULT_STORE}",
    "URL",
    "--store",
)
APP_OPTION = option(
    "Use the store of this scheduler, as in app:scheduler (env MAINSPRING_APP).", "MODULE:ATTR"
)
APP_TO_LOAD_ARGUMENT = argument(
    "A Scheduler, or a function without arguments that returns one (env MAINSPRING_APP).",
    "MODULE:ATTR",
    default=None,
)
APP_TO_LOAD_OPTION = option("The same as the argument.", "MODULE:ATTR", "--app")
JSON_FLAG = flag("--json", "Print one JSON document instead of tables.")
VERBOSE_FLAG = flag("--verbose, -v", "Log debug messages too.")
QUIET_FLAG = flag("--quiet, -q", "Log only warnings and errors.")
YES_FLAG = flag("--yes", "Do it without asking.")
CURSOR_OPTION = option("Continue after the previous page.", "CURSOR")
JOB_ARGUMENT = argument("The job's id.", "JOB", autocompletion=complete_job)
RUN_ARGUMENT = argument(
    "The run's id, or its beginning (6 characters or more).", "RUN", autocompletion=complete_run
)
FILE_OPTION = option(
    "Define the jobs of this file, and import their handlers, as in mainspring.toml.", "FILE"
)


def limit_option(default: int) -> Any:
    return option("The most to list.", "NUMBER", default=default, min=1, max=1000)


def either_app(argument: str | None, option: str | None) -> str | None:
    """The app of a command that takes it as an argument or as an option."""
    if argument is not None and option is not None:
        raise CommandError("give MODULE:ATTR or --app, not both", code=BAD_INPUT)
    return option if argument is None else argument


def value_option(
    help: str, metavar: str, *names: str, read: Callable[[str], Any], allowed: str, **how: Any
) -> Any:
    """An option whose text `read` turns into its value, or refuses with InvalidInput."""

    def parse(text: str) -> Any:
        try:
            return read(text)
        except InvalidInput:
            raise typer.BadParameter(f"{text!r} is not {allowed}") from None

    return option(help, metavar, *names, parser=parse, **how)


def duration_option(
    help: str,
    *names: str,
    read: Callable[[str | float], timedelta] = duration,
    allowed: str = "a duration such as 90s, 5m or 1h30m (a bare number is seconds)",
    default: str | None = None,
) -> Any:
    """An option such as 90s or 5m, read as a timedelta; a bare number is seconds."""

    def seconds_or_text(text: str) -> timedelta:
        try:
            number: str | float = float(text)
        except ValueError:
            number = text
        return read(number)

    return value_option(
        help, "DURATION", *names, read=seconds_or_text, allowed=allowed, default=default
    )


def prune_option(help: str) -> Any:
    return duration_option(help, read=read_prune_every, allowed="1 second to 1 day, as in 10m")


def memory_option(help: str) -> Any:
    allowed = "a size such as 512MiB or 2GB, or a number of bytes"
    return value_option(help, "SIZE", read=memory_size, allowed=allowed)


# Commands

RUN, INSPECT, CHANGE, PLAN, STORE = "Run", "Inspect", "Change", "Plan", "Store"
"""The panels of `mainspring --help`."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a command gets besides its own options: where it prints, and the store it is about."""

    output: Output
    store: str | None = None
    app: str | None = None

    @property
    def choice(self) -> StoreChoice:
        return StoreChoice.of(self.store, self.app)

    def client(self, *, with_code: bool = False) -> AbstractAsyncContextManager[Client]:
        return open_client(self.choice, with_code=with_code)

    def check_can_ask(self, what: str, advice: str) -> None:
        """Refuse a command that needs a person's yes where no person can be asked."""
        if self.output.as_json or not sys.stdin.isatty():
            why = "--json was given" if self.output.as_json else "stdin is not a terminal"
            raise CommandError(
                f"{why}, so the command cannot ask for confirmation before {what}",
                code=BAD_INPUT,
                advice=advice,
            )


def command(
    group: typer.Typer,
    name: str,
    *examples: str,
    panel: str | None = None,
    uses_store: bool = True,
    shared: Callable[..., Any] | None = None,
) -> Callable[[Command], Command]:
    """Register a function, async or not, as a command of the group, and add `--store`, `--app` and
    `--json` to its options. `shared` reads options that several commands have: the command gets
    what it returns, after the call."""
    further = _parameters(shared) if shared is not None else []
    common = _parameters(_store_options if uses_store else _no_store)

    def register(function: Command) -> Command:
        own = _parameters(function)[1 if shared is None else 2 :]

        def run(**options: Any) -> None:
            output = Output(as_json=options.pop("json"))
            store = {name: options.pop(name) for name in ("store", "app")} if uses_store else {}
            values = [Call(output, **store)]
            if shared is not None:
                values.append(
                    shared(**{option.name: options.pop(option.name) for option in further})
                )
            coroutine = function(*values, **options)
            if coroutine is not None:
                run_coroutine(coroutine)

        parameters = [*own, *further, *common]
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {option.name: option.annotation for option in parameters}
        group.command(name, epilog=example(*examples), rich_help_panel=panel)(run)
        return function

    return register


def _store_options(
    store: str | None = STORE_OPTION, app: str | None = APP_OPTION, json: bool = JSON_FLAG
) -> None:
    """The options of a command that uses a store."""


def _no_store(json: bool = JSON_FLAG) -> None:
    """The options of one that does not."""


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in parameters]


def example(*lines: str) -> str:
    """The last lines of a help text. (Typer ends a line only at a blank one.)"""
    return "\n\n".join(["Example:" if len(lines) == 1 else "Examples:", *lines])


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine. (Only commands that run import asyncio: `--help` is quicker.)"""
    import asyncio

    return asyncio.run(coroutine)
