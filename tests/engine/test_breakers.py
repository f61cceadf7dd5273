"""Circuit breakers: open after failures in a row, burn no attempt, probe, close."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from mainspring import Breaker, Scheduler, State
from mainspring.core.transitions import request_cancel
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store
from mainspring.testing import FaultyStore, VirtualClock, run_virtual
from tests.support.engine import EventRecorder, SwitchableFaults, ended, opened
from tests.support.scheduler_fixtures import Make


async def test_a_breaker_opens_probes_and_closes(make: Make) -> None:
    scheduler = make(workers=1)
    recorder = EventRecorder(scheduler, "breaker.*")
    healthy, tried = False, 0

    @scheduler.job(breaker=Breaker(failures=3, reset="300ms"))
    async def call() -> None:
        nonlocal tried
        tried += 1
        assert healthy

    @scheduler.job()
    async def other() -> int:
        return 1

    async with scheduler:
        runs = await call.enqueue_many([{}] * 3)
        for run in runs:
            await ended(scheduler, run)
        await recorder.until("breaker.opened")
        assert (await scheduler.job_health("call")).breaker == "open"
        waiting = await call.enqueue_many([{}] * 4)
        assert (await ended(scheduler, await other.enqueue())).result == 1
        await asyncio.sleep(0.05)
        for run in waiting:
            stored = await scheduler.get_run(run.id)
            assert (stored.state, stored.attempt, stored.attempts) == (State.PENDING, 0, ())
        assert tried == 3
        await recorder.until("breaker.opened", 2)  # one probe, which failed
        assert tried == 4
        healthy = True
        await recorder.until("breaker.closed")
        done = [await ended(scheduler, run) for run in waiting]
        assert [run.state for run in done].count(State.FAILED) == 1
        assert all(run.attempt == 1 for run in done)
        assert (await scheduler.job_health("call")).breaker == "closed"
    assert recorder.names == [
        *("breaker.opened", "breaker.half_open") * 2,
        "breaker.closed",
    ]


def test_an_open_breaker_costs_few_claims_where_the_store_tells_its_time_late() -> None:
    class Late(MemoryStore):
        async def now(self) -> datetime:
            return await super().now() - timedelta(seconds=3)

    async def main() -> None:
        scheduler = Scheduler(Late(VirtualClock()), clock=VirtualClock(), inline=True, workers=1)

        @scheduler.job(breaker=Breaker(failures=1, reset="2s"))
        async def call() -> None:
            raise ValueError

        async with scheduler:
            runs = await call.enqueue_many([{}] * 3)
            done = [await scheduler.wait(run.id, 60) for run in runs]
        assert max(run.token for run in done) < 10

    run_virtual(main, steps=100_000)


async def test_successes_between_keep_it_closed(make: Make) -> None:
    scheduler = make(workers=1)
    recorder = EventRecorder(scheduler, "breaker.*")

    @scheduler.job(breaker=2)
    async def call(ok: bool) -> None:
        assert ok

    async with scheduler:
        for ok in (False, True, False, True, False):
            await ended(scheduler, await call.enqueue(ok=ok))
    assert recorder.names == []


async def test_a_cancelled_probe_closes_nothing(make: Make) -> None:
    scheduler = make(workers=2)
    recorder = EventRecorder(scheduler)

    @scheduler.job(breaker=Breaker(failures=1, reset="100ms"))
    async def call(wait: bool) -> None:
        if wait:
            await asyncio.sleep(600)
        raise RuntimeError

    async with scheduler:
        await ended(scheduler, await call.enqueue(wait=False))
        probe = await call.enqueue(wait=True)
        await recorder.until("breaker.half_open")
        await recorder.until("run.started", 2)
        await scheduler.cancel(probe.id)
        assert (await ended(scheduler, probe)).state is State.CANCELLED
        assert "breaker.closed" not in recorder.names
        await ended(scheduler, await call.enqueue(wait=False))
        await recorder.until("breaker.half_open", 2)
        await recorder.until("breaker.opened", 2)


async def test_a_probe_whose_outcome_lost_to_a_cancel_closes_nothing(
    make: Make, place: str | Store
) -> None:
    faults, store = SwitchableFaults(), opened(place)
    scheduler = make(FaultyStore(store, faults), workers=1)
    recorder = EventRecorder(scheduler)
    go = asyncio.Event()

    @scheduler.job(breaker=Breaker(failures=1, reset="100ms"))
    async def call(wait: bool) -> None:
        if wait:
            await go.wait()
        raise RuntimeError

    async with scheduler:
        await ended(scheduler, await call.enqueue(wait=False))
        probe = await call.enqueue(wait=True)
        await recorder.until("run.started", 2)
        running = await scheduler.get_run(probe.id)
        faults.failing = {"find"}  # so that the worker learns of it by its refused commit alone
        assert await store.commit([request_cancel(running, "elsewhere")]) == [True]
        go.set()
        await asyncio.sleep(0.05)
        faults.failing = set()
        assert (await ended(scheduler, probe)).state is State.CANCELLED
        assert (await scheduler.job_health("call")).breaker != "closed"
    assert "breaker.closed" not in recorder.names
