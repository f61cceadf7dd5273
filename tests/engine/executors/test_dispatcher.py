"""Timeouts and isolation of handlers, and how two event loops share the worker's slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Event, RunContext, Scheduler, State
from mainspring.core.model import Outcome
from mainspring.engine import worker
from mainspring.engine.executors.process_pool import ProcessPool, Reply
from mainspring.errors import InvalidInput
from tests.support import isolated_jobs
from tests.support.engine import EventRecorder, ended, run_once, until
from tests.support.process_pool import alive
from tests.support.scheduler_fixtures import Make
from tests.support.webhook_endpoint import endpoint, scheduler


async def test_an_async_handler_is_really_stopped(make: Make) -> None:
    stopped = asyncio.Event()

    async def wait_for_long() -> None:
        await asyncio.sleep(600)

    async def slow(ctx: RunContext) -> None:
        try:
            await wait_for_long()
        finally:
            assert ctx.cancelled
            stopped.set()

    done = await run_once(make(), slow, timeout="50ms")
    assert stopped.is_set()
    assert (done.state, done.attempts[0].outcome) == (State.FAILED, Outcome.TIMED_OUT)
    told = "RunTimeout: the handler ran longer than its timeout of 50 milliseconds"
    assert str(done.error).startswith(told)
    assert "in wait_for_long" in (done.attempts[0].traceback or "")


async def test_a_handler_that_swallows_its_cancellation_is_told_again(make: Make) -> None:
    scheduler = make(workers=1)
    told = 0

    @scheduler.job(timeout="50ms")
    async def stubborn() -> str:
        nonlocal told
        for _ in range(2):
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                told += 1
        return "still here"

    @scheduler.job()
    async def after() -> int:
        return 1

    async with scheduler:
        done = await ended(scheduler, await stubborn.enqueue())
        assert (await ended(scheduler, await after.enqueue())).result == 1
    assert told == 2
    assert (done.state, done.attempts[0].outcome) == (State.FAILED, Outcome.TIMED_OUT)


async def test_a_timeout_is_retried_as_any_failure(make: Make) -> None:

    async def slow_once(ctx: RunContext) -> int:
        if ctx.attempt == 1:
            await asyncio.sleep(600)
        return ctx.attempt

    done = await run_once(
        make(), slow_once, timeout="50ms", retries=1, retry_delay="1ms", retry_on=TimeoutError
    )
    assert (done.state, done.result) == (State.SUCCEEDED, 2)


async def test_a_thread_keeps_its_place_until_it_ends(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make(workers=1)
    go = threading.Event()
    told: list[bool] = []

    @scheduler.job(timeout="50ms")
    def slow(ctx: RunContext) -> None:
        go.wait(20)
        told.append(ctx.cancelled)

    @scheduler.job()
    def other() -> int:
        return 1

    async with scheduler:
        with caplog.at_level(logging.WARNING, "mainspring"):
            done = await ended(scheduler, await slow.enqueue())
        assert (done.state, done.attempts[0].outcome) == (State.FAILED, Outcome.TIMED_OUT)
        assert "its thread goes on and takes capacity (1 of 1" in caplog.text
        health = await scheduler.health()
        assert (health.status, health.stuck_threads) == ("degraded", 1)
        run = await other.enqueue()
        await asyncio.sleep(0.1)
        assert (await scheduler.get_run(run.id)).state is State.PENDING
        go.set()
        assert (await ended(scheduler, run)).result == 1
        health = await scheduler.health()
        assert (health.status, health.stuck_threads) == ("healthy", 0)
    assert told == [True]


async def test_a_handler_that_blocks_the_loop_past_its_timeout_has_timed_out(make: Make) -> None:
    scheduler = make()

    @scheduler.job(timeout="50ms", retries=50, retry_delay="1ms")
    async def blocking(ctx: RunContext) -> int:
        if ctx.attempt == 1:
            time.sleep(0.1)  # noqa: ASYNC251
        return ctx.attempt

    @scheduler.job(timeout="50ms")
    async def failing() -> None:
        time.sleep(0.1)  # noqa: ASYNC251
        raise ValueError("too late")

    async with scheduler:
        retried = await ended(scheduler, await blocking.enqueue())
        failed = await ended(scheduler, await failing.enqueue())
    assert retried.state is State.SUCCEEDED
    assert retried.attempts[0].outcome is Outcome.TIMED_OUT
    assert "the event loop was blocked" in str(retried.attempts[0].error)
    assert (failed.state, failed.attempts[0].outcome) == (State.FAILED, Outcome.TIMED_OUT)
    assert "ValueError: too late" in (failed.attempts[0].traceback or "")


# Context variables


@pytest.mark.parametrize("isolation", ["auto", "thread", "process"])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_sees_no_context_variable_of_another_run(
    make: Make, isolation: Any, is_async: bool
) -> None:
    scheduler = make(workers=2)
    function = isolated_jobs.change_tenant_later if is_async else isolated_jobs.change_tenant
    scheduler.job(id="change", isolation=isolation)(function)
    scheduler.job(id="other")(isolated_jobs.change_tenant)
    scheduler.job(id="other_async")(isolated_jobs.change_tenant_later)
    expected = "nobody"
    if isolation != "process":  # a new process has nothing of the program's context
        expected = "the program"
        isolated_jobs.TENANT.set(expected)
    async with scheduler:
        isolated_jobs.TENANT.set("set after the start")
        runs = []
        for n in range(10):
            runs += await scheduler.enqueue_many("change", [{"to": f"tenant {n}"}])
            for other in ("other", "other_async"):
                isolated = await scheduler.enqueue(other, {"to": f"{other} {n}"})
                runs += [isolated] if isolation != "process" else []
        seen = {(await ended(scheduler, run)).result for run in runs}
    assert seen == {expected}


@pytest.mark.parametrize("is_async", [True, False])
async def test_hooks_and_listeners_see_no_context_variable_of_a_run(
    make: Make, is_async: bool
) -> None:
    scheduler = make(workers=2)
    tenant = isolated_jobs.TENANT
    seen: list[tuple[str, str]] = []

    def record(name: str) -> Any:
        def now(*_: Any) -> None:
            seen.append((name, tenant.get()))
            tenant.set(name)

        async def later(*_: Any) -> None:
            now()

        return later if is_async else now

    def fail(to: str) -> None:
        isolated_jobs.change_tenant(to)
        raise ValueError(to)

    hooks = {name: record(name) for name in ("on_start", "on_success", "on_error")}
    scheduler.job(id="change", **hooks)(isolated_jobs.change_tenant)
    scheduler.job(id="fail", **hooks)(fail)
    scheduler.on("run.*", record("listener"))
    async with scheduler:
        for n in range(10):
            for job in ("change", "fail"):
                await scheduler.enqueue(job, {"to": f"tenant {n}"})
        await until(lambda: [name for name, _ in seen].count("on_success") == 10)
        await until(lambda: [name for name, _ in seen].count("on_error") == 10)
    assert {value for _, value in seen} == {"nobody"}
    assert {name for name, _ in seen} == {*hooks, "listener"}


# Around each attempt


@pytest.mark.parametrize("isolation", ["auto", "thread", "process"])
async def test_each_attempt_runs_inside_what_the_program_puts_around_it(
    make: Make, isolation: Any
) -> None:
    scheduler = make(around=isolated_jobs.as_tenant, resources={"name": "all"})
    functions = (isolated_jobs.tenant, isolated_jobs.tenant_later, isolated_jobs.fail_as_tenant)
    for function in functions:
        scheduler.job(isolation=isolation)(function)
    async with scheduler:
        for name in ("tenant", "tenant_later"):
            done = await ended(scheduler, await scheduler.enqueue(name))
            assert (done.result, done.error) == (name, None)
            assert "fine" in done.attempts[0].log[0]
        failed = await ended(scheduler, await scheduler.enqueue("fail_as_tenant"))
    assert failed.error == "ValueError: fail_as_tenant"
    assert "ValueError('fail_as_tenant') after all" in failed.attempts[0].log[0]


async def test_an_async_handler_may_run_inside_an_async_context_manager(make: Make) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def session(ctx: RunContext) -> AsyncIterator[None]:
        await asyncio.sleep(0)
        seen.append("open")
        try:
            yield
        finally:
            await asyncio.sleep(0)
            seen.append("close")

    scheduler = make(around=session)

    @scheduler.job(timeout="50ms")
    async def slow() -> None:
        seen.append("work")
        await asyncio.Event().wait()

    @scheduler.job
    def in_thread() -> None:
        seen.append("never")

    async with scheduler:
        slow_run = await ended(scheduler, await slow.enqueue())
        refused = await ended(scheduler, await in_thread.enqueue())
    assert slow_run.attempts[0].outcome is Outcome.TIMED_OUT
    assert seen == ["open", "work", "close"]
    assert "a sync handler needs a sync context manager" in (refused.error or "")


@pytest.mark.parametrize("around", ["no function", isolated_jobs.tenant_later])
def test_what_cannot_be_put_around_an_attempt_is_refused(around: Any) -> None:
    with pytest.raises(InvalidInput, match="around is a function that takes the run's context"):
        Scheduler("memory://", around=around)


# In processes of their own


async def test_a_process_runs_sync_async_and_decorated_functions(make: Make) -> None:
    scheduler = make()
    isolated_jobs.register(scheduler)
    scheduler.job(isolation="process")(isolated_jobs.decorated.handler.function)
    async with scheduler:
        plain = await scheduler.enqueue("add", {"a": 1, "b": 2})
        later = await scheduler.enqueue("add_later", {"a": 1, "b": 2})
        wrapped = await scheduler.enqueue("decorated", {"a": 5})
        assert (await ended(scheduler, plain)).result == 3
        done = await ended(scheduler, later)
        assert done.result[:3] == [3, later.id, 1]
        assert done.result[3] != os.getpid()
        assert done.started_at is not None
        taken_at = datetime.fromisoformat(done.result[4])
        assert done.created_at <= taken_at <= done.started_at
        assert done.progress is not None
        assert done.progress.message == "half"
        assert done.attempts[0].log[0].endswith("adding")
        assert (await ended(scheduler, wrapped)).result == -5


async def test_a_process_that_dies_fails_its_run_alone(make: Make) -> None:
    """Poison: it kills its process at each try, and nothing else."""
    scheduler = make()
    isolated_jobs.register(scheduler, retries=1, retry_delay="1ms")
    async with scheduler:
        deadly = [await scheduler.enqueue("die"), await scheduler.enqueue("segfault")]
        fine = await scheduler.enqueue_many("add", [{"a": n, "b": n} for n in range(5)])
        first, second = [await ended(scheduler, run) for run in deadly]
        others = [await ended(scheduler, run) for run in fine]
    assert (first.state, first.attempt, first.lapses) == (State.FAILED, 2, 0)
    assert first.error == "ProcessDied: the process ended with exit code 7 under its handler"
    assert (second.state, second.attempt) == (State.FAILED, 2)
    assert "SIGSEGV" in str(second.error)
    assert [run.result for run in others] == [0, 2, 4, 6, 8]


async def test_a_process_is_killed_with_its_children_at_the_timeout(
    make: Make, tmp_path: Path
) -> None:
    scheduler = make()
    isolated_jobs.register(scheduler, timeout="4s")
    witness = tmp_path / "pid"
    async with scheduler:
        await ended(scheduler, await scheduler.enqueue("add", {"a": 1, "b": 1}))  # it has started
        run = await scheduler.enqueue("parent", {"witness": str(witness)})
        await until(witness.exists, "the grandchild")
        done = await ended(scheduler, run)
    assert (done.state, done.attempts[0].outcome) == (State.FAILED, Outcome.TIMED_OUT)
    assert "File" not in str(done.attempts[0].traceback)  # no frames of the waiting worker
    assert not alive(int(witness.read_text()))


async def test_cancel_unwinds_a_process(make: Make, tmp_path: Path) -> None:
    scheduler = make()
    isolated_jobs.register(scheduler)
    witness = tmp_path / "witness"
    async with scheduler:
        run = await scheduler.enqueue("hang", {"witness": str(witness)})
        await until(lambda: witness.exists() and witness.read_text() == "began")
        assert await scheduler.cancel(run.id)
        done = await ended(scheduler, run)
    assert done.state is State.CANCELLED
    assert witness.read_text() == "unwound"


async def test_a_process_has_no_transaction(make: Make) -> None:
    done = await run_once(make(), isolated_jobs.transact, isolation="process")
    assert done.state is State.FAILED
    assert "there is no transaction here" in str(done.error)


async def test_memory_limit_steering_and_odd_results_in_a_process(make: Make) -> None:
    scheduler = make()
    isolated_jobs.register(scheduler, retries=1, retry_delay="1ms", memory_limit="150MiB")
    async with scheduler:
        names = ["hog", "retry", "give_up", "odd"]
        runs = [await scheduler.enqueue(name) for name in names]
        hog, retry, give_up, odd = [await ended(scheduler, run) for run in runs]
    assert hog.state is State.FAILED
    assert str(hog.error).startswith("MemoryExceeded")
    assert (retry.state, retry.result) == (State.SUCCEEDED, 2)
    assert (give_up.state, give_up.attempt) == (State.FAILED, 1)
    assert give_up.error == "GiveUp: hopeless"
    assert (odd.state, odd.attempt) == (State.SUCCEEDED, 1)
    assert odd.result["kept_as"] == "text"
    assert odd.result["repr"].startswith("<object object at ")
    assert "job odd returned a result that is kept as text only" in odd.attempts[0].log[0]


# -- two loops ------------------------------------------------------------------------------


class Crowd:
    """A scheduler with a handler `mine`, and runs that never run out."""

    def __init__(self, workers: int) -> None:
        self.mainspring = scheduler(workers=workers)
        self.added = self.ended = 0

        @self.mainspring.job(id="mine")
        async def mine(ctx: RunContext) -> None:
            await asyncio.sleep(0.001)

        self.mainspring.on("run.succeeded", self._count)

    def _count(self, event: Event) -> None:
        self.ended += 1

    async def add(self, job: str, count: int = 400) -> None:
        await self.mainspring.enqueue_many(job, [None] * count)
        self.added += count

    async def flood(self, job: str) -> None:
        while True:
            if self.added - self.ended < 800:
                await self.add(job)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("many", ["hook", "mine"])
async def test_work_of_one_loop_that_never_ends_leaves_places_to_the_other(
    many: str, workers: int
) -> None:
    """A loop kept its places while it had work, and so the other's waited for ever."""
    crowd = Crowd(workers)
    mainspring = crowd.mainspring
    async with endpoint() as made, mainspring:
        await mainspring.add_job("hook", webhook=made.url)
        crowding = asyncio.create_task(crowd.flood(many))
        while crowd.ended < 400:
            await asyncio.sleep(0.01)
        [alone] = {"hook", "mine"} - {many}
        run = await mainspring.enqueue(alone, priority=9)
        run = await mainspring.wait(run.id, timeout=20)
        assert not crowding.done()
        crowding.cancel()
        await mainspring.stop(graceful=False)
    assert run.state is State.SUCCEEDED


