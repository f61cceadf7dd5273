"""Calls to endpoints, and in words why there is no answer.

There is no timeout in here: the engine cancels an attempt by the wall clock, and the connection
goes with it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
from functools import lru_cache, partial

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from mainspring.errors import AddressRefused, WebhookFailed
from mainspring.webhooks.address_policy import AllowList, is_literal
from mainspring.webhooks.request import Prepared
from mainspring.webhooks.response import Heard
from mainspring.webhooks.transport import Refusal, Wire

__all__ = ["Client"]

log = logging.getLogger("mainspring")

_QUOTED = re.compile(r"""[:\s]*(\n|(?<!\w)b?['"]|\bwhen reading\b)""")

_url = lru_cache(maxsize=4096)(partial(URL, encoded=True))


class Client:
    """Made on any loop, used on one: a wire is opened there at the first call."""

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        self._wire: Wire | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, request: Prepared, heard: Heard) -> None:
        """Make the request; `heard` fills up as the answer comes.

        WebhookFailed says in words why there is no whole answer.
        """
        url = _url(request.url)
        try:
            await self._opened().exchange(url, request, heard)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            raise _in_words(error, url) from None

    async def close(self) -> None:
        wire, loop, self._wire = self._wire, self._loop, None
        if wire is None or loop is None or loop.is_closed():
            return
        if loop is asyncio.get_running_loop():
            await wire.close()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(wire.close(), loop))

    def _opened(self) -> Wire:
        loop = asyncio.get_running_loop()
        if self._wire is None or self._loop is not loop:
            self._loop = loop
            self._wire = Wire(self._allow)
        return self._wire


def _in_words(error: Exception, url: URL) -> WebhookFailed:
    """Why there is no whole answer. Of the request nothing is told but its host."""
    host = url.raw_host
    cause = getattr(error, "os_error", error)
    match error:
        case _ if isinstance(cause, Refusal):
            return AddressRefused(_refused(host or "", cause))
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
        case HttpProcessingError():
            # What it quotes of the answer may be a secret, in a form that nobody knows.
            why = _QUOTED.split(error.message, 1)[0][:200]
            return WebhookFailed(f"{host} did not answer in HTTP that can be read: {why}")
        case _:
            return WebhookFailed(f"the connection to {host} broke: {_short(cause)}")


def _refused(host: str, why: Refusal) -> str:
    """Why a host was not called. What a name resolves to is for the log alone: who may define
    webhooks must not learn by them where the hosts of an inner network lie."""
    allow = "an operator can allow it by host or range (--allow-private)"
    if is_literal(host):
        return f"{host} was not called: webhooks may not call {why}; {allow}"
    log.warning("a webhook to %s was refused: webhooks may not call %s", host, why)
    return (
        f"{host} was not called: webhooks may not call the address that it resolves to; {allow},"
        " and finds the address in the log"
    )


def _short(error: object) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return os.strerror(error.errno)
    return str(getattr(error, "strerror", None) or error or type(error).__name__)[:300]
