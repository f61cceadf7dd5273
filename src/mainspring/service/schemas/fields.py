"""What clients send: the types of fields, and what holds for every body."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import msgspec
from fastapi import Query
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from mainspring.core.model import check_job_id
from mainspring.core.policy import MAX_COUNT, MAX_NAME, MAX_PRIORITY
from mainspring.errors import InvalidInput
from mainspring.service.schemas.documents import (
    Document,
    field_descriptions,
    field_examples,
    read_datetime,
    read_duration,
    read_json_value,
)

NAMED_FIELD = "named_field"
"""The type of a pydantic error that names its field itself, because several fields make it."""


def _job_id(text: str) -> str:
    try:
        return check_job_id(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


Duration = Annotated[
    float | Annotated[str, StringConstraints(max_length=64)], AfterValidator(read_duration)
]
DateTime = Annotated[str, StringConstraints(max_length=64), AfterValidator(read_datetime)]
OneLine = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
JsonValue = Annotated[Any, AfterValidator(read_json_value)]
"""Any JSON, with tags for values that JSON lacks. Responses have it by `to_json_value`."""
JobId = Annotated[str, AfterValidator(_job_id)]


def bounds(**described: Any) -> Any:
    """Bounds of a type that are in the API's description alone: the library checks them, so that
    every job that it has stored can be sent back."""
    return Field(json_schema_extra=described)


Count = Annotated[int, bounds(minimum=1, maximum=MAX_COUNT)]
CountOrZero = Annotated[int, bounds(minimum=0, maximum=MAX_COUNT)]
Priority = Annotated[int, bounds(minimum=0, maximum=MAX_PRIORITY)]


class Body(BaseModel):
    """What a client sends. Unknown fields and JSON types other than the declared are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)

    example: ClassVar[dict[str, Any] | None] = None
    """Of the body, for the API's description."""
    document: ClassVar[type[Document] | None] = None
    """The document whose fields the body shares: it describes them."""

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = handler.resolve_ref_schema(handler(schema))
        texts, examples = dict[str, str](), dict[str, Any]()
        if cls.document is not None:
            texts, examples = field_descriptions(cls.document), field_examples(cls.document)
        texts |= field_descriptions(cls)
        for name, field in cls.model_fields.items():
            part = described["properties"][field.alias or name]
            if name in texts:
                part["description"] = texts[name]
            if name in examples:
                part["examples"] = [examples[name]]
        if cls.example is not None:
            described["examples"] = [cls.example]
        return {**described, "additionalProperties": False}

    @property
    def sent(self) -> dict[str, Any]:
        """The values of the fields that were sent."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class TolerantBody(Body):
    """A body that is read although some of its fields have a wrong type, so that the rules of the
    others are checked too and the client gets every error at once."""

    ignored: ClassVar[Set[str]] = frozenset()
    """Fields that may be sent as they were read, and mean nothing."""
    _as_sent: dict[str, Any] = PrivateAttr(default_factory=dict)
    _type_errors: list[ErrorDetails] = PrivateAttr(default_factory=list)

    @property
    def as_sent(self) -> dict[str, Any]:
        """The JSON object, under the API's names, without fields of a wrong type."""
        return self._as_sent

    @property
    def type_errors(self) -> list[ErrorDetails]:
        return self._type_errors

    @model_validator(mode="wrap")
    @classmethod
    def _keep_type_errors(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(value, dict):
            return read(value)
        errors: list[ErrorDetails] = []
        known = {name: item for name, item in value.items() if name not in cls.ignored}
        try:
            body = read(known)
        except ValidationError as error:
            errors = error.errors()
            names = [field.alias or name for name, field in cls.model_fields.items()]
            for details in errors:
                if details["type"] == "extra_forbidden" and len(details["loc"]) == 1:
                    details["ctx"] = {"fields": names}  # for a message that suggests one
            wrong = {details["loc"][0] for details in errors if details["loc"]}
            if not wrong:
                raise
            value = {name: item for name, item in value.items() if name not in wrong}
            body = read({name: item for name, item in known.items() if name not in wrong})
        body._type_errors, body._as_sent = errors, value
        return body


class Sent(NamedTuple):
    """As which type a client may send a field of a document: `Annotated[int, Sent(Count)]`."""

    type: Any
    option: str | None = None
    """The library's name for it, if that is another."""
    only: Literal["endpoint", "handler"] | None = None
    """The kind of job that has the field. None: both."""
    null: bool = True
    """Whether null may be sent."""


def sent_of(document: type[Document]) -> dict[str, Sent]:
    """The fields of a document that may be sent."""
    return {
        field.name: note
        for field in msgspec.structs.fields(document)
        for note in getattr(field.type, "__metadata__", ())
        if isinstance(note, Sent)
    }


def fields_of(shared: type[Document], names: Iterable[str]) -> type[Body]:
    """A body with fields of a document, each of which may be left out."""
    fields: dict[str, Any] = {}
    for name, sent in sent_of(shared).items():
        if name in names:
            may_be_null = (sent.type | None, None)
            fields[name] = may_be_null if sent.null else (sent.type, may_be_left_out())
    body = create_model("Fields", __base__=Body, **fields)
    body.document = shared
    return body


def may_be_left_out() -> Any:
    """The default of a request's field that may be left out, but not be null."""
    return Field(default_factory=lambda: None)


class Conditions(Body):
    """Conditions that select jobs or runs; all must match. null is refused, because a template that
    was not filled in would select everything."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_null(cls, value: Any) -> Any:
        for name, item in value.items() if isinstance(value, dict) else ():
            if item is None:
                raise field_fault(f"match.{name}", "is null: leave it out where it does not matter")
        return value


def query_of(conditions: type[Conditions], name: str, **limits: Any) -> Any:
    """The query parameter that selects by a condition of `match`, with its description."""
    return Query(description=conditions.model_fields[name].description, **limits)


def field_fault(field: str, message: str, *, predicate: bool = True) -> PydanticCustomError:
    """An error of a request that several fields make together, reported at one of them.
    `predicate`: the field is the subject of the message, as in `is null`."""
    context = {"field": field, "message": message, "predicate": predicate}
    return PydanticCustomError(NAMED_FIELD, "{message}", context)
