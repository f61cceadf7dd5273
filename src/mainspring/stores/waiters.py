"""Those who wait for a hint, on one event loop."""

from __future__ import annotations

import asyncio

__all__ = ["Waiters"]


class Waiters:
    """In the order they came: a set would wake them by address, and no simulation replay."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}

    async def wait(self, timeout: float) -> bool:
        """True once woken, False when the time is up."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            del self._waiters[waiter]
        return True

    def wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
