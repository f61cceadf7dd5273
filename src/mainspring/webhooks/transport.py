"""HTTP transport: sends a request once, reads the response, and says in words why there is none.

There is no timeout here: the engine cancels an attempt at its timeout, and that closes the
connection.

aiohttp's connector opens, keeps and parses connections. Its `ClientSession` is not used: it sends a
GET, PUT or DELETE again when a kept connection breaks, so an endpoint could be called twice, and it
was a fifth of the cost of a call (docs/decisions/0010-outgoing-calls.md). `_socket` creates every
socket and checks the very address that will be connected to, so DNS rebinding (a name that resolves
to another address a moment later) does not bypass the check. Proxies and netrc of the environment
are ignored. The transport reads at most 64 KiB of a response and never decompresses it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
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

from mainspring.errors import AddressRefused, WebhookFailed
from mainspring.webhooks.address_policy import AllowList, is_literal
from mainspring.webhooks.request import PartialResponse, PreparedRequest

log = logging.getLogger("mainspring")

MAX_RESPONSE_BYTES = 64 * 1024
MAX_RESPONSE_HEADERS = 100
MAX_INTERIM_RESPONSES = 20
MAX_LINE_BYTES = 8_190
MAX_ORIGINS = 4_096

MAX_BYTES_SENT_AT_ONCE = 16 * 1024
"""Bytes that the kernel accepts on an idle connection without waiting."""

DNS_CACHE_SECONDS = 5
"""How long a resolved address is used for new connections."""

IDLE_CONNECTION_SECONDS = 1.5
"""How long an unused connection is kept. Servers keep theirs longer (gunicorn 2 s, Node and uvicorn
5 s); otherwise a request would sometimes fail on a connection that the server is closing."""

MAX_LOOKUPS = 256
"""How many names are looked up at once that never resolved before. A name server that does not
answer holds a thread for 10 to 30 s; names that resolved before do not wait for others."""
MAX_KNOWN_NAMES = 4_096

_METHODS_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_HEAD_ENDS = re.compile(rb"\n\r?\n")
_BLANK_LINES = (b"\n\r\n", b"\n\n")
_INTERIM = frozenset(range(100, 200)) - {HTTPStatus.SWITCHING_PROTOCOLS}
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)

_QUOTED = re.compile(r"""[:\s]*(\n|(?<!\w)b?['"]|\bwhen reading\b)""")

_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)
"""What OpenSSL calls an answer that is not TLS."""

_url = lru_cache(maxsize=4096)(partial(URL, encoded=True))

T = TypeVar("T")

_host: ContextVar[str] = ContextVar("_host", default="")


class Refusal(OSError):
    """An address is not allowed. An `OSError`, because the connector passes only those on."""


class WebhookClient:
    """Calls endpoints and keeps connections to them. Create it anywhere, use it on one event loop:
    the first call opens the connector there."""

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, request: PreparedRequest, response: PartialResponse) -> None:
        """Send the request once, and fill `response` while the answer arrives.

        Raises `WebhookFailed`, which says why there is no complete response.
        """
        url = _url(request.url)
        if self._loop is not asyncio.get_running_loop():
            self._open()
        try:
            await self._exchange(url, request, response)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            raise _describe_error(error, url) from None

    async def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is None or loop.is_closed():
            return
        if loop is asyncio.get_running_loop():
            await self._connector.close()
        else:
            closing = asyncio.run_coroutine_threadsafe(_close(self._connector), loop)
            await asyncio.wrap_future(closing)

    def _open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connector = _Connector(
            limit=0,  # the worker limits calls, in total and for each host
            resolver=_Resolver(self._allow),
            socket_factory=self._socket,
            ttl_dns_cache=DNS_CACHE_SECONDS,
            keepalive_timeout=IDLE_CONNECTION_SECONDS,
        )
        # The connector takes host, port and TLS from these; `_write` sends the real request.
        self._origin = lru_cache(MAX_ORIGINS)(
            partial(aiohttp.ClientRequest, "GET", loop=self._loop)
        )

    async def _exchange(
        self, url: URL, request: PreparedRequest, response: PartialResponse
    ) -> None:
        _host.set(url.raw_host or "")
        connection = await self._connector.connect(self._origin(url.origin()), [], _NO_TIMEOUT)
        try:
            protocol = connection.protocol
            assert isinstance(protocol, _Protocol)
            response.address = protocol.address
            protocol.expect(answer_to=request.method)
            await _write(protocol, url, request)
            message, content = await protocol.read()
            while message.code in _INTERIM:
                message, content = await protocol.read()
            response.status, response.reason = message.code, message.reason or ""
            response.headers = [(str(name), str(text)) for name, text in message.headers.items()]
            response.more = True  # until its end arrives: the call may be cancelled before
            while not content.at_eof() and len(response.body) < MAX_RESPONSE_BYTES:
                response.body += content.read_nowait() or await content.readany()
            ended = content.at_eof() and not protocol.broken
            response.more = not ended or len(response.body) > MAX_RESPONSE_BYTES
            del response.body[MAX_RESPONSE_BYTES:]
        except BaseException:
            _abort_connection(connection)
            raise
        if protocol.is_complete and not response.more and protocol.sent(len(request.body)):
            connection.release()
        else:
            _abort_connection(connection)

    def _socket(self, info: Any) -> socket.socket:
        """A socket for an address that is about to be connected to, or the refusal of it."""
        family, kind, proto, _, address = info
        why = self._allow.refusal(str(address[0]), _host.get())
        if why is not None:
            raise Refusal(why)
        return socket.socket(family=family, type=kind, proto=proto)


