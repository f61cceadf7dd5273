"""Starting, stopping, starting again; signals; draining; what a start reports."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Run, RunContext, Scheduler, State, at
from mainspring.core.model import Outcome, Source
from mainspring.errors import InvalidInput, NotStarted
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Added, Claim, Claimed, Store
from mainspring.testing.store_calls import get_runs
from tests.support.engine import LONG, EventRecorder, ended
from tests.support.scheduler_fixtures import Make


async def test_async_handlers_run_on_the_callers_loop(make: Make) -> None:
    scheduler = make()
    loop, thread = asyncio.get_running_loop(), threading.get_ident()
    seen: list[Any] = []

    @scheduler.job()
    async def here() -> None:
        seen.append((asyncio.get_running_loop() is loop, threading.get_ident() == thread))

    @scheduler.job()
    def there() -> None:
        seen.append(threading.get_ident() == thread)

    async with scheduler:
        await ended(scheduler, await here.enqueue())
        await ended(scheduler, await there.enqueue())
    assert seen == [(True, True), False]


async def test_use_before_start_and_after_stop_says_what_to_do(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def work() -> None: ...

    async def refused() -> None:
        with pytest.raises(NotStarted, match=r"async with scheduler:.*blocking\.start.*run\(\)"):
            await work.enqueue()
        for call in (scheduler.stats, scheduler.health, scheduler.list_jobs, scheduler.list_runs):
            with pytest.raises(NotStarted):
                await call()
        assert scheduler.is_leader is False

    await refused()
    await scheduler.stop()
    async with scheduler:
        await scheduler.start()  # harmless
        async with scheduler:
            ...
        await ended(scheduler, await work.enqueue())
    await refused()
    await scheduler.stop()
    async with scheduler:  # and once more
        assert (await ended(scheduler, await work.enqueue())).state is State.SUCCEEDED


async def test_a_handler_may_use_its_scheduler_before_the_start_has_returned() -> None:
    enqueued = threading.Event()

    class SlowStart(MemoryStore):
        async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
            if runs[0].source is Source.START:
                assert await asyncio.to_thread(enqueued.wait, LONG)
            return await super().add(runs)

    scheduler = Scheduler(SlowStart())

    @scheduler.job(run_on_start=True)
    async def last() -> None: ...

    @scheduler.job
    async def first() -> None:
        await last.enqueue()
        enqueued.set()

    async with scheduler.configure(workers=0):
        run = await first.enqueue()
    async with scheduler.configure(workers=2):
        assert (await ended(scheduler, run)).state is State.SUCCEEDED


async def test_a_waiter_is_told_that_the_scheduler_stops(make: Make) -> None:
    scheduler = make()

    @scheduler.job()
    async def work() -> None: ...

    await scheduler.start()
    run = await work.options(delay="1h").enqueue()
    waiting = asyncio.ensure_future(scheduler.wait(run.id))
    blocked = asyncio.ensure_future(asyncio.to_thread(scheduler.blocking.wait, run.id))
    await asyncio.sleep(0.05)
    await scheduler.stop()
    for task in (waiting, blocked):
        with pytest.raises(NotStarted, match="stopped"):
            await task


async def test_a_decorator_after_start(make: Make) -> None:
    scheduler = make()
    recorder = EventRecorder(scheduler, "run.succeeded")
    async with scheduler:

        @scheduler.job(run_on_start=True)
        async def warm_up() -> None: ...

        assert (await recorder.until("run.succeeded")).job_id == "warm_up"

        @scheduler.job()
        async def one() -> int:
            return 1

        @scheduler.job("1h")
        async def two() -> int:
            return 2

        runs = await asyncio.gather(one.enqueue(), two.enqueue(), one.enqueue())
        assert [(await ended(scheduler, run)).result for run in runs] == [1, 2, 1]
        assert (await scheduler.get_job("two")).next_run_at is not None


# Draining


async def test_a_graceful_stop_waits_and_renews_past_the_lease(make: Make) -> None:
    scheduler = make(lease="1s")
    other = make(lease="1s")
    began = asyncio.Event()

    async def slow(ctx: RunContext) -> int:
        began.set()
        await asyncio.sleep(1.5)
        return ctx.attempt

    for node in (scheduler, other):
        node.job()(slow)
    async with scheduler:
        run = await scheduler.enqueue("slow")
        await began.wait()
        await scheduler.stop()
    async with other:
        done = await other.get_run(run.id)
    assert (done.state, done.result, done.lapses) == (State.SUCCEEDED, 1, 0)


@pytest.mark.parametrize("sync", [True, False])
async def test_what_does_not_end_in_time_is_given_back(make: Make, sync: bool) -> None:
    scheduler = make()
    began, go = threading.Event(), threading.Event()

    if sync:

        @scheduler.job(id="slow")
        def slow(ctx: RunContext) -> int:
            began.set()
            if ctx.attempt == 1:
                go.wait(20)
            return ctx.attempt
    else:

        @scheduler.job(id="slow")
        async def slow_async(ctx: RunContext) -> int:
            began.set()
            if ctx.attempt == 1:
                await asyncio.sleep(600)
            return ctx.attempt

    async with scheduler:
        run = await scheduler.enqueue("slow")
        await asyncio.to_thread(began.wait, 10)
        await scheduler.stop(timeout="100ms")
        await scheduler.start()
        done = await ended(scheduler, run)
        go.set()
    assert (done.state, done.result, done.lapses, done.failures) == (State.SUCCEEDED, 2, 0, 0)
    assert [a.outcome for a in done.attempts] == [Outcome.RELEASED, Outcome.SUCCEEDED]


async def test_a_hard_stop_gives_back_at_once(make: Make, second_client: Store) -> None:
    scheduler = make(workers=2)
    began = asyncio.Event()

    @scheduler.job()
    async def slow() -> None:
        began.set()
        await asyncio.sleep(600)

    @scheduler.job(delivery="at_most_once")
    async def once() -> None:
        await asyncio.sleep(600)

    async with scheduler:
        runs = [await slow.enqueue(), await once.enqueue(), await slow.enqueue()]
        await began.wait()
        while (await scheduler.health()).running_here < 2:
            await asyncio.sleep(0.01)
        await scheduler.stop(graceful=False)
    stored = await get_runs(second_client, [run.id for run in runs])
    first, second, third = [stored[run.id] for run in runs]
    assert (first.state, first.lease_until) == (State.PENDING, None)
    assert (second.state, second.reason) == (State.FAILED, "lost")
    assert (third.state, third.attempt, third.attempts) == (State.PENDING, 0, ())


SRC = str(Path(__file__).parents[2] / "src")
SCRIPT = """
import asyncio, sys, time
from mainspring import Scheduler
scheduler = Scheduler(sys.argv[1], lease="2s")
mode = sys.argv[2]

