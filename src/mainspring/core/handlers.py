"""Handlers: Python callables registered under a name, and the check of their arguments."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from types import CodeType
from typing import Any

from mainspring.core.arguments import ArgumentMismatch, ArgumentTypes, type_hints
from mainspring.core.context import (
    RunContext,
    is_annotated_as_context,
    is_context_parameter,
)
from mainspring.core.model import Job
from mainspring.core.options import EnqueueOptions, option_names
from mainspring.core.resources import Resources
from mainspring.errors import (
    ArgumentsRefused,
    HandlerNotFound,
    InvalidArguments,
    InvalidInput,
    JobExists,
)

Around = Callable[
    [RunContext[Any]], "AbstractContextManager[Any] | AbstractAsyncContextManager[Any]"
]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True, slots=True)
class Hooks:
    """Sync or async functions called around an attempt. They do not change its outcome."""

    on_start: Callable[[RunContext], Awaitable[None] | None] | None = None
    on_success: Callable[[RunContext, Any], Awaitable[None] | None] | None = None
    on_error: Callable[[RunContext, BaseException], Awaitable[None] | None] | None = None

    def __post_init__(self) -> None:
        _check_hook("on_start", self.on_start, "ctx")
        _check_hook("on_success", self.on_success, "ctx", "result")
        _check_hook("on_error", self.on_error, "ctx", "error")


def _check_hook(name: str, hook: object, *arguments: str) -> None:
    """Refuse a hook that could not be called: its error would show only when a run ends."""
    if hook is None:
        return
    call = f"{name}({', '.join(arguments)})"
    if not callable(hook):
        raise InvalidInput(
            f"is a function that is called as {call}, not {hook!r}",
            subject=name,
            field=name,
            given=hook,
        )
    try:
        signature = inspect.signature(hook)
    except (TypeError, ValueError):  # some built-in functions have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidInput(
            f"is called as {call}, and {getattr(hook, '__name__', hook)}{signature} does not take"
            f" that: {error}",
            subject=name,
            field=name,
        ) from None


class Handler:
    """A callable registered under a name, and what its signature accepts."""

    built_in = False
    """Whether it is part of Mainspring. Its failures are kept without a traceback."""

    reads_job = False
    """Whether it reads `ctx.job`, so that the worker reads the definition again with each claim."""

    around: Around | None = None
    """What the program puts around each call: see `call_inside`."""

    def __init__(self, name: str, function: Callable[..., Any], hooks: Hooks | None = None) -> None:
        if not callable(function):
            raise InvalidInput(f"a handler is a callable, not {function!r}", field="handler")
        self.name = name
        self.function = function
        self.hooks = hooks or Hooks()
        if isinstance(function, type):
            raise InvalidInput(
                f"handler {name!r} is the class {function.__name__}: a call would only make an"
                " object. Give a function, or such an object if it can be called",
                field="handler",
            )
        self.is_async = is_async_function(function)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(
                f"handler {name!r} is a generator: a call would only make one, and its body would"
                " never run. Write it without `yield`",
                field="handler",
            )
        parameters = list(inspect.signature(function).parameters.values())
        hints = type_hints(function)
        self.takes_context = bool(parameters) and is_context_parameter(parameters[0], hints)
        if self.takes_context:
            _check_context(name, parameters[0])
            parameters = parameters[1:]
        for parameter in parameters:
            if is_annotated_as_context(parameter, hints):
                raise InvalidInput(
                    f"handler {name!r} takes {parameter}: the context is the first parameter",
                    field="handler",
                )
            if parameter.kind in _POSITIONAL:
                raise InvalidInput(
                    f"handler {name!r} takes {parameter}: arguments are stored by name, so give"
                    " its parameters names that can be passed as keywords",
                    field="handler",
                )
        self._signature = inspect.Signature(parameters)
        self._names = frozenset(
            p.name for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD
        )
        self._required = frozenset(
            p.name
            for p in parameters
            if p.default is p.empty and p.kind is not inspect.Parameter.VAR_KEYWORD
        )
        self._types = ArgumentTypes(function, self._names)
        self._any_names = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)

    def group(self, job: Job) -> str | None:
        """The group of a job's attempts, of which this process runs a limited number at once
        (`engine/group_limits.py`). None: no group."""
        return None

    def group_limit(self) -> int | None:
        """How many attempts of a group may run at once in a process; None: as many as the process
        has capacity for, or half of that if the group is slow."""
        return None

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, as they are stored. Raises `InvalidArguments`."""
        arguments = kwargs
        if args:
            try:
                bound = self._signature.bind(*args, **kwargs)
            except TypeError as error:
                raise self._refusal(str(error)) from None
            arguments = dict(bound.arguments)
            if self._any_names:
                variable = next(reversed(self._signature.parameters))
                arguments.update(arguments.pop(variable, {}))
        self._check_names(arguments)
        stored = dict(self._types.encode(arguments))
        self._check_types(stored)
        return stored

    def encode_payload(self, payload: Any) -> Any:
        """The payload as it is stored: types that JSON lacks are written by their annotations."""
        return self._types.encode(payload) if isinstance(payload, Mapping) else payload

    def check(self, payload: Any) -> None:
        """Check a stored payload: an object whose keys are the parameters.

        A handler that takes only the context accepts any payload.
        """
        if not self._names and not self._any_names:
            if payload not in (None, {}) and not self.takes_context:
                raise self._refusal("it takes no arguments")
        else:
            self._check_types(self._named(payload))

    def stored_arguments(self, payload: Any) -> Mapping[str, Any]:
        """The part of a payload that is passed as arguments. Raises `ArgumentsRefused` if the names
        do not fit: the process that enqueued it may not have had the handler."""
        if not self._names and not self._any_names:
            return {}
        try:
            return self._named(payload)
        except InvalidArguments as error:
            raise ArgumentsRefused(str(error)) from None

    def call(self, context: RunContext[Any], payload: Any) -> Any:
        if self.around is None and type(context.resources) is dict:
            return self._call(context, payload)
        call = functools.partial(self._call, context, payload)
        return call_inside(self.around, context, call, is_async=self.is_async)

    def _call(self, context: RunContext, payload: Any) -> Any:
        try:
            arguments = self._types.decode(self.stored_arguments(payload))
        except ArgumentMismatch as error:
            raise ArgumentsRefused(str(self._refusal(str(error)))) from None
        leading = (context,) if self.takes_context else ()
        return self.function(*leading, **arguments)

    def _named(self, payload: Any) -> Mapping[str, Any]:
        """A payload whose keys are the parameters. Raises `InvalidArguments`."""
        arguments = {} if payload is None else payload
        if not isinstance(arguments, Mapping):
            raise self._refusal(f"the payload must be an object, not {type(arguments).__name__}")
        self._check_names(arguments)
        return arguments

    def _check_types(self, stored: Mapping[str, Any]) -> None:
        try:
            self._types.check(stored)
        except ArgumentMismatch as error:
            raise self._refusal(str(error)) from None

    def _check_names(self, arguments: Mapping[str, Any]) -> None:
        names = arguments.keys()
        missing = self._required - names
        extra = frozenset() if self._any_names else names - self._names
        if not missing and not extra:
            return
        told = [f"missing {_listed(missing)}"] if missing else []
        told += [f"unknown {_listed(extra)}"] if extra else []
        left = sorted(self._names - names)
        near = [
            f"did you mean {close[0]!r} instead of {name!r}?"
            for name in sorted(map(str, extra))
            if (close := difflib.get_close_matches(name, left, n=1))
        ]
        if options := sorted(extra & option_names(EnqueueOptions)):
            near.append(f"an option is given by {self.name}.options({options[0]}=…).enqueue(…)")
        raise self._refusal("; ".join([*told, *near]))

    def _refusal(self, why: str) -> InvalidArguments:
        return InvalidArguments(f"wrong arguments for {self.name}{self._signature}: {why}")


