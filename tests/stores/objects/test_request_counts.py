"""What a scheduler costs in requests: idle, and for each run. On virtual time, so it is exact."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from mainspring import Scheduler
from mainspring.core.model import State
from mainspring.stores.objects import ObjectStore
from mainspring.testing import VirtualClock, run_virtual
from tests.support.objects.memory_bucket import BucketFault, MemoryBucket, Objects


def spent(work: Callable[[Scheduler], Coroutine[Any, Any, None]]) -> Counter[str]:
    """The requests that a scheduler makes while this is done, two minutes after its start."""
    found: Counter[str] = Counter()

    async def main() -> None:
        clock = VirtualClock(asyncio.get_running_loop())
        slow = BucketFault(delay=0.01, delay_after=0.01)
        bucket = MemoryBucket(Objects(clock), lambda kind, key: slow)
        store = ObjectStore(bucket, rng=random.Random(1))
        scheduler = Scheduler(store, inline=True, clock=VirtualClock(), rng=random.Random(2))

        @scheduler.job(id="work")
        async def handle() -> None: ...

        await scheduler.start()
        await asyncio.sleep(120)
        before = bucket.requests.copy()
        await work(scheduler)
        found.update(bucket.requests - before)
        await scheduler.stop()

    run_virtual(main, 1, until=36_000)
    return found


async def idle(scheduler: Scheduler) -> None:
    await asyncio.sleep(600)


def test_an_idle_scheduler_makes_few_requests() -> None:
    """The leader's term takes 12 writes a minute and the note of the live worker 6."""
    found = spent(idle)
    assert found["put"] <= 18.5 * 10
    assert found["get"] <= 100.5 * 10  # and a few at the start


async def many(scheduler: Scheduler) -> None:
    runs = await scheduler.enqueue_many("work", [None] * 1000)
    last = await scheduler.wait(runs[-1].id, timeout="10m")
    assert last.state is State.SUCCEEDED


async def one_after_the_other(scheduler: Scheduler) -> None:
    for _ in range(20):
        run = await scheduler.enqueue("work")
        assert (await scheduler.wait(run.id, timeout="60s")).state is State.SUCCEEDED


def test_a_thousand_runs_at_once_share_their_requests() -> None:
    assert spent(many).total() <= 100


def test_a_run_alone_takes_a_few_writes() -> None:
    """To add, to claim, to complete; and what goes on beside."""
    found = spent(one_after_the_other)
    assert found["put"] <= 20 * 4
    assert found["get"] <= 20 * 10
