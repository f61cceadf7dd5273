"""Schedules that count from the end of the run before: `every("5m", after="end")`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring import Run, RunContext, Scheduler, State
from mainspring.core import transitions
from mainspring.errors import InvalidInput, InvalidState
from mainspring.schedules import Schedule
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import RunQuery
from mainspring.testing import VirtualClock
from tests.support.engine import on_virtual_time

START = datetime(2030, 1, 1, tzinfo=UTC)
TAKES = 25


class Program:
    """A job that runs for 25 seconds, ten seconds after the end of its last run."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock)
        self.began: list[float] = []
        self.takes: float = TAKES

    def scheduler(self, schedule: str | Schedule = "10s after end", **options: Any) -> Scheduler:
        scheduler = Scheduler(self.store, clock=self.clock, inline=True, **options)

        @scheduler.job(schedule)
        async def work(ctx: RunContext) -> None:
            self.began.append(round(asyncio.get_running_loop().time(), 3))
            await asyncio.sleep(self.takes)

        return scheduler

    async def runs(self) -> list[Run]:
        runs = (await self.store.find(RunQuery(job="work", limit=1000))).items
        return sorted(runs, key=lambda run: run.scheduled_at)


virtual = on_virtual_time(Program)


@virtual
async def test_the_next_slot_counts_from_the_end_of_the_run_before(program: Program) -> None:
    async with program.scheduler() as scheduler:
        await asyncio.sleep(36)
        job = await scheduler.get_job("work")
        assert job.next_run_at == START + timedelta(seconds=45)
        await asyncio.sleep(64)
    assert program.began == [10, 45, 80]
    assert {run.state for run in await program.runs()} <= {State.SUCCEEDED, State.PENDING}


@virtual
async def test_the_end_of_a_run_is_that_of_its_last_attempt(program: Program) -> None:
    scheduler = Scheduler(program.store, clock=program.clock, inline=True)
    began: list[float] = []

    @scheduler.job("10s after end", retries=1, retry_delay="30s", backoff="fixed")
    async def flaky(ctx: RunContext) -> None:
        began.append(asyncio.get_running_loop().time())
        raise ValueError("no")

    async with scheduler:
        await asyncio.sleep(120)
    first, retried, second, _ = began[:4]
    assert second - retried == pytest.approx(10)
    assert retried - first > 20


@virtual
async def test_a_cancelled_run_counts_from_its_cancellation(program: Program) -> None:
    async with program.scheduler() as scheduler:
        await asyncio.sleep(15)
        [run] = await program.runs()
        await scheduler.cancel(run.id)
        await asyncio.sleep(20)
    assert program.began == [10, 25]


@virtual
async def test_triggered_runs_do_not_move_the_slot(program: Program) -> None:
    async with program.scheduler() as scheduler:
        await asyncio.sleep(2)
        await scheduler.trigger("work")
        await asyncio.sleep(48)
    assert program.began == [2, 10, 45]


@virtual
async def test_a_run_that_was_deleted_does_not_hold_up_the_job(program: Program) -> None:
    program.takes = 1
    async with program.scheduler():
        await asyncio.sleep(11.5)
        [run] = await program.runs()
        assert await program.store.commit([transitions.deleted(run)]) == [True]
        await asyncio.sleep(20)
    assert program.began == [10, 21]


@virtual
async def test_a_paused_job_goes_on_once_its_delay_has_passed(program: Program) -> None:
    async with program.scheduler() as scheduler:
        await asyncio.sleep(20)
        assert (await scheduler.pause_job("work")).next_run_at is None
        await asyncio.sleep(20)  # its run has ended after 35 seconds
        await scheduler.resume_job("work")
        await asyncio.sleep(10)
        assert program.began == [10, 45]
        await scheduler.pause_job("work")
        await asyncio.sleep(150)
        await scheduler.resume_job("work")
        await asyncio.sleep(5)
    assert program.began == [10, 45, 200]
    assert [run.state for run in await program.runs()].count(State.SKIPPED) == 0


@virtual
async def test_a_run_whose_worker_stopped_is_waited_for(program: Program) -> None:
    """The next slot is never fired while it is unfinished, and soon after the delay is over."""
    scheduler = program.scheduler(lease="30s")
    await scheduler.start()
    await asyncio.sleep(15)
    await scheduler.stop(graceful=False, timeout=1)
    await asyncio.sleep(100)
    async with program.scheduler(lease="30s"):
        await asyncio.sleep(TAKES + 15)
    first, again, second = program.began
    assert first == 10
    assert second - again == pytest.approx(TAKES + 10)
    assert len(await program.runs()) == 2


@virtual
async def test_what_needs_known_slots_is_refused(program: Program) -> None:
    async with program.scheduler() as scheduler:
        with pytest.raises(InvalidState, match="no slots to backfill"):
            await scheduler.backfill("work", START, START + timedelta(hours=1))
        with pytest.raises(InvalidInput, match="runs on each node"):
            await scheduler.add_job("all", handler="work", schedule="5m after end", each_node=True)
        job = await scheduler.add_job("slow", handler="work", schedule="1h after the end")
    assert job.schedule is not None
    assert job.schedule.describe() == "1 hour after the end of the run before"
    assert job.upcoming(5, START) == [START + timedelta(hours=1)]
