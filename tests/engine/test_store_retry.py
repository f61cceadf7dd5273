"""When the store fails, the engine retries, logs it once and recovers by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core.transitions import Change
from mainspring.errors import StoreDamaged, StoreError, StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, Claimed, Store
from mainspring.testing import FaultyStore, ScriptedFaults, VirtualClock
from mainspring.testing.store_calls import get_runs
from tests.support.engine import (
    LONG,
    EventRecorder,
    SwitchableFaults,
    ended,
    on_virtual_time,
    opened,
    run_once,
    until,
)
from tests.support.scheduler_fixtures import Make


@pytest.mark.parametrize("error", ["before", "after"])
@pytest.mark.parametrize("method", ["claim", "commit", "wait", "renew", "jobs", "fire", "find"])
async def test_one_method_fails_for_a_while(
    make: Make, place: str | Store, method: str, error: str
) -> None:
    """Nothing is lost and nothing runs twice, also where the answer alone was lost."""
    faults = SwitchableFaults()
    faults.error = error
    scheduler = make(FaultyStore(opened(place), faults), poll="20ms", lease="2s")
    ran: list[str] = []

    @scheduler.job("100ms", overlap="allow", misfire="all")
    async def tick(ctx: RunContext) -> None:
        ran.append(ctx.run_id)

    @scheduler.job()
    async def work(ctx: RunContext) -> None:
        ran.append(ctx.run_id)
        while method == "renew" and not faults.met:
            await asyncio.sleep(0.01)

    async with scheduler:
        runs = await work.enqueue_many([{}] * 5)
        faults.failing = {method}
        await until(lambda: faults.met.get(method, 0) >= 1, f"a failing {method}")
        faults.failing = set()
        runs += await work.enqueue_many([{}] * 5)
        for run in runs:
            done = await ended(scheduler, run)
            # A claim whose answer was lost is a lease that nobody knows of: it lapses.
            lost = method == "claim" and error == "after"
            assert done.state is State.SUCCEEDED
            assert done.lapses in ((0, 1) if lost else (0,))
        before = len([one for one in ran if one.startswith("tick")])
        await until(lambda: len([one for one in ran if one.startswith("tick")]) > before)
    assert len(ran) == len(set(ran))


async def test_an_outage_is_said_once_and_ends_by_itself(
    make: Make, place: str | Store, caplog: pytest.LogCaptureFixture
) -> None:
    faults = SwitchableFaults()
    scheduler = make(FaultyStore(opened(place), faults), poll="20ms")
    recorder = EventRecorder(scheduler)

    @scheduler.job()
    async def work() -> int:
        return 1

    async with scheduler:
        await ended(scheduler, await work.enqueue())
        with caplog.at_level(logging.WARNING, "mainspring"):
            faults.failing = {"*"}
            await recorder.until("scheduler.error")
            await until(lambda: sum(faults.met.values()) > 6)
            with pytest.raises(StoreUnavailable):
                await work.enqueue()
            health = await scheduler.health()
            assert health.status == "degraded"
            assert health.store != "ok"
            faults.failing = set()
            assert (await ended(scheduler, await work.enqueue())).result == 1
            await until(lambda: "answers again" in caplog.text)
        assert (await scheduler.health()).status == "healthy"
    assert caplog.text.count("the store failed") == 1
    assert len(recorder.of("scheduler.error")) == 1


class Forbidden(MemoryStore):
    """Refuses to record anything for a while, as a server does whose user lost a right."""

    refusals = 3

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        if changes and self.refusals:
            self.refusals -= 1
            raise StoreError("the user may not do this")
        return await super().commit(changes)


async def test_an_outcome_that_is_refused_for_a_while_is_kept_and_sent_again(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:

    async def work() -> int:
        return 1

    done = await run_once(make(Forbidden(), lease="30s"), work)
    assert (done.result, done.attempt) == (1, 1)
    assert "the user may not do this" in caplog.text
    assert "taken over" not in caplog.text


async def test_a_start_without_a_store_fails_clearly_and_can_be_repeated(
    make: Make, place: str | Store
) -> None:
    faults = SwitchableFaults()
    scheduler = make(FaultyStore(opened(place), faults), wait_for_store=0)

    @scheduler.job(run_on_start=True)
    async def work() -> None: ...

    for method in ("open", "now", "put_jobs", "add"):
        faults.failing = {method}
        with pytest.raises(StoreUnavailable):
            await scheduler.start()
    faults.failing = set()
    async with scheduler:
        [run] = (await scheduler.list_runs()).items
        assert (await ended(scheduler, run)).state is State.SUCCEEDED


async def test_a_stop_while_the_store_is_away_comes_to_an_end(
    make: Make, place: str | Store
) -> None:
    faults = SwitchableFaults()
    scheduler = make(FaultyStore(opened(place), faults), lease="1s")
    go = asyncio.Event()

    @scheduler.job()
    async def work() -> None:
        await go.wait()

    recorder = EventRecorder(scheduler)
    await scheduler.start()
    run = await work.enqueue()
    await recorder.until("run.started")
    faults.failing = {"*"}
    go.set()
    await asyncio.wait_for(scheduler.stop(timeout="1s"), 15)
    faults.failing = set()
    async with scheduler:
        assert (await ended(scheduler, run)).state is State.SUCCEEDED


async def test_a_store_that_is_away_at_the_start_is_waited_for(
    make: Make, place: str | Store, caplog: pytest.LogCaptureFixture
) -> None:
    faults = ScriptedFaults({"open": ["before"] * 2, "now": ["before"], "put_jobs": ["after"]})
    scheduler = make(FaultyStore(opened(place), faults))

    @scheduler.job()
    async def work() -> int:
        return 1

    with caplog.at_level(logging.WARNING, "mainspring"):
        async with scheduler:
            assert (await ended(scheduler, await work.enqueue())).result == 1
    assert "waiting for the store up to 30 seconds: injected: open failed" in caplog.text
    assert caplog.text.count("waiting for the store") == 1
    assert "the store is there, after" in caplog.text


async def test_what_waiting_cannot_mend_is_told_at_once(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other.db").write_bytes(b"no database at all")
    with pytest.raises(StoreDamaged):
        await make(f"sqlite:///{tmp_path}/other.db").start()
    assert "waiting for the store" not in caplog.text


async def test_scheduler_stops_although_the_driver_turns_a_cancellation_into_an_error(
    make: Make,
) -> None:
    """pymongo does so now and then."""

    class SwallowsCancellation(MemoryStore):
        swallowed = 0

        async def wait(self, timeout: float) -> bool:
            try:
                return await super().wait(3600)
            except asyncio.CancelledError:
                self.swallowed += 1
                raise StoreUnavailable("operation cancelled") from None

    store = SwallowsCancellation()
    scheduler = make(store)

    @scheduler.job()
    async def work() -> str:
        return "done"

    await scheduler.start()
    run = await ended(scheduler, await work.enqueue())
    async with asyncio.timeout(LONG):
        await scheduler.stop()
    assert store.swallowed > 0
    assert not scheduler.started
    assert (await get_runs(store, [run.id]))[run.id].result == "done"


class Hushed(MemoryStore):
    """Its hints are all lost."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.claims = 0

    async def wait(self, timeout: float) -> bool:
        await asyncio.sleep(timeout)
        return False

    async def claim(self, claim: Claim) -> Claimed:
        self.claims += 1
        return await super().claim(claim)


