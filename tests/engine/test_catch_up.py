"""After an outage schedules catch up while other work goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mainspring import Misfire, RunContext, Scheduler, State, cron, every, rrule
from mainspring.core.model import Job, Run, replace
from mainspring.core.policy import Policy
from mainspring.core.schedules import Schedule
from mainspring.engine import slot_firer
from mainspring.engine.slots import plan
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Fired, Firing, JobQuery
from mainspring.testing import VirtualClock
from mainspring.testing.store_calls import add_jobs
from tests.support.engine import all_runs, on_virtual_time

START = datetime(2030, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


class CountingStore(MemoryStore):
    """Remembers how many runs each call of `fire` was to make."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.chunks: list[int] = []

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        self.chunks.append(sum(len(firing.runs) for firing in firings))
        return await super().fire(firings)


def late_job(
    number: int, schedule: Schedule, outage: timedelta = DAY, handler: str = "tick", **policy: Any
) -> Job:
    """A job whose slots nobody has fired for so long."""
    job_id, began = f"job-{number:04}", START - outage
    bound = schedule.bind(job_id, began)
    return Job(
        id=job_id,
        handler=handler,
        created_at=began,
        updated_at=began,
        schedule=bound,
        policy=Policy.make(**policy),
        next_run_at=bound.next(began),
        version=1,
    )


async def handler_name(scheduler: Scheduler, job_id: str) -> str:
    return (await scheduler.get_job(job_id)).handler


@on_virtual_time(until=600)
async def test_schedules_catch_up_and_leases_are_kept_however_slow_planning_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = 700

    def slow_plan(*given: Any) -> Any:
        loop: Any = asyncio.get_running_loop()
        loop._virtual += 0.02  # the loop stands still meanwhile
        return plan(*given)

    monkeypatch.setattr(slot_firer, "plan", slow_plan)

    store = CountingStore()
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True, lease="1s")
    caught_up = asyncio.Event()
    began = asyncio.Event()

    @scheduler.job()
    async def tick() -> None: ...

    @scheduler.job(priority=9)
    async def long(ctx: RunContext) -> None:
        began.set()
        await caught_up.wait()

    async with scheduler:
        running = await scheduler.enqueue("long")
        await began.wait()
        handler = await handler_name(scheduler, "tick")
        made = [late_job(n, cron("* * * * *"), handler=handler) for n in range(jobs)]
        await add_jobs(store, made)
        while (await store.jobs(JobQuery(due=START, limit=1))).items:
            await asyncio.sleep(0.1)
        assert asyncio.get_running_loop().time() < 60
        caught_up.set()
        ended = await scheduler.wait(running.id, 60)
        assert (ended.state, ended.attempt) == (State.SUCCEEDED, 1)
    gaps = [run for run in (await all_runs(store)).values() if run.reason == "misfire"]
    assert len(gaps) == jobs
    assert {run.result["count"] for run in gaps} <= {24 * 60 - 1, 24 * 60}
    lines = [record.getMessage() for record in caplog.records]
    assert "more jobs have missed slots; catching up" in lines
    assert len(lines) < 20  # one for each of the first jobs, not for all of them


@on_virtual_time(until=600)
async def test_all_missed_slots_run_in_order_and_in_bounded_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("FIRST_CHUNK", "LARGEST_CHUNK"):
        monkeypatch.setattr(slot_firer, name, 20)

    store = CountingStore()
    scheduler = Scheduler(store, clock=VirtualClock(), inline=True)

    @scheduler.job()
    async def tick() -> None: ...

    async with scheduler:
        handler = await handler_name(scheduler, "tick")
        await add_jobs(
            store,
            [
                late_job(
                    n,
                    cron("*/10 * * * *"),
                    timedelta(hours=hours),
                    handler=handler,
                    misfire=Misfire("all", limit=limit),
                )
                for n, (hours, limit) in enumerate([(8, 100), (20, 100), (7, 1000)])
            ],
        )
        while (await store.jobs(JobQuery(due=START, limit=1))).items:
            await asyncio.sleep(0.1)
        while any(not run.finished for run in (await all_runs(store)).values()):
            await asyncio.sleep(0.1)
    assert max(store.chunks) <= 22
    for job_id, missed, count in [
        ("job-0000", 0, 48),
        ("job-0001", 20, 100),
        ("job-0002", 0, 42),
    ]:
        runs = [run for run in (await all_runs(store)).values() if run.job_id == job_id]
        ran = [run for run in runs if run.state is State.SUCCEEDED]
        assert len(ran) == count
        assert sum(run.result["count"] for run in runs if run not in ran) == missed
        starts = sorted(ran, key=lambda run: run.started_at or START)
        assert starts == sorted(ran, key=lambda run: run.scheduled_at)


SCHEDULES = [
    cron("*/7 * * * *"),
    cron("30 2 * * *", "Europe/Berlin"),
    cron("*/20 1-3 * * *", "Europe/Berlin"),
    every("37m"),
    every("11m", start=START - timedelta(days=400)),
    rrule("FREQ=HOURLY;INTERVAL=3"),
    rrule("FREQ=DAILY;BYHOUR=2,14;BYMINUTE=30", tz="America/New_York"),
]


@given(
    schedule=st.sampled_from(SCHEDULES),
    kind=st.sampled_from(["once", "skip", "all"]),
    limit=st.integers(1, 60),
    most=st.integers(1, 30),
    outage=st.timedeltas(timedelta(minutes=1), timedelta(days=3)),
    back=st.integers(0, 300),
)
@settings(max_examples=200, deadline=None)
def test_every_slot_of_an_outage_is_run_or_recorded_once(
    schedule: Schedule, kind: str, limit: int, most: int, outage: timedelta, back: int
) -> None:
    now = START - timedelta(days=back)
    job = late_job(0, schedule, START - now + outage, misfire=Misfire(kind, limit=limit))
    assert job.schedule is not None
    if job.next_run_at is None or job.next_run_at > now:
        return
    due, slot = [], job.next_run_at
    while slot <= now:
        due.append(slot)
        following = job.schedule.next(slot)
        assert following is not None
        slot = following
    ran, recorded = [], 0
    while job.next_run_at is not None and job.next_run_at <= now:
        firings, _ = plan(job, now, most=most)
        assert 0 < sum(len(firing.runs) for firing in firings) <= most + 2
        for firing in firings:
            assert firing.version == job.version
            for run in firing.runs:
                if run.state is State.PENDING:
                    ran.append(run.scheduled_at)
                else:
                    recorded += _recorded(run)
            job = replace(job, version=job.version + 1, next_run_at=firing.next_run_at)
    assert job.next_run_at == slot
    assert len(ran) + recorded == len(due)
    assert ran == due[len(due) - len(ran) :]
    assert len(ran) == min(len(due), limit) if kind == "all" else len(ran) <= 1


def _recorded(run: Run) -> int:
    assert (run.state, run.reason) == (State.SKIPPED, "misfire")
    return int(run.result["count"])


def test_a_clock_that_was_set_back_brings_back_no_slot() -> None:
    job = late_job(0, every("4s"), timedelta(seconds=1))
    assert job.next_run_at is not None
    [firing], _ = plan(job, job.next_run_at - timedelta(seconds=40))
    assert firing.last_run_at == job.next_run_at
    assert firing.next_run_at == job.next_run_at + timedelta(seconds=4)
