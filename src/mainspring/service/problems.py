"""Errors as clients get them: problem documents of RFC 9457 with a `code` for programs.

Those of the compatibility operations also carry `success: false` and the message in `error`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, Meta, UnsetType
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Scope

from mainspring.errors import (
    Conflict,
    HandlerNotFound,
    InvalidInput,
    InvalidState,
    JobChanged,
    JobExists,
    JobNotFound,
    JobOwnedByCode,
    JobOwnedByFile,
    MainspringError,
    NotFound,
    NotStarted,
    RecordUnreadable,
    RunNotFound,
    StoreError,
    suggest_name,
)
from mainspring.service.schemas.documents import Document, WrongFormat, encode_json, example
from mainspring.service.schemas.fields import NAMED_FIELD
from mainspring.webhooks.definition import shown_name

log = logging.getLogger("mainspring.service")

MEDIA_TYPE = "application/problem+json"
MAX_FIELD_ERRORS = 50
V1 = "/api/v1"
"""The prefix of the API's own form."""

_REFUSALS: dict[type[MainspringError], str] = {
    JobNotFound: "job_not_found",
    RunNotFound: "run_not_found",
    NotFound: "not_found",
    JobExists: "job_exists",
    JobOwnedByCode: "job_owned_by_code",
    JobOwnedByFile: "job_owned_by_file",
    RecordUnreadable: "job_unreadable",
    InvalidState: "invalid_state",
    JobChanged: "job_changed",
    Conflict: "conflict",
}
"""The library's errors that are told as they are: the first that fits says the code."""


CODES = {
    "bad_request": (400, "The request cannot be read."),
    "invalid_json": (400, "The body is not JSON."),
    "invalid_input": (422, "A field, a parameter or a header is wrong; `errors` names them."),
    "key_missing": (401, "The request needs an API key."),
    "key_unknown": (401, "The API key is unknown, revoked or expired."),
    "origin_refused": (403, "A page of another site sent it, or its Host is not allowed."),
    "scope_too_small": (403, "The API key's scope does not allow this."),
    "not_found": (404, "There is nothing at this path, or nothing with this id."),
    "job_not_found": (404, "There is no such job."),
    "run_not_found": (404, "There is no such run. Finished runs are pruned after a time."),
    "method_not_allowed": (405, "The path does not take this method; see `Allow`."),
    "body_timeout": (408, "The body did not arrive in time."),
    "conflict": (409, "The stored state does not allow this."),
    "job_exists": (409, "There is already a job with this id."),
    "job_deleted": (409, "The job that this Idempotency-Key created was deleted."),
    "job_owned_by_code": (409, "A program defines the job, and only the program can change it."),
    "job_owned_by_file": (409, "A file defines the job: change the file and apply it."),
    "job_unreadable": (409, "The record is damaged, or another version wrote it."),
    "invalid_state": (409, "The run's state does not allow this."),
    "job_changed": (412, "The job was changed after it was read."),
    "body_too_large": (413, "The body is too large."),
    "unsupported_media_type": (415, "The body is not application/json."),
    "rate_limited": (429, "Too many requests; try again after `Retry-After`."),
    "internal_error": (500, "An unexpected error; the service's log says more."),
    "stopping": (503, "The service is stopping or not started; try again after `Retry-After`."),
    "store_unavailable": (503, "The store does not answer; try again after `Retry-After`."),
    "busy": (503, "The service holds too many bytes of requests; try again after `Retry-After`."),
}
"""Every `code`, its status, and what it means. The first of a status is for errors that name
none."""

_LISTED = "\n".join(f"- `{code}`: {meaning}" for code, (_, meaning) in CODES.items())


def codes_of(status: int) -> list[str]:
    return [code for code, (of_code, _) in CODES.items() if of_code == status]


class FieldProblem(Document):
    field: Annotated[str, example("schedule")]
    """The field or parameter."""
    message: Annotated[str, example("is required")]
    """What is wrong with it."""


