"""A worker whose event loop is blocked gives its runs to other workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from tests.support.engine import ended, until


class Worker:
    """A scheduler with a program of its own: a loop in a thread."""

    def __init__(self, url: str, block: threading.Event) -> None:
        self.scheduler = Scheduler(url, workers=5)
        self.blocks = threading.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

        @self.scheduler.job()
        async def blocker() -> None:
            self.blocks.set()
            block.wait(60)

        @self.scheduler.job()
        async def quick(ctx: RunContext) -> str:
            return threading.current_thread().name

        @self.scheduler.job()
        def plain() -> str:
            return "in a thread"

    async def start(self) -> None:
        await self._call(self.scheduler.start())

    async def stop(self) -> None:
        await self._call(self.scheduler.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _call(self, work: Coroutine[Any, Any, Any]) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def test_runs_that_a_blocked_loop_cannot_begin_are_done_by_others(
    file: str, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()
    blocked = Worker(file, go)
    producer = Scheduler(file, workers=0)
    other = Scheduler(file, workers=5)

    @other.job()
    async def quick() -> str:
        return "by the other"

    await blocked.start()
    try:
        async with producer:
            first = await producer.enqueue("blocker")
            await until(blocked.blocks.is_set)
            runs = await producer.enqueue_many("quick", [None] * 8)
            await until(lambda: "blocks the event loop" in caplog.text)
            # What needs no loop goes on here.
            plain = await ended(producer, await producer.enqueue("plain"))
            assert plain.result == "in a thread"
            async with other:
                done = [await ended(producer, run) for run in runs]
                assert {run.result for run in done} == {"by the other"}
                assert {run.attempt for run in done} == {1}
            assert not go.is_set()
            go.set()
            assert (await ended(producer, first)).state is State.SUCCEEDED
            last = await ended(producer, await producer.enqueue("quick"))
            assert last.state is State.SUCCEEDED
    finally:
        go.set()
        await blocked.stop()
    [line] = [r.getMessage() for r in caplog.records if "blocks the event loop" in r.getMessage()]
    assert line.startswith(
        f"the handler of job blocker (run {first.id}) blocks the event loop, at "
    )
    assert "the event loop answers again" in caplog.text
