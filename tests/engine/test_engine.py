"""A scheduler that stops fires no slots, hands leadership on, and stops whatever the store does."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core import transitions
from mainspring.errors import StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim
from mainspring.testing import FaultyStore, ScriptedFaults, VirtualClock
from mainspring.testing.store_calls import claim_runs
from tests.support.engine import all_runs, on_virtual_time

START = datetime(2030, 1, 1, tzinfo=UTC)


def scheduler_on(store: MemoryStore, ran: list[Any]) -> Scheduler:
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True)

    @scheduler.job("10s")
    async def tick(ctx: RunContext) -> None:
        ran.append(ctx.scheduled_at)

    @scheduler.job()
    async def long() -> None:
        await asyncio.sleep(35)

    return scheduler


@pytest.mark.parametrize("draining", [False, True])
@on_virtual_time()
async def test_a_worker_that_stops_fires_no_slot_that_it_will_not_run(draining: bool) -> None:
    store, ran = MemoryStore(VirtualClock()), list[Any]()
    scheduler = scheduler_on(store, ran)
    await scheduler.start()
    long = await scheduler.enqueue("long")
    await asyncio.sleep(5)
    if draining:  # as the service does: it answers questions until the end
        await scheduler.drain(timeout=60)
    await scheduler.stop(timeout=60)
    assert asyncio.get_running_loop().time() > 34
    runs = [run for run in (await all_runs(store)).values() if run.job_id == "tick"]
    assert runs == []
    assert (await all_runs(store))[long.id].state is State.SUCCEEDED
    async with scheduler_on(store, ran):
        await asyncio.sleep(2)
    assert ran == [START + timedelta(seconds=30)]  # the newest of those that were due


@on_virtual_time()
async def test_a_store_that_is_away_does_not_keep_a_worker_from_stopping() -> None:
    class Hanging(MemoryStore):
        on = False

        async def jobs(self, query: Any) -> Any:
            if self.on:
                await asyncio.sleep(3600)
            return await super().jobs(query)

    store = Hanging(VirtualClock())
    scheduler = scheduler_on(store, [])
    await scheduler.start()
    store.on = True
    await asyncio.sleep(5)
    await scheduler.stop(timeout=5)
    assert asyncio.get_running_loop().time() < 60


@pytest.mark.parametrize("inline", [False, True])
async def test_a_start_that_fails_leaves_nothing_open(inline: bool) -> None:
    """It may fail after its components have started."""
    threads, tasks = set(threading.enumerate()), asyncio.all_tasks()
    store = FaultyStore(MemoryStore(), ScriptedFaults({"add": ["before"]}))
    scheduler = Scheduler(store, inline=inline)

    @scheduler.job(run_on_start=True)
    async def warm_up() -> None: ...

    with pytest.raises(StoreUnavailable):
        await scheduler.start()
    assert not scheduler.started
    assert store.calls["close"] == 1
    assert set(threading.enumerate()) == threads
    assert asyncio.all_tasks() == tasks
    async with scheduler:  # and it can be started again
        assert (await scheduler.list_runs()).items


@pytest.mark.parametrize(("graceful", "took"), [(True, 1), (False, 0)])
@on_virtual_time()
async def test_the_shorter_timeout_of_a_drain_and_a_stop_counts(
    graceful: bool, took: float
) -> None:
    scheduler = scheduler_on(MemoryStore(VirtualClock()), [])
    await scheduler.start()
    await scheduler.enqueue("long")
    await asyncio.sleep(1)
    draining = asyncio.ensure_future(scheduler.drain(timeout=30))
    await asyncio.sleep(1)
    before = asyncio.get_running_loop().time()
    await scheduler.stop(graceful=graceful, timeout=1)
    assert asyncio.get_running_loop().time() - before == pytest.approx(took, abs=0.5)
    await draining


class CountsWaits(MemoryStore):
    """Knows how often somebody waited for a hint."""

    waits = 0

    async def wait(self, timeout: float) -> bool:
        self.waits += 1
        return await super().wait(timeout)


@on_virtual_time()
async def test_a_program_that_only_enqueues_is_woken_by_no_hint() -> None:
    store = CountsWaits(VirtualClock())
    async with Scheduler(store, clock=VirtualClock(), inline=True, workers=0) as producer:
        producer.job(id="work")(_nothing)
        runs = [await producer.enqueue("work") for _ in range(3)]
        await asyncio.sleep(10)
        assert store.waits == 0
        ends = asyncio.create_task(producer.wait(runs[0].id))
        await asyncio.sleep(0.1)
        assert store.waits > 0  # it needs them to see the end at once
        [claimed] = await claim_runs(store, a_claim_of("work"))
        await store.commit([transitions.succeeded(claimed, await store.now(), None)])
        began = asyncio.get_running_loop().time()
        await ends
        assert asyncio.get_running_loop().time() - began < 0.1
        await asyncio.sleep(10)
        waits = store.waits
        await producer.enqueue("work")
        await asyncio.sleep(10)
        assert store.waits == waits


async def _nothing() -> None:
    pass


def a_claim_of(handler: str) -> Claim:
    lease = timedelta(minutes=1)
    return Claim(worker="w", handlers=frozenset({handler}), limit=1, lease=lease)