@on_virtual_time()
async def test_an_idle_worker_polls_rarely_and_finds_runs_without_a_hint() -> None:
    store = Hushed()
    worker = Scheduler(store, clock=VirtualClock(), inline=True, poll="10s")

    @worker.job(id="work")
    async def work() -> str:
        return "done"

    client = Scheduler(store, clock=VirtualClock(), inline=True, workers=0, poll="10s")
    async with worker, client:
        await asyncio.sleep(5)
        before = store.claims
        await asyncio.sleep(200)
        assert store.claims - before == 20
        await asyncio.sleep(3)  # between two of its looks
        run = await client.enqueue("work")
        done = await client.wait(run.id, timeout=LONG)
        assert done.result == "done"
        assert done.started_at is not None
        assert timedelta() < done.started_at - run.run_at <= timedelta(seconds=10)


async def test_waiting_for_a_run_outlasts_an_outage(make: Make, place: str | Store) -> None:
    faults = SwitchableFaults()
    scheduler = make(FaultyStore(opened(place), faults), poll="20ms")
    begun, gate = asyncio.Event(), asyncio.Event()

    @scheduler.job(id="work")
    async def work() -> str:
        begun.set()
        await gate.wait()
        return "done"

    async with scheduler:
        run = await scheduler.enqueue("work")
        waiting = asyncio.create_task(scheduler.wait(run.id))
        await begun.wait()
        faults.failing = {"find"}
        await until(lambda: faults.met.get("find", 0) >= 1, "a failing find")
        faults.failing = set()
        gate.set()
        async with asyncio.timeout(LONG):
            assert (await waiting).result == "done"
