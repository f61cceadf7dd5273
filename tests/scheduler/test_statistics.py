"""Health and metrics of jobs, from the counters of ended runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from mainspring import Misfire, RunContext, Scheduler
from mainspring.core.model import State, replace
from mainspring.errors import InvalidInput, JobNotFound
from mainspring.stores.protocol import JobQuery
from mainspring.testing.store_calls import put_job
from tests.support.engine import ended
from tests.support.scheduler_fixtures import Make


@pytest.fixture
async def scheduler(make: Make) -> AsyncIterator[Scheduler]:
    """Started, with one job."""
    scheduler = make()

    @scheduler.job()
    async def work(ok: bool = True) -> None:
        assert ok, "it was not"

    async with scheduler:
        yield scheduler


async def add_ended(scheduler: Scheduler, job_id: str, states: list[State], **ago: Any) -> None:
    """Store runs that have ended a while ago, in this order."""
    job = await scheduler.get_job(job_id)
    at = await scheduler.now() - timedelta(**ago)
    run = replace(await scheduler.enqueue(job.id, delay="1h"), attempt=1, run_at=at)
    await scheduler.cancel(run.id)
    over = [
        replace(run, id=f"{job_id}-{n}-{ago}", state=state, started_at=at, finished_at=at)
        for n, state in enumerate(states)
    ]
    await scheduler.store.add(over)


GOOD, BAD = State.SUCCEEDED, State.FAILED


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ([], "unknown"),
        ([State.CANCELLED, State.SKIPPED], "unknown"),
        ([GOOD] * 19 + [BAD], "healthy"),
        ([GOOD] * 18 + [BAD] * 2, "warning"),
        ([GOOD] * 4 + [BAD], "warning"),
        ([GOOD] * 3 + [BAD], "unhealthy"),
        ([BAD], "unhealthy"),
    ],
)
async def test_the_success_rate_decides_the_health(
    scheduler: Scheduler, states: list[State], status: str
) -> None:
    await add_ended(scheduler, "work", states)
    assert (await scheduler.job_health("work")).status == status


async def test_the_rate_is_over_24_hours_and_over_all_runs_if_none_ended_in_them(
    scheduler: Scheduler,
) -> None:
    await add_ended(scheduler, "work", [BAD], hours=26)
    old = await scheduler.job_health("work")
    assert (old.status, old.success_rate, old.rated_since) == ("unhealthy", 0.0, None)
    await add_ended(scheduler, "work", [GOOD], hours=1)
    new = await scheduler.job_health("work")
    assert (new.status, new.success_rate) == ("healthy", 1.0)
    assert new.rated_since is not None
    assert new.consecutive_failures == 0


@pytest.mark.parametrize("how", ["trigger", "enqueue"])
async def test_health_tells_how_the_last_run_ended_however_it_was_made(
    make: Make, how: str
) -> None:
    scheduler = make()

    @scheduler.job("1h")
    async def report(ctx: RunContext) -> None:
        raise ValueError("no paper")

    async with scheduler:
        assert (await scheduler.job_health("report")).last_run is None
        assert (await scheduler.get_job("report")).last_run_at is None
        run = await ended(scheduler, await getattr(scheduler, how)("report"))
        await scheduler.enqueue("report", delay="1h")  # not a run yet
        health = await scheduler.job_health("report")
        [listed] = (await scheduler.list_jobs()).items
        assert (await scheduler.get_job("report")).last_run_at == listed.last_run_at
    assert listed.last_run_at == run.started_at
    last = health.last_run
    assert last is not None
    assert (last.id, last.state, last.source, last.error) == (
        run.id,
        State.FAILED,
        how,
        "ValueError: no paper",
    )
    assert (last.started_at, last.finished_at) == (run.started_at, run.finished_at)
    assert health.last_run_at == run.started_at
    assert health.next_run_at is not None
    assert health.consecutive_failures == 1


async def test_a_job_is_overdue_when_nobody_fired_its_slot(make: Make, file: str) -> None:
    looking, worker = make(file, workers=0), make(file)

    @worker.job("1h", id="late", misfire=Misfire("once", grace="5m"))
    async def late() -> None: ...

    async with worker, looking:
        await worker.pause_job("late")  # nobody fires it, and a worker has its handler
        for minutes, status in ((4, "unknown"), (6, "overdue")):
            [job] = (await looking.store.jobs(JobQuery(ids=frozenset({"late"})))).items
            slot = await looking.now() - timedelta(minutes=minutes)
            worker.store.fire = _never  # type: ignore[method-assign]
            assert await put_job(looking.store, replace(job, enabled=True, next_run_at=slot))
            assert (await looking.job_health("late")).status == status


async def _never(firings: object) -> Any:
    await asyncio.Event().wait()


async def test_a_paused_job_is_paused_whatever_its_runs_did(scheduler: Scheduler) -> None:
    await add_ended(scheduler, "work", [BAD])
    await scheduler.pause_job("work")
    assert (await scheduler.job_health("work")).status == "paused"


async def test_metrics_of_a_window(scheduler: Scheduler) -> None:
    await add_ended(scheduler, "work", [GOOD, BAD, BAD], hours=30)
    for ok in (True, True, True, False):
        await ended(scheduler, await scheduler.enqueue("work", {"ok": ok}))
    day, days = await scheduler.job_metrics("work"), await scheduler.job_metrics("work", "3d")
    now = await scheduler.now()
    assert (day.total, day.succeeded, day.failed) == (4, 3, 1)
    assert (day.success_rate, day.failure_rate) == (0.75, 0.25)
    assert timedelta(hours=24) <= now - day.since <= timedelta(hours=25, minutes=1)
    assert (days.total, days.succeeded, days.failed) == (7, 4, 3)
    assert dict(day.ended) == {"succeeded": 4, "failed": 3, "cancelled": 1, "skipped": 0}
    assert day.consecutive_failures == 1
    assert day.cancelled == 1
    for spread in (day.duration, day.lateness):
        assert spread.average is not None
        assert spread.p50 is not None
        assert spread.p95 is not None
        assert spread.max is not None
        assert 0 <= spread.p50 <= spread.p95 <= spread.max
    newest = day.recent_failures[0]
    assert newest.attempts == 1
    assert newest.error is not None
    assert "it was not" in newest.error
    assert len(day.recent_failures) == 3


async def test_metrics_of_a_job_that_never_ran(scheduler: Scheduler) -> None:
    metrics = await scheduler.job_metrics("work")
    assert (metrics.total, metrics.success_rate, metrics.failure_rate) == (0, None, None)
    assert (metrics.duration.average, metrics.duration.p95, metrics.duration.max) == (None,) * 3
    assert metrics.recent_failures == ()


@pytest.mark.parametrize("window", ["59m", "8d1s", 0, "a day", "-1h"])
async def test_a_window_is_one_hour_to_eight_days(scheduler: Scheduler, window: Any) -> None:
    with pytest.raises(InvalidInput, match="window") as error:
        await scheduler.job_metrics("work", window)
    assert error.value.field == "window"
    with pytest.raises(JobNotFound):
        await scheduler.job_metrics("nothing")


async def test_pruned_runs_still_count(scheduler: Scheduler) -> None:
    run = await ended(scheduler, await scheduler.enqueue("work"))
    await scheduler.store.maintain(await scheduler.now() + timedelta(days=1), 1000)
    assert (await scheduler.list_runs(job="work")).items == []
    assert (await scheduler.job_metrics("work")).succeeded == 1
    assert (await scheduler.get_job("work")).last_run_at == run.started_at


async def test_health_tells_memory_and_cpu_of_the_process(scheduler: Scheduler) -> None:
    health = await scheduler.health()
    assert (health.memory or 0) > 10_000_000 or sys.platform != "linux"
    assert health.cpu_seconds > 0
