"""Limits the connections that wait for their client: how long each may wait, and how many there may
be.

uvicorn has no timeout for a request that has begun: its keep-alive timeout stops at the first byte.
It has none for an answer that the client does not read either. A client that sends headers slowly,
or reads nothing, would hold a connection, and many such clients would take every file descriptor,
also those that the store and the webhooks need.

    connected, or answered   waiting, and its time runs
    headers arrived          waiting, without a limit of time (the middleware limits the body's)
    whole request arrived    not waiting, until it is answered
    answer is not read       waiting, and its time runs anew whenever the client reads something
    event stream             not waiting: it has its own limits (`api/events.py`)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
import socket
import struct

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

try:
    import fcntl
    import resource
    import termios
except ImportError:  # no POSIX
    fcntl = resource = termios = None  # type: ignore[assignment]


log = logging.getLogger("mainspring.service")

MAX_HEAD = 16 * 1024
"""Bytes of a request's first line and headers."""

_END_OF_HEAD = re.compile(rb"\n\r?\n")


class ConnectionLimits:
    """Closes connections that wait longer than `seconds`, and above `max_connections` the one that
    has waited longest. A client that sends its request at once and reads the answer is rarely that
    one."""

    def __init__(self, seconds: float, max_connections: int) -> None:
        self._seconds = seconds
        self.max_connections = _affordable(max_connections)
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """The class that uvicorn makes for each connection."""
        return functools.partial(Connection, self)  # type: ignore[return-value]

    def start_waiting(self, connection: Connection) -> None:
        self.stop_waiting(connection)
        self._start_timer(connection)
        if len(connection.connections) > self.max_connections:
            oldest = next((other for other in self._waiting if other.waits), None)
            if oldest is not None:
                self._close(oldest)

    def start_reading_time(self, connection: Connection) -> None:
        """The client has to read now. One that waits already keeps its place in the queue."""
        if (timer := self._waiting.get(connection)) is None:
            self.start_waiting(connection)
        else:
            timer.cancel()
            self._start_timer(connection)

    def stop_waiting(self, connection: Connection) -> None:
        if (timer := self._waiting.pop(connection, None)) is not None:
            timer.cancel()

    def _start_timer(self, connection: Connection) -> None:
        unread = _unread(connection.transport)
        self._waiting[connection] = connection.loop.call_later(
            self._seconds, self._time_out, connection, unread
        )

    def _time_out(self, connection: Connection, unread_before: int) -> None:
        unread = _unread(connection.transport)
        if not connection.waits:
            self.stop_waiting(connection)
        elif 0 < unread < unread_before:  # the client reads slowly
            self._start_timer(connection)
        elif unread or not connection.has_request:
            self._close(connection)

    def _close(self, connection: Connection) -> None:
        self.stop_waiting(connection)
        if (
            connection.transport.get_write_buffer_size()
        ):  # a close would wait until the client reads it
            _abort(connection.transport)
        else:
            connection.transport.close()


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
        self.conn = _LimitedHead(h11.SERVER, MAX_HEAD)
        self._limits = limits

    @property
    def has_request(self) -> bool:
        """Whether the headers of a request arrived that is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def waits(self) -> bool:
        """Whether the client has to send or to read something before the service can go on."""
        if not self.has_request or self.cycle.more_body:
            return True
        limits_unread = self.cycle.scope["state"].get("limits_unread", False)  # an event stream
        return self.flow.write_paused and not limits_unread

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

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.waits:
            self._limits.start_reading_time(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._check_request()

    def send_400_response(self, msg: str) -> None:
        if isinstance(self.conn, _LimitedHead) and self.conn.head_is_too_large:
            msg = f"The first line and the headers have more than {MAX_HEAD} bytes."
        super().send_400_response(msg)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.stop_waiting(self)
        super().connection_lost(exc)

    def _check_request(self) -> None:
        if not self.waits:
            self._limits.stop_waiting(self)


class _LimitedHead(h11.Connection):
    """h11 limits only what is incomplete: it accepts a head of any size that arrives at once."""

    head_is_too_large = False

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            received, _ = self.trailing_data
            if len(received) > MAX_HEAD and not _END_OF_HEAD.search(received, 0, MAX_HEAD):
                self.head_is_too_large = True
                raise h11.RemoteProtocolError("the head is too large", error_status_hint=431)
        return super().next_event()


def _unread(transport: asyncio.Transport) -> int:
    """Bytes that wait for the client to read: those of the transport, and then also those of the
    system, which may hold megabytes and takes no more before a third of them is read."""
    unread = transport.get_write_buffer_size()
    if unread and termios is not None:
        with contextlib.suppress(OSError, ValueError):  # this system cannot tell
            queued = fcntl.ioctl(transport.get_extra_info("socket"), termios.TIOCOUTQ, bytes(4))
            unread += struct.unpack("i", queued)[0]
    return unread


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
