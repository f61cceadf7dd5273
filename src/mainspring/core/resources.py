"""The program's resources: values that are handed over, and factories, which are opened in each
process or for each run. docs/decisions/0027-resources.md says why."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from typing import Any

from mainspring.core.context import RunContext, is_context_parameter, type_hints
from mainspring.core.events import running_loop
from mainspring.errors import InvalidInput, InvalidState, ResourceFailed, refused

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class PerRun:
    """The mark of `per_run`."""

    function: Callable[..., Any]


def per_run(factory: Callable[..., Any]) -> Any:
    """Open a resource for each attempt of a run, and close it when the handler has ended:
    `Scheduler(resources={"session": per_run(make_session)})`.

    The factory is called without arguments, or with the run's context if its first parameter is
    one, as with handlers.
    """
    if not callable(factory):
        raise InvalidInput(
            f"per_run takes a function that makes the resource, not {factory!r}",
            field="resources",
            given=factory,
        )
    return PerRun(factory)


class Factory:
    """A function that makes a resource. What it yields, or the context manager that it returns, is
    closed at the end; anything else that it returns is the resource itself."""

    def __init__(self, name: str, function: Callable[..., Any], *, per_run: bool) -> None:
        self.name = name
        self.function = function
        self.per_run = per_run
        self._takes_context = self._check_parameters()
        self._make = function
        if inspect.isgeneratorfunction(function):
            self._make = contextmanager(function)
        elif inspect.isasyncgenfunction(function):
            self._make = asynccontextmanager(function)

    @classmethod
    def of(cls, name: str, value: Any) -> Factory | None:
        """The factory that a resource is given as, or None for a value. Only a function is a
        factory: a class, a bound method or another object that can be called is a value."""
        if isinstance(value, PerRun):
            return cls(name, value.function, per_run=True)
        return cls(name, value, per_run=False) if inspect.isfunction(value) else None

    async def open(
        self, stack: AsyncExitStack, context: RunContext | None = None
    ) -> tuple[Any, bool]:
        """Open it, to be closed by the stack; return it and whether it is asynchronous."""
        made = self._call(context)
        is_async = False
        if not isinstance(made, AbstractAsyncContextManager) and inspect.isawaitable(made):
            made, is_async = await made, True
        if isinstance(made, AbstractAsyncContextManager):
            return await stack.enter_async_context(made), True
        return self._enter(made, stack), is_async

    def open_in_thread(self, stack: ExitStack, context: RunContext | None = None) -> Any:
        """Open it where no event loop runs. InvalidState if it needs one."""
        made = self._call(context)
        if isinstance(made, AbstractAsyncContextManager) or inspect.isawaitable(made):
            if inspect.iscoroutine(made):
                made.close()
            raise InvalidState(_needs_loop(self.name))
        return self._enter(made, stack)

    def _call(self, context: RunContext | None) -> Any:
        return self._make(context) if self._takes_context else self._make()

    @staticmethod
    def _enter(made: Any, stack: AsyncExitStack | ExitStack) -> Any:
        return stack.enter_context(made) if isinstance(made, AbstractContextManager) else made

    def _check_parameters(self) -> bool:
        """Whether it takes the context. Refuses what it would be called without."""
        try:
            parameters = list(inspect.signature(self.function).parameters.values())
        except (TypeError, ValueError):  # some built-in functions have none
            return False
        hints = type_hints(self.function)
        takes_context = bool(parameters) and is_context_parameter(parameters[0], hints)
        if takes_context and self.per_run:
            parameters = parameters[1:]
        for parameter in parameters:
            if parameter.default is parameter.empty and parameter.kind not in _VARIABLE:
                raise InvalidInput(
                    f"the resource {self.name!r} is a function, so Mainspring calls it to open the"
                    f" resource, and nothing gives it its argument {parameter.name!r}."
                    + (" The context is only there for per_run(…)." if takes_context else "")
                    + " To hand over the function itself, write lambda: function",
                    field="resources",
                )
        return takes_context and self.per_run


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Name the resource in the traceback of what its factory raises."""
    try:
        yield
    except Exception as error:
        error.add_note(f"This was raised while the resource {name!r} was opened.")
        raise