async def test_an_attempt_in_a_process_that_ends_late_ends_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process group may die later than a drain waits for it."""
    began, dead = threading.Event(), threading.Event()

    async def run_process(*arguments: object, **options: object) -> Reply:
        began.set()
        while not dead.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        return Reply()

    monkeypatch.setattr(ProcessPool, "run", run_process)
    monkeypatch.setattr(worker, "DRAIN_GRACE", 0.05)
    scheduler = Scheduler("memory://")
    scheduler.job(isolation="process")(isolated_jobs.add)
    recorder = EventRecorder(scheduler)
    async with scheduler:
        run = await scheduler.enqueue("add", {"a": 1, "b": 2})
        await until(began.is_set)
        await scheduler.drain(timeout=0)
        assert (await scheduler.health()).stuck_threads == 1
        dead.set()
        engine = scheduler._engine
        assert engine is not None
        await until(lambda: not engine.worker.stuck)
        assert engine.worker._capacity_taken == 0
        assert (await scheduler.get_run(run.id)).state is State.PENDING
    assert "ownership.lost" not in recorder.names


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

    start, refusals = threading.Thread.start, iter((True, True))

    def start_or_refuse(thread: threading.Thread) -> None:
        """As a system does at its limit."""
        if thread.name == "mainspring-handler" and next(refusals, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_refuse)
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