@scheduler.job(run_on_start=True)
async def work():
    print("began", flush=True)
    if mode == "block":
        time.sleep(600)
    await asyncio.sleep(0.5 if mode == "short" else 600)
    print("ended", flush=True)

scheduler.run()
print("stopped", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_drains_on_a_signal(file: str, number: int) -> None:
    child = await _script(file, "short")
    child.send_signal(number)
    out, err = await asyncio.wait_for(child.communicate(), LONG)
    assert (child.returncode, out) == (0, b"ended\nstopped\n")
    start, stop = err.decode().splitlines()
    assert start.startswith("Mainspring runs work from sqlite:")
    assert stop == (
        "stopping: waiting up to 30 seconds for running work; send the signal again to end at once"
    )
    assert (await _only_run(file)).state is State.SUCCEEDED


@pytest.mark.parametrize("mode", ["long", "block"])
async def test_a_second_signal_ends_at_once(file: str, mode: str) -> None:
    child = await _script(file, mode)
    child.send_signal(signal.SIGTERM)
    if mode == "long":
        await _says(child, "stopping: ")
    else:  # nothing tells that a loop which is blocked has got the first
        await asyncio.sleep(0.3)
    assert child.returncode is None
    child.send_signal(signal.SIGTERM)
    end = asyncio.ensure_future(child.wait())
    while not (await asyncio.wait({end}, timeout=1))[0]:  # it took the two for one
        child.send_signal(signal.SIGTERM)
    assert end.result() == 128 + signal.SIGTERM
    assert (await _only_run(file)).state is State.RUNNING  # its lease will lapse


async def _script(file: str, mode: str, script: str = SCRIPT) -> asyncio.subprocess.Process:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, file, mode),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SRC},
    )
    assert child.stdout is not None
    assert await asyncio.wait_for(child.stdout.readline(), LONG) == b"began\n"
    return child


async def _says(child: asyncio.subprocess.Process, words: str) -> None:
    """Read what it tells on stderr until it says these words."""
    assert child.stderr is not None
    async with asyncio.timeout(LONG):
        while not (line := await child.stderr.readline()).startswith(words.encode()):
            assert line, f"it ended without a word of {words!r}"


async def _only_run(file: str) -> Any:
    async with Scheduler(file, workers=0) as scheduler:
        [run] = (await scheduler.list_runs()).items
        return run