class Problem(Document):
    """An error, as RFC 9457 describes it. Programs go by `code`."""

    type: str
    """A URN that ends with the code."""
    title: str
    """The status in words."""
    status: int
    """The status of the response."""
    code: Annotated[
        str,
        Meta(
            description=f"Which problem it is, for programs:\n{_LISTED}", examples=["job_not_found"]
        ),
    ]
    detail: str
    """What happened, and what to do about it."""
    instance: str | UnsetType = UNSET
    """The path of the request."""
    errors: list[FieldProblem] | UnsetType = UNSET
    """Each wrong field, with a message."""

    @classmethod
    def of(cls, error: ApiError, path: str = "") -> Problem:
        return Problem(
            type=f"urn:mainspring:problem:{error.code}",
            title=HTTPStatus(error.status).phrase,
            status=error.status,
            code=error.code,
            detail=str(error),
            instance=path or UNSET,
            errors=[FieldProblem.of(fault) for fault in error.errors] or UNSET,
        )


class ProblemDocument(Problem, kw_only=True):
    """An error of the compatibility operations: `error` says what to do about it, the rest is RFC
    9457."""

    success: bool
    """Always false."""
    error: str
    """The same as `detail`."""


class FieldError(msgspec.Struct, frozen=True):
    """A wrong field. `link` stands between the field and the message in a whole sentence; empty:
    the message is the sentence."""

    field: str
    message: str
    link: str = ""

    @classmethod
    def predicate(cls, field: str, message: str) -> FieldError:
        """A message whose subject is the field: `is null`, `has at most 50 items`."""
        return cls(field, message, " ")

    @classmethod
    def remark(cls, field: str, message: str) -> FieldError:
        """A message that does not name the field."""
        return cls(field, message, ": ")

    @classmethod
    def of_library(cls, field: str, error: InvalidInput) -> FieldError:
        """An error of the library, under the name that the client has for the field."""
        if error.subject is None:
            return cls(field, str(error))
        return cls.predicate(field, error.predicate)

    def sentence(self, name: str | None = None) -> str:
        """The part of the whole message. `name`: what the reader calls the field."""
        return f"{name or self.field}{self.link}{self.message}" if self.link else self.message


class ApiError(Exception):
    """Raised anywhere in a request; its problem document becomes the answer."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code or next(iter(codes_of(status)), "bad_request")
        self.errors = errors
        self.headers = headers

    @classmethod
    def of_fields(cls, *errors: FieldError) -> ApiError:
        """Several fields may share a sentence, such as those that exclude each other."""
        sentences = dict.fromkeys(error.sentence() for error in errors)
        return cls(422, "; ".join(sentences), errors=errors)


def too_many(why: str, wait: float) -> ApiError:
    seconds = max(1, round(wait + 0.5))
    return ApiError(429, f"{why}: try again in {seconds} s", headers={"Retry-After": str(seconds)})


def problem_response(error: ApiError, scope: Scope) -> Response:
    """The response to a request that failed. Its form depends on the path."""
    document = Problem.of(error, scope["path"])
    if not local_path(scope).startswith(V1):
        title = document.title.lower().replace(" ", "-")
        document.type = f"urn:mainspring:problem:{title}"
        fields = msgspec.structs.asdict(document)
        document = ProblemDocument(success=False, error=document.detail, **fields)
    headers = dict(error.headers or {})
    return Response(encode_json(document), error.status, headers=headers, media_type=MEDIA_TYPE)


def local_path(scope: Scope) -> str:
    """The path of a request without the one that the API is mounted at."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) or "/"


def install_error_handlers(app: FastAPI) -> None:
    for kind in (ApiError, MainspringError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _on_error)


async def _on_error(request: Request, error: Exception) -> Response:
    match error:
        case ApiError():
            refusal = error
        case MainspringError():
            refusal = from_library_error(error)
        case RequestValidationError():
            refusal = from_validation_error(error.errors())
        case HTTPException():
            refusal = _from_http_error(request, error)
        case _:
            log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
            refusal = ApiError(500, "an unexpected error: see the service's log")
    return respond(request, refusal)


