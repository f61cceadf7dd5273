"""Errors as clients get them: problem documents of RFC 9457 with a machine-readable `code`.

In the forms of the compatibility page they also carry `success: false` and the message in `error`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from mainspring.errors import (
    Conflict,
    HandlerNotFound,
    InvalidArguments,
    InvalidInput,
    InvalidPayload,
    InvalidSchedule,
    InvalidState,
    JobChanged,
    JobExists,
    JobNotFound,
    JobOwnedByCode,
    MainspringError,
    NotFound,
    NotStarted,
    RecordUnreadable,
    RunNotFound,
    StoreError,
)
from mainspring.service.schemas.json_bytes import written
from mainspring.webhooks.headers import shown_name

__all__ = [
    "CODES",
    "FieldError",
    "Problem",
    "install",
    "of_error",
    "of_invalid",
    "problem",
    "problem_document",
]

log = logging.getLogger("mainspring.service")

MEDIA_TYPE = "application/problem+json"
MOST_ERRORS = 50
V1 = "/api/v1"
"""Paths of the API's own form."""

CODES = {
    "bad_request": "The request cannot be read.",
    "invalid_json": "The body is not JSON.",
    "invalid_input": "A field, a parameter or a header is wrong; `errors` names them.",
    "key_missing": "An API key is needed.",
    "key_unknown": "The API key is unknown, revoked or expired.",
    "scope_too_small": "The API key's scope does not allow this.",
    "origin_refused": "A page of another site asks, or the Host is not a name of this service.",
    "not_found": "There is nothing at this path, or nothing of this id.",
    "job_not_found": "There is no such job.",
    "run_not_found": "There is no such run; finished runs are pruned after a time.",
    "method_not_allowed": "The path does not take this method; see `Allow`.",
    "conflict": "What is stored stands against it.",
    "job_exists": "There is a job of this id already.",
    "job_deleted": "The job that this Idempotency-Key created was deleted since.",
    "job_owned_by_code": "A program defines this job, and only the program can change it.",
    "job_unreadable": "The record was written by another version, or is damaged.",
    "invalid_state": "The run is not in a state that allows this.",
    "job_changed": "The job was changed since it was read.",
    "body_timeout": "The body did not come in time.",
    "body_too_large": "The body is too large.",
    "unsupported_media_type": "The body is not application/json.",
    "rate_limited": "Too many requests; try again after `Retry-After`.",
    "internal_error": "Something went wrong in the service; its log says what.",
    "store_unavailable": "The store does not answer; try again after `Retry-After`.",
    "stopping": "The service is stopping or not started; try again after `Retry-After`.",
}
"""Every `code`, and what it means."""

_CODE_OF_STATUS = {
    400: "bad_request",
    401: "key_missing",
    403: "origin_refused",
    404: "not_found",
    405: "method_not_allowed",
    408: "body_timeout",
    409: "conflict",
    412: "job_changed",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_input",
    429: "rate_limited",
    500: "internal_error",
    503: "stopping",
}
_CODE_OF_ERROR = {
    JobNotFound: "job_not_found",
    RunNotFound: "run_not_found",
    JobExists: "job_exists",
    JobOwnedByCode: "job_owned_by_code",
    RecordUnreadable: "job_unreadable",
    InvalidState: "invalid_state",
    StoreError: "store_unavailable",
}

FIELD = "field"
"""The type of an error that names its field itself: one that several fields make together."""


class FieldError(msgspec.Struct, frozen=True):
    field: str
    message: str

    @property
    def sentence(self) -> str:
        if self.message.startswith((f"{self.field} ", "give ")):
            return self.message
        joined = " " if self.message.startswith(("is ", "has ", "needs ", "spreads ")) else ": "
        return f"{self.field}{joined}{self.message}"


class Problem(Exception):
    """Raised anywhere in a request; becomes its answer."""

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
        self.code = code or _CODE_OF_STATUS.get(status, "bad_request")
        self.errors = errors
        self.headers = headers

    @classmethod
    def of_field(cls, field: str, message: str) -> Problem:
        return cls.of_fields([FieldError(field, message)])

    @classmethod
    def of_fields(cls, errors: Sequence[FieldError]) -> Problem:
        return cls(422, "; ".join(one.sentence for one in errors), errors=errors)