def _abort_connection(connection: Connection) -> None:
    """Close a connection at once, with whatever it has still to send."""
    if connection.protocol is not None:
        connection.protocol.abort()
    connection.close()


async def _close(connector: _Connector) -> None:
    await connector.close()


async def _write(protocol: _Protocol, url: URL, request: PreparedRequest) -> None:
    """Hand all of a request to its connection. Nobody waits until it is sent: an endpoint may
    answer before it has read the whole."""
    headers: Any = {"Host": url.host_port_subcomponent, **request.headers}  # no CIMultiDict needed
    if request.body or request.method not in _METHODS_WITHOUT_BODY:
        headers["Content-Length"] = str(len(request.body))
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    await writer.write_headers(f"{request.method} {url.raw_path_qs} HTTP/1.1", headers)
    await writer.write(request.body, drain=False)


class _Protocol(ResponseHandler):
    """Accepts one response for each request.

    It closes a connection that sends more, or that sends something before a request: aiohttp would
    keep those bytes, and the next request would take them as its response. aiohttp keeps or drops
    what it reads in one step as a whole, so this class passes each head on by itself: a valid
    response counts, whatever follows it. After 20 interim responses (103) it closes the connection,
    because an endless series of them would block the event loop.
    """

    address: str | None = None
    broken = False
    """Whether the connection broke inside a response. One without a length would look complete."""
    answered = True  # no request was sent yet
    _heads = 0
    _left: int | None = 0  # bytes of the body still to come; None: unknown until its end
    _last = b""  # the last bytes received

    @property
    def is_complete(self) -> bool:
        """Whether one complete response arrived, and nothing after it."""
        if self._left is None:
            return self.answered and self._last.endswith(_BLANK_LINES)
        return self.answered and self._left == 0

    def sent(self, size: int) -> bool:
        """Whether the whole request was sent. With TLS that is unknown, except for a request that
        is small enough to be sent at once."""
        if self.transport is None:
            return False
        if self.transport.get_extra_info("sslcontext") is not None:
            return size <= MAX_BYTES_SENT_AT_ONCE
        return self.transport.get_write_buffer_size() == 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self.address = str(name[0]) if name else None

    def connection_lost(self, exc: BaseException | None) -> None:
        self.broken = exc is not None and self._payload is not None and not self._payload.is_eof()
        super().connection_lost(exc)

    def expect(self, *, answer_to: str) -> None:
        """Prepare for the response to a request with this method, which is sent next."""
        self.answered = False
        self._heads = 0
        self._left = 0
        self._last = b""
        self.set_response_params(
            skip_payload=answer_to == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=MAX_RESPONSE_BYTES // 2,  # aiohttp buffers twice as much
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_RESPONSE_HEADERS,
        )

    def data_received(self, data: bytes) -> None:
        rest = data
        while rest and not self.answered and self._exception is None:
            rest = self._head_received(rest)
        if rest and self.answered and (self._payload is None or self._payload.is_eof()):
            self._cut_off()
        elif (rest or not data) and self._exception is None:  # no data: aiohttp continues by itself
            self._pass_on(rest)

    def _head_received(self, data: bytes) -> bytes:
        """Pass on data up to the end of a response head; return what follows it."""
        end = _HEAD_ENDS.search(self._last + data)
        if end is None:
            self._pass_on(data)
            return b""
        size = end.end() - len(self._last)
        self._pass_on(data[:size])
        self._last = b""
        self._heads += 1
        if self._heads > MAX_INTERIM_RESPONSES and not self.answered:
            self.set_exception(HttpProcessingError(message="too many interim answers"))
            self._cut_off()
        return data[size:]

    def _pass_on(self, data: bytes) -> None:
        self._last = (self._last + data[-3:])[-3:]
        if self._left is not None and self.answered:
            self._left -= len(data)
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """aiohttp calls this when it has parsed a head and checked its lengths."""
        if self.answered:
            self.force_close()
            return
        message = data[0]
        self.answered = not HTTPStatus.CONTINUE <= message.code < HTTPStatus.OK
        length = message.headers.get("Content-Length", "0")
        if self._skip_payload or message.code in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
            # No body is read. A server may send one all the same, and later.
            if self._skip_payload or message.chunked or length != "0":
                self.force_close()
        else:
            self._left = None if message.chunked or not length.isdecimal() else int(length)
        super().feed_data(data, size)

    def set_exception(self, error: BaseException, *cause: BaseException) -> None:
        payload = self._payload
        super().set_exception(error, *cause)
        # aiohttp does not report broken chunks; the call would wait for its timeout.
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
    """Resolves each name with the system's resolver, in a thread of its own. Leaves out addresses
    that are not allowed; `WebhookClient._socket` checks each address again.

    aiohttp lets all calls that need the same name wait for one lookup. The threads are daemons, so
    a program that ends does not wait for a name server.
    """

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        self._new_names = asyncio.Semaphore(MAX_LOOKUPS)
        self._known: dict[str, None] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await self._look_up(host, family)
        results: list[ResolveResult] = []
        why = None
        for family, _, proto, _, address in addresses:
            refusal = self._allow.refusal(str(address[0]), host)
            if refusal is not None:
                why = refusal
                continue
            results.append(
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=port,
                    family=family,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
                )
            )
        if not results and why is not None:
            raise Refusal(why)
        return results

    async def _look_up(self, host: str, family: int) -> list[Any]:
        async with contextlib.nullcontext() if host in self._known else self._new_names:
            addresses = await _in_thread(
                lambda: socket.getaddrinfo(host, 0, family, socket.SOCK_STREAM),
                name="mainspring-names",
            )
        self._known.pop(host, None)
        self._known[host] = None
        if len(self._known) > MAX_KNOWN_NAMES:
            del self._known[next(iter(self._known))]
        return addresses

    async def close(self) -> None:
        """Does nothing: slow lookups end by themselves."""


