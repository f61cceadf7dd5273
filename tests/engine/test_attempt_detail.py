"""Details that a handler records with its attempt, and runs that a handler snoozes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import RunContext, State
from mainspring.core.model import Outcome
from mainspring.errors import Snooze
from tests.support import isolated_jobs
from tests.support.scheduler_fixtures import Make


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
    scheduler = make()
    scheduler.job(isolation="process")(isolated_jobs.detailed)
    async with scheduler:
        run = await scheduler.wait((await scheduler.enqueue("detailed")).id, 20)
    assert run.attempts[0].detail == {"at": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("value", "why"),
    [(object(), "is not JSON"), ("\ud800", "is not JSON"), ("x" * 140_000, "at most")],
)
async def test_a_detail_that_cannot_be_kept_is_told_to_its_handler(
    make: Make, value: Any, why: str
) -> None:
    scheduler = make()

    @scheduler.job()
    async def odd(ctx: RunContext) -> None:
        ctx.detail = value

    async with scheduler:
        run = await scheduler.wait((await odd.enqueue()).id, 10)
    assert run.state is State.FAILED
    assert "InvalidPayload: the detail of an attempt" in str(run.error)
    assert why in str(run.error)
    assert run.attempts[0].detail is None


async def test_a_snoozed_run_comes_again_without_a_burnt_attempt(make: Make) -> None:
    scheduler = make()
    seen: list[int] = []
    failed: list[Any] = []

    @scheduler.job(on_error=lambda ctx, error: failed.append(error), breaker=1)
    async def busy(ctx: RunContext) -> str:
        seen.append(ctx.attempt)
        if len(seen) < 3:
            raise Snooze("not now", after="20ms")
        return "done"

    async with scheduler:
        run = await scheduler.wait((await busy.enqueue()).id, 20)
    assert (run.state, run.result) == (State.SUCCEEDED, "done")
    assert seen == [1, 1, 1]
    assert (run.attempt, run.failures, len(run.attempts)) == (1, 0, 1)
    assert failed == []


async def test_a_process_may_snooze_too(make: Make) -> None:
    scheduler = make()
    scheduler.job(isolation="process")(isolated_jobs.snoozing)
    async with scheduler:
        run = await scheduler.wait((await scheduler.enqueue("snoozing")).id, 20)
    assert (run.state, run.attempt, run.result) == (State.SUCCEEDED, 1, True)