class Resources(Mapping[str, Any]):
    """`ctx.resources` of a program with factories, or in a process of its own.

    Contains what can be used where it is read; access to another resource of the program raises
    `InvalidState`. An asynchronous resource can be used on the `loop` that opened it.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        withheld: Mapping[str, str] | None = None,
        *,
        factories: Mapping[str, Factory] | None = None,
        on_loop: frozenset[str] = frozenset(),
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.values_of_program = values
        self.factories = factories or {}
        self.on_loop = on_loop
        self._withheld = withheld or {}
        self.loop = loop
        self._per_run = [factory for factory in self.factories.values() if factory.per_run]

    def __getitem__(self, name: str) -> Any:
        if name in self.values_of_program:
            if name in self.on_loop and running_loop() is not self.loop:
                raise InvalidState(_needs_loop(name))
            return self.values_of_program[name]
        if name in self._withheld:
            raise InvalidState(self._withheld[name])
        if name in self.factories:
            raise InvalidState(
                f"the resource {name!r} is opened for each run: only its handler and `around` can"
                " use it, hooks cannot"
            )
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        away = self.on_loop if running_loop() is not self.loop else ()
        return (name for name in self.values_of_program if name not in away)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def call(self, context: RunContext[Any], handler: Callable[[], Any], *, is_async: bool) -> Any:
        """Call a handler with the resources that are opened for each run, in its own thread, task
        or process."""
        if not self._per_run:
            return handler()
        return self._await(context, handler) if is_async else self._call(context, handler)

    def _call(self, context: RunContext[Any], handler: Callable[[], Any]) -> Any:
        pid = os.getpid()
        with ExitStack() as stack:
            try:
                for factory in self._per_run:
                    with naming(factory.name):
                        try:
                            value = factory.open_in_thread(stack, context)
                        except InvalidState as error:
                            self._add(context, withheld={factory.name: str(error)})
                        else:
                            self._add(context, {factory.name: value})
                return handler()
            finally:
                context.resources = self
                _leave_to_parent(pid, stack)

    async def _await(self, context: RunContext[Any], handler: Callable[[], Awaitable[Any]]) -> Any:
        pid = os.getpid()
        async with AsyncExitStack() as stack:
            try:
                for factory in self._per_run:
                    with naming(factory.name):
                        value, _ = await factory.open(stack, context)
                    self._add(context, {factory.name: value})
                return await handler()
            finally:
                context.resources = self
                _leave_to_parent(pid, stack)

    def _add(
        self,
        context: RunContext[Any],
        values: Mapping[str, Any] | None = None,
        withheld: Mapping[str, str] | None = None,
    ) -> None:
        """Add to what the context of an attempt has."""
        before = context.resources
        assert isinstance(before, Resources)
        context.resources = Resources(
            {**before.values_of_program, **(values or {})},
            {**before._withheld, **(withheld or {})},
            factories=self.factories,
            on_loop=self.on_loop,
            loop=self.loop,
        )


def _leave_to_parent(pid: int, stack: AsyncExitStack | ExitStack) -> None:
    """In a fork that the handler has made, close nothing: the connections are the parent's."""
    if os.getpid() != pid:
        stack.pop_all()


def not_for_process(name: str, why: str) -> str:
    return (
        f"the resource {name!r} cannot be handed to a process of its own ({why}): give a function"
        " at the top of a module, which opens it there, make it in the handler, or use"
        ' isolation="thread"'
    )


def _needs_loop(name: str) -> str:
    return (
        f"the resource {name!r} is asynchronous, so it can only be used on the event loop that"
        " opens it, and this code runs in a thread: write the handler as `async def` (without"
        ' isolation="thread"), or give a resource that is not asynchronous'
    )


log = logging.getLogger("mainspring")


def check_resources(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of what `Scheduler(resources=…)` is given. Refuses a factory that cannot be called."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise refused("resources", given, "is a mapping of names to values and factories")
    for name, value in given.items():
        Factory.of(name, value)
    return dict(given)


class ResourceKeeper:
    """Opens and closes resources on the program's loop, both in one task: some context managers
    must be left by the task that entered them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        made = {name: Factory.of(name, value) for name, value in given.items()}
        self._given = given
        self._factories = {name: factory for name, factory in made.items() if factory}
        self._closed: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]
        self._closing: asyncio.Event

    async def open(self) -> Mapping[str, Any]:
        """Open them in the order in which they were given. Raises ResourceFailed."""
        if not self._factories:
            return self._given
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        opened: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        self._task = self._loop.create_task(self._keep(opened))
        try:
            return await opened
        except BaseException:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise

    async def close(self) -> None:
        """Close them, the last one first. Errors are logged."""
        if not self._factories or self._closed.done() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        await asyncio.wrap_future(self._closed)

    async def _keep(self, opened: asyncio.Future[Mapping[str, Any]]) -> None:
        try:
            async with AsyncExitStack() as stack:
                try:
                    resources = await self._open_all(stack)
                except BaseException as error:
                    if not opened.done():
                        opened.set_exception(error)
                    return
                if not opened.done():
                    opened.set_result(resources)
                    await self._closing.wait()
        finally:
            self._closed.set_result(None)

    async def _open_all(self, stack: AsyncExitStack) -> Mapping[str, Any]:
        values = {n: value for n, value in self._given.items() if n not in self._factories}
        on_loop = set()
        for name, factory in self._factories.items():
            if factory.per_run:
                continue
            own = AsyncExitStack()
            stack.push_async_callback(self._close_one, name, own)
            try:
                values[name], is_async = await factory.open(own)
            except Exception as error:
                raise ResourceFailed(
                    f"the resource {name!r} could not be opened, so nothing was started:"
                    f" {type(error).__name__}: {error}"
                ) from error
            if is_async:
                on_loop.add(name)
        return Resources(
            values, factories=self._factories, on_loop=frozenset(on_loop), loop=self._loop
        )

    async def _close_one(self, name: str, stack: AsyncExitStack) -> None:
        try:
            await stack.aclose()
        except Exception:
            log.exception("the resource %r could not be closed", name)