class Registry:
    """The handlers of this process, by name."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.default: Handler | None = None
        """Runs what no worker has a handler of its own for."""
        self.around: Around | None = None
        """What the program puts around each call of its handlers, not of built-in ones."""

    def add(self, handler: Handler) -> None:
        known = self._handlers.get(handler.name)
        if known is not None and not _replaces(handler.function, known.function):
            raise JobExists(
                f"{handler.name!r} is already the name of {_place(known.function)}: give"
                f" {_place(handler.function)} another name with id=…"
            )
        if self.around is not None and not handler.built_in:
            handler.around = self.around
        self._handlers[handler.name] = handler

    def find(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def get(self, name: str) -> Handler:
        handler = self._handlers.get(name)
        if handler is None:
            raise HandlerNotFound(name, sorted(self._handlers))
        return handler

    def get_for_run(self, name: str) -> Handler:
        """The handler that runs a claimed run: its own, or the default one."""
        if self.default is not None and name not in self._handlers:
            return self.default
        return self.get(name)

    def names(self) -> frozenset[str]:
        return frozenset(self._handlers)

    def defined_again(self, later: Registry) -> list[str]:
        """The handlers that an interactive session has defined here and in the later registry: a
        cell of a notebook was run twice."""
        return sorted(
            name
            for name, handler in self._handlers.items()
            if (again := later.find(name)) is not None
            and _in_notebook(handler.function)
            and _place(handler.function) == _place(again.function)
        )


def check_around(around: object) -> None:
    """Refuse what could not be called around a handler, before any run fails by it."""
    if around is not None and (not callable(around) or is_async_function(around)):
        raise InvalidInput(
            "around is a function that takes the run's context and returns a context manager, such"
            f" as one with @contextmanager or @asynccontextmanager, not {around!r}",
            field="around",
            given=around,
        )


def call_inside(
    around: Around | None, context: RunContext, call: Callable[[], Any], *, is_async: bool
) -> Any:
    """Call a handler, in its own thread, task or process, with the resources that are opened for
    each run, and inside the context manager that `around(context)` returns. An async handler takes
    a sync or an async one."""
    if around is not None:
        call = functools.partial(_call_around, around, context, call, is_async)
    resources = context.resources
    if isinstance(resources, Resources):
        return resources.call(context, call, is_async=is_async)
    return call()


def _call_around(
    around: Around, context: RunContext, call: Callable[[], Any], is_async: bool
) -> Any:
    manager = around(context)
    if is_async:
        return _await_inside(manager, call)
    if not isinstance(manager, AbstractContextManager):
        raise TypeError(f"around returned {manager!r}: a sync handler needs a sync context manager")
    with manager:
        return call()


async def _await_inside(manager: Any, call: Callable[[], Awaitable[Any]]) -> Any:
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager:
            return await call()
    if not isinstance(manager, AbstractContextManager):
        raise TypeError(f"around returned {manager!r}, which is no context manager")
    with manager:
        return await call()


def is_async_function(function: Callable[..., Any]) -> bool:
    """Whether a call gives a coroutine: of an async function, or of an object with an async
    `__call__`, also within a `partial`."""
    while isinstance(function, functools.partial):
        function = function.func
    called = getattr(function, "__call__", None)  # noqa: B004 - the method itself is looked at
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        raise InvalidInput(
            f"{function!r} has no name of its own: give the job one with id=…", field="id"
        )
    return name


def _check_context(name: str, parameter: inspect.Parameter) -> None:
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        raise InvalidInput(
            f"handler {name!r} takes its context {parameter.name!r} as a keyword, but it is passed"
            " by position: remove the `*` before it",
            field="handler",
        )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(str, names)))


def _replaces(new: Callable[..., Any], old: Callable[..., Any]) -> bool:
    """Whether a function may replace another: it is the same, or a cell of a notebook defines it
    again."""
    return new is old or (_in_notebook(new) and _place(new) == _place(old))


def _in_notebook(function: Callable[..., Any]) -> bool:
    """Whether an interactive session defines it, and not the script that runs."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    is_main = getattr(function, "__module__", None) == "__main__"
    return is_main and _file(function) not in (script, None)


def _file(function: Callable[..., Any]) -> str | None:
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else code.co_filename


def _place(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", "?")
    return f"{module}.{getattr(function, '__qualname__', function)}"
