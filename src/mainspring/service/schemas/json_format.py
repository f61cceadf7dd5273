"""How values look in the API's JSON: times in UTC with `Z`, durations in milliseconds.

Payloads, results and metadata may hold values that JSON lacks. Requests and responses have one form
of them: `{"$datetime": "…"}`, and `$date`, `$uuid`, `$decimal` and `$bytes` alike. So a client can
send back what it has read, whole or changed in part.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, overload

import msgspec
from pydantic.alias_generators import to_camel

from mainspring.core import codec
from mainspring.core.codec import to_document
from mainspring.core.durations import duration
from mainspring.core.policy import MAX_SPAN
from mainspring.errors import InvalidInput


class WrongFormat(ValueError):
    """A value of a wrong format. The message goes on from the field's name: `is …, not …`."""


_MILLISECOND = timedelta(milliseconds=1)


class Time(str):
    """A time as responses have it: ISO 8601 in UTC, with milliseconds. `to_iso` makes it."""

    __slots__ = ()


@overload
def to_iso(moment: datetime) -> Time: ...
@overload
def to_iso(moment: None) -> None: ...
@overload
def to_iso(moment: datetime | None) -> Time | None: ...


def to_iso(moment: datetime | None) -> Time | None:
    if moment is None:
        return None
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return Time(text.replace("+00:00", "Z"))


def camel_case(value: Any) -> dict[str, Any]:
    """The fields of a value of the library as the API writes them."""
    document: dict[str, Any] = to_document(value, time=to_iso, name=to_camel)
    return document


def to_milliseconds(span: Any) -> Any:
    if span is None:
        return None
    number = span / _MILLISECOND
    return int(number) if number == int(number) else float(number)


def seconds_to_milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def to_json_value(value: Any) -> Any:
    """A payload, a result or a value of the metadata. A type that JSON lacks is tagged."""
    if value is None or isinstance(value, str | bool):
        return value
    return json.loads(codec.encode(value, limit=2**31), object_hook=_without_needless_escape)


def _without_needless_escape(tagged: dict[str, Any]) -> dict[str, Any]:
    """The store writes `{"$gt": 5}` as `{"$$gt": 5}`, because later versions may have more tags. A
    response escapes only what would be read as something else."""
    if len(tagged) != 1:
        return tagged
    ((name, value),) = tagged.items()
    plain = name[1:]
    needless = name.startswith("$$") and plain not in codec.TAGS and not plain.startswith("$$")
    return {plain: value} if needless else tagged


def read_json_value(value: Any) -> Any:
    """What a client sent as `to_json_value` writes it. Raises `WrongFormat` for a wrong tag."""
    try:
        return codec.untag(value)
    except RecursionError:
        return value  # the library refuses it: it nests too deep
    except ValueError as error:
        raise WrongFormat(
            f"holds a wrong tagged value: {error}. Write a second $ for an object that has such a"
            " name itself"
        ) from None


def read_duration(value: float | str) -> timedelta:
    """Milliseconds, or a text such as `"30s"`. Raises `WrongFormat` for anything else."""
    try:
        span = duration(value) if isinstance(value, str) else timedelta(milliseconds=value)
    except (InvalidInput, OverflowError, ValueError):
        span = -MAX_SPAN
    if not timedelta(0) <= span <= MAX_SPAN:
        raise WrongFormat(
            "is milliseconds (0 or more) or a text such as '30s', '1h30m' or 'PT5M', at most"
            f" {MAX_SPAN.days:,} days, not {value!r}"
        )
    return span


def read_datetime(text: str) -> datetime:
    """An ISO 8601 date-time; one without an offset stays without. Raises `WrongFormat`."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise WrongFormat(
            f"is an ISO 8601 date-time such as 2027-03-28T09:00:00+02:00, not {text!r}"
        ) from None


def encode_json(document: Any) -> bytes:
    """The document as JSON. Lone surrogates are escaped: a handler may name a file whose name is
    not UTF-8, and a list with its run must still be readable."""
    try:
        return _ENCODER.encode(document)
    except UnicodeEncodeError:
        return json.dumps(to_builtins(document), separators=(",", ":")).encode()


def to_builtins(document: Any) -> Any:
    """The document as a client reads it from JSON."""
    return msgspec.to_builtins(document, enc_hook=_write_time)


def _write_time(value: Any) -> str:
    if isinstance(value, Time):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_write_time)
