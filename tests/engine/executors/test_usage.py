"""What attempts record about the CPU time and the memory that they used."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from mainspring import Scheduler
from tests.support import process_handlers

BURNED = 0.05


def burn() -> None:
    ends = time.thread_time() + BURNED
    while time.thread_time() < ends:
        pass


async def attempt_of(scheduler: Scheduler, job_id: str, **payload: Any) -> Any:
    run = await scheduler.enqueue(job_id, payload or None)
    return (await scheduler.wait(run.id, 60)).attempts[-1]


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("memory://", poll="50ms")


async def test_handlers_on_the_loop_and_in_threads_record_their_own_cpu_time(
    scheduler: Scheduler,
) -> None:
    @scheduler.job
    async def on_loop() -> None:
        burn()
        await asyncio.sleep(0.01)
        burn()

    @scheduler.job
    async def idle() -> None:
        await asyncio.sleep(0.2)

    @scheduler.job
    def in_thread() -> None:
        burn()

    @scheduler.job
    async def failing() -> None:
        burn()
        raise ValueError("no")

    async with scheduler:
        on_the_loop = await attempt_of(scheduler, "on_loop")
        assert on_the_loop.cpu_seconds >= 2 * BURNED
        assert (await attempt_of(scheduler, "idle")).cpu_seconds < 2 * BURNED
        assert (await attempt_of(scheduler, "in_thread")).cpu_seconds >= BURNED
        assert (await attempt_of(scheduler, "failing")).cpu_seconds >= BURNED
    assert on_the_loop.peak_memory is None


async def test_a_process_of_its_own_records_cpu_time_and_peak_memory_of_each_run(
    scheduler: Scheduler,
) -> None:
    scheduler.job(id="hoard", isolation="process")(process_handlers.hoard_and_burn)
    async with scheduler:
        large = await attempt_of(scheduler, "hoard", size=200_000_000)
        small = await attempt_of(scheduler, "hoard", size=1000)
    assert large.cpu_seconds >= BURNED
    if large.peak_memory is not None:  # Linux
        assert large.peak_memory > 200_000_000
        assert small.peak_memory < large.peak_memory
