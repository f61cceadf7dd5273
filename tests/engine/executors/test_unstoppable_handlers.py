"""Handlers that ignore a stop: their attempt ends, and so does the worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mainspring import Scheduler, State
from mainspring.core.model import Outcome
from mainspring.stores import open_store
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import ended, on_virtual_time
from tests.support.scheduler_fixtures import Make


async def swallow_until(done: asyncio.Event) -> None:
    """What a handler must not do, and some do: go on after each cancellation."""
    while not done.is_set():
        try:
            await done.wait()
        except asyncio.CancelledError:
            continue


async def test_a_cancel_leaves_the_timeout_of_a_thread_on(make: Make) -> None:
    scheduler = make()
    began, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @scheduler.job(timeout="1s")
    def deaf() -> None:
        loop.call_soon_threadsafe(began.set)
        go.wait(60)

    async with scheduler:
        run = await deaf.enqueue()
        await began.wait()
        assert await scheduler.cancel(run.id)
        done = await ended(scheduler, run)
        assert not go.is_set()
        assert (await scheduler.health()).stuck_threads == 1
        go.set()
    assert (done.state, done.lease_until) == (State.CANCELLED, None)


@on_virtual_time()
async def test_a_timeout_is_recorded_though_the_handler_swallows_every_cancellation() -> None:
    over = asyncio.Event()
    scheduler = Scheduler(MemoryStore(VirtualClock()), inline=True, clock=VirtualClock(), workers=2)

    @scheduler.job(timeout="3s")
    async def stubborn() -> None:
        await swallow_until(over)

    @scheduler.job()
    async def other() -> int:
        return 1

    async with scheduler:
        began = asyncio.get_running_loop().time()
        run = await stubborn.enqueue()
        done = await scheduler.wait(run.id, 60)
        assert asyncio.get_running_loop().time() - began < 3 + 4
        assert (done.state, done.attempts[0].outcome) == (State.FAILED, Outcome.TIMED_OUT)
        assert (await scheduler.health()).stuck_threads == 1
        assert (await scheduler.wait((await other.enqueue()).id, 10)).result == 1
        over.set()
        await asyncio.sleep(3)
        assert (await scheduler.health()).stuck_threads == 0
        last = await scheduler.enqueue("other")
        assert (await scheduler.wait(last.id, 10)).result == 1
    assert asyncio.all_tasks() == {asyncio.current_task()}


SCRIPT = """
import asyncio, os, sys
from mainspring import Scheduler

scheduler = Scheduler("sqlite:///jobs.db")

@scheduler.job(run_on_start=True)
async def stubborn():
    print("began", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass

scheduler.run(drain_timeout="200ms")
print("returned", flush=True)
"""


def test_a_handler_that_swallows_every_cancellation_does_not_keep_a_process_from_ending(
    tmp_path: Path,
) -> None:
    (tmp_path / "app.py").write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            while process.stdout.readline().strip() != "began":
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=50)
        finally:
            process.kill()
    assert (process.returncode, out.strip()) == (0, "returned")
    assert "the handler of job stubborn does not stop" in err
    assert asyncio.run(states_in(f"sqlite:///{tmp_path}/jobs.db")) == {State.PENDING: 1}


async def states_in(url: str) -> dict[State, int]:
    store = open_store(url)
    await store.open()
    counts = await store.counts()
    await store.close()
    return dict(counts.runs["stubborn"])


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_fork_that_returns_from_its_handler_ends(make: Make, kind: str) -> None:
    """Only one process goes on as the worker."""
    scheduler = make()

    def fork() -> list[int]:
        child = os.fork()
        if child == 0:
            return []
        return list(os.waitpid(child, 0))[1:]

    async def fork_async() -> list[int]:
        return fork()

    job = scheduler.job(id="fork")(fork if kind == "thread" else fork_async)
    async with scheduler:
        done = await ended(scheduler, await job.enqueue())
    assert (done.state, done.result) == (State.SUCCEEDED, [0])
