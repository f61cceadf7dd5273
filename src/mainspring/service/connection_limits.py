"""Connections whose request has not come yet: how long each may wait, and how many there may be.

uvicorn waits for ever: its keep-alive timeout ends with the first byte that comes. Whoever trickles
headers would hold a connection, and with enough of them every descriptor that the store and the
webhooks need too.

    came, or answered   in the lobby; its time runs
    head came           its time is stopped; the guard gives the body its own
    whole request came  out of the lobby, until it is answered
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

__all__ = ["Lobby"]

log = logging.getLogger("mainspring.service")


class Lobby:
    """Of more than `most` connections, the one goes that has waited longest: whoever sends a whole
    request at once is hardly ever that."""

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self.most = _affordable(most)
        self._waiting: dict[Connection, asyncio.TimerHandle] = {}

    @property
    def protocol(self) -> type[asyncio.Protocol]:
        """What uvicorn makes of each connection."""
        return functools.partial(Connection, self)  # type: ignore[return-value]

    def enter(self, one: Connection) -> None:
        self.leave(one)
        self._waiting[one] = one.loop.call_later(self._seconds, self._late, one)
        if len(one.connections) > self.most:
            self._show_out(next(iter(self._waiting)))

    def leave(self, one: Connection) -> None:
        if (timer := self._waiting.pop(one, None)) is not None:
            timer.cancel()

    def _late(self, one: Connection) -> None:
        if not one.asked:
            self._show_out(one)

    def _show_out(self, one: Connection) -> None:
        self.leave(one)
        one.transport.close()
        if one.transport.get_write_buffer_size():  # an answer that it does not take
            one.loop.call_later(self._seconds, one.transport.abort)


class Connection(H11Protocol):
    """One parser whatever is installed: it is the one that the tests are run with."""

    def __init__(
        self,
        lobby: Lobby,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._lobby = lobby

    @property
    def asked(self) -> bool:
        """Whether there is a request that is not answered: its head has come."""
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "cut_off": functools.partial(_cut_off, transport)}
        self._lobby.enter(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        self._lobby.enter(self)
        super().on_response_complete()
        self._look()  # the next request may have come along with the last

    def connection_lost(self, exc: Exception | None) -> None:
        self._lobby.leave(self)
        super().connection_lost(exc)

    def _look(self) -> None:
        if self.asked and not self.cycle.more_body:
            self._lobby.leave(self)


def _cut_off(transport: asyncio.Transport) -> None:
    """For a request's `state`: end its connection now. What the client has not taken is thrown
    away, also by the system, which would else keep megabytes of it for minutes."""
    at_once = struct.pack("ii", 1, 0)
    with contextlib.suppress(OSError):  # it may have gone by itself
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    transport.abort()


def _affordable(most: int) -> int:
    """Half of the descriptors that this process may have: the rest is for all else."""
    if resource is None:
        return most
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or most <= files // 2:
        return most
    log.warning(
        "this process may open %d files: %d connections at once instead of %d (ulimit -n raises it,"
        " MAX_CONNECTIONS says how many are wanted)",
        files,
        files // 2,
        most,
    )
    return files // 2
