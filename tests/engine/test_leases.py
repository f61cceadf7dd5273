"""Leases: renewed while a handler runs, rescued after its worker dies, and fenced."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core import transitions
from mainspring.core.model import Outcome
from mainspring.core.policy import Delivery, Isolation
from mainspring.core.transitions import Change
from mainspring.engine import rescuer
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Held, Renewed, Store
from mainspring.testing import FaultyStore, Injection, VirtualClock
from mainspring.testing.store_calls import get_runs
from tests.support.engine import (
    LONG,
    EventRecorder,
    SwitchableFaults,
    ended,
    on_virtual_time,
    opened,
    run_once,
    steal,
)
from tests.support.scheduler_fixtures import Make


@pytest.fixture(autouse=True)
def _frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker looks for lapsed leases every few seconds. Nothing here is about how often."""
    monkeypatch.setattr(rescuer, "LEADER_SWEEP", 0.2)
    monkeypatch.setattr(rescuer, "NON_LEADER_SWEEP", 0.3)


async def test_a_handler_that_blocks_its_loop_keeps_its_lease(make: Make) -> None:
    scheduler = make(lease="1s")
    ran = []

    @scheduler.job()
    async def rude() -> None:
        ran.append(1)
        time.sleep(2.5)  # noqa: ASYNC251 - that is what it is about

    recorder = EventRecorder(scheduler)
    async with scheduler:
        run = await rude.enqueue()
        done = await ended(scheduler, run)
    assert (done.state, done.attempt, done.lapses, ran) == (State.SUCCEEDED, 1, 0, [1])
    assert "run.rescued" not in recorder.names


async def test_a_run_whose_worker_died_is_rescued(make: Make, second_client: Store) -> None:
    """With retries=0 too, under a concurrency limit too: a lapse is no failure, and the dead
    worker's place does not fill the limit for ever."""
    producer = make(workers=0)
    producer.job(concurrency=1)(_answer)
    async with producer:
        run = await producer.enqueue("_answer")
        [stolen] = await steal(second_client, "_answer")
        assert stolen.id == run.id
    worker = make(lease="1s")
    worker.job(concurrency=1)(_answer)
    recorder = EventRecorder(worker)
    async with worker:
        done = await ended(worker, run)
        event = await recorder.until("run.rescued")
    assert event.run is not None
    assert event.run.state is State.PENDING
    assert (done.state, done.result, done.attempt, done.failures, done.lapses) == (
        State.SUCCEEDED,
        42,
        2,
        0,
        1,
    )
    assert [a.outcome for a in done.attempts] == [Outcome.LOST, Outcome.SUCCEEDED]
    assert done.attempts[0].worker == "dead"


async def _answer() -> int:
    return 42


async def test_at_most_once_is_lost_not_repeated(make: Make, second_client: Store) -> None:
    worker = make(queues=["elsewhere"])
    worker.job(delivery="at_most_once")(_answer)
    async with worker:
        run = await worker.enqueue("_answer")
        [stolen] = await steal(second_client, "_answer")
        assert await second_client.commit([transitions.began(stolen)]) == [True]
        done = await ended(worker, run)
    assert (done.state, done.reason, done.attempt) == (State.FAILED, "lost", 1)


async def test_the_begin_of_an_at_most_once_run_is_on_record_before_its_handler_begins(
    make: Make, second_client: Store
) -> None:
    scheduler = make()

    async def record(ctx: RunContext) -> bool | None:
        [run] = (await get_runs(second_client, [ctx.run_id])).values()
        return run.began

    jobs = [
        scheduler.job(id=delivery, delivery=delivery)(record)
        for delivery in (Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE)
    ]
    async with scheduler:
        once, plain = [await ended(scheduler, await job.enqueue()) for job in jobs]
    assert (once.result, plain.result) == (True, False)


