"""Bugs that the simulation found, each as a small scenario that fails without its fix."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mainspring import Breaker, RunContext, Scheduler
from mainspring.core.model import Run, State
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store
from mainspring.testing import FaultyStore, Injection, VirtualClock
from mainspring.testing.store_calls import get_runs
from tests.support.engine import on_virtual_time

LEASE = timedelta(seconds=6)


class By:
    """A plan of faults that is a function of the method."""

    def __init__(self, inject: Callable[[str], Injection | None]) -> None:
        self._inject = inject

    def inject(self, method: str) -> Injection:
        return self._inject(method) or Injection()


def worker(store: Any, inject: Callable[[str], Injection | None] | None = None) -> Scheduler:
    clock = VirtualClock()
    faulty: Store = FaultyStore(store, By(inject or (lambda method: None)))
    return Scheduler(
        faulty, inline=True, clock=clock, rng=random.Random(1), lease=LEASE, poll="1s", workers=2
    )


def client(store: Any) -> Scheduler:
    return Scheduler(store, inline=True, clock=VirtualClock(), rng=random.Random(2), workers=0)


@on_virtual_time()
async def test_a_handler_does_not_start_under_a_lease_that_lapsed_on_the_way() -> None:
    """The store answered the claim, and then took too long to say what the job is."""
    started: list[tuple[datetime, Run]] = []

    store = MemoryStore(VirtualClock())
    slowed: list[str] = []

    def slow_once_claimed(method: str) -> Injection | None:
        held = any(run.state is State.RUNNING for run in store._runs.values())
        if method != "jobs" or not held or len(slowed) == 3:
            return None
        slowed.append(method)
        return Injection(delay=LEASE.total_seconds() + 1)

    async def work(ctx: RunContext) -> None:
        started.append((await store.now(), (await get_runs(store, [ctx.run_id]))[ctx.run_id]))

    slow, producer = worker(store, slow_once_claimed), client(store)
    for one in (slow, producer):
        one.job(id="work")(work)
    await slow.start()
    await producer.start()
    await asyncio.sleep(3)  # so that the worker must ask what the job is
    run = await producer.enqueue("work")
    await producer.wait(run.id, timeout="60s")
    assert slowed
    assert started
    for now, run in started:
        assert run.state is State.RUNNING
        assert run.lease_until is not None
        assert run.lease_until > now


@on_virtual_time()
async def test_a_store_that_hangs_does_not_keep_a_handler_beyond_its_lease() -> None:
    stopped: list[timedelta] = []

    store = MemoryStore(VirtualClock())
    one = worker(store, lambda method: Injection(delay=1.9) if method == "renew" else None)

    async def work(ctx: RunContext) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            run = (await get_runs(store, [ctx.run_id]))[ctx.run_id]
            assert run.lease_until is not None
            stopped.append(run.lease_until - await store.now())

    one.job(id="work")(work)
    await one.start()
    hanging = FaultyStore(store, By(lambda m: Injection(delay=100) if m == "renew" else None))
    one._store.renew = hanging.renew  # type: ignore[method-assign]
    await one.enqueue("work")
    await asyncio.sleep(LEASE.total_seconds())
    assert stopped
    assert stopped[0] > timedelta()


@on_virtual_time()
async def test_a_run_claimed_again_is_not_let_go_by_its_last_attempt() -> None:
    """The answer to a commit was lost; when it was sent again, the run was here once more."""
    ended: list[Run] = []

    store = MemoryStore(VirtualClock())
    lost = iter((Injection("after"), Injection(delay=1)))
    one = worker(store, lambda method: next(lost, None) if method == "commit" else None)

    async def work(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            raise ValueError("no")
        await asyncio.sleep(20)

    one.job(id="work", retries=1, retry_delay="10ms")(work)
    await one.start()
    run = await one.enqueue("work")
    ended.append(await one.wait(run.id, timeout="60s"))
    assert [run.state for run in ended] == [State.SUCCEEDED]
    assert (ended[0].token, ended[0].lapses) == (2, 0)


@on_virtual_time(steps=100_000)
async def test_an_open_breaker_is_no_busy_loop() -> None:
    """A clock that goes slow named a moment, just before the breaker half opens, as later."""
    ended: list[Run] = []

    store = MemoryStore(VirtualClock())
    slow = VirtualClock(rate=0.98)
    one = Scheduler(store, inline=True, clock=slow, rng=random.Random(1), workers=2)

    async def work(ctx: RunContext) -> None:
        raise ValueError("no")

    one.job(id="work", breaker=Breaker(failures=1, reset="5s"))(work)
    await one.start()
    for _ in range(3):
        run = await one.enqueue("work")
        await asyncio.sleep(0.1)
    ended.append(await one.wait(run.id, timeout="60s"))
    assert [run.state for run in ended] == [State.FAILED]
    assert ended[0].token < 50
