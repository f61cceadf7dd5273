"""Waiting runs are released, and failures of one sweep do not hide those of another."""

from __future__ import annotations

import asyncio
from typing import Any

from mainspring import Client, Scheduler, State
from mainspring.core.model import Page, Run
from mainspring.errors import StoreError
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import RunQuery
from mainspring.testing import FaultyStore, VirtualClock, run_virtual
from tests.support.engine import EventRecorder, SwitchableFaults


def on(store: Any, **options: Any) -> Scheduler:
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True, **options)

    @scheduler.job()
    async def first() -> None: ...

    @scheduler.job()
    async def second() -> None: ...

    return scheduler


def test_a_client_releases_the_followers_of_what_it_cancels() -> None:
    """Also after the store was away; and it keeps nothing of what it has released."""

    async def main() -> None:
        store, faults = MemoryStore(VirtualClock()), SwitchableFaults()
        await on(store, workers=0).start()  # stores the jobs
        client = Client(FaultyStore(store, faults), clock=VirtualClock(), inline=True)
        async with client:
            for broken in (set[str](), {"find"}):
                upstream = await client.enqueue("first", delay="1h")
                follower = await client.enqueue("second", after=upstream.id)
                await client.cancel(upstream.id)
                faults.failing = broken
                await asyncio.sleep(1)
                faults.failing = set()
                run = await client.wait(follower.id, 5)
                assert (run.state, run.reason) == (State.SKIPPED, "upstream failed")
            runs = await client.enqueue_many("first", [None] * 2500, delay="1h")
            await client.cancel_runs([run.id for run in runs])
            await asyncio.sleep(1)
            assert client._engine is not None
            assert not client._engine.follower_releaser._ended

    run_virtual(main)


class UnreadableWaiting(MemoryStore):
    """Refuses to look through waiting runs: an index is damaged, say."""

    async def find(self, query: RunQuery) -> Page[Run]:
        if query.states == frozenset({State.WAITING}):
            raise StoreError("the index is damaged")
        return await super().find(query)


def test_a_sweep_that_fails_stays_reported_while_others_succeed() -> None:
    async def main() -> None:
        scheduler = on(UnreadableWaiting(VirtualClock()))
        errors = EventRecorder(scheduler, "scheduler.error")
        async with scheduler:
            await asyncio.sleep(5)
            for _ in range(30):
                await asyncio.sleep(1)
                assert (await scheduler.health()).failing == ("sweep",)
        assert len(errors.names) == 1

    run_virtual(main)