async def test_a_cancel_that_comes_before_the_begin_is_recorded_ends_the_run_unbegun(
    make: Make, place: str | Store
) -> None:
    """The cancel reaches the store between the claim and the record of the begin."""
    store = opened(place)
    started: list[str] = []

    class CancelsFirst(FaultyStore):
        async def commit(self, changes: Sequence[Change]) -> list[bool]:
            for change in changes:
                if change.set == {"began": True}:
                    [run] = (await get_runs(store, [change.id])).values()
                    await store.commit([transitions.request_cancel(run, "asked")])
            return await store.commit(changes)

    async def once(ctx: RunContext) -> None:
        started.append(ctx.run_id)

    done = await run_once(
        make(CancelsFirst(store, SwitchableFaults())), once, delivery="at_most_once"
    )
    assert (done.state, done.reason, started) == (State.CANCELLED, "asked", [])


async def test_a_cancelled_run_whose_worker_died_stays_cancelled(
    make: Make, second_client: Store
) -> None:
    worker = make(queues=["elsewhere"])
    worker.job()(_answer)
    async with worker:
        run = await worker.enqueue("_answer")
        await steal(second_client, "_answer", lease=0.3)
        assert await worker.cancel(run.id, reason="enough")
        done = await ended(worker, run)
    assert (done.state, done.reason) == (State.CANCELLED, "enough")


async def test_a_worker_that_lost_its_lease_stops_and_overwrites_nothing(
    make: Make, place: str | Store
) -> None:
    """The store is away for longer than the lease: the handler is stopped before it lapses,
    another worker takes the run, and the first one's outcome is dropped."""
    faults = SwitchableFaults()
    scheduler = make(FaultyStore(opened(place), faults), lease="1s")
    recorder = EventRecorder(scheduler)
    began, stopped = asyncio.Event(), asyncio.Event()

    @scheduler.job()
    async def work(ctx: RunContext) -> int:
        if ctx.attempt == 1:
            began.set()
            try:
                await asyncio.sleep(600)
            finally:
                stopped.set()
        return ctx.attempt

    async with scheduler:
        run = await work.enqueue()
        await began.wait()
        faults.failing = {"renew"}
        event = await recorder.until("ownership.lost")
        assert event.run is not None
        assert event.run.id == run.id
        await asyncio.wait_for(stopped.wait(), 10)
        faults.failing = set()
        done = await ended(scheduler, run)
    assert (done.state, done.result, done.attempt, done.lapses) == (State.SUCCEEDED, 2, 2, 1)
    assert [a.outcome for a in done.attempts] == [Outcome.LOST, Outcome.SUCCEEDED]


async def test_an_outcome_that_comes_too_late_is_dropped(make: Make, place: str | Store) -> None:
    """A sync handler can't be stopped; by the time it ends, the run is another's."""
    faults = SwitchableFaults()
    slow = make(FaultyStore(opened(place), faults), lease="1s", workers=2)
    recorder = EventRecorder(slow)
    go = threading.Event()

    @slow.job()
    def work(ctx: RunContext) -> str:
        if ctx.attempt == 1:
            go.wait(LONG)
            return "stale"
        return "fresh"

    both_slots = threading.Barrier(2)

    @slow.job()
    def meet() -> None:
        both_slots.wait(LONG)

    async with slow:
        run = await work.enqueue()
        await recorder.until("run.started")
        faults.failing = {"renew"}
        await recorder.until("ownership.lost")
        faults.failing = set()
        done = await ended(slow, run)
        go.set()
        for one in await meet.enqueue_many([{}] * 2):  # then the slot of the first attempt is free
            assert (await ended(slow, one)).state is State.SUCCEEDED
        assert await slow.get_run(run.id) == done
    assert (done.state, done.result) == (State.SUCCEEDED, "fresh")
    assert [one.run.id for one in recorder.of("run.succeeded") if one.run].count(run.id) == 1


