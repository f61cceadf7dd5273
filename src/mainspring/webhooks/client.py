"""The connection to an endpoint: checked, bounded, never redirected.

Every socket is made by `_socket`, which is told the address that will be connected to: whatever
a name resolved to a moment ago, and whatever a literal looks like, that address is what is
checked. Nothing of the environment is used (no proxies, no netrc, no cookies). An answer is read up
to 64 KiB and never decompressed. There is no timeout in here: the engine cancels an attempt
by the wall clock, and the connection goes with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from mainspring.errors import AddressRefused, Snooze, WebhookFailed
from mainspring.webhooks.address import AllowList
from mainspring.webhooks.heard import Heard
from mainspring.webhooks.render import Prepared

__all__ = ["MOST_READ", "Client"]

MOST_READ = 64 * 1024
MOST_HEADERS = 100
MOST_INTERIM = 20
LONGEST_LINE = 8_190
NAME_SECONDS = 5
"""How long an address that a name stood for is used for new connections."""

IDLE_SECONDS = 1.5
"""How long an unused connection is kept: less than servers do (gunicorn 2 s, Node and uvicorn 5 s),
or a request would now and then meet a connection that is just being closed, and fail."""

LOOKUPS = 32
"""Names looked up at once. A name server that does not answer holds a thread for long, and must not
hold those of the program."""

_HEAD_ENDS = b"\r\n\r\n"
_SKIPPED = ("Content-Type",)  # where there is no body there is none; every body has its own

_url = lru_cache(maxsize=4096)(partial(URL, encoded=True))

_host: ContextVar[str] = ContextVar("_host", default="")
_heard: ContextVar[Heard] = ContextVar("_heard")


class Client:
    """Made on any loop, used on one: a session is opened there at the first call."""

    def __init__(self, allow: AllowList, per_host: int) -> None:
        self._allow = allow
        self._places = _Places(per_host)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lookups: ThreadPoolExecutor | None = None

    async def send(self, request: Prepared, heard: Heard, *, patience: float) -> None:
        """Make the request; `heard` fills up as the answer comes.

        WebhookFailed says in words why there is no whole answer; Snooze that the host is busy.
        """
        url = _url(request.url)
        _host.set(url.raw_host or "")
        _heard.set(heard)
        place = f"{url.raw_host}:{url.port}"
        if not self._places.take(place):
            await self._places.wait_for(place, patience)
        try:
            await self._exchange(url, request, heard)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _in_words(error, url) from None
        finally:
            self._places.free(place)

    async def close(self) -> None:
        session, loop, self._session = self._session, self._loop, None
        if self._lookups is not None:
            self._lookups.shutdown(wait=False, cancel_futures=True)
            self._lookups = None
        if session is None or loop is None or loop.is_closed():
            return
        if loop is asyncio.get_running_loop():
            await session.close()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(session.close(), loop))

    async def _exchange(self, url: URL, request: Prepared, heard: Heard) -> None:
        async with self._opened().request(
            request.method,
            url,
            headers=request.headers,
            data=aiohttp.BytesPayload(request.body) if request.body else None,
            allow_redirects=False,
            skip_auto_headers=None if request.body else _SKIPPED,
        ) as answer:
            heard.status, heard.reason = answer.status, answer.reason or ""
            heard.headers = [(str(name), str(text)) for name, text in answer.headers.items()]
            heard.more = True  # until its end has come: a call may be cut off before
            content = answer.content
            while not content.at_eof():
                part = content.read_nowait() or await content.readany()
                heard.body += part[: MOST_READ - len(heard.body)]
                if len(heard.body) == MOST_READ:
                    heard.more = not content.at_eof()
                    answer.close()
                    return
            heard.more = False

    def _opened(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            self._lookups = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="mainspring-names")
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=_Connector(
                    limit=0,  # places are counted here, by the worker and by host
                    resolver=_Resolver(self._allow, self._lookups),
                    socket_factory=self._socket,
                    ttl_dns_cache=NAME_SECONDS,
                    keepalive_timeout=IDLE_SECONDS,
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
                trust_env=False,
                max_line_size=LONGEST_LINE,
                max_field_size=LONGEST_LINE,
                max_headers=MOST_HEADERS,
                read_bufsize=MOST_READ // 2,  # aiohttp buffers twice as much
            )
            # It would send a GET, PUT or DELETE again by itself when a connection breaks: a second
            # call within one attempt, also of a job that is called once at most. No option says so.
            self._session._retry_connection = False
        return self._session

    def _socket(self, info: Any) -> socket.socket:
        """A socket for an address that is about to be connected to, or the refusal of it."""
        family, kind, proto, _, address = info
        why = self._allow.refusal(str(address[0]), _host.get())
        if why is not None:
            raise _Refusal(why)
        return socket.socket(family=family, type=kind, proto=proto)


class _Protocol(ResponseHandler):
    """Tells which address a request goes to, also over a connection that is used again.

    Takes one answer for each request, and closes a connection that brings more: aiohttp would
    keep it for the next request, which would then be answered without being sent.

    Has enough of an endpoint that says "in a moment" (103) without end: aiohttp reads each of them,
    and a flood keeps the loop from everything else.
    """

    answered = False
    interim = 0
    _address: str | None = None
    _options: Mapping[str, Any] = {}
    _chunk = b""  # what is being read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self._address = str(name[0]) if name else None

    def set_response_params(self, **options: Any) -> None:
        """The next request is about to be sent."""
        _heard.get().address = self._address
        self.answered = False
        self.interim = 0
        self._options = options
        super().set_response_params(**options)

    def data_received(self, data: bytes) -> None:
        if data and self.answered and (self._payload is None or self._payload.is_eof()):
            self._cut_off()
            return
        self._chunk = data
        super().data_received(data)
        self._chunk = b""

    def feed_data(self, data: Any, size: int = 0) -> None:
        if self.answered:
            return
        self.answered = data[0].code >= HTTPStatus.OK
        self.interim += not self.answered
        if self.interim <= MOST_INTERIM:
            super().feed_data(data, size)
        else:
            self._chunk = b""
            self.set_exception(HttpProcessingError(message="too many interim answers"))
            self._cut_off()

    def set_exception(self, error: BaseException, *cause: BaseException) -> None:
        head, end, rest = self._chunk.partition(_HEAD_ENDS)
        self._chunk = b""
        if rest and not self.answered:
            # What is wrong may stand behind a good head, and aiohttp drops both: it counts alone.
            super().set_response_params(**self._options)
            self.data_received(head + end)
            if self._exception is None:
                self.data_received(rest)
            return
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


class _Refusal(OSError):
    """In the form that the connector passes on."""


class _Resolver(AbstractResolver):
    """Names by the system's resolver, on threads of our own; addresses that may not be called are
    left out (and checked again when a socket is made)."""

    def __init__(self, allow: AllowList, threads: ThreadPoolExecutor) -> None:
        self._allow = allow
        self._threads = threads

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        )
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
            raise _Refusal(why)
        return results

    async def close(self) -> None:
        """Its threads are the client's."""


