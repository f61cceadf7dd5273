"""`/docs`: the API's reference, drawn by a small page of ours from `/openapi.json`.

Nothing is loaded from elsewhere, and no bundle of somebody else's is shipped.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HERE = Path(__file__).parent / "pages"


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
    headers = {"content-security-policy": _CSP, "cache-control": "no-cache"}
    return Response(_read(name), headers=headers, media_type=media_type)


@cache
def _read(name: str) -> bytes:
    return (_HERE / name).read_bytes()
