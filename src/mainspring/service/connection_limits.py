"""Limits the connections that wait for a request: how long each may wait, and how many there may
be.

uvicorn has no timeout for a request that has begun: its keep-alive timeout stops at the first byte.
A client that sends headers slowly would hold a connection, and many such clients would take every
file descriptor, also those that the store and the webhooks need.

    connected, or answered   waiting, and its time runs
    headers arrived          waiting, without a limit of time (the middleware limits the body's)
    whole request arrived    not waiting, until it is answered
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import struct

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

try:
    import resource
except ImportError:  # no POSIX
    resource = None  # type: ignore[assignment]

__all__ = ["ConnectionLimits"]

log = logging.getLogger("mainspring.service")


class ConnectionLimits:
    """Closes connections that wait longer than `seconds`, and above `max_connections` the one that
    has waited longest. A client that sends its request at once is rarely that one."""

    def __init__(self, seconds: float, max_connections: int) -> None:
        self._seconds = seconds
        self.max_connections = _affordable(max_connections)
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """The class that uvicorn makes for each connection."""
        return functools.partial(Connection, self)  # type: ignore[return-value]

    def start_waiting(self, one: Connection) -> None:
        self.stop_waiting(one)
        self._waiting[one] = one.loop.call_later(self._seconds, self._time_out, one)
        if len(one.connections) > self.max_connections:
            self._close(next(iter(self._waiting)))

    def stop_waiting(self, one: Connection) -> None:
        if (timer := self._waiting.pop(one, None)) is not None:
            timer.cancel()

    def _time_out(self, one: Connection) -> None:
        if not one.has_request:
            self._close(one)

    def _close(self, one: Connection) -> None:
        self.stop_waiting(one)
        one.transport.close()
        if one.transport.get_write_buffer_size():  # the client does not read the answer
            one.loop.call_later(self._seconds, one.transport.abort)


class Connection(H11Protocol):
    """A connection. It uses h11 whatever is installed, so that tests and users have the same
    parser."""

    def __init__(
        self,
        limits: ConnectionLimits,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits

    @property
    def has_request(self) -> bool:
        """Whether the headers of a request arrived that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {
            **self.app_state,
            "abort_connection": functools.partial(_abort, transport),
        }
        self._limits.start_waiting(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._check_request()

    def on_response_complete(self) -> None:
        self._limits.start_waiting(self)
        super().on_response_complete()
        self._check_request()  # the next request may have arrived with the last

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.stop_waiting(self)
        super().connection_lost(exc)

    def _check_request(self) -> None:
        if self.has_request and not self.cycle.more_body:
            self._limits.stop_waiting(self)


def _abort(transport: asyncio.Transport) -> None:
    """Abort a request's connection. SO_LINGER of zero makes the system discard what the client has
    not read; otherwise it would keep megabytes for minutes."""
    at_once = struct.pack("ii", 1, 0)
    with contextlib.suppress(OSError):  # the client may have closed it
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    transport.abort()


def _affordable(wanted: int) -> int:
    """At most half of the file descriptors of this process: the store and webhooks need the
    rest."""
    if resource is None:
        return wanted
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or wanted <= files // 2:
        return wanted
    log.warning(
        "MAX_CONNECTIONS is %d, but this process may open only %d files: it accepts %d connections"
        " at once. Raise the limit with ulimit -n",
        wanted,
        files,
        files // 2,
    )
    return files // 2
