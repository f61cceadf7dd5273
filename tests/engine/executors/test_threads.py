"""Threads for sync handlers, also where the system starts no more threads."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from mainspring import RunContext, State
from mainspring.engine import worker
from mainspring.engine.executors.threads import ThreadExecutor
from tests.support.engine import LONG, EventRecorder, ended
from tests.support.scheduler_fixtures import Make


class Starts:
    """Refuses to start threads for handlers, as a system at its limit does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
        self.refused = refused
        start = threading.Thread.start

        def start_or_refuse(thread: threading.Thread) -> None:
            if thread.name == "mainspring-handler" and self.refused > 0:
                self.refused -= 1
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_refuse)


def test_a_thread_that_did_not_start_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, called = ThreadExecutor(), threading.Event()
    Starts(monkeypatch, refused=1)
    with pytest.raises(RuntimeError):
        executor.submit(called.set)
    executor.submit(called.set)
    assert called.wait(LONG)
    assert executor._alive == 1
    executor.close()


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
async def test_a_run_without_a_thread_is_given_back_and_runs_later(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    delivery: Any,
) -> None:
    monkeypatch.setattr(worker, "NO_THREAD_SNOOZE", timedelta(milliseconds=100))
    scheduler = make()
    recorder = EventRecorder(scheduler, "run.*")

    @scheduler.job(delivery=delivery)
    def work(ctx: RunContext, n: int) -> int:
        assert ctx.attempt == 1
        return n

    Starts(monkeypatch, refused=2)
    async with scheduler:
        runs = await scheduler.enqueue_many("work", [{"n": n} for n in range(5)])
        with caplog.at_level(logging.WARNING, "mainspring"):
            done = await asyncio.gather(*(ended(scheduler, run) for run in runs))
        assert [(run.state, run.result) for run in done] == [(State.SUCCEEDED, n) for n in range(5)]
        assert scheduler._engine is not None
        await recorder.until("run.succeeded", 5)
        assert scheduler._engine.worker._capacity_taken == 0
    assert recorder.names.count("run.started") == 5
    assert caplog.text.count("no thread can be started for run") == 2