def problem(found: Problem, path: str = "") -> Response:
    """The answer that a problem gives; its form follows the path."""
    document = problem_document(found, path)
    if not path.startswith(V1):
        message = str(found)
        title = document["title"].lower().replace(" ", "-")
        kind = f"urn:mainspring:problem:{title}"
        document = {"success": False, "error": message, **document, "type": kind}
    headers = dict(found.headers or {})
    return Response(written(document), found.status, headers=headers, media_type=MEDIA_TYPE)


def problem_document(found: Problem, path: str = "") -> dict[str, Any]:
    document: dict[str, Any] = {
        "type": f"urn:mainspring:problem:{found.code}",
        "title": HTTPStatus(found.status).phrase,
        "status": found.status,
        "code": found.code,
        "detail": str(found),
    }
    if path:
        document["instance"] = path
    if found.errors:
        document["errors"] = [{"field": one.field, "message": one.message} for one in found.errors]
    return document


def install(app: FastAPI) -> None:
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(MainspringError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_bug)


def of_error(error: MainspringError) -> Problem:
    """The library's errors keep their words; here they get a status and a code."""
    found = _status_of(error)
    for kind, code in _CODE_OF_ERROR.items():
        if isinstance(error, kind):
            found.code = code
    return found


def _status_of(error: MainspringError) -> Problem:
    message = str(error)
    if isinstance(error, InvalidSchedule):
        return Problem.of_field("schedule", message)
    if isinstance(error, InvalidArguments | InvalidPayload):
        field = "metadata" if message.startswith("the metadata ") else "payload"
        return Problem.of_field(field, message.replace("payload=…", "payload"))
    if isinstance(error, InvalidInput):
        return Problem(422, message)
    if isinstance(error, HandlerNotFound):
        return Problem.of_field("handler", message)
    if isinstance(error, NotFound):
        return Problem(404, message)
    if isinstance(error, JobChanged):
        return Problem(412, message)
    if isinstance(error, Conflict):
        if isinstance(error, JobExists) and error.job_id is not None:
            message = (
                f"there is a job {error.job_id!r} already: change that one, or take another id"
            )
        return Problem(409, message)
    if isinstance(error, NotStarted):
        return Problem(503, "the service is stopping", headers={"Retry-After": "5"})
    if isinstance(error, StoreError):
        log.warning("the store failed a request: %s", error)
        return Problem(503, "the store is away; try again", headers={"Retry-After": "5"})
    raise error


def _answer(request: Request, found: Problem) -> Response:
    return problem(found, _path(request))


def _path(request: Request) -> str:
    """Without what the API is mounted below."""
    return request.url.path.removeprefix(request.scope.get("root_path", "")) or "/"


async def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return _answer(request, error)


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, MainspringError)
    return _answer(request, of_error(error))


async def _on_http(request: Request, error: Exception) -> Response:
    """Those that the framework raises: no such path, a method that a path does not have."""
    assert isinstance(error, HTTPException)
    words = {
        404: f"there is nothing at {request.url.path}; /docs shows what there is",
        405: f"{request.url.path} does not take {request.method}",
        400: "the body could not be read as JSON",
    }
    message = words.get(error.status_code, str(error.detail))
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_allowed(request))
    return _answer(request, Problem(error.status_code, message, headers=headers))


def _allowed(request: Request) -> list[str]:
    """The methods of the path: the framework names those of the first route that fits it."""
    methods: set[str] = set()
    for route in request.app.state.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    if "GET" in methods:
        methods.add("HEAD")
    return sorted(methods)


async def _on_bug(request: Request, error: Exception) -> Response:
    log.exception("%s %s failed", request.method, request.url.path, exc_info=error)
    return _answer(request, Problem(500, "something went wrong here; the log says what"))


# -- what pydantic found ----------------------------------------------------------------------


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _answer(request, of_invalid(error))


