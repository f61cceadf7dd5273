"""Converts a handler's arguments to JSON and back, by the annotations of its parameters.

A parameter annotated with a dataclass, an enum of strings or of integers, a date-time, a UUID, a
msgspec struct or a pydantic model (or a list, set, tuple or optional of these) gets such a value
when the handler is called, also with process isolation. Stored data names no class; only the
annotation does.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from functools import cached_property
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

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


def type_hints(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function or a class, by name, without those that cannot be resolved."""
    target: Any = inspect.unwrap(function)
    if not hasattr(target, "__annotations__"):
        target = getattr(target, "func", None) or type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception:  # a name imported only for type checkers: the other annotations may work
        hints: dict[str, Any] = {}
        for name, annotation in getattr(target, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            names = getattr(target, "__globals__", {})
            try:
                hints |= typing.get_type_hints(alone, globalns=names, include_extras=True)
            except Exception:
                continue
        return hints


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
