"""`/api/events`: what happens in this process, as server-sent events.

Each client has a queue of so many bytes, already written: an event that waits keeps no job alive,
and is written once for all that listen. Who does not keep up is cut off, and may come back; they
never cost more memory than that, nor hold anybody else up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mainspring.core.events import EVENTS, Event
from mainspring.errors import InvalidInput, MainspringError
from mainspring.service.api_keys import FRESH
from mainspring.service.dependencies import COMPATIBILITY, Service, ServiceDep, caller
from mainspring.service.problems import Problem
from mainspring.service.schemas.documents import event_document
from mainspring.service.schemas.json_bytes import written

__all__ = ["EventNames", "OfJob", "open_stream", "router"]

router = APIRouter(prefix="/api", tags=[COMPATIBILITY])

HEARTBEAT = 15.0
LOOK = 1.0
"""Seconds between looks at the key of who listens: no revoked one hears for longer than `FRESH`."""
QUEUE = 4 * 1024 * 1024
"""Bytes that may wait for a client; one event alone may be larger."""
END_SECONDS = 5.0
"""How long a client may take to take the end of its stream."""


EventNames = Annotated[
    list[str] | None,
    Query(description="Names or patterns such as run.failed or run.*; all without it."),
]
OfJob = Annotated[str | None, Query(max_length=200, description="Only those of this job.")]


@router.get(
    "/events",
    summary="What happens, as it happens (server-sent events)",
    response_class=Response,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def events(
    service: ServiceDep, request: Request, event: EventNames = None, job: OfJob = None
) -> Response:
    return open_stream(service, request, event, job, id_name="_id")


def open_stream(
    service: Service,
    request: Request,
    event: list[str] | None,
    job: str | None,
    *,
    id_name: str = "id",
) -> EventStream:
    for pattern in event or ():
        _check(pattern)
    _check_room(service, caller(request))
    if service.draining.is_set():
        raise Problem(503, "the service is stopping", headers={"Retry-After": "5"})
    names = _names(event or ["*"])
    return EventStream(service, names, job, caller(request) or None, id_name)


def _check_room(service: Service, key_id: str) -> None:
    later = {"Retry-After": "30"}
    if service.streams.total() >= service.most_streams:
        why = f"{service.most_streams} clients listen already; try again later"
        raise Problem(503, why, headers=later)
    if key_id and service.streams[key_id] >= (most := service.most_streams_of_a_key):
        why = f"one key may open {most} event streams, and so many are open; close one first"
        raise Problem(429, why, headers=later)


def _check(pattern: str) -> None:
    try:
        if not any(_matches(pattern, name) for name in EVENTS):
            raise InvalidInput(f"there is no event {pattern[:100]!r}; known are {_KNOWN}")
    except InvalidInput as error:
        raise Problem.of_field("event", str(error)) from None


def _names(patterns: list[str]) -> tuple[str, ...]:
    """What to listen for: an event that several patterns fit is sent once."""
    return tuple(name for name in EVENTS if any(_matches(one, name) for one in patterns))


_KNOWN = ", ".join(sorted(EVENTS)) + ", and patterns such as run.*"


def _matches(pattern: str, name: str) -> bool:
    return pattern in ("*", name) or (pattern.endswith(".*") and name.startswith(pattern[:-1]))


class EventStream(Response):
    """The response is a conversation of its own: it ends when the client goes, when it is too
    slow, when its key opens nothing any more, or when the service stops."""

    media_type = "text/event-stream"

    def __init__(
        self,
        service: Service,
        patterns: tuple[str, ...],
        job: str | None,
        key_id: str | None,
        id_name: str = "_id",
    ) -> None:
        self.status_code = 200
        self.background = None
        self.body = b""
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._service = service
        self._patterns = patterns
        self._job = job
        self._key_id = key_id
        self._id_name = id_name
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._too_slow = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, key_id = self._service, self._key_id or ""
        service.streams[key_id] += 1  # until its connection is free for the next request, or gone
        try:
            await self._tell(receive, send)
            if self._too_slow.is_set() or not await _ended(send):
                await _cut_off(scope, receive)
        finally:
            service.streams[key_id] -= 1
            if not service.streams[key_id]:
                del service.streams[key_id]

    async def _tell(self, receive: Receive, send: Send) -> None:
        service = self._service
        forget = [service.scheduler.on(one, self._take) for one in self._patterns]
        ways = [self._sending(send), _gone(receive), service.draining.wait(), self._too_slow.wait()]
        if not service.open:
            ways.append(self._shut_out())
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            sender = tasks[0]
            if sender in done:
                sender.result()
        finally:
            for one in forget:
                one()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._waiting.clear()

    def _take(self, event: Event) -> None:
        if self._job is not None and event.job_id != self._job:
            return
        line = _line(self._service, event, self._id_name)
        if self._waiting and self._size + len(line) > QUEUE:
            self._too_slow.set()
            return
        self._waiting.append(line)
        self._size += len(line)
        self._news.set()

    async def _shut_out(self) -> None:
        """Until who listens would not be let in any more. While the store is away nobody knows."""
        while True:
            await asyncio.sleep(LOOK)
            with contextlib.suppress(MainspringError):
                if not await self._service.keys.opens_still(self._key_id, FRESH - LOOK):
                    return

    async def _sending(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await _send(send, b"retry: 2000\n\n")
        while True:
            self._news.clear()
            while self._waiting:
                await _send(send, self._waiting[0])
                self._size -= len(self._waiting.popleft())
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await self._news.wait()
            except TimeoutError:
                await _send(send, b": still here\n\n")


async def _send(send: Send, text: bytes) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": True})


async def _ended(send: Send) -> bool:
    """Whether the client took the end; who does not read takes none."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


async def _cut_off(scope: Scope, receive: Receive) -> None:
    """A server that only closes waits until all is taken, which such a client may never do."""
    if (cut_off := scope.get("state", {}).get("cut_off")) is not None:
        cut_off()
        await _gone(receive)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _line(service: Service, event: Event, id_name: str) -> bytes:
    """An event as it is sent. Each form is written once, for all clients that listen."""
    told = service.told.get(id_name)
    if told is None or told[0] is not event:
        document = written(event_document(event, id_name=id_name))
        told = (event, b"event: %s\ndata: %s\n\n" % (event.name.encode(), document))
        service.told[id_name] = told
    return told[1]
