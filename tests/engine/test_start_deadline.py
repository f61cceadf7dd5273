"""A start deadline counts until the handler first begins, and not from then on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Run, RunContext, Scheduler, State
from mainspring.core.model import Outcome
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time


class Stage:
    """A store on virtual time, and schedulers around it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock)

    def scheduler(self, **options: Any) -> Scheduler:
        return Scheduler(self.store, clock=self.clock, inline=True, **options)


virtual = on_virtual_time(Stage)


@virtual
async def test_a_run_that_has_begun_is_tried_again_after_its_deadline(stage: Stage) -> None:
    scheduler = stage.scheduler()

    @scheduler.job(retries=3, retry_delay="2s", backoff="fixed", start_deadline="1s")
    async def flaky() -> None:
        raise ValueError("boom")

    async with scheduler:
        run = await scheduler.wait((await flaky.enqueue()).id)
    assert (run.state, run.failures, len(run.attempts)) == (State.FAILED, 4, 4)


@pytest.mark.parametrize("graceful", [True, False])
@virtual
async def test_a_run_of_a_worker_that_stopped_begins_again_after_its_deadline(
    stage: Stage, graceful: bool
) -> None:
    def program() -> Scheduler:
        scheduler = stage.scheduler()

        @scheduler.job(start_deadline="1s")
        async def long(ctx: RunContext) -> None:
            if ctx.attempt == 1:
                await asyncio.sleep(3600)

        return scheduler

    first = program()
    await first.start()
    run = await first.enqueue("long")
    await asyncio.sleep(0.5)
    await first.stop(graceful=graceful, timeout=2)
    await asyncio.sleep(60)
    async with program() as second:
        run = await second.wait(run.id)
    assert run.state is State.SUCCEEDED
    assert [attempt.outcome for attempt in run.attempts] == [
        Outcome.RELEASED,
        Outcome.SUCCEEDED,
    ]


async def claim_and_die(store: MemoryStore) -> Run:
    """Claim a run as a worker does that dies before it begins the handler."""
    claim = Claim(worker="dead", handlers=frozenset({"job"}), limit=1, lease=timedelta(seconds=1))
    while not (claimed := await store.claim(claim)).runs:
        await asyncio.sleep(0.1)
    return claimed.runs[0]


@virtual
async def test_a_run_whose_worker_died_before_it_began_still_has_its_deadline(stage: Stage) -> None:
    async with stage.scheduler(workers=0) as client:
        await client.add_job("job", handler="job", start_deadline="5s")
        run = await client.enqueue("job")
        await claim_and_die(stage.store)
    await asyncio.sleep(10)
    scheduler = stage.scheduler()

    @scheduler.job(id="job", start_deadline="5s")
    async def job() -> None:
        raise AssertionError

    async with scheduler:
        run = await scheduler.wait(run.id)
    assert (run.state, run.reason, run.attempts) == (State.SKIPPED, "expired", ())


@pytest.mark.parametrize(("late", "state"), [(0.5, State.SUCCEEDED), (3, State.SKIPPED)])
@virtual
async def test_the_deadline_of_a_follower_counts_from_the_end_of_the_run_before_it(
    stage: Stage, late: float, state: State
) -> None:
    def program(*queues: str) -> Scheduler:
        scheduler = stage.scheduler(queues=queues)

        @scheduler.job
        async def first() -> None:
            await asyncio.sleep(30)

        @scheduler.job(after=["first"], start_deadline="1s", queue="second")
        async def second() -> None: ...

        return scheduler

    async with program("default") as scheduler:
        await scheduler.wait((await scheduler.enqueue("first")).id)
        await asyncio.sleep(late)
        async with program("second") as other:
            [run] = (await other.list_runs(job="second")).items
            run = await other.wait(run.id)
    assert run.state is state
    assert run.reason == ("expired" if state is State.SKIPPED else None)
