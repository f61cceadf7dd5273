"""The engine's own thread, and coroutines that plain code runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mainspring import Scheduler
from mainspring.engine.loop_thread import EngineLoop, run_in_this_thread
from mainspring.errors import NotStarted
from tests.support.engine import LONG


async def test_a_stop_does_not_wait_for_the_programs_executor() -> None:
    scheduler, go = Scheduler("memory://"), threading.Event()
    loop = asyncio.get_running_loop()
    await scheduler.start()
    busy = [loop.run_in_executor(None, go.wait, LONG) for _ in range(40)]
    try:
        async with asyncio.timeout(LONG / 2):
            await scheduler.stop()
    finally:
        go.set()
        await asyncio.gather(*busy)
    assert "mainspring-engine" not in [thread.name for thread in threading.enumerate()]


def test_an_interrupted_coroutine_ends_before_the_interrupt_is_raised() -> None:
    steps: list[str] = []

    async def interrupted() -> None:
        asyncio.get_running_loop().call_soon(interrupt)
        try:
            await asyncio.sleep(LONG)
        finally:
            steps.append("ended")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_this_thread(interrupted())
    assert steps == ["ended"]


@pytest.mark.parametrize("stopped", [False, True])
async def test_a_call_ends_with_its_caller_or_with_the_engine(stopped: bool) -> None:
    engine = EngineLoop(inline=False)
    began, ended = threading.Event(), threading.Event()

    async def wait() -> None:
        began.set()
        try:
            await asyncio.sleep(LONG)
        finally:
            ended.set()

    call = asyncio.create_task(engine.call(wait()))
    assert await asyncio.to_thread(began.wait, LONG)
    if stopped:
        await engine.close()
        with pytest.raises(NotStarted):
            await call
    else:
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await asyncio.to_thread(ended.wait, LONG)
        await engine.close()
    assert ended.is_set()
