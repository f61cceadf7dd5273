"""A request and its answer over a connection: as much of aiohttp's client as a webhook needs.

aiohttp makes the connections, keeps them and reads what they bring. Its session, which serves
cookies, redirects, proxies and bodies without end, is left out: that was most of the cost of a
call. Every socket is made by `_socket`, which is told the address that will be connected to:
whatever a name resolved to a moment ago, and whatever a literal looks like, that address is what
is checked. Nothing of the environment is used (no proxies, no netrc). An answer is read up to
64 KiB and never decompressed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, TypeVar

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from mainspring.webhooks.address_policy import AllowList
from mainspring.webhooks.request import Prepared
from mainspring.webhooks.response import Heard

__all__ = ["MOST_READ", "Refusal", "Wire"]

MOST_READ = 64 * 1024
MOST_HEADERS = 100
MOST_INTERIM = 20
LONGEST_LINE = 8_190
MOST_ORIGINS = 4_096

SENT_AT_ONCE = 16 * 1024
"""Bytes that an idle connection takes without waiting."""

NAME_SECONDS = 5
"""How long an address that a name stood for is used for new connections."""

IDLE_SECONDS = 1.5
"""How long an unused connection is kept: less than servers do (gunicorn 2 s, Node and uvicorn 5 s),
or a request would now and then meet a connection that is just being closed, and fail."""

LOOKUPS = 32
"""Names looked up at once, but for those whose lookup hangs."""
LOOKUP_HANGS = 1.0
"""Seconds after which a lookup counts as hanging: it goes on, and others need not wait for it. A
name server that does not answer holds a thread for 10 to 30 s."""
MOST_HANGING = 256
"""Lookups that hang at once. Beyond that only names are looked up that have answered before."""
MOST_ANSWERED = 4_096

_BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_HEAD_ENDS = re.compile(rb"\n\r?\n")
_BLANK_LINES = (b"\n\r\n", b"\n\n")
_INTERIM = frozenset(range(100, 200)) - {HTTPStatus.SWITCHING_PROTOCOLS}
_UNTIMED = aiohttp.ClientTimeout(total=None)

T = TypeVar("T")

_host: ContextVar[str] = ContextVar("_host", default="")


class Refusal(OSError):
    """Of an address, in the form that the connector passes on."""


class Wire:
    """Made and used on one loop."""

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        self._connector = _Connector(
            limit=0,  # places are counted by the worker and by host
            resolver=_Resolver(allow),
            socket_factory=self._socket,
            ttl_dns_cache=NAME_SECONDS,
            keepalive_timeout=IDLE_SECONDS,
        )
        # By these the connector knows where to connect to; requests are written by `_write`.
        self._origin = lru_cache(MOST_ORIGINS)(
            partial(aiohttp.ClientRequest, "GET", loop=asyncio.get_running_loop())
        )

    async def exchange(self, url: URL, request: Prepared, heard: Heard) -> None:
        """Send the request once, and read the answer into `heard` as it comes."""
        _host.set(url.raw_host or "")
        connection = await self._connector.connect(self._origin(url.origin()), [], _UNTIMED)
        try:
            protocol = connection.protocol
            assert isinstance(protocol, _Protocol)
            heard.address = protocol.address
            protocol.expect(answer_to=request.method)
            await _write(protocol, url, request)
            message, content = await protocol.read()
            while message.code in _INTERIM:
                message, content = await protocol.read()
            heard.status, heard.reason = message.code, message.reason or ""
            heard.headers = [(str(name), str(text)) for name, text in message.headers.items()]
            heard.more = True  # until its end has come: a call may be cut off before
            while not content.at_eof() and len(heard.body) < MOST_READ:
                heard.body += content.read_nowait() or await content.readany()
            ended = content.at_eof() and not protocol.broken
            heard.more = not ended or len(heard.body) > MOST_READ
            del heard.body[MOST_READ:]
        except BaseException:
            _give_up(connection)
            raise
        if protocol.clean and not heard.more and protocol.sent(len(request.body)):
            connection.release()
        else:
            _give_up(connection)

    async def close(self) -> None:
        await self._connector.close()

    def _socket(self, info: Any) -> socket.socket:
        """A socket for an address that is about to be connected to, or the refusal of it."""
        family, kind, proto, _, address = info
        why = self._allow.refusal(str(address[0]), _host.get())
        if why is not None:
            raise Refusal(why)
        return socket.socket(family=family, type=kind, proto=proto)


def _give_up(connection: Connection) -> None:
    """Close a connection at once, with whatever it has still to send."""
    if connection.protocol is not None:
        connection.protocol.abort()
    connection.close()


async def _write(protocol: _Protocol, url: URL, request: Prepared) -> None:
    """Hand all of a request to its connection. Nobody waits until it is sent: an endpoint may
    answer before it has read the whole."""
    headers: Any = {"Host": url.host_port_subcomponent, **request.headers}  # no CIMultiDict needed
    if request.body or request.method not in _BODILESS:
        headers["Content-Length"] = str(len(request.body))
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    await writer.write_headers(f"{request.method} {url.raw_path_qs} HTTP/1.1", headers)
    await writer.write(request.body, drain=False)


class _Protocol(ResponseHandler):
    """Takes one answer for each request, and closes a connection that brings more, or that brings
    something unasked: aiohttp would keep it for the next request, which would have that answer.

    What aiohttp reads at once it keeps or drops as a whole; so it is given a head by itself, and a
    good answer counts whatever stands behind it. Has enough of an endpoint that says "in a moment"
    (103) without end: a flood of them keeps the loop from everything else.
    """

    address: str | None = None
    broken = False
    """Whether it ended in the midst of an answer: one without a length seems whole then."""
    answered = True  # nothing is asked yet
    _heads = 0
    _left: int | None = 0  # bytes of the body that are to come; None: it is known by its end
    _last = b""  # the last bytes that came

    @property
    def clean(self) -> bool:
        """Whether it brought one answer, all of it, and nothing behind it."""
        if self._left is None:
            return self.answered and self._last.endswith(_BLANK_LINES)
        return self.answered and self._left == 0

    def sent(self, size: int) -> bool:
        """Whether all of a request has gone out. Below TLS nobody tells; as much as the system
        takes at once has."""
        if self.transport is None:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return size <= SENT_AT_ONCE
        return self.transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if name else None

    def connection_lost(self, exc: BaseException | None) -> None:
        self.broken = exc is not None and self._payload is not None and not self._payload.is_eof()
        super().connection_lost(exc)

    def expect(self, *, answer_to: str) -> None:
        """A request with this method is about to be sent."""
        self.answered = False
        self._heads = 0
        self._left = 0
        self._last = b""
        self.set_response_params(
            skip_payload=answer_to == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=MOST_READ // 2,  # aiohttp buffers twice as much
            max_line_size=LONGEST_LINE,
            max_field_size=LONGEST_LINE,
            max_headers=MOST_HEADERS,
        )

    def data_received(self, data: bytes) -> None:
        rest = data
        while rest and not self.answered and self._exception is None:
            rest = self._head_received(rest)
        if rest and self.answered and (self._payload is None or self._payload.is_eof()):
            self._cut_off()
        elif (rest or not data) and self._exception is None:  # no data: aiohttp itself goes on
            self._pass_on(rest)

    def _head_received(self, data: bytes) -> bytes:
        """Read to the end of a head, if it is here; gives what stands behind it."""
        end = _HEAD_ENDS.search(self._last + data)
        if end is None:
            self._pass_on(data)
            return b""
        size = end.end() - len(self._last)
        self._pass_on(data[:size])
        self._last = b""
        self._heads += 1
        if self._heads > MOST_INTERIM and not self.answered:
            self.set_exception(HttpProcessingError(message="too many interim answers"))
            self._cut_off()
        return data[size:]

    def _pass_on(self, data: bytes) -> None:
        self._last = (self._last + data[-3:])[-3:]
        if self._left is not None and self.answered:
            self._left -= len(data)
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """A head is read. aiohttp has looked at its lengths."""
        if self.answered:
            self.force_close()
            return
        message = data[0]
        self.answered = not HTTPStatus.CONTINUE <= message.code < HTTPStatus.OK
        length = message.headers.get("Content-Length", "0")
        if self._skip_payload or message.code in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            # No body is read. One that should not come may come all the same, and later.
            if self._skip_payload or message.chunked or length != "0":
                self.force_close()
        else:
            self._left = None if message.chunked or not length.isdecimal() else int(length)
        super().feed_data(data, size)

    def set_exception(self, error: BaseException, *cause: BaseException) -> None:
        payload = self._payload
        super().set_exception(error, *cause)
        # Of broken chunks aiohttp does not tell, and the call would wait for its timeout.
        if payload is not None and not payload.is_eof():
            payload.set_exception(aiohttp.ClientPayloadError(str(error)))

    def _cut_off(self) -> None:
        self.force_close()
        if self.transport is not None:
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(_Protocol, loop=self._loop)  # type: ignore[assignment]


class _Resolver(AbstractResolver):
    """Names by the system's resolver, on threads of our own; addresses that may not be called are
    left out (and checked again when a socket is made)."""

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        self._lookups = _Lookups()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._lookups.find(host, family)
        results: list[ResolveResult] = []
        why = None
        for kin, _, proto, _, address in found:
            refusal = self._allow.refusal(str(address[0]), host)
            if refusal is not None:
                why = refusal
                continue
            results.append(
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=port,
                    family=kin,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        if not results and why is not None:
            raise Refusal(why)
        return results

    async def close(self) -> None:
        """Lookups that hang end by themselves: nobody waits for their threads."""


class _Lookups:
    """Looks names up in threads: one lookup for each name, and those that hang hold up no other.

    The threads are daemons. A program that ends does not wait for a name server.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(LOOKUPS)
        self._hanging = 0
        self._under_way: dict[tuple[str, int], asyncio.Task[list[Any]]] = {}
        self._answered: dict[str, None] = {}

    async def find(self, host: str, family: int) -> list[Any]:
        """What `getaddrinfo` says of a name. Who asks for one that is being looked up joins in."""
        key = (host, family)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._look_up(host, family))
            task.add_done_callback(lambda done: self._ended(key, done))
        return await asyncio.shield(task)

    def _ended(self, key: tuple[str, int], task: asyncio.Task[list[Any]]) -> None:
        self._under_way.pop(key, None)
        if task.cancelled() or task.exception() is not None:  # nobody else may ask for it
            return
        self._answered.pop(key[0], None)
        self._answered[key[0]] = None
        if len(self._answered) > MOST_ANSWERED:
            del self._answered[next(iter(self._answered))]

    async def _look_up(self, host: str, family: int) -> list[Any]:
        if self._hanging >= MOST_HANGING and host not in self._answered:
            raise OSError(f"{self._hanging} names are being looked up without an answer")
        async with self._free:
            found = _in_thread(
                lambda: socket.getaddrinfo(host, 0, family, socket.SOCK_STREAM),
                name="mainspring-names",
            )
            await asyncio.wait({found}, timeout=LOOKUP_HANGS)
        if found.done():
            return found.result()
        self._hanging += 1
        try:
            return await found
        finally:
            self._hanging -= 1


def _in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """What a function gives, called in a daemon thread of its own."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def tell(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    def run() -> None:
        try:
            outcome = work()
        except Exception as error:
            tell(future.set_exception, error)
        else:
            tell(future.set_result, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
