"""Registers commands: each is a function that gets a `Call` and its own options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import APP_OPTION, JSON_FLAG, STORE_OPTION
from mainspring.cli.output import Output
from mainspring.cli.store_access import StoreChoice, open_client

if TYPE_CHECKING:
    from mainspring.scheduler import Client

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Coroutine[Any, Any, None] | None])


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
