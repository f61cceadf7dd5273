"""Makes the OpenAPI document: completes what FastAPI derives from the routes.

It adds readable operation ids, errors by status, headers of answers, both ways to send a key, and
an example of each body and answer, which is made from the schemas.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic.alias_generators import to_camel

from mainspring.service.access import Access, CheckedRoute
from mainspring.service.dependencies import COMPATIBILITY, SAFE_METHODS
from mainspring.service.problems import V1
from mainspring.service.schemas.problem import STATUSES, Problem, ProblemDocument

__all__ = ["description", "operation_id"]

Schema = dict[str, Any]

_SCHEMAS = "#/components/schemas/"
_RETRY_AFTER = {"Retry-After": ("integer", "Seconds to wait before the next try.")}


def operation_id(route: APIRoute) -> str:
    """`listJobs`; of a compatibility route `compatListJobs`."""
    return to_camel(f"compat_{route.name}" if COMPATIBILITY in route.tags else route.name)


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
        for model in (Problem, ProblemDocument):
            schema = model.model_json_schema(ref_template=_SCHEMAS + "{model}", by_alias=True)
            schemas |= schema.pop("$defs", {})
            schemas[model.__name__] = schema
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
                "description": "The same key in another header.",
            },
        }
        made["security"] = [{"bearer": []}, {"apiKey": []}, {}]
        declared = {
            (method, route.path_format): route.access
            for route in app.routes
            if isinstance(route, CheckedRoute)
            for method in route.methods or ()
        }
        for path, operations in made["paths"].items():
            for verb, operation in operations.items():
                method = verb.upper()
                _complete(path, method, operation, schemas, declared[method, path])
        app.openapi_schema = made
    return app.openapi_schema


def _complete(
    path: str, method: str, operation: Schema, schemas: dict[str, Schema], access: Access
) -> None:
    responses: dict[str, Schema] = operation["responses"]
    responses.pop("default", None)
    for status, response in responses.items():
        for content in response.get("content", {}).values():
            if "schema" in content and "$ref" in content["schema"]:
                content["example"] = example(content["schema"], schemas)
        if headers := _headers(path, method, int(status)):
            response["headers"] = _header_schemas(headers)
    if access.needed == "open":
        operation["security"] = []
        if path == "/readyz":
            responses["503"] = {
                **responses["200"],
                "description": "The service cannot do its work now.",
            }
        return
    body = operation.get("requestBody")
    for content in (body or {}).get("content", {}).values():
        # A body that may be left out cannot be null: generated clients would send null.
        content["schema"] = _without_null(content["schema"])
        content["example"] = example(content["schema"], schemas)
    is_change = access.is_change and method not in SAFE_METHODS and "/keys" not in path
    for refusal in _statuses(path, operation, is_change=is_change):
        responses[str(refusal)] = _error(path, refusal)


def _without_null(schema: Schema) -> Schema:
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else schema


def _statuses(path: str, operation: Schema, *, is_change: bool) -> list[int]:
    found = {401, 403, 429, 503}
    if "parameters" in operation or "requestBody" in operation:
        found |= {400, 422}
    if "requestBody" in operation:
        found |= {413, 415}
    if "{id}" in path:
        found.add(404)
    if is_change:
        found.add(409)
    if any(one["name"] == "If-Match" for one in operation.get("parameters", ())):
        found.add(412)
    return sorted(found)


def _error(path: str, status: int) -> Schema:
    own = path.startswith(V1)
    code = STATUSES[status].example or STATUSES[status].code
    if status == 404 and "/jobs" not in path:
        code = "run_not_found" if "/runs" in path else "not_found"
    detail = STATUSES[status].meaning
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
        error["headers"] = _header_schemas(_RETRY_AFTER)
    return error


def _headers(path: str, method: str, status: int) -> dict[str, tuple[str, str]]:
    """The headers of an answer."""
    _, _, subject = path.partition("/jobs")
    headers: dict[str, tuple[str, str]] = {}
    if "/jobs" not in path:
        return headers
    actions = ("/{id}/pause", "/{id}/resume", "/{id}/breaker/reset")
    of_job = {"": "POST", "/{id}": "GET PUT PATCH", **dict.fromkeys(actions, "POST")}
    if method in of_job.get(subject, "").split() and (subject or status == 201):
        headers["ETag"] = ("string", "The version of the job's definition, for If-Match.")
    triggered = subject == "/{id}/trigger" and status == 202
    if status == 201 or (triggered and path.startswith(V1)):
        headers["Location"] = ("string", "The path of the new document.")
    if status == 201 or triggered:
        headers["Idempotency-Replayed"] = ("string", "`true`: an earlier request created it.")
    return headers


def _header_schemas(headers: dict[str, tuple[str, str]]) -> Schema:
    return {
        name: {"description": text, "schema": {"type": kind}}
        for name, (kind, text) in headers.items()
    }


# -- examples -------------------------------------------------------------------------------------


def example(schema: Schema, schemas: dict[str, Schema]) -> Any:
    """A value that fits the schema: its own example, or one made of its parts."""
    if "$ref" in schema:
        return example(schemas[schema["$ref"].removeprefix(_SCHEMAS)], schemas)
    if schema.get("examples"):
        return schema["examples"][0]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        nullable = {"type": "null"} in schema["anyOf"]
        return None if nullable else example(schema["anyOf"][0], schemas)
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return {
            name: example(part, schemas)
            for name, part in schema["properties"].items()
            if name in schema.get("required", ()) or part.get("examples")
        }
    if schema.get("format") == "date-time":
        return "2026-03-01T01:30:00.000Z"
    if kind == "array":
        return [example(schema["items"], schemas)] if "items" in schema else []
    plain = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "object": {}}
    return plain.get(str(kind))
