"""`/openapi.json`, and `/docs`: the API's reference, which a script makes from it. The page loads
nothing from other hosts."""

from __future__ import annotations

import asyncio
import hashlib
from functools import cache
from pathlib import Path

from fastapi import Request, Response

from mainspring.service.access import access
from mainspring.service.router import api_router
from mainspring.service.schemas.json_format import encode_json

__all__ = ["router"]

router = api_router(include_in_schema=False)

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGES = Path(__file__).parents[1] / "pages"


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
    """In a thread: to make the document takes half a second of CPU, at the first request, and the
    scheduler's event loop must not wait for that."""
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
    if tag in (one.strip().removeprefix("W/") for one in known):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@cache
def _read(name: str) -> bytes:
    return (_PAGES / name).read_bytes()
