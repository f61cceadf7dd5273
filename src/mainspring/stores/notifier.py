"""Lets tasks of one event loop wait for a hint that something has changed in the store."""

from __future__ import annotations

import asyncio


class Waiters:
    """The tasks that wait. They are woken in the order in which they came, so that a simulation
    replays exactly; a set would wake them in the order of their memory addresses.

    A wake-up that finds no task waiting is kept for the next one: a task that waits in a loop is
    busy between two waits, and would otherwise notice the change only at its next poll.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._missed = False

    async def wait(self, timeout: float) -> bool:
        """Wait for `wake`: True when it was called, False after `timeout` seconds."""
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