def from_library_error(error: MainspringError) -> ApiError:
    """The library's error with its message, and a status and a code for the client."""
    message = str(error)
    if isinstance(error, InvalidInput):
        fields = [
            FieldError.of_library(to_camel(fault.field), fault)
            for fault in error.each()
            if fault.field is not None
        ]
        return ApiError(422, message, errors=fields)
    if isinstance(error, HandlerNotFound):
        return ApiError.of_fields(FieldError("handler", message))
    if isinstance(error, NotStarted):
        return ApiError(503, "the service is stopping", headers={"Retry-After": "5"})
    if isinstance(error, StoreError):
        log.warning("the store failed a request: %s", error)
        why = "the store does not answer; try again later"
        return ApiError(503, why, code="store_unavailable", headers={"Retry-After": "5"})
    if isinstance(error, JobExists) and error.job_id is not None:
        message = f"there is already a job {error.job_id!r}: change that one, or use another id"
    for kind, code in _REFUSALS.items():
        if isinstance(error, kind):
            return ApiError(CODES[code][0], message, code=code)
    raise error


def wants_page(request: Request) -> bool:
    """Whether a browser asks for a page, or for a new copy of one, and not a program for a
    document."""
    path = local_path(request.scope)
    if request.method not in ("GET", "HEAD") or path.startswith(("/api/", "/assets/")):
        return False
    if path in ("/metrics", "/openapi.json"):
        return False
    return "text/html" in request.headers.get("accept", "") or "hx-request" in request.headers


def respond(request: Request, error: ApiError) -> Response:
    """A page for a browser that asked for one, else a problem document."""
    make_page = request.app.state.service.error_page
    if make_page is not None and wants_page(request):
        page: Response = make_page(request, error)
        return page
    return problem_response(error, request.scope)


def _from_http_error(request: Request, error: HTTPException) -> ApiError:
    """What the framework refuses: an unknown path, or a method that a path does not take."""
    docs = request.scope.get("root_path", "") + "/docs"
    words = {
        404: f"there is nothing at {request.url.path}; {docs} shows what there is",
        400: "the body could not be read as JSON: it is not UTF-8, or it nests too deep,"
        " or a number in it has too many digits",
    }
    message = words.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = allowed = ", ".join(_allowed(request))
        message = f"{request.url.path} does not take {request.method}; it takes {allowed}"
    return ApiError(error.status_code, message, headers=headers)


def _allowed(request: Request) -> list[str]:
    """The methods of all routes of this path. The framework names those of the first route
    alone."""
    routes = [
        route
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
    ]
    # `/jobs/bulk` is not the job that is called bulk.
    routes = [route for route in routes if not route.param_convertors] or routes
    methods = {method for route in routes for method in route.methods or ()}
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods)


# -- errors of pydantic ---------------------------------------------------------------------------


def from_validation_error(errors: Sequence[Any]) -> ApiError:
    """The errors of a request's body, query and headers; `loc` begins with which of them."""
    for error in errors:
        if error["type"] == "json_invalid":
            why = error.get("ctx", {}).get("error", "")
            at = error["loc"][-1] if len(error["loc"]) > 1 else 0
            why = f"the body is not JSON: {why} at character {at}"
            return ApiError(400, why, code="invalid_json")
        if error["loc"] == ("body",) and error["type"] in _NOT_AN_OBJECT:
            # Without a field: a job has one that is called body.
            instead = "nothing" if error["type"] == "missing" else _given(error, None)
            return ApiError(422, f"send a JSON object, not {instead}")
    return ApiError.of_fields(*field_errors([_located(error) for error in errors]))


def _located(error: Any) -> Any:
    """The error without the part of the request that it is in. A parameter that may be given
    several times has its own name, and not the place of the wrong one."""
    where, *place = error["loc"]
    if where == "query":
        place = place[:1]
    return {**error, "loc": tuple(place) or error["loc"]}


def field_errors(errors: Sequence[Any]) -> list[FieldError]:
    """One error for each field; an error inside a field says more than one of the field itself."""
    fields: dict[str, list[Any]] = {}
    for error in errors[:MAX_FIELD_ERRORS]:
        fields.setdefault(_field(error), []).append(error)
    return [
        _field_error(field, errors_of_field)
        for field, errors_of_field in fields.items()
        if not any(other.startswith(f"{field}.") for other in fields)
    ]


