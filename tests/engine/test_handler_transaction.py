"""`ctx.transaction()` and `delivery="effect_once"`: one effect, whatever happens in between."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core.model import Outcome, replace
from mainspring.errors import (
    InvalidInput,
    InvalidState,
    TransactionAborted,
    TransactionExpired,
)
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store, StoreInfo
from mainspring.testing import FaultyStore, ScriptedFaults, make_context
from tests.support.engine import EventRecorder, ended, opened, run_once
from tests.support.scheduler_fixtures import Make

SOON: dict[str, Any] = {"retry_delay": "20ms"}


def write(session: Any, name: str) -> None:
    """An effect, on either store."""
    if isinstance(session, dict):
        session.setdefault("effects", []).append(name)
    else:
        session.execute("CREATE TABLE IF NOT EXISTS effects (name TEXT)")
        session.execute("INSERT INTO effects VALUES (?)", (name,))


def in_transaction(kind: str, work: Callable[[RunContext, Any], None]) -> Callable[..., Any]:
    """A handler that does this work in its transaction."""

    async def later(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            work(ctx, session)

    def now(ctx: RunContext) -> None:
        with ctx.transaction() as session:
            work(ctx, session)

    return later if kind == "async" else now


def effects(place: str | Store) -> list[str]:
    if isinstance(place, MemoryStore):
        return list(place.data.get("effects", []))
    assert isinstance(place, str)
    with closing(sqlite3.connect(place.removeprefix("sqlite:///"))) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'effects'").fetchone():
            return []
        return [name for [name] in connection.execute("SELECT name FROM effects")]


async def test_the_block_completes_the_run(make: Make, place: str | Store) -> None:
    scheduler = make()
    told: list[Any] = []

    @scheduler.job(delivery="effect_once", on_success=lambda ctx, result: told.append(result))
    async def send(ctx: RunContext, to: str) -> None:
        ctx.log.info("sending")
        async with ctx.transaction() as session:
            write(session, to)
            ctx.result = {"to": to}

    recorder = EventRecorder(scheduler)
    async with scheduler:
        done = await ended(scheduler, await send.enqueue("ada"))
        await recorder.until("run.succeeded")
    assert (done.state, done.result, done.attempt) == (State.SUCCEEDED, {"to": "ada"}, 1)
    assert "sending" in done.attempts[0].log[0]
    assert effects(place) == ["ada"]
    assert told == [{"to": "ada"}]
    assert len(recorder.of("run.succeeded")) == 1
    assert "ownership.lost" not in recorder.names


@pytest.mark.parametrize("settings", [{}, {"inline": True}], ids=["", "inline"])
@pytest.mark.parametrize(
    ("kind", "isolation"), [("plain", "auto"), ("async", "auto"), ("async", "thread")]
)
async def test_handlers_of_every_kind_have_transactions(
    make: Make, place: str | Store, settings: dict[str, Any], kind: str, isolation: str
) -> None:
    def work(ctx: RunContext, session: Any) -> None:
        write(session, "sent")
        ctx.result = 42

    handler = in_transaction(kind, work)
    done = await run_once(make(**settings), handler, delivery="effect_once", isolation=isolation)
    assert (done.state, done.result, effects(place)) == (State.SUCCEEDED, 42, ["sent"])


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_error_in_the_block_undoes_it_and_retries_apply(
    make: Make, place: str | Store, kind: str
) -> None:
    def work(ctx: RunContext, session: Any) -> None:
        write(session, f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("no")

    handler = in_transaction(kind, work)
    done = await run_once(make(), handler, delivery="effect_once", retries=1, **SOON)
    assert (done.state, done.attempt, done.failures) == (State.SUCCEEDED, 2, 1)
    assert effects(place) == ["attempt 2"]


async def test_a_handler_without_its_transaction_fails_without_retry(make: Make) -> None:
    """Its effects, if any, are there once; a retry would repeat them."""
    ran = []

    async def forgetful(ctx: RunContext) -> int:
        ran.append(ctx.attempt)
        return 42

    done = await run_once(make(), forgetful, delivery="effect_once", retries=5, **SOON)
    assert (done.state, ran) == (State.FAILED, [1])
    assert "without a transaction" in str(done.error)


async def test_code_after_the_block_does_not_change_the_outcome(
    make: Make, place: str | Store, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make()

    @scheduler.job(delivery="effect_once", retries=3)
    async def send(ctx: RunContext, then: str) -> str | None:
        async with ctx.transaction() as session:
            write(session, then)
            if then == "returns":
                return "lost"
        if then == "raises":
            raise ValueError("too late")
        async with ctx.transaction() as session:
            write(session, "again")
        return None

    with caplog.at_level(logging.WARNING, "mainspring"):
        async with scheduler:
            runs = await send.enqueue_many(
                [{"then": then} for then in ("returns", "raises", "enters again")]
            )
            done = [await ended(scheduler, run) for run in runs]
    assert {(run.state, run.failures, run.result) for run in done} == {(State.SUCCEEDED, 0, None)}
    assert sorted(effects(place)) == ["enters again", "raises", "returns"]
    assert "what its handler returned is dropped: set ctx.result" in caplog.text
    assert "dropped: ValueError: too late" in caplog.text
    assert "has already been completed by its transaction" in caplog.text


async def test_a_cancel_in_the_block_undoes_it(make: Make, place: str | Store) -> None:
    scheduler = make(lease="2s")
    inside = asyncio.Event()

    @scheduler.job(delivery="effect_once", retries=3, retry_delay="1m")
    async def send(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            write(session, "sent")
            inside.set()
            await asyncio.sleep(60)

    async with scheduler:
        run = await send.enqueue()
        await inside.wait()
        # On SQLite the request itself waits for the block, which its own time ends.
        assert await scheduler.cancel(run.id)
        done = await ended(scheduler, run)
    assert (done.state, effects(place)) == (State.CANCELLED, [])


async def test_a_cancel_that_came_before_is_found_when_it_begins(
    make: Make, place: str | Store
) -> None:
    scheduler = make()
    inside = asyncio.Event()
    met: list[BaseException] = []

    @scheduler.job(delivery="effect_once", retries=3)
    async def send(ctx: RunContext) -> None:
        inside.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            with pytest.raises(TransactionAborted) as caught:
                async with ctx.transaction() as session:
                    write(session, "sent")
            met.append(caught.value)
            raise

    async with scheduler:
        run = await send.enqueue()
        await inside.wait()
        assert await scheduler.cancel(run.id)
        done = await ended(scheduler, run)
    assert (done.state, effects(place)) == (State.CANCELLED, [])
    assert "asked to stop (cancel)" in str(met[0])


@pytest.mark.parametrize("how", ["awaits", "async", "plain"])
async def test_a_transaction_expires_after_a_third_of_the_lease(
    make: Make, place: str | Store, how: str
) -> None:
    scheduler = make(lease="1s")
    others = []

    def slowly(ctx: RunContext, session: Any) -> None:
        write(session, "first")
        time.sleep(0.6)
        write(session, "second")

    async def awaiting(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            write(session, "first")
            await asyncio.sleep(60)

    handler = awaiting if how == "awaits" else in_transaction(how, slowly)
    scheduler.job(id="send", delivery="effect_once")(handler)

    @scheduler.job()
    def other() -> None:
        others.append(1)

    async with scheduler:
        run = await scheduler.enqueue("send")
        beside = await scheduler.enqueue("other")
        done = await ended(scheduler, run)
        heard = await scheduler.get_run(run.id)
        assert (await ended(scheduler, beside)).state is State.SUCCEEDED
    assert others == [1]
    assert (done.state, effects(place)) == (State.FAILED, [])
    assert TransactionExpired.__name__ in str(heard.error)
    assert "a third of the lease" in str(heard.error)


async def test_an_answer_that_was_lost_is_found_again(make: Make, place: str | Store) -> None:
    """The commit was stored, but its answer was lost: the hook is called once and the effect
    happens once."""
    store = opened(place)
    scheduler = make(FaultyStore(store, ScriptedFaults({"transaction": [None, "after"]})))
    told = []

    @scheduler.job(delivery="effect_once", on_success=lambda ctx, result: told.append(result))
    async def send(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            write(session, "sent")
            ctx.result = ctx.attempt

    recorder = EventRecorder(scheduler)
    async with scheduler:
        done = await ended(scheduler, await send.enqueue())
        await recorder.until("run.succeeded")
    assert (done.state, done.result, done.attempt) == (State.SUCCEEDED, 1, 1)
    assert (effects(place), told) == (["sent"], [1])
    assert "ownership.lost" not in recorder.names


@pytest.mark.parametrize("step", [["before"], [None, "before"]], ids=["begin", "commit"])
async def test_a_store_that_goes_away_costs_no_retry(
    make: Make, place: str | Store, step: list[Any]
) -> None:
    store = opened(place)

    async def send(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            write(session, f"attempt {ctx.attempt}")

    done = await run_once(
        make(FaultyStore(store, ScriptedFaults({"transaction": step}))),
        send,
        delivery="effect_once",
    )
    assert (done.state, done.attempt, done.failures) == (State.SUCCEEDED, 2, 0)
    assert [a.outcome for a in done.attempts] == [Outcome.RELEASED, Outcome.SUCCEEDED]
    assert "got no answer from the store" in str(done.attempts[0].error)
    assert effects(place) == ["attempt 2"]


async def test_followers_are_released_with_the_result(make: Make, place: str | Store) -> None:
    """Any delivery may use it; `effect_once` says that it must."""
    scheduler = make()

    @scheduler.job()
    async def first(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            write(session, "first")
            ctx.result = 7

    @scheduler.job(after="first")
    async def second(ctx: RunContext) -> int:
        return int(ctx.results["first"]) * 6

    recorder = EventRecorder(scheduler)
    async with scheduler:
        await first.enqueue()
        event = await recorder.until("run.succeeded", where=lambda e: e.job_id == "second")
    assert event.run is not None
    assert event.run.result == 42


async def test_transactions_do_not_nest(make: Make, place: str | Store) -> None:

    async def send(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            write(session, "sent")
            with pytest.raises(InvalidState, match="is already in a transaction"):
                async with ctx.transaction():
                    pass

    done = await run_once(make(), send, delivery="effect_once")
    assert (done.state, effects(place)) == (State.SUCCEEDED, ["sent"])


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_nothing_is_enqueued_in_a_block(make: Make, place: str | Store, kind: str) -> None:
    """It would be no part of the transaction; on SQLite each would wait for the other."""
    scheduler = make()
    refused = []

    @scheduler.job()
    async def other() -> None: ...

    async def send(ctx: RunContext) -> None:
        await other.enqueue()
        async with ctx.transaction() as session:
            write(session, "sent")
            with pytest.raises(InvalidState, match="enqueue before the block") as caught:
                await other.enqueue()
            refused.append(caught.value)
        await other.enqueue()

    def plain(ctx: RunContext) -> None:
        with ctx.transaction() as session:
            write(session, "sent")
            with pytest.raises(InvalidState, match="enqueue before the block") as caught:
                other.blocking.enqueue()
            refused.append(caught.value)
        other.blocking.enqueue()

    scheduler.job(id="send", delivery="effect_once")(send if kind == "async" else plain)
    recorder = EventRecorder(scheduler)
    outside = 2 if kind == "async" else 1
    async with scheduler:
        done = await ended(scheduler, await scheduler.enqueue("send"))
        await recorder.until("run.succeeded", outside, lambda event: event.job_id == "other")
        made = (await scheduler.list_runs(job="other")).items
    assert (done.state, effects(place)) == (State.SUCCEEDED, ["sent"])
    assert (len(made), len(refused)) == (outside, 1)


class WithoutTransactions(MemoryStore):
    def info(self) -> StoreInfo:
        return replace(super().info(), no_transactions="this store keeps its things on paper")


def test_what_cannot_be_is_refused_when_the_job_is_made() -> None:
    scheduler = Scheduler("memory://")

    def contextless() -> None: ...

    with pytest.raises(InvalidInput, match="first parameter `ctx: RunContext`"):
        scheduler.job(delivery="effect_once")(contextless)

    def isolated(ctx: RunContext) -> None: ...

    with pytest.raises(InvalidInput, match="cannot be shared with another process"):
        scheduler.job(delivery="effect_once", isolation="process")(isolated)


async def test_a_store_without_transactions_says_so_at_the_start() -> None:
    scheduler = Scheduler(WithoutTransactions())

    @scheduler.job(delivery="effect_once")
    async def send(ctx: RunContext) -> None: ...

    with pytest.raises(InvalidInput, match=r"'send' cannot have .* on paper"):
        await scheduler.start()

    scheduler = Scheduler(WithoutTransactions())

    @scheduler.job()
    async def try_it(ctx: RunContext) -> None:
        async with ctx.transaction():
            pass

    async with scheduler:
        done = await ended(scheduler, await try_it.enqueue())
        assert "there is no transaction here: this store keeps" in str(done.error)
        with pytest.raises(InvalidInput, match="on paper"):
            await scheduler.add_job("more", handler=try_it, delivery="effect_once")


async def test_a_handler_can_be_tested_by_itself() -> None:
    async def send(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            session["sent"] = ctx.run_id
            ctx.result = "done"

    kept: dict[str, str] = {}
    ctx = make_context(job_id="send", transaction=kept)
    await send(ctx)
    assert (kept, ctx.result) == ({"sent": "send-run"}, "done")
    with pytest.raises(InvalidState, match="elsewhere return the result"):
        ctx.result = 1
    with pytest.raises(InvalidState, match="make_context"):
        make_context().transaction()
