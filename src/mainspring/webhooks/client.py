"""Calls endpoints, and turns connection errors into messages for people.

There is no timeout here: the engine cancels an attempt at its timeout, and that closes the
connection.
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
from mainspring.webhooks.request import PreparedRequest
from mainspring.webhooks.response import PartialResponse
from mainspring.webhooks.transport import Refusal, Transport

log = logging.getLogger("mainspring")

_QUOTED = re.compile(r"""[:\s]*(\n|(?<!\w)b?['"]|\bwhen reading\b)""")

_NOT_TLS = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"}
)
"""What OpenSSL calls an answer that is not TLS."""

_url = lru_cache(maxsize=4096)(partial(URL, encoded=True))


class WebhookClient:
    """Create it anywhere, use it on one event loop: the first call opens the transport there."""

    def __init__(self, allow: AllowList) -> None:
        self._allow = allow
        self._transport: Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(self, request: PreparedRequest, response: PartialResponse) -> None:
        """Send the request and fill `response` while the answer arrives.

        Raises `WebhookFailed`, which says why there is no complete response.
        """
        url = _url(request.url)
        try:
            await self._open_transport().exchange(url, request, response)
        except (aiohttp.ClientError, HttpProcessingError, OSError, ValueError) as error:
            raise _describe_error(error, url) from None

    async def close(self) -> None:
        transport, loop, self._transport = self._transport, self._loop, None
        if transport is None or loop is None or loop.is_closed():
            return
        if loop is asyncio.get_running_loop():
            await transport.close()
        else:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(transport.close(), loop))

    def _open_transport(self) -> Transport:
        loop = asyncio.get_running_loop()
        if self._transport is None or self._loop is not loop:
            self._loop = loop
            self._transport = Transport(self._allow)
        return self._transport


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
