"""What a document is. Its class is its one definition: it describes the document in OpenAPI, and an
instance of it is what is sent.

    class Probe(Document):
        status: Annotated[str, example("ok")]
        \"\"\"The string under a field is its description.\"\"\"

    async def livez() -> Reply[Probe]:
        return Reply(Probe(status="ok"))
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Generic, Self, TypeVar

import msgspec
from fastapi import Response
from msgspec import UNSET, Meta, Struct

from mainspring.service.schemas.json_format import Time, encode_json, to_iso

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
