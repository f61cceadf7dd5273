"""`/api/v1/events`: the events of this process, as server-sent events.

Each client has a queue of bytes. An event is encoded once for all clients. A client whose queue is
full is disconnected and may connect again, so a slow client costs bounded memory and delays nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mainspring.core.events import EVENTS, Event
from mainspring.errors import MainspringError
from mainspring.service.access import access, api_router
from mainspring.service.api_keys import CACHE_SECONDS
from mainspring.service.dependencies import Service, ServiceDep, by_session, caller
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.schemas.documents import encode_json
from mainspring.service.schemas.run import EventDocument
from mainspring.service.sessions import session_cookie

router = api_router(prefix="/api/v1", tags=["events"])

HEARTBEAT_SECONDS = 15.0
KEY_CHECK_SECONDS = 1.0
"""How often the client's key and session are checked: after a revocation or a sign-out the client
gets events for `CACHE_SECONDS` at most."""
MAX_QUEUE_BYTES = 4 * 1024 * 1024
"""Bytes that may wait for a client; one event alone may be larger."""
END_SECONDS = 5.0
"""How long a client may take to read the end of its stream."""


EventNames = Annotated[
    list[str] | None,
    Query(description="Names or patterns such as run.failed or run.*. Without it: all events."),
]
OfJob = Annotated[str | None, Query(max_length=200, description="Only events of this job.")]


@router.get(
    "/events",
    summary="Follow events (server-sent events)",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
@access("read")
async def follow_events(
    service: ServiceDep, request: Request, event: EventNames = None, job: OfJob = None
) -> Response:
    for pattern in event or ():
        _check_pattern(pattern)
    _check_stream_limits(service, caller(request))
    if service.draining.is_set():
        raise ApiError(503, "the service is stopping", headers={"Retry-After": "5"})
    names = _names(event or ["*"])
    session = session_cookie(request.scope) if by_session(request) else None
    return EventStream(service, names, job, key_id=caller(request) or None, session=session)


def _check_stream_limits(service: Service, key_id: str) -> None:
    later = {"Retry-After": "30"}
    if service.streams.total() >= service.max_streams:
        why = f"{service.max_streams} event streams are open, and no more are allowed; try later"
        raise ApiError(503, why, headers=later)
    if key_id and service.streams[key_id] >= (most := service.max_streams_of_a_key):
        why = f"this key has {most} open event streams, and no more are allowed; close one first"
        raise ApiError(429, why, headers=later)


def _check_pattern(pattern: str) -> None:
    if not any(_matches(pattern, name) for name in EVENTS):
        why = f"there is no event {pattern[:100]!r}; allowed are {_ALLOWED}"
        raise ApiError.of_fields(FieldError.remark("event", why))


def _names(patterns: list[str]) -> tuple[str, ...]:
    """The events that match. An event that matches several patterns is sent once."""
    return tuple(name for name in EVENTS if any(_matches(pattern, name) for pattern in patterns))


_ALLOWED = ", ".join(sorted(EVENTS)) + ", and patterns such as run.*"


def _matches(pattern: str, name: str) -> bool:
    return pattern in ("*", name) or (pattern.endswith(".*") and name.startswith(pattern[:-1]))


class EventStream(Response):
    """A response that ends when the client disconnects or reads too slowly, when its key or its
    session is no longer valid, or when the service stops."""

    media_type = "text/event-stream"

    def __init__(
        self,
        service: Service,
        names: tuple[str, ...],
        job: str | None,
        *,
        key_id: str | None,
        session: str | None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._names = names
        self._job = job
        self._key_id = key_id
        self._session = session
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._added = asyncio.Event()
        self._too_slow = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, key_id = self._service, self._key_id or ""
        scope.setdefault("state", {})["limits_unread"] = True  # for the connection's limits
        service.streams[key_id] += 1
        try:
            await self._stream(receive, send)
            if self._too_slow.is_set() or not await _send_end(send):
                await _abort(scope, receive)
        finally:
            service.streams[key_id] -= 1
            if not service.streams[key_id]:
                del service.streams[key_id]

    async def _stream(self, receive: Receive, send: Send) -> None:
        service = self._service
        unsubscribe = [service.client.on(name, self._add) for name in self._names]
        ends = [
            self._send_events(send),
            _disconnected(receive),
            service.draining.wait(),
            self._too_slow.wait(),
        ]
        if not service.without_keys:
            ends.append(self._key_is_invalid())
        tasks = [asyncio.ensure_future(end) for end in ends]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            sender = tasks[0]
            if sender in done:
                sender.result()
        finally:
            for stop_events in unsubscribe:
                stop_events()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._waiting.clear()

    def _add(self, event: Event) -> None:
        if self._job is not None and event.job_id != self._job:
            return
        line = _encoded(self._service, event)
        if self._waiting and self._size + len(line) > MAX_QUEUE_BYTES:
            self._too_slow.set()
            return
        self._waiting.append(line)
        self._size += len(line)
        self._added.set()

    async def _key_is_invalid(self) -> None:
        """Return when a new request with the client's key or session would be refused. While the
        store is away both count as valid."""
        while True:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            with contextlib.suppress(MainspringError):
                if not await self._is_valid(CACHE_SECONDS - KEY_CHECK_SECONDS):
                    return

    async def _is_valid(self, max_age: float) -> bool:
        service, session = self._service, self._session
        if session is not None and not await service.sessions.exists(session, max_age):
            return False
        return await service.keys.still_valid(self._key_id, max_age)

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send(send, b"retry: 2000\n\n")
        while True:
            self._added.clear()
            while self._waiting:
                await _send(send, self._waiting[0])
                self._size -= len(self._waiting.popleft())
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._added.wait()
            except TimeoutError:
                await _send(send, b": still here\n\n")


async def _send(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def _send_end(send: Send) -> bool:
    """End the stream. Returns whether the client read the end in time."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


async def _abort(scope: Scope, receive: Receive) -> None:
    """Abort the connection. A plain close would wait until the client has read everything."""
    if (abort := scope.get("state", {}).get("abort_connection")) is not None:
        abort()
        await _disconnected(receive)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encoded(service: Service, event: Event) -> bytes:
    """The event as it is sent, encoded once for all clients."""
    last = service.last_event
    if last is None or last[0] is not event:
        line = b"event: %s\ndata: %s\n\n" % (
            event.name.encode(),
            encode_json(EventDocument.of(event)),
        )
        last = service.last_event = (event, line)
    return last[1]
