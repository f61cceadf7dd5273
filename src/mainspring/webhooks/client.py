"""The connection to an endpoint: checked, bounded, never redirected.

Every socket is made by `_socket`, which is told the address that will be connected to: whatever
a name resolved to a moment ago, and whatever a literal looks like, that address is what is
checked. Nothing of the environment is used (no proxies, no netrc, no cookies). An answer is read up
to 64 KiB and never decompressed. There is no timeout in here: the engine cancels an attempt
by the wall clock, and the connection goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from yarl import URL

from mainspring.errors import AddressRefused, Snooze, WebhookFailed
from mainspring.webhooks.address import AllowList
from mainspring.webhooks.render import Prepared

__all__ = ["MOST_READ", "Client", "Heard"]

MOST_READ = 64 * 1024
MOST_HEADERS = 100
LONGEST_LINE = 8_190
NAME_SECONDS = 5
"""How long an address that a name stood for is used for new connections."""

LOOKUPS = 16
"""Names looked up at once. A name server that does not answer holds a thread for long, and must not
hold those of the program."""

PATIENCE = 0.5
"""Seconds to wait for one of a host's places; then the run is given back, and its place with it."""

_host: ContextVar[str] = ContextVar("_host", default="")
_heard: ContextVar[Heard] = ContextVar("_heard")


class Heard:
    """What came back so far: also of a call that is cut off, so much is known."""

    __slots__ = ("address", "body", "headers", "more", "reason", "status")

    def __init__(self) -> None:
        self.status: int | None = None
        self.reason = ""
        self.headers: list[tuple[str, str]] = []
        self.body = bytearray()
        self.more = False
        """Whether there was more than `MOST_READ`."""
        self.address: str | None = None


class Client:
    """Made on any loop, used on one: a session is opened there at the first call."""

    def __init__(self, allow: AllowList, per_host: int) -> None:
        self._allow = allow
        self._places = _Places(per_host)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lookups: ThreadPoolExecutor | None = None

    async def send(self, request: Prepared, heard: Heard, *, patience: float = PATIENCE) -> None:
        """Make the request; `heard` fills up as the answer comes.

        WebhookFailed says in words why there is no whole answer; Snooze that the host is busy.
        """
        url = URL(request.url, encoded=True)
        _host.set(url.raw_host or "")
        _heard.set(heard)
        async with self._places.one(f"{url.raw_host}:{url.port}", patience):
            try:
                await self._exchange(url, request, heard)
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise _in_words(error, url) from None

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
            data=request.body or None,
            allow_redirects=False,
            skip_auto_headers=("Content-Type",),
        ) as answer:
            heard.status, heard.reason = answer.status, answer.reason or ""
            heard.headers = [(str(name), str(text)) for name, text in answer.headers.items()]
            async for chunk in answer.content.iter_any():
                heard.body += chunk[: MOST_READ - len(heard.body)]
                if len(heard.body) == MOST_READ:
                    heard.more = not answer.content.at_eof()
                    answer.close()
                    return

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
        return self._session

    def _socket(self, info: Any) -> socket.socket:
        """A socket for an address that is about to be connected to, or the refusal of it."""
        family, kind, proto, _, address = info
        why = self._allow.refusal(str(address[0]), _host.get())
        if why is not None:
            raise _Refusal(why)
        return socket.socket(family=family, type=kind, proto=proto)


class _Connector(aiohttp.TCPConnector):
    """Tells which address a call goes to, also over a connection that is used again."""

    async def connect(self, *arguments: Any, **options: Any) -> Connection:
        connection = await super().connect(*arguments, **options)
        name = connection.transport and connection.transport.get_extra_info("peername")
        _heard.get().address = str(name[0]) if name else None
        return connection


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
        self._hosts: dict[str, asyncio.Semaphore] = {}
        self._users: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def one(self, host: str, patience: float) -> AsyncIterator[None]:
        places = self._hosts.setdefault(host, asyncio.Semaphore(self._per_host))
        self._users[host] = self._users.get(host, 0) + 1
        try:
            try:
                async with asyncio.timeout(patience):
                    await places.acquire()
            except TimeoutError:
                raise Snooze(f"{self._per_host} calls to {host} are under way") from None
            try:
                yield
            finally:
                places.release()
        finally:
            self._users[host] -= 1
            if not self._users[host]:
                del self._users[host], self._hosts[host]


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
            return WebhookFailed(f"no safe connection to {host}: {_short(error)}")
        case aiohttp.ClientConnectorError():
            return WebhookFailed(f"no connection to {host}:{url.port}: {_short(cause)}")
        case aiohttp.ServerDisconnectedError():
            return WebhookFailed(f"{host} closed the connection without an answer")
        case aiohttp.ClientPayloadError():
            return WebhookFailed(f"the answer of {host} broke off")
        case aiohttp.ClientResponseError():
            why = error.message.partition("\n")[0].rstrip(":")[:200]
            return WebhookFailed(f"{host} did not answer in HTTP that can be read: {why}")
        case _:
            return WebhookFailed(f"the connection to {host} broke: {_short(cause)}")


def _short(error: object) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text)[:300]
