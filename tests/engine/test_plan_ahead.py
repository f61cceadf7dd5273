"""Slots that several jobs share are planned before they are due; what happens in between counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime

import pytest

from mainspring import Client, Misfire, Scheduler
from mainspring.core.model import State
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time

EVERY = 10
"""Seconds between two slots, which all jobs share."""

RUNS_ONCE = Misfire("once")


@dataclass(frozen=True)
class Planned:
    """A scheduler that has planned a slot of `first` and `second`, which is 0.2 s away, and another
    client of its store."""

    scheduler: Scheduler
    client: Client
    clock: VirtualClock
    slot: datetime

    async def runs(self, job_id: str) -> list[State]:
        """The states of the runs that the job has for the slot."""
        page = await self.client.list_runs(job=job_id)
        return [run.state for run in page.items if run.scheduled_at == self.slot]


@asynccontextmanager
async def planned(misfire: Misfire = RUNS_ONCE) -> AsyncIterator[Planned]:
    clock = VirtualClock()
    store = MemoryStore(clock)
    scheduler = Scheduler(store, clock=clock, inline=True)

    @scheduler.job()
    async def work() -> None: ...

    client = Client(store, clock=clock, inline=True)
    async with scheduler, client:
        for name in ("first", "second"):
            schedule = f"*/{EVERY} * * * * *"
            await client.add_job(name, handler="work", schedule=schedule, misfire=misfire)
        await asyncio.sleep(EVERY)
        slot = (await scheduler.get_job("first")).next_run_at
        assert slot is not None
        await asyncio.sleep((slot - clock.now()).total_seconds() - 0.2)
        assert scheduler._engine is not None
        ahead = scheduler._engine.slot_firer._ahead
        assert ahead is not None
        assert len(ahead.chains) == 2
        yield Planned(scheduler, client, clock, slot)


def pause(client: Client) -> Awaitable[object]:
    return client.pause_job("first")


def remove(client: Client) -> Awaitable[object]:
    return client.remove_job("first")


def edit(client: Client) -> Awaitable[object]:
    return client.update_job("first", schedule="* * * * *")


def pause_all(client: Client) -> Awaitable[object]:
    return client.pause_all()


@pytest.mark.parametrize("here", [True, False], ids=["this process", "another process"])
@pytest.mark.parametrize("change", [pause, remove, edit, pause_all])
@on_virtual_time()
async def test_a_job_that_is_changed_after_it_was_planned_does_not_fire_as_planned(
    change: Callable[[Client], Awaitable[object]], here: bool
) -> None:
    async with planned() as plan:
        await change(plan.scheduler if here else plan.client)
        await asyncio.sleep(1)
        assert await plan.runs("first") == []
        assert await plan.runs("second") == [State.SUCCEEDED] * (change is not pause_all)


@on_virtual_time()
async def test_a_job_that_is_added_after_the_others_were_planned_fires_with_them() -> None:
    async with planned() as plan:
        schedule = f"*/{EVERY} * * * * *"
        await plan.client.add_job("third", handler="work", schedule=schedule)
        await asyncio.sleep(1)
        for job_id in ("first", "second", "third"):
            assert await plan.runs(job_id) == [State.SUCCEEDED]


@pytest.mark.parametrize("seconds", [3, 3600])
@on_virtual_time()
async def test_a_slot_that_was_planned_is_missed_after_the_clock_was_set_forward(
    seconds: int,
) -> None:
    async with planned(Misfire("skip", grace="1s")) as plan:
        plan.clock.offset += seconds
        await asyncio.sleep(1)
        assert await plan.runs("first") == [State.SKIPPED]


@on_virtual_time()
async def test_a_node_that_leads_no_more_leaves_the_slot_that_it_has_planned() -> None:
    async with planned() as plan:
        assert plan.scheduler._engine is not None
        plan.scheduler._engine.leader.retire()
        await asyncio.sleep(1)
        assert await plan.runs("first") == []
        await asyncio.sleep(2)  # now any node fires it
        assert await plan.runs("first") == [State.SUCCEEDED]
