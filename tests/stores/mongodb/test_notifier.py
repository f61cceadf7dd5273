"""Clients of one database wake each other."""

from __future__ import annotations

import asyncio

import pytest
from pymongo.errors import AutoReconnect

from mainspring.core import transitions
from mainspring.errors import StoreError
from mainspring.stores.mongodb import MongoStore, notifier, schema
from mainspring.stores.mongodb.notifier import Notifier
from mainspring.testing.store_calls import claim_runs
from tests.support.mongodb.store import CLAIM, opened, some_runs
from tests.support.servers.mongodb import with_database


@pytest.fixture(params=["replica_set_url", pytest.param("sharded_url", marks=pytest.mark.thorough)])
def any_url(request: pytest.FixtureRequest, database_name: str) -> str:
    return with_database(request.getfixturevalue(request.param), database_name)


async def listening(store: MongoStore) -> None:
    """Until it receives every hint that comes: those after the mark that it has written."""
    await store.wait(0)
    while await store._db.wakeups.find_one({"mark": {"$exists": True}}) is None:
        await asyncio.sleep(0.01)


async def test_wakeups_that_lost_their_cap_are_given_it_again(any_url: str) -> None:
    """By a drop under those who follow it, and the hint that makes it again; or by a restore."""
    async with opened(any_url) as one, opened(any_url) as two:
        await listening(one)
        await two._db.wakeups.drop()
        await two._db.wakeups.insert_one({"new": True})
        assert await two._db.wakeups.options() == {}
        async with asyncio.timeout(30):
            while not (await two._db.wakeups.options()).get("capped"):
                await one.wait(0.2)
            while await one.wait(0.3):
                pass  # until it listens again
        waiting = asyncio.create_task(one.wait(20))
        await two.add(await some_runs(two, "a"))
        assert await waiting is True
        await two._db.wakeups.drop()
        await two._db.wakeups.insert_one({"new": True})
    async with opened(any_url) as again:
        options = await again._db.wakeups.options()
        assert (options["capped"], options["size"]) == (True, schema.WAKEUPS_BYTES)


async def test_hints_that_runs_have_ended_are_passed_on_less_often(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all who are shut out by a limit would come running at every end, to find it taken."""
    monkeypatch.setattr(notifier, "PAUSE_BETWEEN_ENDS", 30.0)
    async with opened(any_url) as one, opened(any_url) as two:
        await two.add(await some_runs(two, "a", "b"))
        first, second = await claim_runs(two, CLAIM)
        await asyncio.sleep(0.2)  # the hint of it is over
        await listening(one)
        assert await two.commit([transitions.succeeded(first, await two.now(), None)]) == [True]
        assert await one.wait(20) is True
        assert await two.commit([transitions.succeeded(second, await two.now(), None)]) == [True]
        assert await one.wait(0.5) is False
        await two.add(await some_runs(two, "c"))
        assert await one.wait(20) is True


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
