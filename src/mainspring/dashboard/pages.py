"""What all pages share: templates, the signed-in viewer, error pages, and the files that they load.

The address of a script, style or icon has a hash of all of them, so that browsers cache them
without expiry and load the new files after an upgrade."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from msgspec import Struct

from mainspring import __version__
from mainspring.dashboard import formats
from mainspring.service.access import CheckedRoute, access
from mainspring.service.api_keys import SCOPES
from mainspring.service.dependencies import Service, key_of
from mainspring.service.problems import ApiError

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline script or style runs, so text from users that looks like one does nothing."""

SMALLEST_COMPRESSED = 1000
GZIP_LEVEL = 3
"""Pages are packed, and answers of the API are not: the size of a packed answer tells something of
secrets in it, and some answers hold a new key or a signing secret. A page holds none. 196 KB of a
table become 22 KB in 0.7 ms; level 6 makes 19 KB of it in 1.6 ms."""

NAVIGATION = (
    ("", "Overview", "overview"),
    ("jobs", "Jobs", "jobs"),
    ("runs", "Runs", "runs"),
    ("timeline", "Timeline", "timeline"),
    ("load", "Load", "load"),
    ("dead-letters", "Dead letters", "dead-letters"),
    ("workers", "Workers", "workers"),
    ("keys", "Keys", "keys"),
    ("audit", "Audit log", "audit"),
)
"""Address, name and icon of each page in the menu, in order."""

FIELD_LABELS = {
    "q": "The search",
    "at": "The time",
    "zone": "The time zone",
    "job": "The job id",
    "since": "“Since”",
    "until": "“Before”",
    "page": "The number of the page",
    "cursor": "The place in the list",
}
"""Parameters of pages as people know them: by the field of the form. Others have their name."""

ADMIN_PAGES = frozenset({"keys", "audit"})


class Viewer(Struct, frozen=True):
    """Who looks at a page. `name` is that of the API key; None where no key is needed."""

    name: str | None
    scope: str

    @property
    def may_write(self) -> bool:
        return SCOPES.get(self.scope, -1) >= SCOPES["write"]

    @property
    def is_admin(self) -> bool:
        return self.scope == "admin"


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def viewer_of(request: Request) -> Viewer:
    key = key_of(request)
    return Viewer(None, "admin") if key is None else Viewer(key.name, key.scope)


def render(
    request: Request,
    template: str,
    /,
    *,
    page: str,
    title: str,
    status: int = 200,
    **values: Any,
) -> Response:
    """A page. `page` is its entry in the menu ("" for the overview), `values` are for the
    template."""
    root = request.scope.get("root_path", "")
    viewer = viewer_of(request)
    menu = [entry for entry in NAVIGATION if viewer.is_admin or entry[0] not in ADMIN_PAGES]
    service = service_of(request)
    text = (
        templates()
        .get_template(template)
        .render(
            root=root,
            url=lambda path="", **query: formats.address(root, path, query),
            asset=lambda name: f"{root}/{asset_address(name)}",
            page=page,
            title=title,
            viewer=viewer,
            menu=menu,
            version=__version__,
            now=service.client.store_time() if service.client.started else service.clock.now(),
            path=request.url.path,
            query=request.url.query,
            **values,
        )
    )
    headers = {"content-security-policy": CSP, "cache-control": "no-store"}
    content = text.encode()
    headers["vary"] = "Accept-Encoding"
    if len(content) >= SMALLEST_COMPRESSED and accepts_gzip(request):
        content = gzip.compress(content, GZIP_LEVEL, mtime=0)
        headers["content-encoding"] = "gzip"
    return Response(content, status, headers=headers, media_type="text/html; charset=utf-8")


@cache
def templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(formats.FILTERS)
    return environment


def page_router() -> APIRouter:
    return APIRouter(include_in_schema=False, route_class=CheckedRoute)


def error_page(request: Request, error: ApiError) -> Response:
    """A page that says what went wrong. Without a key the person is sent to the page that asks for
    one, and back afterwards."""
    if error.status == 401:
        return _to_sign_in(request)
    titles = {403: "Not allowed", 404: "Not found", 429: "Too many requests", 503: "Not available"}
    title = titles.get(error.status, "Something went wrong")
    answer = render(
        request,
        "error.html",
        page="",
        title=title,
        status=error.status,
        sentences=_sentences(error),
        is_parameter=bool(error.errors and request.url.query),
        may_sign_in=error.status == 429 and viewer_of(request).name is None,
    )
    for name, value in (error.headers or {}).items():
        answer.headers.setdefault(name, value)
    return answer


def _sentences(error: ApiError) -> list[str]:
    """What went wrong, once: for each field, or as a whole."""
    if not error.errors:
        return [formats.sentence(str(error))]
    sentences = (
        field_error.sentence(FIELD_LABELS.get(field_error.field, f"The {field_error.field}"))
        for field_error in error.errors
    )
    return list(dict.fromkeys(map(formats.sentence, sentences)))


def _to_sign_in(request: Request) -> Response:
    root = request.scope.get("root_path", "")
    wanted = request.url.path.removeprefix(root).lstrip("/")
    if request.url.query:
        wanted += f"?{request.url.query}"
    where = f"{root}/sign-in" + (f"?next={quote(wanted, safe='')}" if wanted else "")
    if "hx-request" in request.headers:  # a part of a page: the whole page has to go there
        return Response(status_code=401, headers={"HX-Redirect": where})
    return Response(status_code=303, headers={"Location": where})


assets_router = page_router()

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
    assets: dict[str, Asset] = {}
    whole = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.suffix in MEDIA_TYPES:
            content = path.read_bytes()
            whole.update(content)
            name = path.relative_to(FOLDER).as_posix()
            gzipped = gzip.compress(content, mtime=0)
            assets[name] = Asset(content, gzipped, MEDIA_TYPES[path.suffix])
    return whole.hexdigest()[:12], assets


def asset_address(name: str) -> str:
    """The address of a file below the root of the pages."""
    version, known = _assets()
    assert name in known, f"there is no asset {name!r}"
    return f"assets/{version}/{name}"


@assets_router.get("/favicon.ico")
@access("open")
async def favicon(request: Request) -> Response:
    return _asset_response(request, "favicon.svg", "public, max-age=86400")


@assets_router.get("/assets/{version}/{name:path}")
@access("open")
async def asset(version: str, name: str, request: Request) -> Response:
    current = version == _assets()[0]
    kept = "public, max-age=31536000, immutable" if current else "no-cache"
    return _asset_response(request, name, kept)


def _asset_response(request: Request, name: str, kept: str) -> Response:
    file = _assets()[1].get(name)
    if file is None:
        raise ApiError(404, f"there is no file {name[:100]!r}")
    headers = {"cache-control": kept, "vary": "Accept-Encoding"}
    content = file.content
    if accepts_gzip(request):
        content = file.gzipped
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers, media_type=file.media_type)


def accepts_gzip(request: Request) -> bool:
    """Whether the client takes an answer that is packed with gzip."""
    for part in request.headers.get("accept-encoding", "").split(","):
        name, _, quality = part.partition(";")
        if name.strip().lower() == "gzip":
            return quality.strip().rstrip("0").rstrip(".") != "q="
    return False
