"""User handlers and built-in handlers run on two event loops and share the worker's slots."""

from __future__ import annotations

import asyncio

import pytest

from mainspring import Event, RunContext, Scheduler, State
from mainspring.stores.memory import MemoryStore
from tests.support.webhook_endpoint import endpoint, scheduler


class Crowd:
    """A scheduler with a handler `mine`, and runs that never run out."""

    def __init__(self, workers: int) -> None:
        self.mainspring = scheduler(workers=workers)
        self.added = self.ended = 0

        @self.mainspring.job(id="mine")
        async def mine(ctx: RunContext) -> None:
            await asyncio.sleep(0.001)

        self.mainspring.on("run.succeeded", self._count)

    def _count(self, event: Event) -> None:
        self.ended += 1

    async def add(self, job: str, count: int = 400) -> None:
        await self.mainspring.enqueue_many(job, [None] * count)
        self.added += count

    async def flood(self, job: str) -> None:
        while True:
            if self.added - self.ended < 800:
                await self.add(job)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("many", ["hook", "mine"])
async def test_work_of_one_loop_that_never_ends_leaves_places_to_the_other(
    many: str, workers: int
) -> None:
    """A loop kept its places while it had work, and so the other's waited for ever."""
    crowd = Crowd(workers)
    mainspring = crowd.mainspring
    async with endpoint() as made, mainspring:
        await mainspring.add_job("hook", webhook=made.url)
        crowding = asyncio.create_task(crowd.flood(many))
        while crowd.ended < 400:
            await asyncio.sleep(0.01)
        [alone] = {"hook", "mine"} - {many}
        run = await mainspring.enqueue(alone, priority=9)
        run = await mainspring.wait(run.id, timeout=20)
        assert not crowding.done()
        crowding.cancel()
        await mainspring.stop(graceful=False)
    assert run.state is State.SUCCEEDED


async def test_a_place_is_recalled_also_where_nothing_waits_for_it() -> None:
    """Its loop has no work that waits when it is asked for the place, and then without end."""
    crowd = Crowd(workers=2)
    mainspring = crowd.mainspring
    go_on, holding = asyncio.Event(), 0

    @mainspring.job(id="hold")
    async def hold(ctx: RunContext) -> None:
        nonlocal holding
        holding += 1
        await go_on.wait()

    async with endpoint() as made, mainspring:
        await mainspring.add_job("hook", webhook=made.url)
        await crowd.add("mine")  # so that it claims ahead
        while crowd.ended < 400:
            await asyncio.sleep(0.01)
        await crowd.add("hold", 2)
        while holding < 2:
            await asyncio.sleep(0.01)
        hook = await mainspring.enqueue("hook", priority=9)
        while (await mainspring.get_run(hook.id)).state is State.PENDING:
            await asyncio.sleep(0.01)
        crowding = asyncio.create_task(crowd.flood("mine"))
        while crowd.added < 802:
            await asyncio.sleep(0.01)
        go_on.set()
        run = await mainspring.wait(hook.id, timeout=20)
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