class _Places:
    """How many calls to one host are made at once."""

    def __init__(self, per_host: int) -> None:
        self._per_host = per_host
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def take(self, host: str) -> bool:
        """Take a place, if there is one."""
        taken = self._taken.get(host, 0)
        if taken == self._per_host:
            return False
        self._taken[host] = taken + 1
        return True

    async def wait_for(self, host: str, patience: float) -> None:
        """Take a place within that time; Snooze where there is none."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        try:
            async with asyncio.timeout(patience):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.free(host)  # it was handed over in the same moment
            if isinstance(error, TimeoutError):
                raise Snooze(f"{self._per_host} calls to {host} are under way") from None
            raise

    def free(self, host: str) -> None:
        """Give a place back: to the one who has waited longest, or to nobody."""
        waiting = self._waiting.get(host, ())
        while waiting:
            turn = waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._waiting.pop(host, None)
        self._taken[host] -= 1
        if not self._taken[host]:
            del self._taken[host]


def _in_words(error: Exception, url: URL) -> WebhookFailed:
    """Why there is no whole answer. Of the request nothing is told but its host."""
    host = url.raw_host
    cause = getattr(error, "os_error", error)
    match error:
        case _ if isinstance(cause, _Refusal):
            return AddressRefused(
                f"{host} was not called: webhooks may not call {cause}; an operator can allow it by"
                " host or range (--allow-private)"
            )
        case aiohttp.ClientConnectorDNSError():
            return WebhookFailed(f"the host {host} was not found: {_short(cause)}")
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return WebhookFailed(f"no safe connection to {host}: {str(error)[:300]}")
        case aiohttp.ClientConnectorError():
            return WebhookFailed(f"no connection to {host}:{url.port}: {_short(cause)}")
        case aiohttp.ServerDisconnectedError():
            return WebhookFailed(f"{host} closed the connection without an answer")
        case aiohttp.ClientPayloadError():
            return WebhookFailed(f"the answer of {host} broke off")
        case aiohttp.ClientResponseError():
            # What it quotes of the answer is cut, and a secret in it then not known.
            why = error.message.partition("\n")[0].partition(" when reading")[0].rstrip(":")[:200]
            return WebhookFailed(f"{host} did not answer in HTTP that can be read: {why}")
        case _:
            return WebhookFailed(f"the connection to {host} broke: {_short(cause)}")


def _short(error: object) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error or type(error).__name__)[:300]
