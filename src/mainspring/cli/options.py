"""Options and arguments that several commands share."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.store_access import DEFAULT_STORE, StoreChoice, existing_store, open_existing
from mainspring.core.durations import duration, humanize
from mainspring.core.model import State
from mainspring.core.policy import memory_size
from mainspring.errors import InvalidInput
from mainspring.stores.protocol import JobQuery, RunQuery

if TYPE_CHECKING:
    from mainspring.stores.protocol import Store

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
    """An option without a value. (On a terminal Typer's help would name its type, `<bool>`.)"""
    return typer.Option(default, *names.split(", "), metavar="", help=help, **how)


def shared_flag(*names: str, help: str) -> Any:
    return typer.Option(*names, metavar="", help=help)


StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store of jobs and runs (env MAINSPRING_STORE, MONGODB_URI)."
        f" Default: {DEFAULT_STORE}",
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:ATTR",
        help="Use the store of this scheduler, as in app:scheduler (env MAINSPRING_APP).",
    ),
]
AppToLoadArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODULE:ATTR",
        help="A Scheduler, or a function without arguments that returns one (env MAINSPRING_APP).",
    ),
]
AppToLoadOption = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:ATTR", help="The same as the argument."),
]
JsonOption = Annotated[
    bool, shared_flag("--json", help="Print one JSON document instead of tables.")
]
VerboseOption = Annotated[bool, shared_flag("--verbose", "-v", help="Log debug messages too.")]
QuietOption = Annotated[bool, shared_flag("--quiet", "-q", help="Log only warnings and errors.")]
YesOption = Annotated[bool, shared_flag("--yes", help="Do it without asking.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1000, help="The most to list.")]
CursorOption = Annotated[
    str | None,
    typer.Option("--cursor", help="Continue after the previous page."),
]
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's id.", autocompletion=complete_job),
]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="The file that lists the jobs.")]
FileOption = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Define the jobs of this file, and import their handlers, as in mainspring.toml.",
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The run's id, or its beginning (6 characters or more).",
        autocompletion=complete_run,
    ),
]


def either_app(argument: str | None, option: str | None) -> str | None:
    """The app of a command that takes it as an argument or as an option."""
    if argument is not None and option is not None:
        raise CommandError("give MODULE:ATTR or --app, not both", code=BAD_INPUT)
    return option if argument is None else argument


def read_duration(
    text: str,
    option: str,
    *,
    least: timedelta = timedelta(0),
    most: timedelta | None = None,
) -> timedelta:
    """The duration that an option gives: 90s, 5m; a bare number is seconds."""

    def refused(allowed: str) -> InvalidInput:
        message = f"{option} is {allowed}, not {text!r}"
        return InvalidInput(message, field=option, given=text, allowed=allowed)

    try:
        number: str | float = float(text)
    except ValueError:
        number = text
    try:
        span = duration(number)
    except InvalidInput:
        raise refused("a duration such as 90s, 5m or 1h30m (a bare number is seconds)") from None
    if most is not None and not least <= span <= most:
        low = f"{humanize(least)} to " if least else "at most "
        raise refused(f"{low}{humanize(most)}")
    return span


def read_prune_interval(text: str | None) -> timedelta | None:
    """The value of --prune-every, within the limits that the engine sets."""
    if text is None:
        return None
    shortest, longest = timedelta(seconds=1), timedelta(days=1)
    return read_duration(text, "--prune-every", least=shortest, most=longest)


def check_memory_limit(text: str | None) -> str | None:
    """The value of --memory-limit, refused before anything starts if it is no size."""
    try:
        memory_size(text)
    except InvalidInput:
        allowed = "a size such as 512MiB or 2GB, or a number of bytes"
        message = f"--memory-limit is {allowed}, not {text!r}"
        raise InvalidInput(message, field="--memory-limit", given=text, allowed=allowed) from None
    return text
