"""Runs the service: the socket, uvicorn, signals, and the order in which everything stops.

    signal      /readyz answers 503, event streams end, no more runs are claimed
    drained     running runs have ended or were given back: the socket closes, requests finish
    stopped     the store is closed

A second signal ends the process at once; running runs are rescued when their leases lapse.
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
from fastapi import FastAPI

from mainspring.errors import InvalidInput
from mainspring.scheduler import Scheduler
from mainspring.scheduler.client import Client
from mainspring.scheduler.run_forever import drain_notice
from mainspring.service.api_keys import ApiKeys
from mainspring.service.connection_limits import ConnectionLimits
from mainspring.service.dependencies import Service
from mainspring.service.settings import ServiceSettings, is_loopback

log = logging.getLogger("mainspring.service")

BACKLOG = 100
"""Connections that the system queues. asyncio accepts so many at once before it reads any of them:
with 2,048 a burst took every file descriptor before a connection could be closed."""

FINISH_SECONDS = 5
"""How long unfinished requests may take after the socket is closed."""


class _StoreReader(Client):
    """Reads the store before the scheduler is started. The scheduler names a store that it made, so
    this client does not warn of it."""

    warns_of_new_store = False


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Do not handle signals: `serve` does, because the scheduler has to drain first."""
        yield


async def serve(
    scheduler: Scheduler,
    settings: ServiceSettings,
    create_app: Callable[..., FastAPI],
    *,
    first_key: str = "mainspring keys create NAME --scope admin",
    on_listening: Callable[[str], Awaitable[None]] | None = None,
    replacement_pause: Callable[[], float] = lambda: 0.0,
) -> bool:
    """Start the scheduler and serve its application, which `create_app` makes, until SIGTERM or
    SIGINT. `first_key` is the command that makes an API key in this store; `on_listening` is called
    with the URL. True if the process has reached its memory limit: the caller replaces it. It goes
    on answering for as many seconds as `replacement_pause` says."""
    loopback = is_loopback(settings.host)
    _ = scheduler.webhooks.vault  # a wrong or missing key for secrets is reported now
    with listening(settings.host, settings.port) as bound:
        if not loopback or settings.hosts:
            # Before the worker starts: a service that is refused must fire and run nothing.
            async with _StoreReader(scheduler.store) as reader:
                await _check_key_exists(ApiKeys(reader), settings, first_key)
        async with scheduler:
            app = create_app(scheduler, settings, loopback=loopback)
            service: Service = app.state.service
            limits = ConnectionLimits(
                settings.header_wait.total_seconds(), settings.max_connections
            )
            service.max_streams = min(service.max_streams, limits.max_connections // 2)
            server = _server(app, limits)
            replace = await _run_until_signal(
                scheduler, service, server, bound, on_listening, replacement_pause
            )
            await service.audit.flush()
            return replace


async def _check_key_exists(keys: ApiKeys, settings: ServiceSettings, first_key: str) -> None:
    """Refuse to serve where other machines can connect and no API key is valid."""
    now = await keys.now()
    every_key = await keys.list()
    if any(key.usable(now) for key in every_key):
        return
    invalid = "no API key is valid (all are expired or revoked)"
    lack = invalid if every_key else "there is no API key"
    if not is_loopback(settings.host):
        raise InvalidInput(
            f"other machines can reach {settings.host}, and {lack}: make one first ({first_key}),"
            " or listen on 127.0.0.1"
        )
    raise InvalidInput(
        f"ALLOWED_HOSTS ({settings.allowed_hosts}) lets clients of a proxy in, and {lack}: make one"
        f" first ({first_key}), or leave ALLOWED_HOSTS unset"
    )


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket, made before anything else starts.

    Its protocol is set to TCP. Otherwise asyncio leaves Nagle's algorithm on, and every answer
    waits for the client's delayed acknowledgement (48 ms for a list in `bench api`, instead of 4).
    """
    try:
        addresses = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = addresses[0]
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
            f"cannot listen on {host} port {port}: {why}; choose another with --host and --port (or"
            " HOST and PORT)"
        ) from None
    bound.setblocking(False)
    with bound:
        yield bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _server(app: object, limits: ConnectionLimits) -> _Server:
    return _Server(
        uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=limits.protocol,
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


async def _run_until_signal(
    scheduler: Scheduler,
    service: Service,
    server: _Server,
    bound: socket.socket,
    on_listening: Callable[[str], Awaitable[None]] | None,
    replacement_pause: Callable[[], float],
) -> bool:
    """Serve until a signal, or until the memory limit is reached (True)."""
    signalled, memory_limit_reached = asyncio.Event(), asyncio.Event()
    scheduler.on("worker.memory_limit", lambda _: memory_limit_reached.set())
    with _signals(signalled):
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        ends = [asyncio.ensure_future(event.wait()) for event in (signalled, memory_limit_reached)]
        try:
            if on_listening is not None:
                await on_listening(url_of(bound))
            await asyncio.wait([serving, *ends], return_when=asyncio.FIRST_COMPLETED)
            if memory_limit_reached.is_set() and not signalled.is_set():
                await asyncio.wait(
                    [serving, ends[0]],
                    timeout=replacement_pause(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            service.draining.set()
            log.info(drain_notice(service.settings.drain))
            await scheduler.drain(timeout=service.settings.drain)
        finally:
            for end in ends:
                end.cancel()
            server.should_exit = True
            await serving
    return memory_limit_reached.is_set() and not signalled.is_set()


@contextlib.contextmanager
def _signals(signalled: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    received: list[int] = []

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            sys.stderr.flush()
            os._exit(128 + number)
        loop.call_soon_threadsafe(signalled.set)

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
