"""Registers commands: each is a function that gets a `Call` and its own options."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from mainspring.cli.errors import BAD_INPUT, CommandError
from mainspring.cli.options import AppOption, JsonOption, StoreOption
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
    shared: Mapping[str, Any] | None = None,
) -> Callable[[Command], Command]:
    """Register a function, async or not, as a command of the group, and add `--store`, `--app` and
    `--json` to its options. `shared` are options that several commands take in `**options`."""
    more = dict(shared or {})
    if uses_store:
        more |= {"store": StoreOption, "app": AppOption}
    more["json"] = JsonOption

    def register(function: Command) -> Command:
        def run(**given: Any) -> None:
            output = Output(as_json=given.pop("json"))
            which = (given.pop("store"), given.pop("app")) if uses_store else ()
            coroutine = function(Call(output, *which), **given)
            if coroutine is not None:
                run_coroutine(coroutine)

        run.__doc__ = function.__doc__
        signature = _with_options(inspect.signature(function, eval_str=True), more)
        run.__signature__ = signature  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
        group.command(name, epilog=example(*examples), rich_help_panel=panel)(run)
        return function

    return register


def _with_options(signature: inspect.Signature, more: Mapping[str, Any]) -> inspect.Signature:
    """The signature that Typer reads: without the call, and with options that may be left out."""
    _, *own = signature.parameters.values()
    kept = [one.replace(kind=one.KEYWORD_ONLY) for one in own if one.kind is not one.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if annotation.__origin__ is bool else None,
            annotation=annotation,
        )
        for name, annotation in more.items()
    ]
    return inspect.Signature([*kept, *added])


def example(*lines: str) -> str:
    """The last lines of a help text. (Typer ends a line only at a blank one.)"""
    return "\n\n".join(["Example:" if len(lines) == 1 else "Examples:", *lines])


def run_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a command's coroutine. (Only commands that run import asyncio: `--help` is quicker.)"""
    import asyncio

    return asyncio.run(coroutine)
