"""Handlers of the program and Mainspring's own run on two loops, and share a worker's places."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.stores.memory import MemoryStore
from tests.webhooks.kit import endpoint, scheduler


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("crowd", ["hook", "mine"])
async def test_work_of_one_loop_that_never_ends_leaves_places_to_the_other(
    crowd: str, workers: int
) -> None:
    """A loop kept its places while it had work, and so the other's waited for ever."""
    mainspring = scheduler(workers=workers)
    ended = 0

    @mainspring.job(id="mine")
    async def mine(ctx: RunContext) -> None:
        await asyncio.sleep(0.001)

    mainspring.on("run.succeeded", lambda event: count())

    def count() -> None:
        nonlocal ended
        ended += 1

    async with endpoint() as made, mainspring:
        await mainspring.add_job("hook", webhook=made.url)
        added = 0

        async def flood() -> None:
            nonlocal added
            while True:
                if added - ended < 400:
                    await mainspring.enqueue_many(crowd, [None] * 400)
                    added += 400
                await asyncio.sleep(0.01)

        crowding = asyncio.create_task(flood())
        while ended < 400:
            await asyncio.sleep(0.01)
        [alone] = {"hook", "mine"} - {crowd}
        run = await mainspring.enqueue(alone, priority=9)
        run = await mainspring.wait(run.id, timeout=20)
        assert not crowding.done()
        crowding.cancel()
        await mainspring.stop(graceful=False)
    assert run.state is State.SUCCEEDED


async def test_a_cancellation_that_a_handler_leaves_is_nobody_elses() -> None:
    store = MemoryStore()

    def with_handlers(workers: int) -> Scheduler:
        mainspring = scheduler(store=store, workers=workers)

        @mainspring.job(id="rude")
        async def rude() -> None:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()

        @mainspring.job(id="next")
        async def following() -> None:
            await asyncio.sleep(0)

        return mainspring

    runs = []
    async with with_handlers(0) as producer:  # so that all are there at once, and follow closely
        for _ in range(20):
            await producer.enqueue("rude")
            runs.append(await producer.enqueue("next"))
    async with with_handlers(1) as worker:
        ended = [await worker.wait(run.id, timeout=20) for run in runs]
    assert {run.state for run in ended} == {State.SUCCEEDED}
