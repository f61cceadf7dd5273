"""A scheduler stops although the store's driver turns a cancellation into an error."""

from __future__ import annotations

import asyncio
import threading

from mainspring import Scheduler
from mainspring.core.model import Page, Run
from mainspring.errors import StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import RunQuery
from tests.support.engine import LONG


class Hardened(MemoryStore):
    """Looks for lapsed runs for ever; when cancelled, says that it is away."""

    def __init__(self) -> None:
        super().__init__()
        self.looking = threading.Event()
        self.swallowed = 0

    async def find(self, query: RunQuery) -> Page[Run]:
        if not query.lapsed or self.swallowed:
            return await super().find(query)
        self.looking.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.swallowed += 1
            raise StoreUnavailable("cancelled, and mistaken for a lost connection") from None
        raise AssertionError("unreachable")


async def test_a_swallowed_cancellation_is_sent_again() -> None:
    store = Hardened()
    scheduler = Scheduler(store)
    await scheduler.start()
    async with asyncio.timeout(LONG):
        while not store.looking.is_set():
            await asyncio.sleep(0.01)
        await scheduler.stop()
    assert store.swallowed == 1
