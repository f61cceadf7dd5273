"""What the routes share: the service's state, ids in paths, checks of query parameters, and lists
whose pages are bounded by bytes as well as by items."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from fastapi import Depends, Query, Request, Response
from fastapi.routing import APIRoute
from msgspec import Raw
from starlette.datastructures import Headers, QueryParams
from starlette.types import Scope

from mainspring.core.clock import Clock, SystemClock
from mainspring.core.events import Event
from mainspring.core.model import Page
from mainspring.core.schedules.base import moment
from mainspring.errors import InvalidInput, JobNotFound, RunNotFound
from mainspring.scheduler.client import Client
from mainspring.service.api_keys import ApiKeys, Key, RateLimiter
from mainspring.service.audit import AuditLog
from mainspring.service.metrics import Metrics
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.schemas.documents import (
    Document,
    Reply,
    WrongFormat,
    encode_json,
    read_datetime,
)
from mainspring.service.schemas.run import can_be_run_id
from mainspring.service.sessions import Sessions
from mainspring.service.settings import ServiceSettings

# All dependencies are async: FastAPI would run plain functions in a thread.

COMPATIBILITY = "compatibility"
"""The tag of routes that take and answer the documents of an earlier scheduler's HTTP API, so that
its clients need no change."""

DRY_RUN = "dryRun"
DRY_RUN_VALUES = {"true": True, "1": True, "false": False, "0": False}

SIGN_INS_A_MINUTE = 10
"""How often one key may begin a session: each leaves an entry in the audit log."""

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_ANY_PARAMETER_PATHS = ("/api/observability/health", "/api/v1/health")
"""Paths that accept any parameter: a monitor may add its own."""

_HEADERS_WITH_EFFECT = {
    "If-Match": "for one job (its ETag)",
    "Idempotency-Key": "for creating or triggering one job",
}
"""Headers that change what a request does, and what each is for."""

_OFFSET = re.compile(r"([T ]\d\d[^ ]*) (\d\d(?::?\d\d)?)$", re.ASCII)
_JOB_ID = re.compile(r"[A-Za-z0-9._:-]{1,200}")

Limit = Annotated[int, Query(ge=1, le=500, description="At most this many items on a page.")]
Cursor = Annotated[
    str | None, Query(max_length=500, description="The `nextCursor` of the page before.")
]
Moment = Annotated[str | None, Query(max_length=64, description="An ISO 8601 date-time.")]


@dataclass
class Service:
    """The state of one application; nothing is global."""

    client: Client
    settings: ServiceSettings
    loopback: bool = False
    """Only this machine can connect: requests to its own names need no key until there is one."""
    without_keys: bool = False
    """No key is needed: the program that mounts the service guards it."""
    clock: Clock = field(default_factory=SystemClock)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    streams: Counter[str] = field(default_factory=Counter)
    """Open event streams, by the id of their key ("" without one)."""
    max_streams: int = 200
    schedule_computation: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a preview or a forecast is computed: one at a time."""
    last_event: tuple[Event, bytes] | None = None
    """The last event as it was sent."""
    histories: dict[str, tuple[float, Any]] = field(default_factory=dict)
    """The last history of each window, and when it was computed."""
    error_page: Callable[[Request, ApiError], Response] | None = None
    """Makes the answer to a browser that asked for a page and may not have it. None: there are no
    pages, and every client gets a problem document."""

    def __post_init__(self) -> None:
        self.keys = ApiKeys(self.client, self.clock)
        self.sessions = Sessions(self.client, self.keys, self.clock)
        self.audit = AuditLog(self.client)
        self.sign_ins = RateLimiter(SIGN_INS_A_MINUTE / 60, SIGN_INS_A_MINUTE, self.clock)
        self.metrics = Metrics(self.client, self.clock)

    @property
    def max_streams_of_a_key(self) -> int:
        """The clients of one key must not take the streams of all others."""
        return max(1, self.max_streams // 4)

    @property
    def started(self) -> bool:
        """Whether the scheduler was started. The program that mounts the service may forget to."""
        return self.client.started or self.draining.is_set()


async def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def key_of(request: Request) -> Key | None:
    """The key that the request was made with. None where no key is needed."""
    key = cast("dict[str, Any]", request.scope.get("state", {})).get("key")
    return key if isinstance(key, Key) else None


def by_session(request: Request) -> bool:
    """Whether the key is that of a session, and came by the cookie."""
    return bool(cast("dict[str, Any]", request.scope.get("state", {})).get("by_session"))


def caller(request: Request) -> str:
    """The id of the request's API key, or "" if it has none."""
    key = key_of(request)
    return "" if key is None else key.id


def path_of(request: Request, path: str) -> str:
    """The path of a document, even if the API is mounted below another path."""
    return f"{request.scope.get('root_path', '')}{path}"


def note_created(request: Request, id: str) -> None:
    """Let the audit log say what the request created."""
    request.scope.setdefault("state", {})["created"] = id


def note_detail(request: Request, detail: str) -> None:
    """Let the audit log say what the request did, where its path does not."""
    request.scope.setdefault("state", {})["detail"] = detail


async def _job_path(id: str) -> str:
    """A text that cannot be a job's id is not looked up in the store."""
    if not _JOB_ID.fullmatch(id):
        raise JobNotFound(id)
    return id


async def _run_path(id: str) -> str:
    if not can_be_run_id(id):
        raise RunNotFound(id)
    return id


ServiceDep = Annotated[Service, Depends(_service)]
JobPath = Annotated[str, Depends(_job_path)]
RunPath = Annotated[str, Depends(_run_path)]


def check_query(route: APIRoute, scope: Scope, headers: Headers) -> None:
    """Refuse unknown and repeated query parameters, and headers that the route ignores.

    A misspelt filter would give everything, and of two values one would be dropped. A condition
    that is not checked might allow what it forbids, and a change that is sent again might be done
    twice.
    """
    if scope["method"] not in SAFE_METHODS:
        _check_headers(route, headers)
    given = scope.get("query_string")
    if not given or not route.path.startswith("/api/") or route.path in _ANY_PARAMETER_PATHS:
        return
    parameters = QueryParams(given)
    counts = Counter(name for name, _ in parameters.multi_items())
    if faults := _query_faults(_parameters(route), counts):
        raise ApiError.of_fields(*faults)
    if (value := parameters.get(DRY_RUN)) is not None:  # the audit log reads it, too
        if value.lower() not in DRY_RUN_VALUES:
            why = f"is true, false, 1 or 0, not {value[:100]!r}: nothing was done"
            raise ApiError.of_fields(FieldError.predicate(DRY_RUN, why))
        scope.setdefault("state", {})["dry_run"] = DRY_RUN_VALUES[value.lower()]


def _check_headers(route: APIRoute, given: Headers) -> None:
    taken = {header.alias for header in route.dependant.header_params}
    for name, purpose in _HEADERS_WITH_EFFECT.items():
        if name in given and name not in taken:
            raise ApiError(422, f"{name} is {purpose} and is not supported here: nothing was done")


def _parameters(route: APIRoute) -> dict[str, bool]:
    """The names of the route's query parameters, and whether each may be repeated."""
    queries = route.dependant.query_params
    return {query.alias: _is_list(query.field_info.annotation) for query in queries}


def _is_list(annotation: object) -> bool:
    return any(get_origin(kind) is list for kind in (annotation, *get_args(annotation)))


def _query_faults(known: dict[str, bool], counts: Counter[str]) -> list[FieldError]:
    allowed = f"allowed are {', '.join(known)}" if known else "none are allowed here"
    faults = []
    for name, times in counts.items():
        shown = name[:100]
        if name not in known:
            faults.append(FieldError.remark(shown, f"there is no such parameter; {allowed}"))
        elif times > 1 and not known.get(name):
            faults.append(FieldError.predicate(shown, f"is given {times} times: give it once"))
    return faults


def read_moment(text: str | None, name: str) -> datetime | None:
    """The date-time of a query parameter; one without an offset is in UTC."""
    if text is None:
        return None
    try:
        # A + that was not written as %2B arrives as a space.
        return in_utc(read_datetime(_OFFSET.sub(r"\1+\2", text)), name)
    except WrongFormat as error:
        raise ApiError.of_fields(FieldError.predicate(name, str(error))) from None


def in_utc(when: datetime | None, name: str) -> datetime | None:
    """A date-time without an offset is in UTC."""
    try:
        return None if when is None else moment(when, "UTC", name)
    except InvalidInput as error:
        raise ApiError.of_fields(FieldError(name, str(error))) from None


# -- lists ----------------------------------------------------------------------------------------

PAGE_BYTES = 4 * 1024 * 1024
"""A page that has so many bytes ends, although more items were asked for."""
CHUNK = 25
"""Items that are read from the store and written at once: other requests go on in between."""

T = TypeVar("T")
L = TypeVar("L", bound=Document)
Read = Callable[[int, str | None], Awaitable[Page[T]]]


async def list_reply(
    kind: Callable[..., L],
    read: Read[T],
    document: Callable[[T], Document],
    *,
    limit: int,
    cursor: str | None,
) -> Reply[L]:
    """A page of a list. `read` gives a number of items after a cursor."""
    items, more = await read_items(read, document, limit=limit, cursor=cursor)
    return Reply(kind(items=items, next_cursor=more))


async def read_items(
    read: Read[T], document: Callable[[T], Document], *, limit: int, cursor: str | None
) -> tuple[list[Raw], str | None]:
    """The documents of at most `limit` items as JSON, and the cursor of the next."""
    items: list[Raw] = []
    size = 0
    while True:
        page = await read(min(CHUNK, limit - len(items)), cursor)
        encoded = [encode_json(document(item)) for item in page.items]
        items += map(Raw, encoded)
        size += sum(map(len, encoded))
        cursor = page.cursor
        if cursor is None or len(items) >= limit or size >= PAGE_BYTES:
            return items, cursor


def read_offset(cursor: str) -> int:
    """The cursor of a list whose pages are found by counting."""
    if cursor.isascii() and cursor.isdigit() and len(cursor) < 10:
        return int(cursor)
    raise ApiError.of_fields(
        FieldError.predicate(
            "cursor",
            f"is not one that a page of results gave: {cursor[:100]!r}. Leave it out for the first"
            " page",
        )
    )