def _in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call a function in a new daemon thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.done():
            set_outcome(outcome)

    def report_outcome(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        with contextlib.suppress(
            RuntimeError
        ):  # the loop is closed, so nothing waits for the result
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    def run() -> None:
        try:
            outcome = work()
        except Exception as error:
            report_outcome(future.set_exception, error)
        else:
            report_outcome(future.set_result, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _describe_error(error: Exception, url: URL) -> WebhookFailed:
    """Say why there is no complete response. Of the request the message names only the host."""
    host = url.raw_host
    cause = getattr(error, "os_error", error)
    match error:
        case _ if isinstance(cause, Refusal):
            return AddressRefused(_refusal_message(host or "", cause))
        case aiohttp.ClientConnectorDNSError():
            return WebhookFailed(f"the host {host} was not found: {_short(cause)}")
        case _ if getattr(cause, "reason", None) in _NOT_TLS:
            return WebhookFailed(
                f"no secure connection to {host}:{url.port}: the port does not speak TLS (did you"
                " mean http://?)"
            )
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return WebhookFailed(f"no secure connection to {host}: {str(error)[:300]}")
        case aiohttp.ClientConnectorError():
            return WebhookFailed(f"no connection to {host}:{url.port}: {_short(cause)}")
        case aiohttp.ServerDisconnectedError():
            return WebhookFailed(f"{host} closed the connection without an answer")
        case aiohttp.ClientPayloadError():
            return WebhookFailed(f"the connection to {host} broke inside the response")
        case HttpProcessingError():
            # It may quote a part of the response that holds a secret in an unknown form.
            why = _QUOTED.split(error.message, 1)[0][:200]
            return WebhookFailed(f"{host} sent a response that is not valid HTTP: {why}")
        case _:
            return WebhookFailed(f"the connection to {host} broke: {_short(cause)}")


def _refusal_message(host: str, why: Refusal) -> str:
    """Say why a host was not called. Only the log names the address: people who may define webhooks
    must not learn the addresses of an internal network from error messages."""
    allow = (
        "an operator can allow it by host or range (MAINSPRING_ALLOW_PRIVATE, or serve"
        " --allow-private)"
    )
    if is_literal(host):
        return f"{host} was not called: webhooks may not call {why}; {allow}"
    log.warning("a webhook to %s was refused: webhooks may not call %s", host, why)
    return (
        f"{host} was not called: webhooks may not call the address that it resolves to; {allow};"
        " the log names the address"
    )


def _short(error: object) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error or type(error).__name__)[:300]
