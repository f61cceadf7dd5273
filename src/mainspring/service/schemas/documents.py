"""What a document is. Its class is its one definition: it describes the document in OpenAPI, and an
instance of it is what is sent.

    class Probe(Document):
        status: Annotated[str, example("ok")]
        \"\"\"The string under a field is its description.\"\"\"

    async def livez() -> Reply[Probe]:
        return Reply(Probe(status="ok"))

And how values look in JSON. Payloads, results and metadata may hold values that JSON lacks.
Requests and responses have one form of them: `{"$datetime": "…"}`, and `$date`, `$uuid`, `$decimal`
and `$bytes` alike. So a client can send back what it has read, whole or changed in part.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Generic, Self, TypeVar, overload

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct
from pydantic.alias_generators import to_camel

from mainspring.core import codec
from mainspring.core.codec import to_document
from mainspring.core.durations import duration
from mainspring.core.policy import MAX_SPAN
from mainspring.errors import InvalidInput

# -- values: times in UTC with Z, durations in milliseconds ---------------------------------------


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


# -- documents ------------------------------------------------------------------------------------

REFERENCE = "#/components/schemas/"

Milliseconds = Annotated[float, Meta(description="Milliseconds.")]
Cursor = Annotated[
    str | None, Meta(description="The cursor of the next page. Null on the last page.")
]


class Document(Struct, rename="camel", forbid_unknown_fields=True):
    """What a client is sent. A field that is `UNSET` is left out."""

    @classmethod
    def of(cls, value: Any) -> Self:
        """The document of a value of the library that has the same fields."""
        return msgspec.convert(value, cls, from_attributes=True, dec_hook=_read_time)


def _read_time(kind: type, value: Any) -> Any:
    if kind is Time:
        return to_iso(value)
    raise NotImplementedError(kind)


D_co = TypeVar("D_co", bound=Document, covariant=True)


class Reply(Response, Generic[D_co]):
    """A response with a document. The return type of a route says which: the API's description and
    the type checker go by it."""

    media_type = "application/json"

    def __init__(
        self, document: D_co, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(encode_json(document), status, headers=headers)


def example(value: Any) -> Meta:
    """An example of a field, for the API's description."""
    return Meta(examples=[value])


def describe_documents(documents: Iterable[type[Document]]) -> dict[str, Any]:
    """The JSON schemas of these documents and of those inside them, by name."""
    _, schemas = msgspec.json.schema_components(
        documents, schema_hook=_time_schema, ref_template=REFERENCE + "{name}"
    )
    for schema in schemas.values():
        if "enum" in schema:
            schema["type"] = "string"
        if "description" in schema:
            schema["description"] = inspect.cleandoc(schema["description"])
    for kind in _subclasses(Document):
        if kind.__name__ in schemas:
            _describe_fields(kind, schemas[kind.__name__])
    return schemas


def _describe_fields(kind: type[Document], schema: dict[str, Any]) -> None:
    """Every field is sent but those that can be `UNSET`."""
    texts = field_descriptions(kind)
    fields = msgspec.structs.fields(kind)
    schema["required"] = [field.encode_name for field in fields if field.default is not UNSET]
    for field in fields:
        described = schema["properties"][field.encode_name]
        described.pop("default", None)
        if field.name in texts:
            described["description"] = texts[field.name]


def _subclasses(kind: Any) -> Iterator[Any]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _time_schema(kind: type) -> dict[str, Any]:
    if kind is Time:
        return {"type": "string", "format": "date-time"}
    raise NotImplementedError(kind)


def field_descriptions(kind: type) -> dict[str, str]:
    """The strings under the fields of a class and of its bases, by field."""
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("mainspring."):
            descriptions |= _descriptions_in(base.__module__).get(base.__name__, {})
    return descriptions


@cache
def _descriptions_in(module: str) -> dict[str, dict[str, str]]:
    """By class of the module and by field."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes: dict[str, dict[str, str]] = {}
    for part in (part for part in tree.body if isinstance(part, ast.ClassDef)):
        for field, below in pairwise(part.body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    classes.setdefault(part.name, {})[name] = " ".join(text.split())
    return classes


def field_examples(kind: type[Document]) -> dict[str, Any]:
    """The examples of the fields that have one."""
    examples: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        for note in getattr(field.type, "__metadata__", ()):
            if isinstance(note, Meta) and note.examples:
                examples[field.name] = note.examples[0]
    return examples
