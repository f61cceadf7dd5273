"""How documents are declared: each field once, for requests, answers and the OpenAPI document.

A large document (a job, a run) is a tuple of `FieldSpec`. `takes` makes the model of a request from
it and `answers` the model of an answer; `document_of` writes an answer, and `option` names what the
library calls the field. A small document is a plain model, which is filled in and sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, Generic, Self, TypeVar

from fastapi import Query
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from mainspring.core.model import check_job_id
from mainspring.core.policy import MAX_COUNT, MAX_NAME, MAX_PRIORITY
from mainspring.errors import InvalidInput
from mainspring.service.schemas.json_format import (
    read_datetime,
    read_duration,
    read_json_value,
    to_iso,
)

__all__ = [
    "LEFT_OUT",
    "NAMED_FIELD",
    "Body",
    "Conditions",
    "Count",
    "Cursor",
    "DateTime",
    "Document",
    "Duration",
    "FieldSpec",
    "JobId",
    "JsonValue",
    "Milliseconds",
    "OneLine",
    "Priority",
    "Time",
    "TolerantBody",
    "answers",
    "document_of",
    "field_fault",
    "may_be_left_out",
    "options_of",
    "pick",
    "query_of",
    "repeats",
    "takes",
    "within",
]

S = TypeVar("S")
M = TypeVar("M", bound=BaseModel)

NAMED_FIELD = "named_field"
"""The type of a pydantic error that names its field itself, because several fields make it."""


def _job_id(text: str) -> str:
    try:
        return check_job_id(text)
    except InvalidInput as error:
        raise ValueError(str(error)) from None


def _written_time(given: Any) -> Any:
    return to_iso(given) if isinstance(given, datetime) else given


Time = Annotated[
    str, BeforeValidator(_written_time), Field(json_schema_extra={"format": "date-time"})
]
Milliseconds = Annotated[float, Field(description="Milliseconds.")]
Cursor = Annotated[
    str | None, Field(description="The cursor of the next page. Null on the last page.")
]
Duration = Annotated[
    float | Annotated[str, StringConstraints(max_length=64)], AfterValidator(read_duration)
]
DateTime = Annotated[str, StringConstraints(max_length=64), AfterValidator(read_datetime)]
OneLine = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME)]
JsonValue = Annotated[Any, AfterValidator(read_json_value)]
"""Any JSON, with tags for values that JSON lacks. Answers have it by `to_json_value`."""
JobId = Annotated[str, AfterValidator(_job_id)]


def within(kind: Any, **bounds: Any) -> Any:
    """A type whose bounds are in the API's description alone: the library checks them, so that
    every job that it has stored can be sent back."""
    return Annotated[kind, Field(json_schema_extra=bounds)]


Count = within(int, minimum=1, maximum=MAX_COUNT)
Priority = within(int, minimum=0, maximum=MAX_PRIORITY)


class Body(BaseModel):
    """What a client sends. Unknown fields and JSON types other than the declared are refused."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        json_schema_extra={"additionalProperties": False},
    )

    @model_validator(mode="before")
    @classmethod
    def _is_unicode(cls, value: Any) -> Any:
        """JSON can spell half of a surrogate pair, which no store can keep."""
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("the body holds text that is not Unicode") from None
        except RecursionError:
            raise ValueError("the body nests too deep") from None
        except (TypeError, ValueError):
            pass  # the fields refuse it
        return value

    @property
    def sent(self) -> dict[str, Any]:
        """The values of the fields that were sent."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _aliases(body: type[Body]) -> list[str]:
    return [field.alias or name for name, field in body.model_fields.items()]


class TolerantBody(Body):
    """A body that is read although some of its fields have a wrong type. Those errors are collected
    in `type_errors`, so that the rules of the others are checked too and the client gets every
    error at once."""

    _type_errors: list[ErrorDetails] = PrivateAttr(default_factory=list)
    _as_sent: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def type_errors(self) -> list[ErrorDetails]:
        return self._type_errors

    @property
    def as_sent(self) -> dict[str, Any]:
        """The JSON object, under the API's names."""
        return self._as_sent

    @classmethod
    def clean(cls, value: Any) -> Any:
        """The JSON object without what means nothing in it."""
        return value

    @model_validator(mode="wrap")
    @classmethod
    def _keep_type_errors(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        errors: list[ErrorDetails] = []
        value = cls.clean(value)
        try:
            body = read(value)
        except ValidationError as error:
            errors = error.errors()
            for one in errors:
                if one["type"] == "extra_forbidden" and len(one["loc"]) == 1:
                    one["ctx"] = {"fields": _aliases(cls)}  # for a message that suggests one
            wrong = {one["loc"][0] for one in errors if one["loc"]}
            if not isinstance(value, dict) or not wrong:
                raise
            body = read({name: item for name, item in value.items() if name not in wrong})
        body._type_errors, body._as_sent = errors, value
        return body


class Document(BaseModel):
    """What a client is answered."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        protected_namespaces=(),
        serialize_by_alias=True,
        validate_by_name=True,
        validate_by_alias=True,
    )


LEFT_OUT: Any = object()
"""As `FieldSpec.null`: a field that is null counts as left out."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class FieldSpec(Generic[S]):
    """A field of a document: everything about it, once."""

    name: str
    """In snake case; the API's name is `alias`."""
    description: str
    example: Any = None
    sent: Any = None
    """The type in a request. None: the field cannot be sent."""
    default: Any = None
    """What a request that leaves the field out means."""
    nullable: bool = True
    """Whether a request may send null. If not, it may only leave the field out."""
    answered: Any = None
    """The type in an answer. None: the field is not answered."""
    optional: bool = False
    """Whether an answer may leave the field out."""
    read: Callable[[S], Any] | None = None
    """The value in an answer."""
    option: str | None = None
    """The library's name of the field."""
    to_option: Callable[[Any], Any] = _same
    """The library's form of a value that was sent and is not null."""
    null: Any = None
    """What null means to the library; `LEFT_OUT`: nothing."""
    other_alias: str | None = None

    @cached_property
    def alias(self) -> str:
        return self.other_alias or to_camel(self.name)

    def definition(self, kind: Any, default: Any) -> tuple[Any, Any]:
        """The field of a pydantic model."""
        settings: dict[str, Any] = {"description": self.description}
        if self.example is not None:
            settings["examples"] = [self.example]
        if self.other_alias is not None:
            settings["alias"] = self.other_alias
        if default is LEFT_OUT:
            return kind, Field(default_factory=lambda: None, **settings)
        return kind, Field(default, **settings)


def takes(*specs: FieldSpec[Any]) -> Callable[[type[M]], type[M]]:
    """Give a model of a request the fields that can be sent. Each may be left out."""
    return _with_fields(
        {
            spec.name: spec.definition(spec.sent, spec.default if spec.nullable else LEFT_OUT)
            for spec in specs
            if spec.sent is not None
        }
    )


def answers(*specs: FieldSpec[Any]) -> Callable[[type[M]], type[M]]:
    """Give a model of an answer the fields that are answered."""
    return _with_fields(
        {
            spec.name: spec.definition(spec.answered, None if spec.optional else ...)
            for spec in specs
            if spec.answered is not None
        }
    )


def repeats(model: type[BaseModel], *names: str) -> Callable[[type[M]], type[M]]:
    """Give a model fields of another one, with their types and descriptions."""
    fields = model.model_fields
    return _with_fields({name: (fields[name].annotation, fields[name]) for name in names})


def _with_fields(fields: Mapping[str, tuple[Any, Any]]) -> Callable[[type[M]], type[M]]:
    def decorate(model: type[M]) -> type[M]:
        made: type[M] = create_model(  # type: ignore[call-overload]
            model.__name__,
            __base__=model,
            __module__=model.__module__,
            __doc__=model.__doc__,
            **fields,
        )
        return made

    return decorate


def pick(specs: Iterable[FieldSpec[S]], *names: str, **changes: Any) -> list[FieldSpec[Any]]:
    """These fields, for another document. `changes`: what is different there."""
    by_name = {spec.name: spec for spec in specs}
    return [replace(by_name[name], **changes) for name in names]


def options_of(specs: Iterable[FieldSpec[Any]], sent: Mapping[str, Any]) -> dict[str, Any]:
    """What was sent under the library's names and in its forms."""
    options: dict[str, Any] = {}
    for spec in specs:
        if spec.option is None or spec.name not in sent:
            continue
        value = sent[spec.name]
        value = spec.null if value is None else spec.to_option(value)
        if value is not LEFT_OUT:
            options[spec.option] = value
    return options


def document_of(specs: Iterable[FieldSpec[S]], source: S) -> dict[str, Any]:
    """The answer's fields that are read from this source."""
    return {spec.alias: spec.read(source) for spec in specs if spec.read is not None}


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
