"""`explain`: why a run did not run yet, and when a job ran last."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from mainspring import Breaker, RunContext, Scheduler, State
from mainspring.scheduler.statistics import RECENT
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, RunQuery
from mainspring.testing import VirtualClock, run_virtual
from mainspring.testing.store_calls import claim_runs
from tests.support.engine import EventRecorder, ended
from tests.support.scheduler_fixtures import Make


async def test_a_run_held_by_a_limit_says_so(make: Make) -> None:
    scheduler = make()
    release = asyncio.Event()

    @scheduler.job(concurrency=1)
    async def one_at_a_time() -> None:
        await release.wait()

    async with scheduler:
        recorder = EventRecorder(scheduler, "run.started")
        first = await one_at_a_time.enqueue()
        await recorder.until("run.started")
        second = await one_at_a_time.enqueue()
        why = await scheduler.explain_run(second.id)
        assert why == "its concurrency limit is reached: 1 run is running, 1 may"
        assert await scheduler.explain_run(first.id) is None
        release.set()
        await ended(scheduler, second)
        assert await scheduler.explain_run(second.id) is None


def test_a_run_whose_lease_has_lapsed_takes_no_place_under_a_limit() -> None:
    """Its worker died. The run that waits could start, if the only worker were not busy."""

    async def main() -> None:
        store = MemoryStore(VirtualClock())
        scheduler = Scheduler(
            store, clock=VirtualClock(), inline=True, workers=1, leader_election=False
        )

        @scheduler.job
        async def busy() -> None:
            await asyncio.sleep(3600)

        @scheduler.job(concurrency=1)
        async def limited() -> None: ...

        async with scheduler:
            recorder = EventRecorder(scheduler, "run.started")
            await busy.enqueue()
            await recorder.until("run.started")
            await limited.enqueue()
            lease = timedelta(milliseconds=1)
            claim = Claim(worker="dead", handlers=frozenset({"limited"}), limit=1, lease=lease)
            assert len(await claim_runs(store, claim)) == 1
            waits = await limited.enqueue()
            why = await scheduler.explain_run(waits.id)
            assert why == "its concurrency limit is reached: 1 run is running, 1 may"
            await asyncio.sleep(0.002)
            why = await scheduler.explain_run(waits.id)
            assert why is not None
            assert "no worker that can run it was free yet" in why

    run_virtual(main)


async def test_a_limit_over_several_jobs_names_its_key(make: Make) -> None:
    scheduler = make()
    release = asyncio.Event()

    async def work() -> None:
        await release.wait()

    for name in ("a", "b"):
        scheduler.job(id=name, concurrency=1, concurrency_key="printer")(work)
    async with scheduler:
        recorder = EventRecorder(scheduler, "run.started")
        await scheduler.enqueue("a")
        await recorder.until("run.started")
        why = await scheduler.explain_run((await scheduler.enqueue("b")).id)
        assert why is not None
        assert "with the key 'printer'" in why
        release.set()


async def test_a_run_held_by_a_breaker_says_so_until_it_succeeds(make: Make) -> None:
    scheduler = make()
    healthy = False

    @scheduler.job(breaker=Breaker(failures=1, reset="300ms"))
    async def call() -> None:
        assert healthy

    async with scheduler:
        await ended(scheduler, await call.enqueue())
        run = await call.enqueue()

        async def held() -> str:
            return await scheduler.explain_run(run.id) or ""

        async with asyncio.timeout(5):
            while not (await held()).startswith("its circuit breaker is open: it is due in"):
                await asyncio.sleep(0.01)
        healthy = True
        done = await ended(scheduler, run)
    assert (done.state, done.reason) == (State.SUCCEEDED, None)


async def test_without_a_worker_for_it_a_run_says_what_is_missing(make: Make, file: str) -> None:
    producer = make(file, workers=0)

    @producer.job(queue="mail")
    async def send() -> None: ...

    async with producer:
        run = await send.enqueue()
        later = await send.options(delay="1h").enqueue()
        assert await producer.explain_run(run.id) == "no worker is running"
        why = await producer.explain_run(later.id)
        assert why is not None
        assert why.startswith("its time has not come: it is due in ")
        async with make(file):
            await _told(producer, run.id, "no running worker has its handler 'send'")
        other = make(file, queues=["default"])
        other.job(id="send", queue="mail")(send)
        async with other:
            await _told(producer, run.id, "takes the queue 'mail'")


async def _told(scheduler: Scheduler, run_id: str, words: str) -> None:
    async with asyncio.timeout(5):
        while words not in (await scheduler.explain_run(run_id) or ""):
            await asyncio.sleep(0.01)


async def test_a_retry_that_is_to_come_and_a_follower_say_what_they_wait_for(make: Make) -> None:
    scheduler = make()

    @scheduler.job(retries=1, retry_delay="1h")
    async def shaky() -> None:
        raise ValueError("no network")

    async with scheduler:
        recorder = EventRecorder(scheduler, "run.retrying")
        run = await shaky.enqueue()
        await recorder.until("run.retrying")
        follower = await shaky.options(after=[run.id]).enqueue()
        why = await scheduler.explain_run(run.id)
        assert why is not None
        assert why.startswith("its last attempt failed (ValueError: no network): it is due in ")
        assert await scheduler.explain_run(follower.id) == f"it waits for the end of {run.id}"
        await scheduler.cancel(run.id, reason="not today")
        assert await scheduler.explain_run(run.id) == "not today"


@pytest.mark.parametrize("how", ["trigger", "enqueue"])
async def test_the_last_run_of_a_job_may_be_a_triggered_or_enqueued_one(
    make: Make, how: str
) -> None:
    scheduler = make()

    @scheduler.job("1h")
    async def report(ctx: RunContext) -> None: ...

    async with scheduler:
        assert (await scheduler.get_job("report")).last_run_at is None
        done = await ended(scheduler, await getattr(scheduler, how)("report"))
        await scheduler.enqueue("report", delay="1h")  # not a run yet
        assert (await scheduler.get_job("report")).last_run_at == done.started_at
        [listed] = (await scheduler.list_jobs()).items
        assert listed.last_run_at == done.started_at
        assert (await scheduler.job_health("report")).last_run_at == done.started_at


async def test_a_last_run_that_was_pruned_is_still_known_by_its_slot(make: Make) -> None:
    scheduler = make(retention="1ms")
    ran = asyncio.Event()

    @scheduler.job("100ms")
    async def tick() -> None:
        ran.set()

    async with scheduler:
        await ran.wait()
        await scheduler.pause_job("tick")
        query = RunQuery(job="tick", states=frozenset({State.PENDING, State.RUNNING}))
        while (await scheduler.store.find(query)).items:
            await asyncio.sleep(0.01)
        await scheduler.store.maintain(await scheduler.now() + timedelta(days=1), 1000)
        assert (await scheduler.get_job("tick")).last_run_at is not None


async def test_metrics_count_all_runs_that_are_kept(make: Make) -> None:
    scheduler = make(workers=50)

    @scheduler.job()
    async def work() -> None: ...

    async with scheduler:
        runs = await work.enqueue_many([{}] * (RECENT + 50))
        await ended(scheduler, runs[-1])
        async with asyncio.timeout(20):
            while (await scheduler.job_metrics("work")).total < RECENT + 50:
                await asyncio.sleep(0.01)
        metrics = await scheduler.job_metrics("work")
    assert (metrics.succeeded, metrics.failed, metrics.success_rate) == (RECENT + 50, 0, 1.0)


async def test_every_process_sees_the_breaker_open(make: Make, file: str) -> None:
    worker, looking = make(file), make(file, workers=0)
    for scheduler in (worker, looking):

        @scheduler.job(id="call", breaker=Breaker(failures=1, reset="1h"))
        async def call() -> None:
            raise ValueError

        @scheduler.job(id="plain")
        async def plain() -> None: ...

    recorder = EventRecorder(worker, "breaker.opened")
    async with worker, looking:
        await worker.enqueue("call")
        await recorder.until("breaker.opened")
        assert (await worker.job_health("call")).breaker == "open"
        assert (await looking.job_health("call")).breaker == "open"
        assert (await looking.job_health("call")).breaker_until is not None
        assert (await looking.job_health("plain")).breaker == "none"
