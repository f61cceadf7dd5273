"""Wakes the callers of `wait` when the file may have changed, on any number of event loops."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


class Notifier:
    """Wakes the callers of `wait`, on any number of event loops."""

    def __init__(self, on_waiter: Callable[[], None]) -> None:
        self._on_waiter = on_waiter
        self._guard = threading.Lock()
        self._waiters: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}

    @property
    def awaited(self) -> bool:
        return bool(self._waiters)

    async def wait(self, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._guard:
            first = not self._waiters
            self._waiters.setdefault(loop, set()).add(waiter)
        if first:
            self._on_waiter()
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._forget(loop, waiter)
        return True

    def notify(self) -> None:
        """Wake all callers of `wait`. May be called from any thread."""
        with self._guard:
            loops = list(self._waiters)
        for loop in loops:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            waiters = list(self._waiters.get(loop, ()))
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        with self._guard:
            waiters = self._waiters.get(loop, set())
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(loop, None)
