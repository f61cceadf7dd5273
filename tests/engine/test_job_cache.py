"""What a worker caches of jobs, and what it may conclude when an entry is missing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from mainspring import Scheduler, State
from mainspring.core import transitions
from mainspring.core.model import Job, Page
from mainspring.engine.job_cache import JobCache
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, JobQuery
from mainspring.testing import FaultyStore, Injection, VirtualClock
from mainspring.testing.store_calls import claim_runs
from tests.support.engine import on_virtual_time


class SlowJobReads:
    """Answers about jobs take a second, so that an edit falls between question and answer."""

    on = False

    def inject(self, method: str) -> Injection:
        return Injection(delay=1.0) if self.on and method == "jobs" else Injection()


class ForgottenMeanwhile(MemoryStore):
    """Whenever a worker reads jobs by their ids, it is made to forget one that it knows."""

    cache: JobCache | None = None

    async def jobs(self, query: JobQuery) -> Page[Job]:
        if query.ids is not None and self.cache is not None:
            self.cache.forget("work")
        return await super().jobs(query)


@on_virtual_time()
async def test_an_edit_in_the_same_process_never_cancels_a_run_of_a_live_job() -> None:
    slow = SlowJobReads()
    store: Any = FaultyStore(MemoryStore(VirtualClock()), slow)
    scheduler = Scheduler(store, inline=True, clock=VirtualClock())

    @scheduler.job()
    async def work() -> None: ...

    @scheduler.job()
    async def other() -> None: ...

    async with scheduler:
        for edit in (scheduler.pause_job, scheduler.resume_job):
            due = (await store.now()) + timedelta(seconds=3)
            runs = [await scheduler.enqueue("other", at=due)]
            await asyncio.sleep(2.5)
            runs.append(await scheduler.enqueue("work", at=due))  # the job is remembered
            slow.on = True
            await asyncio.sleep(1)  # both are claimed, and the other's job is being read
            slow.on = False
            await edit("work")
            for run in runs:
                ended = await scheduler.wait(run.id, 60)
                assert (ended.state, ended.reason) == (State.SUCCEEDED, None)


@on_virtual_time()
async def test_a_forgotten_at_most_once_run_is_not_rescued_for_a_second_start() -> None:
    store = ForgottenMeanwhile(VirtualClock())
    scheduler = Scheduler(store, inline=True, clock=VirtualClock(), queues=["another"])

    @scheduler.job(delivery="at_most_once")
    async def work() -> None: ...

    @scheduler.job()
    async def other() -> None: ...

    async with scheduler:
        assert scheduler._engine is not None
        cache = scheduler._engine.context.jobs
        run = await scheduler.enqueue("work")
        also = await scheduler.enqueue("other")
        handlers, lease = frozenset({run.handler, also.handler}), timedelta(seconds=3)
        claim = Claim(worker="dead", handlers=handlers, limit=2, lease=lease)
        claimed = await claim_runs(store, claim)
        assert len(claimed) == 2
        assert all(await store.commit([transitions.began(one) for one in claimed]))
        for _ in range(50):
            store.cache = None
            await cache.get(["work"])
            store.cache = cache
            await asyncio.sleep(0.2)
        ended = await scheduler.get_run(run.id)
        assert (ended.state, ended.reason) == (State.FAILED, "lost")
