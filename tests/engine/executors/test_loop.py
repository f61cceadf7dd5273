"""Async handlers on the program's event loop: how many run at once, and their context."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable

import pytest

from mainspring import Scheduler, State
from tests.support.engine import LONG, ended, until
from tests.support.scheduler_fixtures import Make

MANY = 400


async def warmed(scheduler: Scheduler, enqueue_many: Callable[..., object]) -> None:
    """After short work a worker claims ahead of its places."""
    for run in await enqueue_many([{}] * MANY):  # type: ignore[misc]
        await ended(scheduler, run)


async def test_no_more_handlers_run_at_once_than_the_worker_has_slots(make: Make) -> None:
    scheduler = make(workers=3)
    running, most = 0, 0
    together = asyncio.Barrier(3)

    @scheduler.job()
    async def work(n: int = 0) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(n % 3):
            await asyncio.sleep(0)
        running -= 1

    @scheduler.job()
    async def meet() -> None:
        async with asyncio.timeout(LONG):
            await together.wait()

    async with scheduler:
        for run in await work.enqueue_many([{"n": n} for n in range(MANY)]):
            await ended(scheduler, run)
        for run in await meet.enqueue_many([{}] * 3):  # each of them has released its slot
            assert (await ended(scheduler, run)).state is State.SUCCEEDED
    assert most == 3


async def test_threads_and_the_loop_share_the_worker_slots(make: Make) -> None:
    scheduler = make(workers=2)
    lock = threading.Lock()
    running, most = 0, 0

    def step(by: int) -> None:
        nonlocal running, most
        with lock:
            running += by
            most = max(most, running)

    @scheduler.job()
    async def on_loop() -> None:
        step(1)
        await asyncio.sleep(0.001)
        step(-1)

    @scheduler.job()
    def in_thread() -> None:
        step(1)
        threading.Event().wait(0.001)
        step(-1)

    async with scheduler:
        runs = await on_loop.enqueue_many([{}] * 100)
        runs += await in_thread.enqueue_many([{}] * 100)
        runs += await on_loop.enqueue_many([{}] * 100)
        for run in runs:
            assert (await ended(scheduler, run)).state is State.SUCCEEDED
    assert most == 2


async def test_a_run_that_waits_has_a_task_of_its_own(make: Make) -> None:
    """Whatever is sent to its task later, a cancellation too, meets no other run."""
    scheduler = make(workers=1)
    tasks = []

    @scheduler.job()
    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        tasks.append(task)
        asyncio.get_running_loop().call_soon(task.cancel)

    async with scheduler:
        for run in await work.enqueue_many([{}] * 50):
            assert (await ended(scheduler, run)).state is State.SUCCEEDED
    assert len(set(tasks)) == 50


async def test_the_programs_own_tasks_run_between_handlers_that_never_wait(make: Make) -> None:
    scheduler = make(workers=1)
    turns = 0
    seen = []

    @scheduler.job()
    async def work() -> None:
        seen.append(turns)
        threading.Event().wait(0.003)  # busy: the loop stands still

    async def program() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with scheduler:
        running = asyncio.ensure_future(program())
        for run in await work.enqueue_many([{}] * 50):
            await ended(scheduler, run)
        running.cancel()
    assert all(before < after for before, after in itertools.pairwise(seen))


async def test_a_queued_attempt_can_be_cancelled(make: Make) -> None:
    scheduler = make(workers=1)
    go = asyncio.Event()
    go.set()
    begun: list[str] = []

    @scheduler.job()
    async def work(name: str = "") -> None:
        begun.append(name)
        await go.wait()

    async with scheduler:
        await warmed(scheduler, work.enqueue_many)
        go.clear()
        first, second, third = await work.enqueue_many([{"name": n} for n in "abc"])
        assert scheduler._engine is not None
        worker = scheduler._engine.worker
        await until(lambda: worker.running == 1 and worker.claimed_ahead == 2, "claiming ahead")
        assert await scheduler.cancel(second.id)
        assert (await ended(scheduler, second)).state is State.CANCELLED
        go.set()
        assert (await ended(scheduler, first)).state is State.SUCCEEDED
        assert (await ended(scheduler, third)).state is State.SUCCEEDED
    assert begun[MANY:] == ["a", "c"]


async def test_runs_that_a_blocked_loop_cannot_begin_are_done_by_others(
    file: str, caplog: pytest.LogCaptureFixture
) -> None:
    go, blocks = threading.Event(), threading.Event()
    blocked = Scheduler(file, workers=5)
    producer = Scheduler(file, workers=0)
    other = Scheduler(file, workers=5)

    @other.job()
    async def quick() -> None: ...

    @blocked.job()
    async def blocker() -> None:
        blocks.set()
        go.wait(60)

    @blocked.job()
    def plain() -> str:
        return "in a thread"

    blocked.job()(quick.handler.function)
    await asyncio.to_thread(blocked.blocking.start)
    try:
        async with producer:
            first = await producer.enqueue("blocker")
            await until(blocks.is_set)
            runs = await producer.enqueue_many("quick", [None] * 8)
            await until(lambda: "blocks the event loop" in caplog.text)
            # What needs no loop goes on here.
            beside = await ended(producer, await producer.enqueue("plain"))
            assert beside.result == "in a thread"
            async with other:
                done = [await ended(producer, run) for run in runs]
                assert {run.worker for run in done} == {other._settings.worker_id}
                assert {run.attempt for run in done} == {1}
            assert not go.is_set()
            go.set()
            assert (await ended(producer, first)).state is State.SUCCEEDED
            last = await ended(producer, await producer.enqueue("quick"))
            assert last.state is State.SUCCEEDED
    finally:
        go.set()
        await asyncio.to_thread(blocked.blocking.stop)
    [line] = [r.getMessage() for r in caplog.records if "blocks the event loop" in r.getMessage()]
    assert line.startswith(
        f"the handler of job blocker (run {first.id}) blocks the event loop, at "
    )
    assert "the event loop answers again" in caplog.text
