"""Those who wait for a hint, on one event loop."""

from __future__ import annotations

import asyncio

__all__ = ["Waiters"]


class Waiters:
    """In the order they came: a set would wake them by address, and no simulation replay.

    A wake-up that finds nobody waiting is kept for the next: who waits in a loop is away for a
    moment each time, and would learn of it only by its next poll.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._missed = False

    async def wait(self, timeout: float) -> bool:
        """True once woken, False when the time is up."""
        if self._missed:
            self._missed = False
            return True
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return waiter.done() and not waiter.cancelled()
        finally:
            del self._waiters[waiter]
        return True

    def wake(self) -> None:
        self._missed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                self._missed = False
