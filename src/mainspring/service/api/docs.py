"""`/openapi.json`, and `/docs`: the API's reference, which a script makes from it. The page loads
nothing from other hosts."""

from __future__ import annotations

import asyncio
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
async def page() -> Response:
    return _file("docs.html", "text/html; charset=utf-8")


@router.get("/docs.js")
@access("open")
async def script() -> Response:
    return _file("docs.js", "text/javascript; charset=utf-8")


@router.get("/docs.css")
@access("open")
async def style() -> Response:
    return _file("docs.css", "text/css; charset=utf-8")


@router.get("/openapi.json")
@access("open")
async def openapi(request: Request) -> Response:
    """In a thread: to make the document takes half a second of CPU, at the first request, and the
    scheduler's event loop must not wait for that."""
    document = await asyncio.to_thread(request.app.openapi)
    if where := request.scope.get("root_path", ""):
        document = {**document, "servers": [{"url": where}]}
    return Response(encode_json(document), media_type="application/json")


def _file(name: str, media_type: str) -> Response:
    return _page(_read(name), media_type)


def _page(content: bytes, media_type: str) -> Response:
    headers = {"content-security-policy": _CSP, "cache-control": "no-cache"}
    return Response(content, headers=headers, media_type=media_type)


@cache
def _read(name: str) -> bytes:
    return (_PAGES / name).read_bytes()