def of_invalid(error: RequestValidationError) -> Problem:
    found = error.errors()[:MOST_ERRORS]
    for one in found:
        if one["type"] == "json_invalid":
            why = one.get("ctx", {}).get("error", "")
            at = one["loc"][-1] if len(one["loc"]) > 1 else 0
            why = f"the body is not JSON: {why} at character {at}"
            return Problem(400, why, code="invalid_json")
        if one["loc"] == ("body",) and one["type"] in _NO_OBJECT:
            # By no field: a job has one that is called body.
            instead = "nothing" if one["type"] == "missing" else _given(one)
            return Problem(422, f"send a JSON object, not {instead}")
    return Problem.of_fields(_one_each(found))


def _one_each(found: Sequence[Any]) -> list[FieldError]:
    """One message for each field; what is wrong inside one says more than what is wrong with it."""
    fields: dict[str, list[Any]] = {}
    for one in found:
        fields.setdefault(_field(one), []).append(one)
    return [
        FieldError(field, _told(errors))
        for field, errors in fields.items()
        if not any(other.startswith(f"{field}.") for other in fields)
    ]


def _told(errors: Sequence[Any]) -> str:
    """Where a value may have several forms, pydantic tells what is wrong with each: one that had
    the right form says most, and otherwise all the forms are told."""
    for one in errors:
        if one["type"] not in _TYPES:
            return _message(one)
    forms = dict.fromkeys(_TYPES[one["type"]] for one in errors)
    return f"is {' or '.join(forms)}, not {_given(errors[0])}"


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


_NO_OBJECT = frozenset({"missing", "dict_type", "model_type", "model_attributes_type"})


def _field(error: Any) -> str:
    """`body.headers.X-Key` is `headers.X-Key` to whoever sent it. Names of union members and
    validators, which pydantic puts into the way, are left out."""
    if error["type"] == FIELD:
        return str(error["ctx"]["field"])
    where = [part for part in error["loc"][1:] if not _internal(part)]
    if where[:1] == ["headers"]:
        where[1:] = map(shown_name, where[1:])
    return ".".join(str(part) for part in where) or str(error["loc"][0])


def _internal(part: object) -> bool:
    return isinstance(part, str) and (
        "[" in part or "(" in part or part in _KINDS or part.startswith("constrained-")
    )


_KINDS = frozenset({"str", "int", "float", "bool", "BackoffBody", "MisfireBody", "BreakerBody"})


def _message(error: Any) -> str:
    kind, context = error["type"], error.get("ctx", {})
    given = _given(error)
    if kind == FIELD:
        return str(context["message"])
    if kind == "missing":
        return "this is required"
    if kind == "extra_forbidden":
        return "there is no such field; the API's reference at /docs names those there are"
    if kind == "value_error":
        return str(context.get("error", error["msg"]))
    if kind in ("literal_error", "enum"):
        return f"is one of {context['expected']}, not {given}"
    if kind.startswith(("greater_than", "less_than")):
        return f"is {_bound(kind, context)}, not {given}"
    if kind.startswith(("too_long", "string_too_long")):
        return f"has at most {context['max_length']} {_items(kind)}"
    if kind.startswith(("too_short", "string_too_short")):
        return f"has at least {context['min_length']} {_items(kind)}"
    return f"{error['msg'][:1].lower()}{error['msg'][1:]}, not {given}"


def _items(kind: str) -> str:
    return "characters" if kind.startswith("string") else "items"


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
"""Fields whose values may be secrets, or may have been meant for such: never told back."""


def _given(error: Any) -> str:
    """What was given, in a message: itself where it is short and plain, else what kind it is."""
    value, where = error.get("input"), error["loc"][1:2]
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if not where or where[0] in _SECRET:
        return _kind(value)
    text = repr(value) if isinstance(value, str) else msgspec.json.encode(_plain(value)).decode()
    return text if len(text) <= 80 else text[:77] + "..."


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    return "a text" if isinstance(value, str) else "a number"


def _plain(value: object) -> object:
    try:
        msgspec.json.encode(value)
    except Exception:
        return type(value).__name__
    return value
