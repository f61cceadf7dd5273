"""The API's description: what FastAPI makes of the routes, with what it cannot know. Readable
operation ids, errors by status, headers of answers, both ways to send a key, and an example for
each body and answer, made of the schemas."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.alias_generators import to_camel

from mainspring.service.dependencies import COMPATIBILITY
from mainspring.service.middleware import OPEN, READS, SAFE
from mainspring.service.problems import CODES, V1
from mainspring.service.schemas import descriptions as words
from mainspring.service.schemas import envelopes, v1

__all__ = ["description", "operation_id"]

Schema = dict[str, Any]

_SCHEMAS = "#/components/schemas/"
_RETRY_AFTER = {"Retry-After": ("integer", "Seconds to wait before another try.")}
_ERRORS: dict[int, str] = {
    400: "The request cannot be read.",
    401: "An API key is needed, or the one given is unknown, revoked or expired.",
    403: "The key's scope is too small, or a page of another site asks.",
    404: "There is no such job, run or key.",
    409: "What is stored stands against it.",
    412: "The job was changed since it was read.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "A field, a parameter or a header is wrong.",
    429: "Too many requests.",
    503: "The store is away, or the service is stopping.",
}


def operation_id(route: APIRoute) -> str:
    """`listJobs`; of a route in the compatibility page's form `pageListJobs`."""
    if COMPATIBILITY not in route.tags:
        return to_camel(route.name)
    subject = route.path.split("/")[2]
    words = ["page", route.name]
    if subject not in ("observability", route.name) and subject not in route.name:
        words.append(subject)
    return to_camel("_".join(words))


def description(app: FastAPI) -> Schema:
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        parts = made.setdefault("components", {})
        schemas = parts.setdefault("schemas", {})
        for model in (v1.Problem, envelopes.ProblemDocument):
            schema = model.model_json_schema(ref_template=_SCHEMAS + "{model}", by_alias=True)
            schemas |= schema.pop("$defs", {})
            schemas[model.__name__] = schema
        schemas["Problem"]["properties"]["code"]["examples"] = ["job_not_found"]
        schemas["Problem"]["properties"]["code"]["description"] = _codes()
        words.describe(schemas)
        parts["securitySchemes"] = {
            "bearer": {
                "type": "http",
                "scheme": "bearer",
                "description": "`Authorization: Bearer ms_…`; `mainspring keys create` makes one.",
            },
            "apiKey": {
                "type": "apiKey",
                "in": "header",
                "name": "X-Api-Key",
                "description": "The same key in a header of its own.",
            },
        }
        made["security"] = [{"bearer": []}, {"apiKey": []}, {}]
        for path, operations in made["paths"].items():
            for method, operation in operations.items():
                _complete(path, method.upper(), operation, schemas)
        app.openapi_schema = made
    return app.openapi_schema


def _codes() -> str:
    listed = "\n".join(f"- `{code}`: {meaning}" for code, meaning in CODES.items())
    return f"Which problem it is, for programs:\n{listed}"


def _complete(path: str, method: str, operation: Schema, schemas: dict[str, Schema]) -> None:
    responses: dict[str, Schema] = operation["responses"]
    responses.pop("default", None)
    for status, response in responses.items():
        for content in response.get("content", {}).values():
            if "schema" in content and "$ref" in content["schema"]:
                content["example"] = example(content["schema"], schemas)
        if headers := _headers(path, method, int(status)):
            response["headers"] = _described(headers)
    if path in OPEN:
        operation["security"] = []
        if path == "/readyz":
            responses["503"] = {**responses["200"], "description": "It cannot do its work now."}
        return
    body = operation.get("requestBody")
    for content in (body or {}).get("content", {}).values():
        # A body that may be left out is not null: clients would send one.
        content["schema"] = _without_null(content["schema"])
        content["example"] = _BODIES.get(path, {}).get(method) or example(
            content["schema"], schemas
        )
    for refusal in _statuses(path, method, operation):
        responses[str(refusal)] = _error(path, refusal)


def _without_null(schema: Schema) -> Schema:
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else schema


def _statuses(path: str, method: str, operation: Schema) -> list[int]:
    found = {401, 403, 429, 503}
    if "parameters" in operation or "requestBody" in operation:
        found |= {400, 422}
    if "requestBody" in operation:
        found |= {413, 415}
    if "{id}" in path:
        found.add(404)
    if method not in SAFE and not READS.fullmatch(path) and "/keys" not in path:
        found.add(409)
    if any(one["name"] == "If-Match" for one in operation.get("parameters", ())):
        found.add(412)
    return sorted(found)


def _error(path: str, status: int) -> Schema:
    own = path.startswith(V1)
    code = _CODES[status]
    if status == 404 and "/jobs" not in path:
        code = "run_not_found" if "/runs" in path else "not_found"
    detail = _ERRORS[status]
    shown: Schema = {
        "type": f"urn:mainspring:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "instance": path.replace("{id}", "nightly"),
    }
    if not own:
        shown = {"success": False, "error": detail, **shown}
    name = "Problem" if own else "ProblemDocument"
    error: Schema = {
        "description": detail,
        "content": {
            "application/problem+json": {"schema": {"$ref": _SCHEMAS + name}, "example": shown}
        },
    }
    if status in (429, 503):
        error["headers"] = _described(_RETRY_AFTER)
    return error


