"""Converts structs, dataclasses and mappings to JSON's types."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from msgspec import Struct, structs


def to_document(
    value: Any, *, time: Callable[[datetime], str | None], name: Callable[[str], str] = str
) -> Any:
    """A value in JSON's types: a struct, a dataclass or a mapping becomes an object. `time` writes
    a time, and `name` the name of a field. The command line and the HTTP API differ in these."""

    def write(item: Any) -> Any:
        if isinstance(item, datetime):
            return time(item)
        if isinstance(item, Enum):
            return item.value
        if isinstance(item, list | tuple):
            return [write(member) for member in item]
        fields = _fields(item)
        return (
            item if fields is None else {name(key): write(member) for key, member in fields.items()}
        )

    return write(value)


def _fields(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Struct):
        return structs.asdict(value)
    if dataclasses.is_dataclass(value):
        return {part.name: getattr(value, part.name) for part in dataclasses.fields(value)}
    return value if isinstance(value, Mapping) else None