@on_virtual_time()
async def test_a_lease_is_renewed_when_it_is_no_longer_young() -> None:
    """What ends soon is written once less; what goes on is renewed at a sixth of its lease."""

    class Watched(MemoryStore):
        def __init__(self, clock: VirtualClock) -> None:
            super().__init__(clock)
            self.renewed: list[tuple[float, set[str]]] = []

        async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
            now = asyncio.get_running_loop().time()
            self.renewed.append((now, {one.id for one in held}))
            return await super().renew(held, lease)

    clock = VirtualClock()
    store = Watched(clock)
    scheduler = Scheduler(store, inline=True, clock=clock, lease="30s")

    @scheduler.job()
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with scheduler:
        long = await work.enqueue(seconds=60)
        started = asyncio.get_running_loop().time()
        for _ in range(30):
            await work.enqueue(seconds=1.9)
            await asyncio.sleep(1)
        await scheduler.wait(long.id, 100)
    assert {run_id for _, ids in store.renewed for run_id in ids} == {long.id}
    times = [started, *(now for now, _ in store.renewed)]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) >= 9
    assert all(3 <= gap <= 5.6 for gap in gaps)


@on_virtual_time()
async def test_a_lease_of_thirty_seconds_outlives_a_failover_of_nineteen() -> None:
    """Calls hang for their five seconds and fail; the first behind the outage must come in time."""

    class Failover:
        def inject(self, method: str) -> Injection:
            away = 5.1 < asyncio.get_running_loop().time() < 24.1
            return Injection("outage", delay=5) if away else Injection()

    clock = VirtualClock()
    store = FaultyStore(MemoryStore(clock), Failover())
    scheduler = Scheduler(store, inline=True, clock=clock)

    @scheduler.job()
    async def long() -> None:
        await asyncio.sleep(60)

    async with scheduler:
        run = await long.enqueue()
        await asyncio.sleep(30)  # virtual; `wait` would hear of the outage
        done = await scheduler.wait(run.id, 100)
    assert (done.state, done.attempt) == (State.SUCCEEDED, 1)
    assert store.injected["renew", "outage"] > 1


@on_virtual_time()
async def test_a_renewal_that_the_store_cannot_take_does_not_cost_others_their_leases() -> None:
    """One run's progress is refused, another run is refused altogether."""

    class Picky(MemoryStore):
        async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
            for one in held:
                if self._runs[one.id].payload == {"kind": "refused"}:
                    raise ValueError("a document too large")
                if one.progress is not None and one.progress.message == "bad":
                    raise ValueError("a progress too large")
            return await super().renew(held, lease)

    scheduler = Scheduler(Picky(VirtualClock()), inline=True, clock=VirtualClock(), lease="6s")
    recorder = EventRecorder(scheduler)

    @scheduler.job()
    async def work(ctx: RunContext, kind: str) -> int:
        if ctx.attempt == 1:
            ctx.progress(1, 2, kind)
            await asyncio.sleep(60)
        return ctx.attempt

    async with scheduler:
        kinds = [{"kind": kind} for kind in ("fine", "bad", "refused", "fine")]
        runs = await work.enqueue_many(kinds)
        done = [await scheduler.wait(run.id, 300) for run in runs]
    assert [run.result for run in done] == [1, 1, 2, 1]
    assert [run.progress is None for run in done] == [False, True, True, False]
    assert [event.run and event.run.id for event in recorder.of("ownership.lost")] == [runs[2].id]


@pytest.mark.parametrize("isolation", [Isolation.AUTO, Isolation.PROCESS])
async def test_of_a_huge_progress_message_the_beginning_is_kept(
    file: str, isolation: Isolation
) -> None:
    scheduler = Scheduler(file)
    job = scheduler.job(isolation=isolation)(_talk_much)
    async with scheduler:
        done = await ended(scheduler, await job.enqueue())
    assert done.state is State.SUCCEEDED
    assert done.progress is not None
    assert done.progress.message == "x" * 999 + "…"


def _talk_much(ctx: RunContext) -> None:
    ctx.progress(1, 2, "x" * 20_000_000)
