"""Options and arguments that several commands share."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import typer

from mainspring.cli import completion
from mainspring.cli.store_access import DEFAULT_STORE

__all__ = [
    "AppOption",
    "CursorOption",
    "FileArgument",
    "FileOption",
    "JobArgument",
    "JsonOption",
    "LimitOption",
    "QuietOption",
    "RunArgument",
    "StoreOption",
    "VerboseOption",
    "check_memory_limit",
    "example",
    "read_duration",
    "read_prune_interval",
    "run_coroutine",
]

T = TypeVar("T")

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="The store of jobs and runs (env MAINSPRING_STORE, MONGODB_URI)."
        f" Default: {DEFAULT_STORE}",
        show_default=False,
    ),
]
AppOption = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:ATTR",
        help="Use the store of this scheduler, as in app:scheduler (env MAINSPRING_APP).",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of tables.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages too.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Log only warnings and errors.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1000, help="The most to list.")]
CursorOption = Annotated[
    str | None,
    typer.Option("--cursor", help="Continue after the previous page.", show_default=False),
]
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", help="The job's id.", autocompletion=completion.job_ids),
]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="The file that lists the jobs.")]
FileOption = Annotated[
    str | None,
    typer.Option(
        "--file",
        metavar="FILE",
        help="Define the jobs of this file, and import their handlers, as in mainspring.toml.",
        show_default=False,
    ),
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="The run's id, or its beginning (6 characters or more).",
        autocompletion=completion.run_ids,
    ),
]


def example(*lines: str) -> str:
    """The last lines of a help text. (Typer ends a line only at a blank one.)"""
    return "\n\n".join(["Example:" if len(lines) == 1 else "Examples:", *lines])


def read_duration(
    text: str,
    option: str,
    *,
    least: timedelta = timedelta(0),
    most: timedelta | None = None,
) -> timedelta:
    """The duration that an option gives: 90s, 5m; a bare number is seconds."""
    from mainspring.core.durations import duration, humanize
    from mainspring.errors import InvalidInput

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
    from mainspring.core.policy import memory_size
    from mainspring.errors import InvalidInput

    try:
        memory_size(text)
    except InvalidInput:
        allowed = "a size such as 512MiB or 2GB, or a number of bytes"
        message = f"--memory-limit is {allowed}, not {text!r}"
        raise InvalidInput(message, field="--memory-limit", given=text, allowed=allowed) from None
    return text


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine. (Only commands that run import asyncio: `--help` is quicker.)"""
    import asyncio

    return asyncio.run(coroutine)
