"""Cancelling runs and trying them again: cancelled stays cancelled, revived is the same run."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import timedelta

import pytest

from mainspring import Run, RunContext, Scheduler, State
from mainspring.core.model import Outcome
from mainspring.errors import InvalidState, RunNotFound
from tests.support.engine import EventRecorder, ended
from tests.support.scheduler_fixtures import Make


async def test_cancel_a_pending_run(make: Make) -> None:
    scheduler = make()
    recorder = EventRecorder(scheduler)

    @scheduler.job()
    async def never() -> None:
        raise AssertionError

    async with scheduler:
        run = await never.options(delay="1h").enqueue()
        assert await scheduler.cancel(run.id, reason="changed my mind") is True
        done = await ended(scheduler, run)
        assert (done.state, done.reason, done.attempts) == (State.CANCELLED, "changed my mind", ())
        event = await recorder.until("run.cancelled")
        assert event.run == done
        assert await scheduler.cancel(run.id) is False


async def test_cancel_a_running_async_run(make: Make) -> None:
    """It stays cancelled: neither its completion nor its retries bring it back."""
    scheduler = make()
    began = asyncio.Event()

    @scheduler.job(retries=5, retry_delay=0)
    async def slow() -> str:
        began.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            raise ValueError("clean-up went wrong") from None
        return "done"

    @scheduler.job()
    async def later() -> None: ...

    async with scheduler:
        run = await slow.enqueue()
        await began.wait()
        assert await scheduler.cancel(run.id)
        done = await ended(scheduler, run)
        assert (done.state, done.reason) == (State.CANCELLED, "cancelled by request")
        assert [a.outcome for a in done.attempts] == [Outcome.CANCELLED]
        await ended(scheduler, await later.enqueue())  # a retry would have been due before it
        assert await scheduler.get_run(run.id) == done


async def test_cancel_a_running_thread(make: Make) -> None:
    scheduler = make()
    began, asked_twice = threading.Event(), threading.Event()

    @scheduler.job(retries=3)
    def polite(ctx: RunContext) -> str:
        began.set()
        asked_twice.wait(20)
        for _ in range(2_000):
            if ctx.cancelled:
                return "too late to count"
            threading.Event().wait(0.01)
        raise AssertionError

    async with scheduler:
        run = await polite.enqueue()
        assert await asyncio.to_thread(began.wait, 10)
        assert await scheduler.cancel(run.id) is True
        assert await scheduler.cancel(run.id) is True  # asked already, not ended yet
        asked_twice.set()
        done = await ended(scheduler, run)
    assert (done.state, done.result) == (State.CANCELLED, None)


async def test_a_cancel_that_comes_with_the_end_wins_or_loses_but_never_both(make: Make) -> None:
    scheduler = make()
    recorder = EventRecorder(scheduler)

    @scheduler.job()
    async def quick() -> None:
        await asyncio.sleep(0)

    async with scheduler:
        for _ in range(30):
            run = await quick.enqueue()
            took = await scheduler.cancel(run.id)
            done = await ended(scheduler, run)
            assert (done.state is State.CANCELLED) is took
    told = len(recorder.of("run.cancelled")) + len(recorder.of("run.succeeded"))
    assert told == 30
    assert "ownership.lost" not in recorder.names


async def test_cancel_from_another_process_reaches_the_worker(file: str) -> None:
    worker = Scheduler(file)
    began = asyncio.Event()

    @worker.job()
    async def slow() -> None:
        began.set()
        await asyncio.sleep(600)

    async with worker:
        run = await slow.enqueue()
        await began.wait()
        script = (
            "import sys; from mainspring import Scheduler; s = Scheduler(sys.argv[1], workers=0)\n"
            "with s.blocking as b: sys.exit(0 if b.cancel(sys.argv[2]) else 1)"
        )
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, file, run.id)
        assert await child.wait() == 0
        assert (await ended(worker, run)).state is State.CANCELLED


@pytest.mark.parametrize("method", ["cancel", "retry", "get_run", "wait"])
async def test_an_unknown_run_is_an_error(make: Make, method: str) -> None:
    scheduler = make()
    async with scheduler:
        for unknown in ("nope", "", "x" * 1_000, "é", None, 7, object()):
            with pytest.raises(RunNotFound, match="there is no run"):
                await getattr(scheduler, method)(unknown)


# Trying again


async def test_retry_brings_the_same_run_back(make: Make) -> None:
    scheduler = make()
    broken = True

    @scheduler.job(retries=1, retry_delay="1ms")
    async def fix_me(a: int) -> int:
        if broken:
            raise RuntimeError("broken")
        return a

    async with scheduler:
        run = await fix_me.enqueue(a=7)
        failed = await ended(scheduler, run)
        assert (failed.state, failed.attempt, failed.failures) == (State.FAILED, 2, 2)
        broken = False
        again = await scheduler.retry(run.id)
        assert (again.id, again.state, again.failures, again.error) == (
            run.id,
            State.PENDING,
            0,
            None,
        )
        assert again.finished_at is None
        done = await ended(scheduler, run)
    assert (done.state, done.result, done.attempt) == (State.SUCCEEDED, 7, 3)
    assert done.token > failed.token
    assert [a.outcome for a in done.attempts] == [
        Outcome.FAILED,
        Outcome.FAILED,
        Outcome.SUCCEEDED,
    ]


async def test_other_states_cannot_be_retried(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def work() -> None: ...

    async def refused(run: Run, state: State) -> None:
        with pytest.raises(InvalidState, match=f"{run.id} is {state}"):
            await scheduler.retry(run.id)
        assert (await scheduler.get_run(run.id)).state is state

    async with scheduler:
        done = await ended(scheduler, await work.enqueue())
        await refused(done, State.SUCCEEDED)
        pending = await work.options(delay="1h").enqueue()
        await refused(pending, State.PENDING)
        waiting = await work.options(after=pending.id).enqueue()
        await refused(waiting, State.WAITING)


async def test_each_stored_run_is_an_event_whoever_made_it(make: Make) -> None:
    """A duplicate is not stored; the followers of a run and the links of a chain are."""
    scheduler = make(workers=0)
    recorder = EventRecorder(scheduler, "run.enqueued")

    @scheduler.job("0 * * * *")
    async def root() -> None: ...

    @scheduler.job(after="root")
    async def follower() -> None: ...

    @scheduler.job()
    async def other() -> None: ...

    async def taken(count: int) -> list[tuple[str | None, str]]:
        await recorder.until("run.enqueued", count)
        found = [(event.job_id, str(event.run.state)) for event in recorder.events if event.run]
        recorder.events.clear()
        return found

    both = [("root", "pending"), ("follower", "waiting")]
    async with scheduler:
        first = await scheduler.enqueue("root", dedupe_key="k", delay="1h")
        again = await scheduler.enqueue("root", dedupe_key="k", delay="1h")
        assert again.duplicate
        assert await taken(2) == both
        await scheduler.enqueue("other", after=first.id)
        assert await taken(1) == [("other", "waiting")]
        await scheduler.chain("root", "follower", "other")
        assert await taken(3) == [*both, ("other", "waiting")]
        now = (await scheduler.now()).replace(minute=0, second=0, microsecond=0)
        await scheduler.backfill("root", now - timedelta(hours=1), now)
        await scheduler.backfill("root", now - timedelta(hours=1), now)
        assert await taken(2) == both
