"""Opens a MongoDB store for a test, and a claim to use with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import Claim

__all__ = ["CLAIM", "opened"]

CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=100, lease=timedelta(seconds=30))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
