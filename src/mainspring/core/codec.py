"""Payloads and results as JSON, and back; values of ours as documents.

Beyond JSON's own types, date-times, dates, UUIDs, Decimals and bytes come back as they were:
each is written as an object of one key, `{"$datetime": "…"}`. A user's own object of one key
that begins with `$` gets a second `$`, so every payload survives. Nothing is pickled, and
nothing stored can name a class to import.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct, structs

from mainspring.errors import InvalidPayload

MAX_BYTES = 256 * 1024
MAX_REPR = 8_000
"""Characters that are kept of the `repr` of a value that cannot be kept as it is."""

_READERS: dict[str, Callable[[str], Any]] = {
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$uuid": UUID,
    "$decimal": Decimal,
    "$bytes": base64.b64decode,
}
TAGS = frozenset(_READERS)
_PLAIN = (str, int, float, bool, type(None))


def encode(value: Any, *, what: str = "payload", limit: int = MAX_BYTES) -> str:
    """JSON text of the value; InvalidPayload if it has none, or is larger than `limit` bytes."""
    try:
        text = _text(_prepared(value, what, 0))
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidPayload):
            raise
        raise InvalidPayload(f"is not JSON: {error}", field=what, subject=f"the {what}") from None
    if len(text) > limit:
        raise InvalidPayload(
            f"is {len(text):,} bytes of JSON; at most {limit:,} are kept",
            field=what,
            subject=f"the {what}",
            advice="Store large data elsewhere and pass a reference to it",
        )
    return text


def kept_as_text(value: Any) -> dict[str, str]:
    """What is kept of a value that is not JSON or too large, so that the run need not fail."""
    try:
        text = repr(value)
    except BaseException as error:
        text = f"<a {type(value).__name__}, whose __repr__ raises {type(error).__name__}>"
    return {
        "kept_as": "text",
        "repr": text if len(text) <= MAX_REPR else text[: MAX_REPR - 1] + "…",
    }


def decode(text: str | None) -> Any:
    if text is None:
        return None
    if '"$' in text:  # most payloads hold no tagged value
        return json.loads(text, object_hook=_untagged)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:  # it is strict about lone surrogates, which JSON can hold
        return json.loads(text)


def untag(value: Any) -> Any:
    """The value that JSON's own types with tags stand for: what `decode` makes of their text.
    ValueError if a tag holds a text that it cannot have."""
    if isinstance(value, dict):
        return _untagged({name: untag(item) for name, item in value.items()})
    if isinstance(value, list):
        return [untag(item) for item in value]
    return value


def _prepared(value: Any, what: str, depth: int) -> Any:
    """The value with tags; the same object if it needs none."""
    if isinstance(value, _PLAIN):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} is not a JSON number")
        return value
    if depth > 100:
        raise InvalidPayload("is nested more than 100 deep", field=what, subject=f"the {what}")
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidPayload(
                    f"is not JSON: the key {key!r} is {type(key).__name__}, not text",
                    field=what,
                    subject=f"the {what}",
                )
        prepared = {key: _prepared(item, what, depth + 1) for key, item in value.items()}
        if len(prepared) == 1 and (key := next(iter(prepared))).startswith("$"):
            return {"$" + key: prepared[key]}
        return prepared
    if isinstance(value, list | tuple):
        return [_prepared(item, what, depth + 1) for item in value]
    return _tagged(value, what)


def _tagged(value: Any, what: str) -> dict[str, str]:
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, UUID):
        return {"$uuid": str(value)}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": base64.b64encode(value).decode()}
    name = type(value).__name__
    article = "an" if name[:1].lower() in "aeiou" else "a"
    raise InvalidPayload(
        f"is not JSON: it holds {article} {name}",
        field=what,
        subject=f"the {what}",
        advice="Allowed are text, numbers, true, false, null, lists, objects, date-times, dates,"
        " UUIDs, Decimals and bytes",
    )


def _untagged(tagged: dict[str, Any]) -> Any:
    if len(tagged) != 1:
        return tagged
    ((key, value),) = tagged.items()
    if key.startswith("$$"):
        return {key[1:]: value}
    read = _READERS.get(key)
    if read is None:
        return tagged
    try:
        return read(value)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        raise ValueError(f"{json.dumps(tagged)[:100]} is not a {key[1:]}") from None


def _text(prepared: Any) -> str:
    """JSON in ASCII. The standard library is half as fast as msgspec, but it accepts large numbers
    and lone surrogates, and escapes them."""
    try:
        text = msgspec.json.encode(prepared)
        if text.isascii():
            return text.decode()
    except (TypeError, ValueError, OverflowError):
        pass
    return _encoder.encode(prepared)


_encoder = json.JSONEncoder(separators=(",", ":"))


def encodable_text(text: str) -> str:
    """The text with lone surrogates escaped: names of files that are not UTF-8 have them, and
    neither a store nor a log can encode them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


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
