"""The memory limit of a process: a warning near it, no more claims at it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from pathlib import Path

import pytest

from mainspring import Scheduler, State
from mainspring.engine import memory
from mainspring.engine.memory import MemoryWatch
from mainspring.errors import InvalidInput
from tests.support import isolated_jobs
from tests.support.engine import LONG, EventRecorder, ended, until
from tests.support.scheduler_fixtures import Make


class Process:
    """A process whose memory a test sets. `garbage` is what a collection frees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.garbage, self.collections = 10, 0, 0
        monkeypatch.setattr(memory, "INTERVAL", 0.001)
        monkeypatch.setattr(memory, "resident_memory", lambda: self.used)
        monkeypatch.setattr(gc, "collect", self._collect)

    def _collect(self) -> None:
        self.collections += 1
        self.used -= self.garbage
        self.garbage = 0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


async def watch(measured: list[int], limit: int = 100) -> list[int | str]:
    """What the watch reports for these measurements."""
    reports: list[int | str] = []
    left = iter(measured)
    reporter = MemoryWatch(limit, reports.append, lambda: reports.append("exceeded"), left.__next__)
    with contextlib.suppress(RuntimeError):  # there is no further measurement
        await reporter.watch_periodically()
    return reports


async def test_it_warns_once_near_the_limit_and_again_after_a_fall(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    near, again, full = (80, 80), (85, 85), (100, 100)  # measured again after a collection
    with caplog.at_level(logging.WARNING, "mainspring"):
        reports = await watch([10, *near, 90, 79, 60, *again, *full, 110, 124, 126, 10])
    assert reports == [100, "exceeded"]
    assert [record.args[1] for record in caplog.records] == [80.0, 85.0]  # type: ignore[index]
    assert process.collections == 3


@pytest.mark.parametrize("retries", [0, 1])
async def test_what_runs_at_the_limit_is_stopped_and_counts_a_failure(
    make: Make, process: Process, retries: int
) -> None:
    scheduler = make(memory_limit=100, workers=2).configure(drain_timeout="50ms")
    events = EventRecorder(scheduler)
    began, go = threading.Event(), threading.Event()

    @scheduler.job(retries=retries)
    async def leak() -> None:
        await until(began.is_set)
        process.used = 100
        await asyncio.Event().wait()

    @scheduler.job(retries=retries)
    def leak_in_thread() -> None:
        began.set()
        go.wait(LONG)

    @scheduler.job
    async def work() -> None: ...

    async with scheduler:
        runs = [await leak_in_thread.enqueue(), await leak.enqueue()]
        name = "run.retrying" if retries else "run.failed"
        await events.until(name, 2)
        for run in runs:
            stopped = await scheduler.get_run(run.id)
            assert stopped.state is (State.PENDING if retries else State.FAILED)
            assert stopped.failures == 1
            assert (stopped.error or "").startswith("MemoryExceeded: ")
            assert stopped.reason == (None if retries else "memory")
        go.set()
        waiting = await work.enqueue()
        health = await scheduler.health()
        assert (health.status, health.memory_limit_reached) == ("degraded", True)
        explained = await scheduler.explain(waiting.id)
        assert "has reached its memory limit of" in str(explained)
        [worker] = await scheduler.list_workers()
        assert (worker.memory_limit, worker.memory_limit_reached) == (100, True)


async def test_what_grows_on_beyond_the_limit_is_stopped_at_once(
    make: Make, process: Process
) -> None:
    scheduler = make(memory_limit=100).configure(drain_timeout="1h")
    events = EventRecorder(scheduler)

    @scheduler.job
    async def leak() -> None:
        process.used = 100
        await events.until("worker.memory_limit")
        process.used = 125
        await asyncio.Event().wait()

    async with scheduler:
        assert (await ended(scheduler, await leak.enqueue())).reason == "memory"


async def test_a_handler_in_a_process_of_its_own_is_given_back_at_the_limit(
    make: Make, process: Process, tmp_path: Path
) -> None:
    scheduler = make(memory_limit=100).configure(drain_timeout="50ms")
    isolated_jobs.register(scheduler)
    witness = tmp_path / "witness"
    async with scheduler:
        run = await scheduler.enqueue("hang", {"witness": str(witness)})
        await until(witness.exists)
        process.used = 100
        async with asyncio.timeout(LONG):
            while (await scheduler.get_run(run.id)).state is not State.PENDING:
                await asyncio.sleep(0.01)
        assert (await scheduler.get_run(run.id)).failures == 0


def test_a_program_that_runs_for_good_ends_at_its_memory_limit(file: str, process: Process) -> None:
    scheduler = Scheduler(file, memory_limit=100)

    @scheduler.job(run_on_start=True)
    def leak() -> None:
        process.used = 100

    with pytest.raises(SystemExit, match="memory limit"):
        scheduler.run(drain_timeout="5s")


async def test_a_limit_below_what_the_process_holds_is_refused_at_the_start(make: Make) -> None:
    scheduler = make(memory_limit="1KB")
    with pytest.raises(InvalidInput, match=r"memory_limit is 1,000 bytes, and this process holds"):
        await scheduler.start()