BLOCKED = """
import logging, sys, time
from mainspring import Scheduler
logging.basicConfig(level=logging.WARNING, format="%(message)s")
scheduler = Scheduler(sys.argv[1], lease="60s")

@scheduler.job(run_on_start=True)
async def blocking():
    print("began", flush=True)
    time.sleep(600)

@scheduler.job("200ms")
def tick():
    pass

scheduler.run(drain_timeout="1s")
"""


async def test_a_signal_is_heeded_while_a_handler_blocks_the_loop(file: str) -> None:
    """Nothing more is fired, the blocked run is given back, and the process ends soon."""
    child = await _script(file, "", BLOCKED)
    async with Scheduler(file, workers=0) as scheduler:
        async with asyncio.timeout(LONG):
            while not (await scheduler.list_runs(job="tick")).items:
                await asyncio.sleep(0.1)
        child.send_signal(signal.SIGTERM)
        _, err = await asyncio.wait_for(child.communicate(), LONG)
        over = datetime.now(UTC)
        assert child.returncode == 128 + signal.SIGTERM
        ticks = (await scheduler.list_runs(job="tick", limit=1000)).items
        # It waited for a second after it had stopped firing.
        assert max(run.scheduled_at for run in ticks) < over - timedelta(seconds=0.8)
        [run] = (await scheduler.list_runs(job="blocking")).items
        assert (run.state, run.lapses) == (State.PENDING, 0)
    assert "the handler of job blocking does not stop" in err.decode()
    assert "a handler blocks the event loop and does not stop" in err.decode()


# -- defaults, and who hears an event ---------------------------------------------------------


async def test_runs_are_kept_for_30_days_and_leased_for_30_seconds_by_default() -> None:
    leases: set[timedelta] = set()

    class Watched(MemoryStore):
        async def claim(self, claim: Claim) -> Claimed:
            leases.add(claim.lease)
            return await super().claim(claim)

    scheduler = Scheduler(Watched())

    @scheduler.job()
    async def work() -> None: ...

    async with scheduler:
        await ended(scheduler, await work.enqueue())
    assert scheduler.retention == timedelta(days=30)
    assert leases == {timedelta(seconds=30)}


async def test_a_listener_hears_of_what_its_own_process_does_alone(file: str) -> None:
    worker, other = Scheduler(file), Scheduler(file, workers=0)

    @worker.job()
    async def work() -> None: ...

    here, there = EventRecorder(worker, "run.*"), EventRecorder(other, "run.*")
    async with worker, other:
        await ended(other, await other.enqueue("work"))
        await here.until("run.succeeded")
    assert there.names == ["run.enqueued"]
    assert here.names == ["run.started", "run.succeeded"]


# -- what a start reports -------------------------------------------------------------------


@pytest.mark.parametrize("given", ["redis://localhost", 1, "false"])
def test_leader_election_is_true_or_false(given: Any) -> None:
    for make in (Scheduler, Scheduler("memory://").configure):
        with pytest.raises(InvalidInput, match="leader_election is True or False"):
            make(leader_election=given)


async def started_with(store: MemoryStore, when: datetime, **policy: Any) -> Scheduler:
    scheduler = Scheduler(store)
    scheduler.job(at(when), id="once", **policy)(lambda: "ran")
    return scheduler


async def test_a_moment_in_the_past_is_told_and_recorded_as_missed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    when = datetime(2001, 1, 1, tzinfo=UTC)
    scheduler = await started_with(store, when)
    recorder = EventRecorder(scheduler, "schedule.missed")
    with caplog.at_level(logging.WARNING, "mainspring"):
        async with scheduler:
            event = await recorder.until("schedule.missed")
            [run] = (await scheduler.list_runs(job="once")).items
    assert (run.state, run.reason, run.scheduled_at) == (State.SKIPPED, "misfire", when)
    assert event.data == {"first": when, "last": when, "count": 1}
    assert "job once will not run: its schedule was over (2001-01-01" in caplog.text

    caplog.clear()
    async with await started_with(store, when) as scheduler:  # told once, not at every start
        assert len((await scheduler.list_runs(job="once")).items) == 1
    assert "will not run" not in caplog.text

    later = when + timedelta(days=1)  # another moment, over as well
    async with await started_with(store, later) as scheduler:
        runs = (await scheduler.list_runs(job="once")).items
        assert {run.scheduled_at for run in runs} == {when, later}
        assert {run.state for run in runs} == {State.SKIPPED}
    assert "will not run" in caplog.text
