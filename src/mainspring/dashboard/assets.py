"""Serves the scripts, styles and icons of the pages.

Their address has a hash of all of them, so that browsers cache them without expiry and load the new
files after an upgrade."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from mainspring.service.access import CheckedRoute, access
from mainspring.service.problems import ApiError

__all__ = ["accepts_gzip", "asset_address", "router"]

router = APIRouter(include_in_schema=False, route_class=CheckedRoute)

FOLDER = Path(__file__).parent / "assets"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(Struct, frozen=True):
    content: bytes
    gzipped: bytes
    media_type: str


@cache
def _assets() -> tuple[str, dict[str, Asset]]:
    """A hash of all files, and each file by its path. They are read once: 250 KB."""
    found: dict[str, Asset] = {}
    whole = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            whole.update(content)
            name = path.relative_to(FOLDER).as_posix()
            gzipped = gzip.compress(content, mtime=0)
            found[name] = Asset(content, gzipped, MEDIA_TYPES[path.suffix])
    return whole.hexdigest()[:12], found


def asset_address(name: str) -> str:
    """The address of a file below the root of the pages."""
    version, found = _assets()
    assert name in found, f"there is no asset {name!r}"
    return f"assets/{version}/{name}"


@router.get("/favicon.ico")
@access("open")
async def favicon(request: Request) -> Response:
    return _response(request, "favicon.svg", "public, max-age=86400")


@router.get("/assets/{version}/{name:path}")
@access("open")
async def asset(version: str, name: str, request: Request) -> Response:
    current = version == _assets()[0]
    kept = "public, max-age=31536000, immutable" if current else "no-cache"
    return _response(request, name, kept)


def _response(request: Request, name: str, kept: str) -> Response:
    found = _assets()[1].get(name)
    if found is None:
        raise ApiError(404, f"there is no file {name[:100]!r}")
    headers = {"cache-control": kept, "vary": "Accept-Encoding"}
    content = found.content
    if accepts_gzip(request):
        content = found.gzipped
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers, media_type=found.media_type)


def accepts_gzip(request: Request) -> bool:
    """Whether the client takes an answer that is packed with gzip."""
    for part in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = part.partition(";")
        if name.strip().lower() == "gzip":
            return quality.strip().rstrip("0").rstrip(".") != "q="
    return False
