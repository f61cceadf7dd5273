"""Which runs a worker claims, how many of them it holds, and when it begins them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Breaker, Scheduler
from mainspring.engine.worker import LONGEST_WAIT
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time


def program(store: MemoryStore, workers: int, **options: Any) -> Scheduler:
    return Scheduler(store, clock=VirtualClock(), inline=True, workers=workers, **options)


def now() -> float:
    return asyncio.get_running_loop().time()


async def learn_that_handlers_are_short(scheduler: Scheduler, job: str) -> None:
    """So that the worker claims ahead."""
    runs = await scheduler.enqueue_many(job, [None] * 500)
    for run in runs:
        await scheduler.wait(run.id, 60)


@on_virtual_time()
async def test_runs_claimed_ahead_do_not_wait_behind_slow_ones() -> None:
    store, begun = MemoryStore(VirtualClock()), list[float]()

    def make() -> Scheduler:
        scheduler = program(store, 2)

        @scheduler.job
        async def fast() -> None:
            begun.append(now())

        @scheduler.job
        async def slow() -> None:
            await asyncio.sleep(600)

        return scheduler

    first, second = make(), make()
    async with first, second:
        await learn_that_handlers_are_short(first, "fast")
        for _ in range(2):  # before and after the workers know that the other job is slow
            begun.clear()
            began_at = now()
            await first.enqueue_many("fast", [None] * 20)
            await first.enqueue_many("slow", [None])
            await first.enqueue_many("fast", [None] * 380)
            await asyncio.sleep(30)
            assert len(begun) == 400
            assert max(begun) - began_at < 3 * LONGEST_WAIT


@pytest.mark.parametrize("limit", [{"concurrency": 3}, {"rate": "100/s"}], ids=str)
@on_virtual_time()
async def test_a_backlog_of_short_runs_does_not_keep_a_job_with_a_limit_waiting(
    limit: dict[str, Any],
) -> None:
    scheduler, begun = program(MemoryStore(VirtualClock()), 10), list[str]()

    @scheduler.job
    async def fast() -> None:
        begun.append("fast")
        await asyncio.sleep(0.001)

    @scheduler.job(**limit)
    async def limited() -> None:
        begun.append("limited")

    async with scheduler:
        await learn_that_handlers_are_short(scheduler, "fast")
        begun.clear()
        await scheduler.enqueue_many("fast", [None] * 3000)
        await asyncio.sleep(0.01)
        await scheduler.wait((await scheduler.enqueue("limited")).id, 60)
    assert len(begun) < 2000


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.1), (3, 0.0), (30, 0.1)])
@on_virtual_time()
async def test_a_breaker_opens_after_its_failures_and_what_ran_beside_them(
    failures: int, seconds: float
) -> None:
    scheduler, calls = program(MemoryStore(VirtualClock()), 10), 0

    @scheduler.job
    async def fast() -> None: ...

    @scheduler.job(breaker=Breaker(failures=failures, reset="1h"), retries=5, retry_delay="1h")
    async def call() -> None:
        nonlocal calls
        calls += 1
        if seconds:
            await asyncio.sleep(seconds)
        raise ConnectionError

    async with scheduler:
        await learn_that_handlers_are_short(scheduler, "fast")
        runs = await scheduler.enqueue_many("call", [None] * 500)
        await asyncio.sleep(60)
        assert failures <= calls <= failures + 10 - 1
        tried = [run for run in runs if (await scheduler.get_run(run.id)).attempt]
        assert len(tried) == calls


@pytest.mark.parametrize(("workers", "later"), [(2, 0.02), (10, 0.0)])
@on_virtual_time()
async def test_a_start_of_a_rate_is_not_used_up_while_long_runs_take_the_capacity(
    workers: int, later: float
) -> None:
    scheduler, begun = program(MemoryStore(VirtualClock()), workers), list[float]()

    @scheduler.job
    async def fast() -> None:
        await asyncio.sleep(0.001)

    @scheduler.job(priority=9)
    async def slow() -> None:
        await asyncio.sleep(5)

    @scheduler.job(rate="1/h", priority=7)
    async def rated() -> None:
        begun.append(now())

    async with scheduler:
        await scheduler.enqueue_many("fast", [None] * 4000)
        await asyncio.sleep(0.5)
        await scheduler.enqueue_many("slow", [None] * workers)
        await asyncio.sleep(later)
        enqueued = now()
        await scheduler.enqueue("rated")
        await asyncio.sleep(7200)
    assert len(begun) == 1
    assert begun[0] - enqueued < 60
