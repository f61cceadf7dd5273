"""Hooks and events: emitted in time, with true facts, and harmless when they fail."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from mainspring import Breaker, Event, RunContext, State
from mainspring.core.events import EVENTS
from mainspring.errors import InvalidInput
from mainspring.stores.protocol import Store
from mainspring.testing import FaultyStore
from tests.support.engine import EventRecorder, SwitchableFaults, ended, opened, until
from tests.support.scheduler_fixtures import Make


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("handler_sync", [True, False])
async def test_hooks_hear_of_each_attempt(make: Make, sync: bool, handler_sync: bool) -> None:
    scheduler = make()
    told: list[tuple[Any, ...]] = []

    def hook(name: str) -> Any:
        def now(ctx: RunContext, *rest: Any) -> None:
            told.append((name, ctx.attempt, ctx.will_retry, *map(str, rest)))

        async def later(ctx: RunContext, *rest: Any) -> None:
            await asyncio.sleep(0)
            now(ctx, *rest)

        return now if sync else later

    def work(ctx: RunContext) -> str:
        told.append(("work", ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("first")
        return "fine"

    async def work_async(ctx: RunContext) -> str:
        return work(ctx)

    scheduler.job(
        id="work",
        retries=1,
        retry_delay="50ms",
        on_start=hook("start"),
        on_success=hook("success"),
        on_error=hook("error"),
    )(work if handler_sync else work_async)
    async with scheduler:
        await ended(scheduler, await scheduler.enqueue("work"))
        await until(lambda: len(told) == 6)
    assert told == [
        ("start", 1, False),
        ("work", 1),
        ("error", 1, True, "first"),
        ("start", 2, False),
        ("work", 2),
        ("success", 2, False, "fine"),
    ]


@pytest.mark.parametrize("error", [RuntimeError("hook"), SystemExit(1), asyncio.CancelledError()])
@pytest.mark.parametrize("sync", [True, False])
async def test_failing_hooks_and_listeners_are_harmless(
    make: Make, caplog: pytest.LogCaptureFixture, error: BaseException, sync: bool
) -> None:
    scheduler = make(workers=1)

    def fail(*_: Any) -> None:
        raise error

    async def fail_async(*_: Any) -> None:
        raise error

    bad: Any = fail if sync else fail_async

    @scheduler.job(on_start=bad, on_success=bad)
    async def fine() -> int:
        return 1

    @scheduler.job(on_start=bad, on_success=bad)
    def fine_thread() -> int:
        return 1

    @scheduler.job(on_error=bad)
    async def failing() -> None:
        raise ValueError

    scheduler.on("*", bad)
    with caplog.at_level(logging.ERROR):
        async with scheduler:
            for job in (fine, fine_thread):
                done = await ended(scheduler, await job.enqueue())
                assert (done.state, done.result) == (State.SUCCEEDED, 1)
            assert (await ended(scheduler, await failing.enqueue())).state is State.FAILED
    assert "a listener to" in caplog.text
    hook = "fail" if sync else "fail_async"
    assert f"job failing: its hook {hook} failed; the run is not affected" in caplog.text
    assert "Task exception was never retrieved" not in caplog.text


async def test_listeners_by_pattern_sync_and_async_and_unsubscribed(make: Make) -> None:
    scheduler = make()
    everything, runs = EventRecorder(scheduler), EventRecorder(scheduler, "run.*")
    one: list[Event] = []
    gone: list[Event] = []
    loop = asyncio.get_running_loop()

    async def later(event: Event) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is loop
        one.append(event)

    scheduler.on("run.succeeded", later)
    forget = scheduler.on("run.*", gone.append)
    forget()
    forget()  # twice is harmless

    @scheduler.job()
    async def work() -> int:
        return 1

    async with scheduler:
        run = await work.enqueue()
        await ended(scheduler, run)
    assert gone == []
    assert runs.names == ["run.enqueued", "run.started", "run.succeeded"]
    assert everything.names[0] in ("job.created", "worker.started")
    assert everything.names[-1] == "scheduler.stopped"
    [event] = one
    assert (event.name, event.job_id, event.error) == ("run.succeeded", "work", None)
    assert event.run is not None
    assert (event.run.id, event.run.state, event.run.result) == (run.id, State.SUCCEEDED, 1)
    assert event.time.tzinfo is not None
    with pytest.raises(InvalidInput, match=r"there is no event 'run\.finished'; known are"):
        scheduler.on("run.finished", print)


async def test_an_error_event_carries_the_error(make: Make) -> None:
    scheduler = make()
    recorder = EventRecorder(scheduler)

    @scheduler.job(retries=1, retry_delay="1ms")
    async def fail() -> None:
        raise KeyError("lost")

    async with scheduler:
        await ended(scheduler, await fail.enqueue())
    [retrying], [failed] = recorder.of("run.retrying"), recorder.of("run.failed")
    assert isinstance(retrying.error, KeyError)
    assert isinstance(failed.error, KeyError)
    assert failed.run is not None
    assert failed.run.state is State.FAILED


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        (
            {"on_error": "notify"},
            r"on_error is a function that is called as on_error\(ctx, error\)",
        ),
        ({"on_error": lambda: None}, r"on_error is called as on_error\(ctx, error\)"),
        ({"on_start": lambda ctx, more: None}, r"on_start is called as on_start\(ctx\)"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_where_it_is_given(
    make: Make, hooks: dict[str, Any], words: str
) -> None:
    """Else its error would show only when a run has failed."""
    with pytest.raises(InvalidInput, match=words):
        make().job(**hooks)


async def test_every_event_is_emitted(make: Make, place: str | Store) -> None:
    """One life with everything in it. What each event says is tested beside its feature."""
    faults = SwitchableFaults()
    scheduler = make(FaultyStore(opened(place), faults), lease="1s", poll="50ms")
    recorder = EventRecorder(scheduler)
    healthy = False

    @scheduler.job(retries=1, retry_delay="1ms", breaker=Breaker(failures=2, reset="100ms"))
    async def shaky() -> None:
        assert healthy

    @scheduler.job()
    async def long(ctx: RunContext) -> None:
        ctx.progress(1)
        await asyncio.sleep(600)

    @scheduler.job(start_deadline="1ms")
    async def late() -> None: ...

    @scheduler.job("100ms", overlap="allow")
    async def tick() -> None: ...

    async with scheduler:
        await recorder.until("leader.elected")
        await scheduler.add_job("extra", handler=shaky)
        await scheduler.update_job("extra", description="more")
        await scheduler.remove_job("extra")
        await ended(scheduler, await shaky.enqueue())
        await recorder.until("breaker.opened")
        healthy = True
        await ended(scheduler, await shaky.enqueue())
        await recorder.until("breaker.closed")
        run = await long.enqueue()
        await recorder.until("run.progress")
        await scheduler.cancel(run.id)
        await ended(scheduler, run)
        lost = await long.enqueue()
        await recorder.until("run.started", where=lambda e: bool(e.run and e.run.id == lost.id))
        faults.failing = {"*"}
        await recorder.until("ownership.lost")
        faults.failing = set()
        await recorder.until("run.rescued")
        await recorder.until("schedule.missed")
        await scheduler.cancel(lost.id)
        await scheduler.stop()
        # What is due when nobody is there comes too late.
        producer = make(workers=0)
        async with producer:
            expired = await producer.enqueue("late")
        await asyncio.sleep(0.01)
        await scheduler.start()
        await ended(scheduler, expired)
    missing = EVENTS - set(recorder.names) - {"worker.memory_limit"}  # test_memory.py
    assert missing == set()
