"""Serving: a socket, uvicorn, signals, and the order in which things stop.

    signal      /readyz answers 503, event streams end, no more runs are claimed
    drained     what ran has ended (or is given back): the socket closes, requests finish
    stopped     the store is closed

A second signal ends the process at once; what was running is rescued when its lease lapses.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType

import uvicorn

from mainspring.errors import InvalidInput
from mainspring.scheduler import Scheduler
from mainspring.service.app import create_app
from mainspring.service.connection_limits import Lobby
from mainspring.service.dependencies import Service
from mainspring.service.settings import ServiceSettings, is_loopback

__all__ = ["listening", "serve"]

log = logging.getLogger("mainspring.service")

BACKLOG = 100
"""Connections that the system keeps for us. asyncio accepts so many in one turn, before it looks at
any of them: with 2,048 a burst took every descriptor before the lobby could close one."""

FINISH_SECONDS = 5
"""How long requests under way may take once the socket is closed."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: the scheduler has to drain first."""
        yield


async def serve(
    scheduler: Scheduler,
    settings: ServiceSettings,
    *,
    first_key: str = "mainspring keys create NAME --scope admin",
    greet: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Start the scheduler and serve its API until SIGTERM or SIGINT. `first_key` is the command
    that makes one in this store."""
    loopback = is_loopback(settings.host)
    _ = scheduler.webhooks.vault  # a key for secrets that is none, or none at all, is told now
    with listening(settings.host, settings.port) as bound:
        async with scheduler:
            app = create_app(scheduler, settings, loopback=loopback)
            service: Service = app.state.service
            if (not loopback or settings.hosts) and not await service.keys.any_usable():
                raise InvalidInput(_needs_key(settings, first_key))
            lobby = Lobby(settings.patience.total_seconds(), settings.max_connections)
            service.most_streams = min(service.most_streams, lobby.most // 2)
            await _until_signal(service, _server(app, lobby), bound, greet, url_of(bound))


def _needs_key(settings: ServiceSettings, first_key: str) -> str:
    if not is_loopback(settings.host):
        return (
            f"{settings.host} can be reached from other machines, and there is no API key:"
            f" make one first ({first_key}), or listen on 127.0.0.1"
        )
    return (
        f"ALLOWED_HOSTS ({settings.allowed_hosts}) is for a proxy, through which strangers may ask,"
        f" and there is no API key: make one first ({first_key}), or leave ALLOWED_HOSTS unset"
    )


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that is bound, before anything else is begun.

    It says that it is TCP: of one that does not, asyncio leaves Nagle's algorithm on, and every
    answer waits for the client's delayed acknowledgement (48 ms a list in `bench api`, now 4).
    """
    try:
        found = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(BACKLOG)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidInput(
            f"cannot listen on {host} port {port}: {why}; --port and --host (or PORT and HOST)"
            " name another"
        ) from None
    bound.setblocking(False)
    with bound:
        yield bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _server(app: object, lobby: Lobby) -> _Server:
    return _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=lobby.protocol,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            ws="none",
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=FINISH_SECONDS,
        )
    )


async def _until_signal(
    service: Service,
    server: _Server,
    bound: socket.socket,
    greet: Callable[[str], Awaitable[None]] | None,
    url: str,
) -> None:
    asked = asyncio.Event()
    with _signals(asked):
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        stop = asyncio.ensure_future(asked.wait())
        try:
            if greet is not None:
                await greet(url)
            await asyncio.wait([serving, stop], return_when=asyncio.FIRST_COMPLETED)
            service.draining.set()
            log.info("stopping: waiting for running work (signal again to end at once)")
            await service.scheduler.drain(timeout=service.settings.drain)
        finally:
            stop.cancel()
            server.should_exit = True
            await serving


@contextlib.contextmanager
def _signals(asked: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    heard: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) > 1:
            sys.stderr.flush()
            os._exit(128 + number)
        loop.call_soon_threadsafe(asked.set)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
