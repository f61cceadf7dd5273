"""`/docs`: the API's reference, which a script makes from `/openapi.json`. The page loads nothing
from other hosts."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import Response

from mainspring.service.router import api_router

__all__ = ["router"]

router = api_router(include_in_schema=False)

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGES = Path(__file__).parents[1] / "pages"


@router.get("/docs")
async def page() -> Response:
    return _file("docs.html", "text/html; charset=utf-8")


@router.get("/docs.js")
async def script() -> Response:
    return _file("docs.js", "text/javascript; charset=utf-8")


@router.get("/docs.css")
async def style() -> Response:
    return _file("docs.css", "text/css; charset=utf-8")


def _file(name: str, media_type: str) -> Response:
    return _page(_read(name), media_type)


def _page(content: bytes, media_type: str) -> Response:
    headers = {"content-security-policy": _CSP, "cache-control": "no-cache"}
    return Response(content, headers=headers, media_type=media_type)


@cache
def _read(name: str) -> bytes:
    return (_PAGES / name).read_bytes()
