"""The memory limit of a process: a warning near it, no more claims at it."""

from __future__ import annotations

import gc
import logging
import sys

import pytest

from mainspring import State
from mainspring.engine import memory_watch
from mainspring.engine.executors.procfs import resident_memory
from mainspring.engine.memory_watch import MemoryWatch
from mainspring.errors import InvalidInput
from tests.support.engine import EventRecorder
from tests.support.scheduler_fixtures import Make


async def watch(
    monkeypatch: pytest.MonkeyPatch, measured: list[int | None], limit: int = 100
) -> list[int]:
    """What the watch reports for these measurements."""
    monkeypatch.setattr(memory_watch, "INTERVAL", 0)
    reached: list[int] = []

    async def report(used: int) -> None:
        reached.append(used)

    left = iter(measured)
    await MemoryWatch(limit, report, lambda: next(left)).watch_periodically()
    return reached


async def test_it_warns_once_near_the_limit_and_again_after_a_fall(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mainspring"):
        assert await watch(monkeypatch, [10, 80, 90, 79, 60, 85, 100, 120]) == [100]
    assert [record.args[1] for record in caplog.records] == [80.0, 85.0]  # type: ignore[index]


async def test_a_system_that_does_not_say_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert await watch(monkeypatch, [None]) == []
    assert "has no effect" in caplog.text


async def test_at_its_limit_a_worker_claims_no_more_runs(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what an earlier test kept would otherwise be freed while this one fills memory
    scheduler = make(memory_limit=(resident_memory() or 0) + 100_000_000)
    events = EventRecorder(scheduler)
    kept: list[bytes] = []

    @scheduler.job
    async def leak() -> None:
        kept.append(b"x" * 200_000_000)

    @scheduler.job
    async def work() -> None: ...

    async with scheduler:
        await scheduler.enqueue("leak")
        await events.until("worker.memory_limit", 1)
        run = await scheduler.enqueue("work")
        with pytest.raises(TimeoutError):
            await scheduler.wait(run.id, "0.3s")
        health = await scheduler.health()
        assert (health.status, health.memory_limit_reached) == ("degraded", True)
        assert (await scheduler.get_run(run.id)).state is State.PENDING
    assert "claims no more runs" in caplog.text


async def test_below_its_limit_a_worker_works(make: Make) -> None:
    scheduler = make(memory_limit="64GB")

    @scheduler.job
    async def work() -> int:
        return 1

    async with scheduler:
        run = await scheduler.enqueue("work")
        assert (await scheduler.wait(run.id, 10)).result == 1
        assert not (await scheduler.health()).memory_limit_reached


async def test_a_limit_below_what_the_process_holds_is_refused_at_the_start(make: Make) -> None:
    scheduler = make(memory_limit="1KB")
    with pytest.raises(InvalidInput, match=r"memory_limit is 1,000 bytes, and this process holds"):
        await scheduler.start()


def test_a_limit_that_is_no_size_is_refused(make: Make) -> None:
    with pytest.raises(InvalidInput, match="memory_limit is bytes or text like '512MiB'"):
        make(memory_limit="much")


def test_a_process_holds_memory() -> None:
    used = resident_memory()
    if sys.platform == "linux":
        assert used is not None
        assert used > 10**6
    else:
        assert used is None
