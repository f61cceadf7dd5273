"""`/openapi.json`, and `/docs`: the API's reference, which a script makes from it. The page loads
nothing from other hosts.

FastAPI describes the parameters and bodies of the routes. What is added here: the documents that
they return with an example each, errors by status, headers of responses, and both ways to send a
key.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from mainspring.service.access import CheckedRoute, access, api_router
from mainspring.service.dependencies import SAFE_METHODS
from mainspring.service.problems import CODES, V1, Problem, ProblemDocument, codes_of
from mainspring.service.schemas.documents import (
    REFERENCE,
    Document,
    describe_documents,
    encode_json,
)

Schema = dict[str, Any]

_RETRY_AFTER = {"Retry-After": ("integer", "Seconds to wait before the next try.")}


def description(app: FastAPI) -> Schema:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title,
            version=app.version,
            description=app.description,
            routes=app.routes,
            openapi_version="3.1.0",
        )
        parts = document.setdefault("components", {})
        schemas = parts.setdefault("schemas", {})
        routes = {
            (method, route.path_format): route
            for route in app.routes
            if isinstance(route, CheckedRoute)
            for method in route.methods or ()
        }
        documents = {kind for route in routes.values() for kind in route.documents}
        schemas |= describe_documents([*documents, Problem, ProblemDocument])
        parts["schemas"] = dict(sorted(schemas.items()))
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
        document["security"] = [{"bearer": []}, {"apiKey": []}, {}]
        for path, operations in document["paths"].items():
            for verb, operation in operations.items():
                method = verb.upper()
                _complete(path, method, operation, schemas, routes[method, path])
        app.openapi_schema = document
    return app.openapi_schema


def _complete(
    path: str, method: str, operation: Schema, schemas: dict[str, Schema], route: CheckedRoute
) -> None:
    needed = route.access
    responses: dict[str, Schema] = operation["responses"]
    responses.pop("default", None)
    if route.documents:
        own, shown = str(route.status_code or 200), route.documents[-1]
        if route.takes_dry_run and own != "200":
            responses["200"] = _response("What a dry run shows.", shown)
        responses[own] = _response(responses[own]["description"], route.documents[0])
    for status, response in responses.items():
        for content in response.get("content", {}).values():
            if "$ref" in content.get("schema", {}):
                content["example"] = _example(content["schema"], schemas)
        if headers := _headers(path, method, int(status)):
            response["headers"] = _header_schemas(headers)
    if needed.needed == "open":
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
    is_change = needed.is_change and method not in SAFE_METHODS and "/keys" not in path
    for refusal in _statuses(path, operation, is_change=is_change):
        responses[str(refusal)] = _error(path, refusal)


def _response(about: str, document: type[Document]) -> Schema:
    content = {"application/json": {"schema": {"$ref": REFERENCE + document.__name__}}}
    return {"description": about, "content": content}


def _without_null(schema: Schema) -> Schema:
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else schema


def _statuses(path: str, operation: Schema, *, is_change: bool) -> list[int]:
    statuses = {401, 403, 429, 503}
    if "parameters" in operation or "requestBody" in operation:
        statuses |= {400, 422}
    if "requestBody" in operation:
        statuses |= {413, 415}
    if "{id}" in path:
        statuses.add(404)
    if is_change:
        statuses.add(409)
    if any(parameter["name"] == "If-Match" for parameter in operation.get("parameters", ())):
        statuses.add(412)
    return sorted(statuses)


def _error(path: str, status: int) -> Schema:
    name = "Problem" if path.startswith(V1) else "ProblemDocument"
    error: Schema = {
        "description": " ".join(CODES[code][1] for code in codes_of(status)),
        "content": {"application/problem+json": {"schema": {"$ref": REFERENCE + name}}},
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


def _example(schema: Schema, schemas: dict[str, Schema]) -> Any:
    """A value that fits the schema: its own example, or one made of its parts."""
    if schema.get("examples"):
        return schema["examples"][0]
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].removeprefix(REFERENCE)], schemas)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return (
            None if {"type": "null"} in schema["anyOf"] else _example(schema["anyOf"][0], schemas)
        )
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        return {
            name: _example(part, schemas)
            for name, part in schema["properties"].items()
            if name in schema.get("required", ()) or part.get("examples")
        }
    if schema.get("format") == "date-time":
        return "2026-03-01T01:30:00.000Z"
    if kind == "array":
        return [_example(schema["items"], schemas)] if "items" in schema else []
    plain = {"string": "text", "integer": 1, "number": 1.0, "boolean": True, "object": {}}
    return plain.get(str(kind))


# -- pages ----------------------------------------------------------------------------------------

router = api_router(include_in_schema=False)

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGES = Path(__file__).parent / "pages"


@router.get("/docs")
@access("open")
async def page(request: Request) -> Response:
    return _file(request, "docs.html", "text/html; charset=utf-8")


@router.get("/docs.js")
@access("open")
async def script(request: Request) -> Response:
    return _file(request, "docs.js", "text/javascript; charset=utf-8")


@router.get("/docs.css")
@access("open")
async def style(request: Request) -> Response:
    return _file(request, "docs.css", "text/css; charset=utf-8")


@router.get("/openapi.json")
@access("open")
async def openapi(request: Request) -> Response:
    """In a thread: to make the document takes a tenth of a second of CPU, at the first request, and
    the scheduler's event loop must not wait for that."""
    document = await asyncio.to_thread(request.app.openapi)
    if where := request.scope.get("root_path", ""):
        document = {**document, "servers": [{"url": where}]}
    return _cacheable(request, encode_json(document), "application/json")


def _file(request: Request, name: str, media_type: str) -> Response:
    response = _cacheable(request, _read(name), media_type)
    response.headers["content-security-policy"] = _CSP
    return response


def _cacheable(request: Request, content: bytes, media_type: str) -> Response:
    """The content, or 304 without it if the client has the same already."""
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"cache-control": "no-cache", "etag": tag}
    known = request.headers.get("if-none-match", "").split(",")
    if tag in (text.strip().removeprefix("W/") for text in known):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@cache
def _read(name: str) -> bytes:
    return (_PAGES / name).read_bytes()
