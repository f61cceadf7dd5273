"""Handlers: Python callables registered under a name, and how their arguments are stored.

Arguments are converted to JSON and back by the annotations of the parameters. One that is annotated
with a dataclass, an enum of strings or of integers, a date-time, a UUID, a msgspec struct or a
pydantic model (or a list, set, tuple or optional of these) gets such a value when the handler is
called, also with process isolation. Stored data names no class; only the annotation does.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import PurePath
from types import CodeType
from typing import Any
from uuid import UUID

import msgspec

from mainspring.core.context import (
    RunContext,
    is_annotated_as_context,
    is_context_parameter,
    type_hints,
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

_STORED_AS_THEY_ARE = (datetime, date, UUID, Decimal, bytes)
"""The types beyond JSON that the codec keeps."""

_SCALARS: frozenset[Any] = frozenset((str, int, float, bool, type(None)))
_JSON: frozenset[Any] = _SCALARS | {dict, list, Any, object}


class ArgumentMismatch(ValueError):
    """Arguments that do not fit their annotations. The message names each of them."""


class _UnknownType(Exception):
    """A type that cannot be made from JSON. Its values are left as they are."""


class ArgumentTypes:
    """The types of a function's parameters, read from its annotations at first use, because they
    may name classes that are defined later in the module."""

    def __init__(self, function: Callable[..., Any], names: Iterable[str] | None = None) -> None:
        self._function = function
        self._names = None if names is None else frozenset(names)

    @cached_property
    def _types(self) -> dict[str, Any]:
        hints = type_hints(self._function)
        hints.pop("return", None)
        names = self._names
        return {name: kind for name, kind in hints.items() if names is None or name in names}

    @cached_property
    def _converted(self) -> dict[str, Any]:
        """The types that JSON does not have."""
        return {name: kind for name, kind in self._types.items() if not _is_json(kind)}

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        parameters = inspect.signature(self._function).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def encode(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as they are stored. Values of types that JSON lacks are converted; others
        are left to the codec, which accepts or refuses them."""
        written = {
            name: _plain(value)
            for name, value in arguments.items()
            if name in self._converted and type(value) not in _SCALARS
        }
        return {**arguments, **written} if written else arguments

    def check(self, stored: Mapping[str, Any]) -> None:
        """Raise `ArgumentMismatch` if stored arguments do not fit. One that equals its default
        fits."""
        if wrong := [
            fault for name, value in stored.items() for fault in self._faults(name, value)
        ]:
            raise ArgumentMismatch("; ".join(wrong))

    def _faults(self, name: str, value: Any) -> list[str]:
        kind = self._types.get(name, Any)
        if type(value) is kind and kind in _SCALARS:
            return []  # what most arguments are: a third of the time that asking msgspec takes
        return [] if self._is_default(name, value) else _faults(name, value, kind)

    def decode(self, stored: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments as the function takes them. Values of JSON's own types are checked too: a
        program without the handler (the command line, a client) could not check them when it
        enqueued the run."""
        arguments: dict[str, Any] = {}
        wrong: list[str] = []
        for name, value in stored.items():
            arguments[name] = value
            if name not in self._converted:
                wrong += self._faults(name, value)
            elif not self._is_default(name, value):
                try:
                    arguments[name] = _made(value, self._converted[name])
                except (msgspec.ValidationError, ValueError):
                    wrong += _faults(name, value, self._converted[name])
        if wrong:
            raise ArgumentMismatch("; ".join(wrong))
        return arguments

    def _is_default(self, name: str, value: Any) -> bool:
        if name not in self._defaults:
            return False
        default = self._defaults[name]
        return value is default or (type(value) is type(default) and bool(value == default))


def _is_json(kind: Any) -> bool:
    """Whether JSON returns values of this type unchanged."""
    origin = typing.get_origin(kind)
    if origin is None:
        return isinstance(kind, typing.TypeVar) or any(kind is known for known in _JSON)
    if origin is typing.Literal:
        return all(type(value) in _JSON for value in typing.get_args(kind))
    if origin in (list, dict, typing.Union, types.UnionType):
        return all(map(_is_json, typing.get_args(kind)))
    return False


def _plain(value: Any) -> Any:
    try:
        return msgspec.to_builtins(value, builtin_types=_STORED_AS_THEY_ARE, enc_hook=_written)
    except (TypeError, _UnknownType):
        return value  # the codec says what it is that cannot be stored


def _written(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    if isinstance(value, PurePath):
        return str(value)
    raise _UnknownType


def _made(value: Any, kind: Any) -> Any:
    """The value as one of that type; `ValidationError` or `ValueError` if it cannot be one."""
    if any(map(_is_model, _parts(kind))):
        return _validated(value, kind)
    try:
        return msgspec.convert(value, kind, dec_hook=_read)
    except (_UnknownType, TypeError) as error:  # msgspec does not know such a type
        if "Enum" in str(error):
            raise msgspec.ValidationError(str(error)) from None
        return value


def _read(kind: Any, value: Any) -> Any:
    try:
        if isinstance(value, typing.get_origin(kind) or kind):
            return value
    except TypeError:  # a protocol, for example, has no instances that can be recognised
        raise _UnknownType from None
    if _is_model(kind):
        return _validated(value, kind)
    if isinstance(kind, type) and issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise _UnknownType


def _validated(value: Any, kind: Any) -> Any:
    """Convert with pydantic, which is imported already if an annotation is one of its models."""
    import pydantic

    return pydantic.TypeAdapter(kind).validate_python(value)


def _is_model(kind: Any) -> bool:
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)


def _parts(kind: Any) -> Iterator[Any]:
    yield kind
    for part in typing.get_args(kind):
        yield from _parts(part)


def _faults(name: str, value: Any, kind: Any) -> list[str]:
    """Why the value is not of this type; empty if it is."""
    try:
        _made(value, kind)
    except msgspec.ValidationError as error:
        path, why = _reason(error)
        return [f"{name}{path}: {why}"]
    except ValueError as error:
        errors = getattr(error, "errors", None)  # an error of pydantic
        if errors is None:
            return [f"{name}: {error}"]
        return [
            f"{'.'.join(map(str, (name, *fault['loc'])))}: {fault['msg']}" for fault in errors()
        ]
    return []


def _reason(error: Exception) -> tuple[str, str]:
    """Where in the value the error is, as msgspec says it, and what it is."""
    why, _, path = str(error).replace("`", "").partition(" - at $")
    return path, f"{why[:1].lower()}{why[1:]}"


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
