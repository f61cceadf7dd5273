"""Handlers: which parameter is the context, and which are arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Optional

import pytest

import mainspring
from mainspring.core.context import RunContext
from mainspring.core.context import RunContext as Ctx
from mainspring.core.handlers import Handler
from mainspring.core.model import Run
from mainspring.errors import InvalidInput

if TYPE_CHECKING:
    from mainspring import RunContext as HiddenCtx

NOW = datetime(2027, 1, 1, tzinfo=UTC)
RUN = Run(id="r", job_id="j", handler="h", created_at=NOW, scheduled_at=NOW, run_at=NOW)


def by_name(ctx, to: str) -> str:  # type: ignore[no-untyped-def]
    return f"{ctx.run_id} {to}"


def by_annotation(run: RunContext, to: str) -> str:
    return f"{run.run_id} {to}"


def by_alias(run: Ctx, to: str) -> str:
    return f"{run.run_id} {to}"


def by_module(run: mainspring.RunContext, to: str) -> str:
    return f"{run.run_id} {to}"


def optional(run: RunContext | None, to: str) -> str:
    return f"{run and run.run_id} {to}"


def optional_of_old(run: Optional[Ctx], to: str) -> str:  # noqa: UP045
    return f"{run and run.run_id} {to}"


def annotated(run: Annotated[Ctx, "the run"], to: str) -> str:
    return f"{run.run_id} {to}"


def quoted(run: "Ctx", to: str) -> str:  # noqa: UP037
    return f"{run.run_id} {to}"


def for_type_checkers(ctx: HiddenCtx, to: str) -> str:
    return f"{ctx.run_id} {to}"


def positional_only(ctx: Ctx, /, to: str) -> str:
    return f"{ctx.run_id} {to}"


@functools.wraps(by_alias)
def wrapped(*args: Any, **kwargs: Any) -> str:
    return by_alias(*args, **kwargs)


@pytest.mark.parametrize(
    "function",
    [
        by_name,
        by_annotation,
        by_alias,
        by_module,
        optional,
        optional_of_old,
        annotated,
        quoted,
        for_type_checkers,
        positional_only,
        wrapped,
    ],
)
def test_the_first_parameter_is_the_context(function: Callable[..., Any]) -> None:
    handler = Handler("h", function)
    handler.check({"to": "ada"})
    assert handler.call(RunContext(RUN), {"to": "ada"}) == "r ada"


def any_names(**context: Any) -> Any:
    return context


def text_called_ctx(ctx: str) -> str:
    return ctx


class Mailer:
    """Its attributes have the names of those that a decorated job has."""

    def __init__(self) -> None:
        self.id, self._handler, self._options = 7, "mail", {"host": "localhost"}

    async def __call__(self, to: str) -> str:
        return f"sent to {to}"


async def test_an_object_with_an_async_call_is_an_async_handler() -> None:
    scheduler = mainspring.Scheduler("memory://")
    decorated = scheduler.job(id="mail")(Mailer())
    partial = scheduler.job(id="partial")(functools.partial(Mailer()))
    async with scheduler:
        for job in (decorated, partial):
            assert job.handler.is_async
            run = await scheduler.wait((await job.enqueue(to="ada")).id)
            assert run.result == "sent to ada"


def test_a_class_is_refused_as_a_handler() -> None:
    with pytest.raises(InvalidInput, match="'h' is the class Mailer: a call would only make an"):
        Handler("h", Mailer)


@pytest.mark.parametrize("function", [any_names, text_called_ctx])
def test_other_parameters_called_ctx_or_context_are_arguments(function: Any) -> None:
    handler = Handler("h", function)
    handler.check({"ctx": "text"})
    assert "text" in str(handler.call(RunContext(RUN), {"ctx": "text"}))


def keyword(*, ctx) -> None:  # type: ignore[no-untyped-def]
    ...


def annotated_keyword(*, run: RunContext, to: str) -> None: ...


def second(to: str, ctx: RunContext) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (keyword, "takes its context 'ctx' as a keyword, but it is passed by position"),
        (annotated_keyword, "takes its context 'run' as a keyword"),
        (second, "the context is the first parameter"),
    ],
)
def test_a_context_that_cannot_be_passed_is_refused(function: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Handler("h", function)
