"""Circuit breakers: open after failures in a row over all nodes, try one run, close."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mainspring import Breaker, RunContext, Scheduler, State
from mainspring.core import note_kinds
from mainspring.core.durations import duration
from mainspring.errors import InvalidState
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock, run_virtual
from tests.support.engine import (
    EventRecorder,
    ended,
    on_virtual_time,
    until,
)
from tests.support.scheduler_fixtures import Make
from tests.support.scheduler_kill import kill


async def test_a_breaker_opens_probes_and_closes(make: Make) -> None:
    scheduler = make(workers=2)
    recorder = EventRecorder(scheduler, "breaker.*")
    tried, may_end = 0, asyncio.Event()

    @scheduler.job(breaker=Breaker(failures=3, reset="300ms"))
    async def call() -> None:
        nonlocal tried
        tried += 1
        number = tried
        if number == 4:  # the first trial lasts until the test has looked, however slow it is
            await may_end.wait()
        assert number > 4

    @scheduler.job()
    async def other() -> int:
        return 1

    async with scheduler:
        for run in await call.enqueue_many([{}] * 3):
            await ended(scheduler, run)
        await recorder.until("breaker.opened")
        assert (await scheduler.job_health("call")).breaker != "closed"
        waiting = await call.enqueue_many([{}] * 4)
        assert (await ended(scheduler, await other.enqueue())).result == 1
        await recorder.until("breaker.half_open")
        await until(lambda: tried == 4)
        stored = [await scheduler.get_run(run.id) for run in waiting]
        assert [run.attempts for run in stored] == [()] * 4
        assert tried == 4  # the trial alone
        may_end.set()
        await recorder.until("breaker.closed")
        done = [await ended(scheduler, run) for run in waiting]
        assert [run.state for run in done].count(State.FAILED) == 1
        assert all(run.attempt == 1 for run in done)
        assert (await scheduler.job_health("call")).breaker == "closed"
    assert recorder.names == [
        "breaker.opened",
        "breaker.half_open",
        "breaker.opened",
        "breaker.half_open",
        "breaker.closed",
    ]


async def test_successes_between_keep_it_closed(make: Make) -> None:
    scheduler = make(workers=1)
    recorder = EventRecorder(scheduler, "breaker.*")

    @scheduler.job(breaker=2)
    async def call(ok: bool) -> None:
        assert ok

    async with scheduler:
        for ok in (False, True, False, True, False):
            await ended(scheduler, await call.enqueue(ok=ok))
    assert recorder.names == []


async def test_a_cancelled_probe_closes_nothing(make: Make) -> None:
    scheduler = make(workers=2)
    recorder = EventRecorder(scheduler)

    @scheduler.job(breaker=Breaker(failures=1, reset="100ms"))
    async def call(wait: bool) -> None:
        if wait:
            await asyncio.sleep(600)
        raise RuntimeError

    async with scheduler:
        await call.enqueue(wait=False)
        await recorder.until("breaker.opened")
        probe = await call.enqueue(wait=True)
        await recorder.until("breaker.half_open")
        await recorder.until("run.started", 2)
        await scheduler.cancel(probe.id)
        assert (await ended(scheduler, probe)).state is State.CANCELLED
        assert "breaker.closed" not in recorder.names
        await ended(scheduler, await call.enqueue(wait=False))
        await recorder.until("breaker.half_open", 2)
        await recorder.until("breaker.opened", 2)


@on_virtual_time()
async def test_failures_are_counted_over_all_nodes_and_all_of_them_stop() -> None:
    store, tried = MemoryStore(VirtualClock()), list[str]()
    nodes = [
        Scheduler(store, clock=VirtualClock(), inline=True, workers=1, queues=[name])
        for name in ("left", "right")
    ]
    recorders = [EventRecorder(node, "breaker.*") for node in nodes]

    async def call(ctx: RunContext) -> None:
        tried.append(ctx.run_id)
        raise RuntimeError

    for node in nodes:
        node.job(breaker=Breaker(failures=4, reset="1h"))(call)
    async with nodes[0], nodes[1]:
        for name in ("left", "right", "left", "right"):
            await ended(nodes[0], await nodes[0].enqueue("call", queue=name))
        await asyncio.sleep(1)
        waiting = [await nodes[0].enqueue("call", queue=name) for name in ("left", "right")]
        await asyncio.sleep(60)
        for node, run in zip(nodes, waiting, strict=True):
            assert (await node.job_health("call")).breaker == "open"
            stored = await node.get_run(run.id)
            assert (stored.state, stored.attempt, stored.run_at) == (State.PENDING, 0, run.run_at)
    assert sorted(recorders[0].names + recorders[1].names) == ["breaker.opened"]
    assert len(tried) == 4


async def test_a_trial_whose_worker_died_is_followed_by_another(make: Make) -> None:
    dying = make(workers=1, lease="1s")
    hangs = True

    async def call(wait: bool) -> None:
        if not wait:
            raise RuntimeError
        if hangs:
            await asyncio.sleep(600)

    dying.job(id="call", breaker=Breaker(failures=1, reset="100ms"))(call)
    recorder = EventRecorder(dying)
    await dying.start()
    await dying.enqueue("call", {"wait": False})
    await recorder.until("breaker.opened")
    run = await dying.enqueue("call", {"wait": True})
    await recorder.until("run.started", 2)
    kill(dying)
    hangs = False
    second = make(workers=1, lease="1s")
    second.job(id="call", breaker=Breaker(failures=1, reset="100ms"))(call)
    async with second:
        assert (await ended(second, run)).state is State.SUCCEEDED
        while (await second.job_health("call")).breaker != "closed":  # counted by the other node
            await asyncio.sleep(0.01)


async def test_reset_by_hand_starts_the_runs_that_were_put_off(make: Make) -> None:
    scheduler = make(workers=1)
    recorder = EventRecorder(scheduler, "breaker.*")
    healthy = False

    @scheduler.job(breaker=Breaker(failures=1, reset="1h"))
    async def call() -> None:
        assert healthy

    @scheduler.job()
    async def other() -> None: ...

    async with scheduler:
        await call.enqueue()
        await recorder.until("breaker.opened")
        waiting = await call.enqueue()
        await ended(scheduler, await other.enqueue())
        healthy = True
        assert await scheduler.reset_breaker("call") is True
        assert (await ended(scheduler, waiting)).state is State.SUCCEEDED
        assert await scheduler.reset_breaker(call) is False
        with pytest.raises(InvalidState, match="has no circuit breaker to reset"):
            await scheduler.reset_breaker("other")
    assert recorder.names == ["breaker.opened", "breaker.closed"]


async def test_a_removed_job_leaves_no_breaker_to_the_next_one_of_its_id(make: Make) -> None:
    scheduler = make(workers=2)
    recorder = EventRecorder(scheduler, "breaker.*")
    go = asyncio.Event()

    @scheduler.job()
    async def call(wait: bool) -> None:
        if wait:
            await go.wait()
        raise RuntimeError

    async with scheduler:
        await scheduler.add_job("api", handler="call", breaker=Breaker(failures=1, reset="1h"))
        late = await scheduler.enqueue("api", {"wait": True})
        while (await scheduler.get_run(late.id)).state is not State.RUNNING:
            await asyncio.sleep(0.01)
        await ended(scheduler, await scheduler.enqueue("api", {"wait": False}))
        await recorder.until("breaker.opened")
        await scheduler.remove_job("api")
        assert (await scheduler.list_notes(note_kinds.BREAKER)).items == []
        await scheduler.add_job("api", handler="call", breaker=Breaker(failures=1, reset="1h"))
        go.set()
        await ended(scheduler, late)  # of the job that was removed
        await recorder.until("breaker.opened", 2)  # the breaker of that job
        assert (await scheduler.job_health("api")).breaker == "closed"


@pytest.mark.parametrize("how", ["update", "replace", "apply"])
def test_a_breaker_that_is_changed_starts_closed(how: str, tmp_path: Path) -> None:
    async def main() -> None:
        scheduler = Scheduler(MemoryStore(VirtualClock()), clock=VirtualClock(), inline=True)
        healthy = False

        @scheduler.job()
        async def call() -> None:
            assert healthy

        async def define(breaker: Breaker | None, retries: int = 0) -> None:
            if how == "update":
                await scheduler.update_job("api", breaker=breaker, retries=retries)
            elif how == "replace":
                await scheduler.add_job(
                    "api", handler="call", breaker=breaker, retries=retries, replace=True
                )
            else:
                reset = (
                    breaker and f'{{ failures = 1, reset = "{duration(breaker.reset).seconds}s" }}'
                )
                file = tmp_path / "jobs.toml"
                file.write_text(
                    f'[jobs.api]\nhandler = "call"\nretries = {retries}\n'
                    f"breaker = {reset or 'false'}\n"
                )
                await scheduler.apply_jobs(file)

        async with scheduler:
            first, second = Breaker(failures=1, reset="1h"), Breaker(failures=1, reset="2h")
            if how == "update":
                await scheduler.add_job("api", handler="call", breaker=first)
            else:
                await define(first)
            await ended(scheduler, await scheduler.enqueue("api"))
            await asyncio.sleep(1)
            waiting = await scheduler.enqueue("api")
            await define(first, retries=1)  # the breaker is the same: it stays open
            await asyncio.sleep(5)
            assert (await scheduler.job_health("api")).breaker == "open"
            assert (await scheduler.get_run(waiting.id)).state is State.PENDING
            healthy = True
            await define(second)
            assert (await scheduler.job_health("api")).breaker == "closed"
            assert (await ended(scheduler, waiting)).state is State.SUCCEEDED
            healthy = False
            await ended(scheduler, await scheduler.enqueue("api"))
            await asyncio.sleep(1)
            assert (await scheduler.job_health("api")).breaker == "open"
            await define(None)
            await define(second)
            assert (await scheduler.job_health("api")).breaker == "closed"

    run_virtual(main)
