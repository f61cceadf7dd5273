"""Attempts of a run: outcomes, details, what is recorded, when a run is tried again or snoozed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Backoff, GiveUp, Retry, RunContext, State
from mainspring.core.model import Outcome
from mainspring.errors import Snooze
from tests.support import isolated_jobs
from tests.support.engine import EventRecorder, ended, run_once, until
from tests.support.scheduler_fixtures import Make


async def test_success_is_recorded_with_its_result(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def add(a: int, b: int = 2) -> int:
        return a + b

    async with scheduler:
        run = await add.enqueue(a=1)
        assert (run.state, run.attempt, run.payload) == (State.PENDING, 0, {"a": 1})
        done = await ended(scheduler, run)
    assert (done.state, done.result, done.attempt, done.failures) == (State.SUCCEEDED, 3, 1, 0)
    assert done.error is None
    assert done.lease_until is None
    assert done.started_at is not None
    assert done.finished_at is not None
    assert done.finished_at >= done.started_at >= run.created_at
    assert done.duration is not None
    [attempt] = done.attempts
    assert (attempt.number, attempt.outcome, attempt.error) == (1, Outcome.SUCCEEDED, None)
    assert attempt.worker == done.worker


async def test_failure_keeps_error_traceback_and_log(make: Make) -> None:

    def fall(ctx: RunContext) -> None:
        ctx.log.info("about to %s", "fall")
        raise ValueError("a stone lay there")

    done = await run_once(make(), fall)
    assert (done.state, done.failures, done.error) == (
        State.FAILED,
        1,
        "ValueError: a stone lay there",
    )
    [attempt] = done.attempts
    assert attempt.outcome is Outcome.FAILED
    assert attempt.error == done.error
    assert "in fall" in str(attempt.traceback)
    assert len(attempt.log) == 1
    assert attempt.log[0].endswith("INFO about to fall")
    assert attempt.worker == done.worker
    assert attempt.finished_at >= attempt.started_at
    assert attempt.started_at.utcoffset() == timedelta()


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_traceback_begins_with_the_handler(make: Make, kind: str) -> None:
    def stumble() -> None:
        raise ValueError("a stone lay there")

    async def walk() -> None:
        stumble()

    [attempt] = (await run_once(make(), walk if kind == "async" else stumble)).attempts
    assert attempt.traceback is not None
    head, first, *_ = attempt.traceback.splitlines()
    assert head == "Traceback (most recent call last):"
    assert first.strip().startswith(f'File "{__file__}"')
    assert attempt.traceback.endswith("ValueError: a stone lay there\n")


@pytest.mark.parametrize(
    ("kind", "gaps"),
    [("fixed", [40, 40, 40]), ("linear", [40, 80, 120]), ("exponential", [40, 80, 160])],
)
async def test_backoff_is_kept_in_the_store(make: Make, kind: str, gaps: list[int]) -> None:
    """A computed delay must reach the next try, not get lost in storage."""
    scheduler = make()
    seen: list[float] = []

    @scheduler.job(retries=3, backoff=Backoff(kind, delay="40ms", jitter=False))
    async def never() -> None:
        raise RuntimeError

    def look(event: Any) -> None:
        wait = event.run.run_at - event.run.attempts[-1].finished_at
        seen.append(wait / timedelta(milliseconds=1))

    scheduler.on("run.retrying", look)
    async with scheduler:
        done = await ended(scheduler, await never.enqueue())
    assert seen == gaps
    starts = [a.started_at for a in done.attempts]
    ends = [a.finished_at for a in done.attempts]
    for gap, end, start in zip(gaps, ends, starts[1:], strict=False):
        assert start - end >= timedelta(milliseconds=gap)


class Flood(OSError):
    pass


@pytest.mark.parametrize(
    ("policy", "raised", "attempts"),
    [
        ({"retry_on": OSError}, Flood("x"), 3),
        ({"retry_on": "OSError"}, Flood("x"), 3),
        ({"retry_on": [KeyError, Flood]}, Flood("x"), 3),
        ({"retry_on": "builtins.OSError"}, Flood("x"), 3),
        ({"retry_on": [KeyError]}, Flood("x"), 1),
        ({"retry_on": Flood}, OSError("x"), 1),
        ({"give_up_on": OSError}, Flood("x"), 1),
        ({"give_up_on": "Flood"}, Flood("x"), 1),
        ({"give_up_on": Flood}, OSError("x"), 3),
        ({"retry_on": OSError, "give_up_on": Flood}, Flood("x"), 1),
        ({}, GiveUp("no such customer"), 1),
        ({"retry_on": KeyError}, Retry("busy"), 3),
    ],
)
async def test_which_errors_are_tried_again(
    make: Make, policy: dict[str, Any], raised: Exception, attempts: int
) -> None:

    async def raising() -> None:
        raise raised

    done = await run_once(make(), raising, retries=2, retry_delay="1ms", **policy)
    assert (done.state, done.attempt) == (State.FAILED, attempts)


async def test_retry_after_sets_the_wait_and_counts_as_a_failure(make: Make) -> None:
    scheduler = make()
    recorder = EventRecorder(scheduler, "run.retrying")

    @scheduler.job(retries=1, retry_delay="1h")
    async def busy() -> None:
        raise Retry("busy", after="20ms")

    async with scheduler:
        done = await ended(scheduler, await busy.enqueue())
    [event] = recorder.events
    assert event.run is not None
    wait = event.run.run_at - event.run.attempts[-1].finished_at
    assert wait == timedelta(milliseconds=20)
    assert (done.state, done.failures, done.error) == (State.FAILED, 2, "Retry: busy")


async def test_progress_is_stored_while_it_runs_and_stays(make: Make) -> None:
    scheduler = make(lease="1s")
    recorder = EventRecorder(scheduler)
    go = asyncio.Event()

    @scheduler.job()
    async def long(ctx: RunContext) -> None:
        ctx.progress(1, 3, "one of three")
        await go.wait()
        ctx.progress(3, 3, "all")

    async with scheduler:
        run = await long.enqueue()
        event = await recorder.until("run.progress")
        assert event.run is not None
        assert event.run.progress is not None
        assert event.run.progress.message == "one of three"
        stored = await scheduler.get_run(run.id)
        assert stored.state is State.RUNNING
        assert stored.progress is not None
        assert (stored.progress.done, stored.progress.total) == (1, 3)
        go.set()
        done = await ended(scheduler, run)
    assert done.progress is not None
    assert done.progress.done == 3


class UnprintableResult:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({1, 2}, "the result is not JSON: it holds a set"),
        ({1: 2}, "the key 1 is int"),
        (float("nan"), "not JSON"),
        ("x" * 300_000, "at most 262,144 are kept"),
        ({"a": UnprintableResult()}, "not JSON"),
    ],
    ids=["set", "int key", "nan", "too large", "unprintable"],
)
@pytest.mark.parametrize("isolation", ["auto", "thread"])
async def test_a_result_that_cannot_be_kept_is_kept_as_text_and_its_run_succeeds(
    make: Make, caplog: pytest.LogCaptureFixture, result: Any, words: str, isolation: Any
) -> None:
    scheduler = make()
    sent: list[str] = []
    heard: list[Any] = []

    async def give() -> Any:
        sent.append("mail")
        return result

    def on_success(ctx: RunContext, result: Any) -> None:
        heard.append(result)

    job = scheduler.job(retries=3, isolation=isolation, on_success=on_success)(give)
    async with scheduler:
        done = await ended(scheduler, await job.enqueue())
        await until(lambda: heard)
    assert (done.state, sent, done.error) == (State.SUCCEEDED, ["mail"], None)
    assert done.result.keys() == {"kept_as", "repr"}
    assert done.result["kept_as"] == "text"
    if isinstance(result, dict) and "a" in result:
        assert done.result["repr"] == "<a dict, whose __repr__ raises ZeroDivisionError>"
    else:
        assert repr(result).startswith(done.result["repr"].removesuffix("…"))
    assert len(done.result["repr"]) <= 8_000
    assert heard == [done.result]
    [line] = done.attempts[0].log
    assert "job give returned a result that is kept as text only" in line
    assert words in line
    assert any("job give" in r.getMessage() for r in caplog.records if r.levelname == "WARNING")


def raising(error: BaseException, *, sync: bool) -> Callable[[], Any]:
    def now() -> None:
        raise error

    async def later() -> None:
        raise error

    return now if sync else later


class SpeechlessError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class ExitingError(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    "error",
    [
        SpeechlessError(),
        ExitingError(),
        ValueError("\udc80 \x00 from a file name"),
        ValueError("x" * 10**7),
    ],
)
async def test_errors_that_are_hard_to_write_down(make: Make, error: Exception, sync: bool) -> None:
    scheduler = make(workers=1)
    job = scheduler.job(raising(error, sync=sync))
    async with scheduler:
        for _ in range(3):  # its place must come back each time
            done = await ended(scheduler, await job.enqueue())
            assert done.state is State.FAILED
            assert str(done.error).startswith(type(error).__name__)
            assert len(str(done.error)) < 20_000


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()]
)
async def test_a_handler_cannot_end_the_worker(
    make: Make, error: BaseException, sync: bool
) -> None:
    scheduler = make(workers=1)
    job = scheduler.job(raising(error, sync=sync))

    @scheduler.job()
    async def fine() -> int:
        return 1

    async with scheduler:
        done = await ended(scheduler, await job.enqueue())
        assert done.state is State.FAILED
        assert str(done.error).startswith(type(error).__name__)
        assert (await ended(scheduler, await fine.enqueue())).result == 1


async def test_a_decorated_function_stays_a_function(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    def double(x: int) -> int:
        "Twice."
        return 2 * x

    @scheduler.job()
    async def triple(x: int) -> int:
        return 3 * x

    assert double(4) == 8
    assert await triple(4) == 12
    assert (vars(double)["__name__"], double.__doc__) == ("double", "Twice.")


# -- details and snoozes --------------------------------------------------------------------


async def test_a_detail_is_kept_however_the_attempt_ends(make: Make) -> None:
    scheduler = make()

    @scheduler.job(retries=1, retry_delay=0)
    async def fails(ctx: RunContext) -> None:
        ctx.detail = {"try": ctx.attempt, "$date": "no date", "one": {"$uuid": "no uuid"}}
        raise ValueError("no")

    @scheduler.job(timeout="50ms")
    async def hangs(ctx: RunContext) -> None:
        ctx.detail = ["sent"]
        await asyncio.Event().wait()

    @scheduler.job()
    def succeeds(ctx: RunContext) -> None:
        mutable = {"n": 1}
        ctx.detail = mutable
        mutable["n"] = object()  # type: ignore[assignment]

    async with scheduler:
        queued = [await job.enqueue() for job in (fails, hangs, succeeds)]
        failed, timed_out, succeeded = [await scheduler.wait(run.id, 10) for run in queued]
    assert [a.detail for a in failed.attempts] == [
        {"try": n, "$date": "no date", "one": {"$uuid": "no uuid"}} for n in (1, 2)
    ]
    assert timed_out.attempts[0].outcome is Outcome.TIMED_OUT
    assert timed_out.attempts[0].detail == ["sent"]
    assert succeeded.attempts[0].detail == {"n": 1}


async def test_a_detail_of_a_handler_in_a_process_of_its_own(make: Make) -> None:
    run = await run_once(make(), isolated_jobs.detailed, isolation="process")
    assert run.attempts[0].detail == {"at": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("value", "why"),
    [(object(), "is not JSON"), ("\ud800", "is not JSON"), ("x" * 140_000, "at most")],
)
async def test_a_detail_that_is_not_json_or_too_large_is_kept_as_text(
    make: Make, value: Any, why: str
) -> None:
    async def odd(ctx: RunContext) -> None:
        ctx.detail = value

    run = await run_once(make(), odd)
    assert run.state is State.SUCCEEDED
    [attempt] = run.attempts
    assert attempt.detail == {"kept_as": "text", "repr": attempt.detail["repr"]}
    assert repr(value)[:100] in attempt.detail["repr"]
    assert len(attempt.detail["repr"]) <= 8_000
    assert any("the detail of an attempt" in line and why in line for line in attempt.log)


async def test_a_snoozed_run_comes_again_without_a_burnt_attempt(make: Make) -> None:
    seen: list[int] = []
    failed: list[Any] = []

    async def busy(ctx: RunContext) -> str:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise Snooze("not now", after="20ms")
        return "done"

    run = await run_once(make(), busy, on_error=lambda ctx, error: failed.append(error), breaker=1)
    assert (run.state, run.result) == (State.SUCCEEDED, "done")
    assert seen == [1, 1, 1]
    assert (run.attempt, run.failures, len(run.attempts)) == (1, 0, 1)
    assert failed == []


async def test_a_process_may_snooze_too(make: Make) -> None:
    run = await run_once(make(), isolated_jobs.snoozing, isolation="process")
    assert (run.state, run.attempt, run.result) == (State.SUCCEEDED, 1, True)


async def test_a_snooze_fails_a_run_that_may_start_only_once(make: Make) -> None:
    began = 0

    async def once() -> None:
        nonlocal began
        began += 1
        raise Snooze(after="10ms")

    done = await run_once(make(), once, delivery="at_most_once")
    assert (began, done.state, done.attempt) == (1, State.FAILED, 1)
    message = 'raised Snooze, but with delivery="at_most_once" a run starts only once'
    assert message in str(done.error)