def _field_error(field: str, errors: Sequence[Any]) -> FieldError:
    """A value may have several types, and pydantic reports an error for each. The one whose type
    was right says most; otherwise the message names all the types."""
    for error in errors:
        if error["type"] not in _TYPES:
            return _message(field, error)
    types = dict.fromkeys(_TYPES[error["type"]] for error in errors)
    given = _given(errors[0], field)
    return FieldError.predicate(field, f"is {' or '.join(types)}, not {given}")


_TYPES = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}


_NOT_AN_OBJECT = frozenset({"missing", "dict_type", "model_type", "model_attributes_type"})


def _field(error: Any) -> str:
    """The field's path, as in `headers.X-Key`. pydantic puts the names of types and validators
    between its parts; those are left out."""
    if error["type"] == NAMED_FIELD:
        return str(error["ctx"]["field"])
    if error["loc"][:1] == ("headers",):  # the names are the client's, and one may be called str
        where = ["headers", *map(shown_name, error["loc"][1:2])]
    else:
        where = [part for part in error["loc"] if not _internal(part)]
    return ".".join(str(part) for part in where) or "body"


def _internal(part: object) -> bool:
    return isinstance(part, str) and (
        "[" in part or "(" in part or part in _KINDS or part.startswith("constrained-")
    )


_KINDS = frozenset({"str", "int", "float", "bool", "BackoffBody", "MisfireBody", "BreakerBody"})


def _message(field: str, error: Any) -> FieldError:
    kind, context = error["type"], error.get("ctx", {})
    if kind == NAMED_FIELD:
        make = FieldError.predicate if context["predicate"] else FieldError
        return make(field, context["message"])
    if kind == "missing":
        return FieldError.remark(field, "this is required")
    if kind == "extra_forbidden":
        near = suggest_name(field, context.get("fields", ()))
        advice = "" if near is None else f" (did you mean {near!r}?)"
        return FieldError.remark(
            field, f"there is no such field{advice}; the API's reference at /docs names the fields"
        )
    if kind == "value_error":
        why = context["error"]
        make = FieldError.predicate if isinstance(why, WrongFormat) else FieldError.remark
        return make(field, str(why))
    given = _given(error, field)
    if kind in ("literal_error", "enum"):
        return FieldError.predicate(field, f"is one of {context['expected']}, not {given}")
    if kind.startswith(("greater_than", "less_than")):
        return FieldError.predicate(field, f"is {_bound(kind, context)}, not {given}")
    if kind.startswith(("too_long", "string_too_long")):
        most = context["max_length"]
        return FieldError.predicate(field, f"has at most {most} {_items(kind, most)}")
    if kind.startswith(("too_short", "string_too_short")):
        least = context["min_length"]
        return FieldError.predicate(field, f"has at least {least} {_items(kind, least)}")
    text = f"{error['msg'][:1].lower()}{error['msg'][1:]}"
    return FieldError.remark(field, f"{text}, not {given}")


def _items(kind: str, count: int) -> str:
    return ("character" if kind.startswith("string") else "item") + ("" if count == 1 else "s")


def _bound(kind: str, context: Mapping[str, Any]) -> str:
    limit = next(iter(context.values()))
    words = {
        "greater_than": "more than {}",
        "greater_than_equal": "{} or more",
        "less_than": "less than {}",
        "less_than_equal": "at most {}",
    }
    return words[kind].format(limit)


_SECRET = frozenset({"headers", "secretHeaders", "endpoint", "rotateSecret"})
"""Fields whose values may be secrets: messages never show them."""


def _given(error: Any, field: str | None) -> str:
    """The given value in a message: itself if it is short and plain, else its type."""
    value = error.get("input")
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if field is None or field.partition(".")[0] in _SECRET:
        return _kind(value)
    text = _JSON_WORDS[value] if value is None or isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_JSON_WORDS = {None: "null", True: "true", False: "false"}


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return "a text" if isinstance(value, str) else "a number"
