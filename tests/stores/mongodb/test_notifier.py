"""Clients of one database wake each other."""

from __future__ import annotations

import asyncio

import pytest
from pymongo.errors import AutoReconnect

from mainspring.errors import StoreError
from mainspring.stores.mongodb.notifier import Notifier
from tests.support.mongodb.store import opened


async def test_store_closes_although_the_driver_turns_a_cancellation_into_an_error(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swallowed = 0

    async def swallow_cancellation(self: Notifier) -> None:
        nonlocal swallowed
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            swallowed += 1
            raise AutoReconnect("operation cancelled") from None

    monkeypatch.setattr(Notifier, "_follow_once", swallow_cancellation)
    before = asyncio.all_tasks()
    async with asyncio.timeout(30), opened(database_url) as store:
        assert not await store.wait(0.05)
    assert swallowed > 0
    with pytest.raises(StoreError, match="the store is closed"):
        await store.now()
    assert asyncio.all_tasks() == before  # the one that followed the hints has ended
