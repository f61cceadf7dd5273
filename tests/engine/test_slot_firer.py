"""A job that cannot be planned, or that the store refuses, does not affect other jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from mainspring import Event, Scheduler
from mainspring.core.model import Job, Page, replace
from mainspring.engine.slots import plan
from mainspring.errors import StoreError
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Fired, Firing, JobQuery
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time


async def test_one_job_that_cannot_be_planned_does_not_stop_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(job: Job, *rest: Any) -> Any:
        if job.id == "bad":
            raise ZeroDivisionError("a schedule nobody can work out")
        return plan(job, *rest)

    monkeypatch.setattr("mainspring.engine.slot_firer.plan", planned)
    scheduler = Scheduler("memory://")
    ticked = asyncio.Event()
    told: list[Event] = []
    scheduler.on("scheduler.error", told.append)

    @scheduler.job("100ms")
    async def bad() -> None: ...

    @scheduler.job("100ms")
    async def good() -> None:
        ticked.set()

    async with scheduler:
        for _ in range(3):
            ticked.clear()
            async with asyncio.timeout(20):
                await ticked.wait()
    assert [(event.job_id, type(event.error)) for event in told] == [("bad", ZeroDivisionError)]


@on_virtual_time()
async def test_a_job_that_cannot_be_read_delays_no_other_slot() -> None:
    """It stays due, and is the first that a query for due jobs gives."""

    class DamagedStore(MemoryStore):
        async def jobs(self, query: JobQuery) -> Page[Job]:
            page = await super().jobs(query)
            damaged = [
                replace(job, unreadable="damaged") if job.id == "aaa" else job for job in page.items
            ]
            return replace(page, items=damaged)

    ran: list[float] = []

    scheduler = Scheduler(DamagedStore(VirtualClock()), clock=VirtualClock(), inline=True)

    async def work() -> None:
        ran.append(asyncio.get_running_loop().time())

    for name in ("aaa", *(f"job{n}" for n in range(20))):
        scheduler.job("1m", id=name)(work)
    async with scheduler:
        await asyncio.sleep(90)
    assert len(ran) == 20
    assert max(ran) - min(ran) < 0.1


class RefusingStore(MemoryStore):
    """Takes no call that is to fire one of these jobs."""

    def __init__(self, *job_ids: str) -> None:
        super().__init__(VirtualClock())
        self.refused = set(job_ids)
        self.calls = 0

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        self.calls += 1
        for firing in firings:
            if firing.job_id in self.refused:
                raise StoreError(f"{firing.job_id} is larger than a document may be")
        return await super().fire(firings)


@on_virtual_time()
async def test_one_firing_that_the_store_refuses_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = RefusingStore("job-3")
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True)
    told: list[Event] = []
    scheduler.on("scheduler.error", told.append)
    ran: list[str] = []

    for number in range(8):
        name = f"job-{number}"

        @scheduler.job("10s", id=name)
        async def work(name: str = name) -> None:
            ran.append(name)

    async with scheduler:
        await asyncio.sleep(51)
        others = {f"job-{number}" for number in range(8) if number != 3}
        assert {name: ran.count(name) for name in others} == dict.fromkeys(others, 5)
        assert "job-3" not in ran
        assert [event.job_id for event in told] == ["job-3"]
        assert store.calls < 20  # it is not tried again with every slot
        store.refused.clear()
        await asyncio.sleep(60)
        assert "job-3" in ran
    assert any("job-3" in record.getMessage() for record in caplog.records)


@on_virtual_time()
async def test_a_store_that_refuses_every_job_is_a_store_that_fails() -> None:
    """Then no job is at fault: all are tried again as soon as it takes them."""

    store = RefusingStore("one", "two")
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True)
    ran: set[str] = set()

    for name in ("one", "two"):

        @scheduler.job("10s", id=name)
        async def work(name: str = name) -> None:
            ran.add(name)

    async with scheduler:
        await asyncio.sleep(15)
        assert not ran
        store.refused.clear()
        await asyncio.sleep(10)
        assert ran == {"one", "two"}