_CODES = {
    400: "invalid_json",
    401: "key_missing",
    403: "scope_too_small",
    404: "job_not_found",
    409: "conflict",
    412: "job_changed",
    413: "body_too_large",
    415: "unsupported_media_type",
    422: "invalid_input",
    429: "rate_limited",
    503: "store_unavailable",
}
"""One code of each status, for its example."""


def _headers(path: str, method: str, status: int) -> dict[str, tuple[str, str]]:
    """What an answer carries beside its body."""
    _, _, subject = path.partition("/jobs")
    headers: dict[str, tuple[str, str]] = {}
    if "/jobs" not in path:
        return headers
    of_job = {"": "POST", "/{id}": "GET PUT PATCH", "/{id}/pause": "POST", "/{id}/resume": "POST"}
    if method in of_job.get(subject, "").split() and (subject or status == 201):
        headers["ETag"] = ("string", "Of the job's definition, for If-Match.")
    if status == 201 or (status == 202 and path.startswith(V1)):
        headers["Location"] = ("string", "Where it is found.")
    if status in (201, 202):
        headers["Idempotency-Replayed"] = ("string", "`true`: an earlier request made it.")
    return headers


def _described(headers: dict[str, tuple[str, str]]) -> Schema:
    return {
        name: {"description": text, "schema": {"type": kind}}
        for name, (kind, text) in headers.items()
    }


# -- examples -----------------------------------------------------------------------------------

_WEBHOOK = {
    "id": "nightly",
    "schedule": "0 30 2 * * *",
    "timezone": "Europe/Berlin",
    "endpoint": "https://api.example.com/webhook",
    "method": "POST",
    "headers": {"X-Team": "data"},
    "body": {"event": "nightly", "timestamp": "{{timestamp}}"},
    "retryAttempts": 3,
    "tags": ["reports"],
}
_JOB_BULK = {"action": "pause", "match": {"tag": "reports"}}
_RUN_BULK = {"action": "retry", "match": {"job": "nightly", "state": "failed"}}
_CHANGE = {"schedule": "0 */10 * * * *", "enabled": True}
_PREVIEW = {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "count": 3}
_KEY = {"name": "ci", "scope": "write", "expiresIn": "90d"}
_OF_PATH: dict[str, dict[str, Any]] = {
    "/jobs": {"POST": _WEBHOOK},
    "/jobs/bulk": {"POST": _JOB_BULK},
    "/jobs/{id}": {"PATCH": _CHANGE, "PUT": _CHANGE},
    "/jobs/{id}/trigger": {"POST": {"payload": {"event": "by hand"}}},
    "/runs/bulk": {"POST": _RUN_BULK},
    "/schedules/preview": {"POST": _PREVIEW},
    "/keys": {"POST": _KEY},
}
_BODIES = {prefix + path: bodies for prefix in (V1, "/api") for path, bodies in _OF_PATH.items()}

_VALUES: dict[str, Any] = {
    **_WEBHOOK,
    "_id": "nightly",
    "name": "Nightly report",
    "description": "Sends the report of the day",
    "jobId": "nightly",
    "handler": "webhook",
    "url": "https://api.example.com/webhook",
    "scheduleDescription": "at 02:30:00",
    "local": "2026-03-01T02:30:00.000+01:00",
    "duration": 212.5,
    "responseCode": 200,
    "responseBody": '{"ok": true}',
    "status": "healthy",
    "state": "succeeded",
    "worker": "host:4242:1a2b3c4d",
    "queue": "default",
    "priority": 5,
    "nextCursor": None,
    "cursor": None,
    "key": "ms_0123456789ab_…",
    "scope": "write",
    "signingSecret": "whsec_…",
    "success": True,
    "succeeded": True,
    "runs": {"pending": 2, "succeeded": 1450, "failed": 50},
    "metadata": {"team": "data"},
    "error": None,
    "reason": None,
    "traceback": None,
    "message": "job nightly was deleted",
}
"""What fields hold in examples, where the schema alone says too little."""


def example(schema: Schema, schemas: dict[str, Schema], name: str = "") -> Any:
    """A value that fits the schema."""
    if "$ref" in schema:
        target = schema["$ref"].removeprefix(_SCHEMAS)
        return example(schemas[target], schemas, name)
    if "enum" in schema:
        known = _VALUES.get(name)
        return known if known in schema["enum"] else schema["enum"][0]
    if "anyOf" in schema:
        if name in _VALUES and _VALUES[name] is None:
            return None
        return example(schema["anyOf"][0], schemas, name)
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return {
            field: example(part, schemas, field)
            for field, part in schema["properties"].items()
            if field in schema.get("required", ()) or field in _WEBHOOK
        }
    if name in _VALUES and _fits(_VALUES[name], kind):
        return _VALUES[name]
    if schema.get("format") == "date-time":
        return "2026-03-01T01:30:00.000Z"
    if kind == "array":
        return [example(schema["items"], schemas)] if "items" in schema else []
    plain = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "object": {}}
    return plain.get(str(kind))


def _fits(value: Any, kind: str | None) -> bool:
    if kind is None or isinstance(value, bool):
        return kind in (None, "boolean")
    types: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "object": (dict,),
        "array": (list,),
    }
    return isinstance(value, types.get(kind, ()))
