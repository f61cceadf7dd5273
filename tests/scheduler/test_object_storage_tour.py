"""What users of the s3db scheduler plug-in expect, on a store that is only a directory of objects:
the sections of the plug-in's page in their order, a test or more for each. The words are those of
docs/how-to/coming-from/s3db-scheduler.md, which maps every option, method and event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client, Event, GiveUp, RunContext, Scheduler, State, cron
from mainspring.errors import InvalidInput, JobNotFound, JobOwnedByCode
from tests.support.engine import LONG, until

Instance = Callable[..., Scheduler]


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    """Makes schedulers that share one directory: the instances of one application."""

    def make(**options: Any) -> Scheduler:
        return Scheduler(f"file://{tmp_path}/jobs", **options)

    return make


async def finished(scheduler: Scheduler, job: str, payload: Any = None) -> Any:
    """What `runJob` is there: the run, once it has ended."""
    run = await scheduler.trigger(job, payload)
    return await scheduler.wait(run.id, timeout="1m")


async def fail(ctx: RunContext) -> None:
    raise ValueError("out of paper")


def slots(schedule: str, after: datetime, count: int, zone: str = "UTC") -> list[str]:
    found = []
    for _ in range(count):
        after = cron(schedule, zone).next(after)  # type: ignore[assignment]
        found.append(f"{after:%a %d %b %H:%M:%S}")
    return found


# -- Summary


async def test_one_statement_defines_a_daily_job(instance: Instance) -> None:
    async def clean_up(ctx: RunContext) -> str:
        return "clean"

    jobs = {"daily_cleanup": {"schedule": "0 3 * * *", "handler": clean_up}}
    async with instance(jobs=jobs) as scheduler:
        job = await scheduler.get_job("daily_cleanup")
        assert job.next_run_at is not None
        assert (job.next_run_at.hour, job.next_run_at.minute) == (3, 0)
        assert (await finished(scheduler, "daily_cleanup")).result == "clean"


# -- Installation and set-up


async def test_basic_set_up(instance: Instance) -> None:
    database: dict[str, Any] = {"sessions": ["expired", "expired"], "metrics": []}

    async def daily_cleanup(ctx: RunContext) -> dict[str, int]:
        sessions = ctx.resources["database"]["sessions"]
        deleted = len(sessions)
        sessions.clear()
        return {"deleted": deleted}

    async def hourly_metrics(ctx: RunContext) -> None:
        ctx.resources["database"]["metrics"].append(ctx.started_at)

    jobs = {
        "daily_cleanup": {
            "schedule": "0 3 * * *",
            "description": "Delete sessions that have expired",
            "handler": daily_cleanup,
            "enabled": True,
            "retries": 2,
            "timeout": "30s",
        },
        "hourly_metrics": {"schedule": "@hourly", "handler": hourly_metrics},
    }
    async with instance(
        timezone="America/Sao_Paulo", jobs=jobs, resources={"database": database}
    ) as scheduler:
        cleanup, metrics = (await scheduler.list_jobs()).items
        assert cleanup.next_run_at is not None
        assert metrics.next_run_at is not None
        assert cleanup.next_run_at.hour == 6  # three in the morning in São Paulo
        assert metrics.next_run_at.minute == 0
        assert cleanup.description == "Delete sessions that have expired"
        assert (await finished(scheduler, "daily_cleanup")).result == {"deleted": 2}
        await finished(scheduler, "hourly_metrics")
        assert len(database["metrics"]) == 1


async def test_what_the_plug_in_keeps_as_resources_is_on_the_run(instance: Instance) -> None:
    """The lock of a job (its name, since when, which instance) and its history."""
    release = asyncio.Event()

    async def slow(ctx: RunContext) -> str:
        await release.wait()
        return "done"

    async with instance(jobs={"slow": {"handler": slow}}) as scheduler:
        run = await scheduler.trigger("slow")
        while (held := await scheduler.get_run(run.id)).state is not State.RUNNING:
            await asyncio.sleep(0.01)
        assert (held.job_id, bool(held.worker)) == ("slow", True)
        assert held.started_at is not None
        assert held.lease_until is not None
        assert held.lease_until > held.started_at  # a lock that ends if its process dies
        release.set()
        ended = await scheduler.wait(run.id, timeout="1m")
        assert ended.lease_until is None
    async with instance(jobs={"slow": {"handler": slow}}) as again:  # all of it is in the objects
        [kept] = (await again.list_runs(job="slow")).items
        assert (kept.state, kept.result) == (State.SUCCEEDED, "done")


# -- Options of the plug-in


async def test_a_disabled_scheduler_fires_nothing(instance: Instance) -> None:
    fired: list[str] = []

    async def tick(ctx: RunContext) -> None:
        fired.append(ctx.run_id)

    jobs = {"tick": {"schedule": "* * * * * *", "handler": tick}}
    async with instance(enabled=False, jobs=jobs) as scheduler:
        job = await scheduler.get_job("tick")
        assert job.next_run_at is not None
        while await scheduler.now() < job.next_run_at + timedelta(seconds=1):
            await asyncio.sleep(0.1)
        assert (await scheduler.list_runs(job="tick")).items == []
        await finished(scheduler, "tick")  # what is asked for still runs
        assert len(fired) == 1


class Overlap:
    """Counts how many runs of its handler are in progress at once. Each waits for so many."""

    def __init__(self, parties: int) -> None:
        self.most = 0
        self._now = 0
        self._together = asyncio.Barrier(parties)

    async def handler(self, ctx: RunContext) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await self._together.wait()
        await asyncio.sleep(0.01)
        self._now -= 1


async def test_max_concurrent_jobs_is_workers(instance: Instance) -> None:
    overlap = Overlap(3)
    async with instance(workers=3, jobs={"count": {"handler": overlap.handler}}) as scheduler:
        runs = await scheduler.enqueue_many("count", [None] * 21)
        for run in runs:
            await scheduler.wait(run.id, timeout="1m")
    assert overlap.most == 3


async def test_history_is_cleaned_up_on_its_interval(instance: Instance) -> None:
    async def clean(ctx: RunContext) -> None: ...

    scheduler = instance(retention="1s", prune_every="1s", jobs={"clean": {"handler": clean}})
    async with scheduler:
        run = await scheduler.trigger("clean")
        assert (await scheduler.wait(run.id, timeout="1m")).state is State.SUCCEEDED
        async with asyncio.timeout(LONG):
            while (await scheduler.list_runs(job="clean")).items:
                await asyncio.sleep(0.05)
        metrics = await scheduler.job_metrics("clean")
        assert metrics.succeeded == 1  # statistics outlive the runs


# -- Options of a job


async def test_a_disabled_job_has_no_next_run_and_can_be_enabled(instance: Instance) -> None:
    async def off(ctx: RunContext) -> None: ...

    jobs = {"off": {"schedule": "@hourly", "handler": off, "enabled": False}}
    async with instance(jobs=jobs) as scheduler:
        assert (await scheduler.get_job("off")).next_run_at is None
        assert (await scheduler.update_job("off", enabled=True)).next_run_at is not None


@pytest.mark.parametrize(("retries", "attempts"), [(0, 1), (3, 4), (5, 6)])
async def test_retries_count_after_the_first_attempt(
    instance: Instance, retries: int, attempts: int
) -> None:
    jobs = {"report": {"handler": fail, "retries": retries, "retry_delay": "0s"}}
    async with instance(jobs=jobs) as scheduler:
        run = await finished(scheduler, "report")
        assert (run.state, run.attempt, len(run.attempts)) == (State.FAILED, attempts, attempts)
        assert "out of paper" in run.error


async def test_a_timeout_ends_the_attempt_and_is_told_apart(instance: Instance) -> None:
    async def hang(ctx: RunContext) -> None:
        await asyncio.Event().wait()

    async with instance(jobs={"hang": {"handler": hang, "timeout": "50ms"}}) as scheduler:
        run = await finished(scheduler, "hang")
        assert (run.state, run.attempts[-1].outcome) == (State.FAILED, "timed_out")


async def test_run_on_start_is_one_run_for_all_instances(instance: Instance) -> None:
    started: list[str] = []

    async def warm_up(ctx: RunContext) -> None:
        started.append(ctx.run_id)

    jobs = {"warm_up": {"schedule": "0 4 1 1 *", "handler": warm_up, "run_on_start": True}}
    async with instance(jobs=jobs) as one, instance(jobs=jobs) as other:
        shared_start, run = (await one.list_runs(job="warm_up")).items
        assert (shared_start.state, shared_start.reason) == ("skipped", "another node started too")
        assert (await other.wait(run.id, timeout="1m")).state is State.SUCCEEDED
    assert started == [run.id]


async def test_the_context_of_a_job_is_its_payload(instance: Instance) -> None:
    async def report(ctx: RunContext, region: str, days: int = 1) -> str:
        return f"{region} {days}"

    jobs = {"report": {"handler": report, "payload": {"region": "eu"}}}
    async with instance(jobs=jobs) as scheduler:
        assert (await finished(scheduler, "report")).result == "eu 1"
        assert (await finished(scheduler, "report", {"region": "us", "days": 7})).result == "us 7"


def test_a_wrong_option_is_refused_with_the_one_that_was_meant(instance: Instance) -> None:
    async def act(ctx: RunContext) -> None: ...

    with pytest.raises(InvalidInput, match="did you mean 'timeout'"):
        instance(jobs={"daily": {"schedule": "0 3 * * *", "handler": act, "timeuot": "30s"}})


# -- Cron expressions

FROM = datetime(2026, 11, 17, 12, 0, 30, tzinfo=UTC)  # a Tuesday


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("0 0 12 * * *", ["Wed 18 Nov 12:00:00", "Thu 19 Nov 12:00:00"]),
        ("0 30 9 * * 1-5", ["Wed 18 Nov 09:30:00", "Thu 19 Nov 09:30:00", "Fri 20 Nov 09:30:00"]),
        ("0 0 0 1 * *", ["Tue 01 Dec 00:00:00", "Fri 01 Jan 00:00:00"]),
        ("@yearly", ["Fri 01 Jan 00:00:00"]),
        ("@monthly", ["Tue 01 Dec 00:00:00"]),
        ("@weekly", ["Sun 22 Nov 00:00:00"]),
        ("@daily", ["Wed 18 Nov 00:00:00"]),
        ("@hourly", ["Tue 17 Nov 13:00:00"]),
        ("*/15 * * * *", ["Tue 17 Nov 12:15:00", "Tue 17 Nov 12:30:00"]),
        ("0 0 */2 * *", ["Thu 19 Nov 00:00:00", "Sat 21 Nov 00:00:00"]),
        ("0 0 9-17 * * 1-5", ["Tue 17 Nov 13:00:00", "Tue 17 Nov 14:00:00"]),
        ("0 30 3 * * 0", ["Sun 22 Nov 03:30:00"]),
        ("0 9 1 * *", ["Tue 01 Dec 09:00:00"]),
    ],
)
def test_cron_forms_with_and_without_seconds(schedule: str, expected: list[str]) -> None:
    assert slots(schedule, FROM, len(expected)) == expected


# -- Examples of use


async def test_maintenance_jobs_with_a_limit_of_running_jobs(instance: Instance) -> None:
    database = {"sessions": 4, "temporary_files": 2}

    async def clean(ctx: RunContext) -> dict[str, int]:
        cleaned = dict(ctx.resources["database"])
        ctx.log.info("cleaned %s", cleaned)
        ctx.resources["database"].clear()
        return cleaned

    async def optimize(ctx: RunContext) -> dict[str, int]:
        return {"analyzed": len(ctx.resources["database"])}

    jobs = {
        "clean": {"schedule": "0 2 * * *", "handler": clean, "timeout": "5m", "retries": 2},
        "optimize": {"schedule": "0 3 * * 0", "handler": optimize, "timeout": "10m"},
    }
    async with instance(workers=3, jobs=jobs, resources={"database": database}) as scheduler:
        run = await finished(scheduler, "clean")
        assert run.result == {"sessions": 4, "temporary_files": 2}
        assert "cleaned" in run.attempts[-1].log[0]  # what it logs is kept with the attempt
        assert (await finished(scheduler, "optimize")).result == {"analyzed": 0}


async def test_a_billing_run_that_is_tried_again_bills_nobody_twice(instance: Instance) -> None:
    billed: dict[str, int] = {}

    async def bill(ctx: RunContext, month: str = "2026-10") -> dict[str, int]:
        for customer in ("ada", "bob", "cid"):
            if (key := f"{customer} {month}") in billed:
                continue
            billed[key] = ctx.attempt
            if (customer, ctx.attempt) == ("bob", 1):
                raise ConnectionError("the payment service is away")
        return {"billed": len(billed)}

    jobs = {
        "bill": {"schedule": "0 9 1 * *", "handler": bill, "retries": 2, "retry_delay": "0s"},
    }
    async with instance(timezone="America/New_York", jobs=jobs) as scheduler:
        run = await finished(scheduler, "bill", {"month": "2026-11"})
    assert (run.state, run.attempt, run.result) == (State.SUCCEEDED, 2, {"billed": 3})
    assert billed == {"ada 2026-11": 1, "bob 2026-11": 1, "cid 2026-11": 2}


async def test_a_manager_of_jobs_with_statistics_and_health(instance: Instance) -> None:
    async def work(ctx: RunContext, fails: bool = False) -> None:
        if fails:
            raise ValueError("broken")

    async with instance() as scheduler, instance() as other:
        scheduler.add_handler("work", work)
        other.add_handler("work", work)
        for id, failures, runs in (("good", 1, 20), ("fair", 1, 10), ("poor", 3, 10)):
            await scheduler.add_job(id, handler="work", schedule="0 4 * * *")
            payloads = [{"fails": number < failures} for number in range(runs)]
            for run in await scheduler.enqueue_many(id, payloads):
                await scheduler.wait(run.id, timeout="1m")
        await scheduler.add_job("new", handler="work", schedule="0 4 * * *", enabled=False)
        await scheduler.resume_job("new")

        health = {job.id: await other.job_health(job.id) for job in (await other.list_jobs()).items}
        found = {id: (one.status, one.success_rate) for id, one in health.items()}
        assert found == {
            "good": ("healthy", 0.95),
            "fair": ("warning", 0.9),
            "poor": ("unhealthy", 0.7),
            "new": ("unknown", None),
        }
        metrics = await other.job_metrics("poor")
        assert (metrics.total, metrics.succeeded, metrics.failed) == (10, 7, 3)
        assert metrics.duration.average is not None
        assert health["poor"].last_run is not None
        stats = await other.stats()
        assert (stats.jobs, stats.enabled_jobs) == (4, 4)


# -- Methods


async def test_add_update_list_and_remove_a_job_from_any_instance(instance: Instance) -> None:
    async def backup(ctx: RunContext) -> dict[str, bool]:
        return {"completed": True}

    async with instance() as one, instance() as other:
        one.add_handler("backup", backup)
        await one.add_job(
            "custom_backup", handler="backup", schedule="0 4 * * *", description="Nightly copy"
        )
        assert [job.id for job in (await other.list_jobs()).items] == ["custom_backup"]

        changed = await other.update_job("custom_backup", schedule="0 0 */2 * *", enabled=False)
        assert (changed.enabled, changed.next_run_at) == (False, None)
        resumed = await one.resume_job("custom_backup")
        assert resumed.next_run_at is not None
        assert resumed.next_run_at.day % 2 == 1
        assert resumed.description == "Nightly copy"  # what is not named stays

        run = await other.trigger("custom_backup")
        assert (await one.wait(run.id, timeout="1m")).result == {"completed": True}

        await other.remove_job("custom_backup")
        with pytest.raises(JobNotFound):
            await one.get_job("custom_backup")
        assert (await one.list_jobs()).items == []


async def test_a_job_of_the_code_can_be_switched_off_but_is_changed_in_the_code(
    instance: Instance,
) -> None:
    async def nightly(ctx: RunContext) -> None: ...

    jobs = {"nightly": {"schedule": "0 3 * * *", "handler": nightly}}
    async with instance(jobs=jobs) as scheduler:
        assert not (await scheduler.update_job("nightly", enabled=False)).enabled
        with pytest.raises(JobOwnedByCode, match="change it there"):
            await scheduler.update_job("nightly", schedule="0 4 * * *")
    async with instance(jobs=jobs) as again:
        assert not (await again.get_job("nightly")).enabled  # it stays off over a restart


async def test_a_function_is_registered_with_its_job(instance: Instance) -> None:
    async with instance() as scheduler:
        await scheduler.add_job("report", handler=fail)
        assert "report" in scheduler.handlers


async def test_history_by_limit_and_status(instance: Instance) -> None:
    async def work(ctx: RunContext, number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    async def other_work(ctx: RunContext) -> None:
        raise ValueError("not of this job")

    jobs = {"work": {"handler": work}, "other": {"handler": other_work}}
    async with instance(jobs=jobs) as scheduler:
        await finished(scheduler, "other")
        for number in range(6):
            await finished(scheduler, "work", {"number": number})
        newest = (await scheduler.list_runs(job="work", limit=2)).items
        assert [run.payload["number"] for run in newest] == [5, 4]
        failures = (await scheduler.list_runs(job="work", state="failed", limit=10)).items
        assert [run.payload["number"] for run in failures] == [5, 3, 1]
        succeeded = (await scheduler.list_runs(job="work", state="succeeded")).items
        assert [run.result for run in succeeded] == [4, 2, 0]
        assert all(run.started_at and run.duration is not None for run in succeeded)
        page = await scheduler.list_runs(job="work", limit=4)
        rest = await scheduler.list_runs(job="work", limit=4, cursor=page.cursor)
        assert [run.payload["number"] for run in rest.items] == [1, 0]


# -- What a handler is given


async def test_a_handler_gets_its_resources_and_the_facts_of_its_run(instance: Instance) -> None:
    async def facts(ctx: RunContext) -> list[Any]:
        users = len(ctx.resources["database"]["users"])
        assert ctx.started_at is not None
        return [users, ctx.job_id, ctx.run_id, ctx.attempt]

    jobs = {"facts": {"handler": facts}}
    async with instance(jobs=jobs, resources={"database": {"users": ["a", "b"]}}) as scheduler:
        run = await finished(scheduler, "facts")
        assert run.result == [2, "facts", run.id, 1]


# -- Events


async def test_events_of_jobs_and_of_the_scheduler(instance: Instance) -> None:
    seen: list[Event] = []

    async def flaky(ctx: RunContext) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("away")

    jobs = {
        "flaky": {"handler": flaky, "retries": 1, "retry_delay": "0s"},
        "broken": {"handler": fail},
    }
    scheduler = instance(jobs=jobs)
    for name in ("scheduler.started", "scheduler.stopped", "run.started", "run.succeeded"):
        scheduler.on(name, seen.append)
    scheduler.on("run.retrying", seen.append)
    scheduler.on("run.failed", seen.append)
    async with scheduler:
        await finished(scheduler, "flaky")
        await finished(scheduler, "broken")
    await until(lambda: seen and seen[-1].name == "scheduler.stopped")

    assert [(event.name, event.job_id) for event in seen] == [
        ("scheduler.started", None),
        ("run.started", "flaky"),
        ("run.retrying", "flaky"),
        ("run.started", "flaky"),
        ("run.succeeded", "flaky"),
        ("run.started", "broken"),
        ("run.failed", "broken"),
        ("scheduler.stopped", None),
    ]
    _, began, retrying, again, succeeded, _, failed, _ = seen
    assert began.run is not None
    assert began.run.started_at is not None
    assert retrying.run is not None
    assert retrying.run.attempt == 1
    assert again.run is not None
    assert again.run.attempt == 2
    assert succeeded.run is not None
    assert succeeded.run.duration is not None
    assert "out of paper" in str(failed.error)


# -- Advanced patterns


async def test_a_run_that_finds_nothing_to_do_says_so_in_its_result(instance: Instance) -> None:
    changes: list[str] = []

    async def backup(ctx: RunContext) -> dict[str, Any]:
        if not changes:
            return {"skipped": True, "reason": "no changes"}
        saved, changes[:] = len(changes), []
        return {"saved": saved}

    jobs = {"backup": {"schedule": "0 2 * * *", "handler": backup}}
    async with instance(jobs=jobs) as scheduler:
        first = await finished(scheduler, "backup")
        changes.append("one")
        second = await finished(scheduler, "backup")
    assert first.state is State.SUCCEEDED
    assert (first.result, second.result) == (
        {"skipped": True, "reason": "no changes"},
        {"saved": 1},
    )


async def test_a_chain_runs_in_order_and_stops_at_a_failure(instance: Instance) -> None:
    async def extract(ctx: RunContext, broken: bool = False) -> int:
        if broken:
            raise ValueError("the source is away")
        return 1000

    async def transform(ctx: RunContext) -> int:
        return int(ctx.results["extract"]) - 50

    async def load(ctx: RunContext) -> dict[str, int]:
        return {"loaded": ctx.results["transform"]}

    jobs: dict[str, dict[str, Any]] = {
        "extract": {"schedule": "0 1 * * *", "handler": extract},
        "transform": {"schedule": None, "handler": transform, "after": ["extract"]},
        "load": {"schedule": None, "handler": load, "after": ["transform"]},
    }
    async with instance(jobs=jobs) as one, instance(jobs=jobs) as other:
        assert (await one.get_job("load")).next_run_at is None

        async def last_load() -> Any:
            async with asyncio.timeout(LONG):
                while not (found := (await other.list_runs(job="load", limit=1)).items):
                    await asyncio.sleep(0.01)
            return await other.wait(found[0].id, timeout="1m")

        await finished(one, "extract")
        assert (await last_load()).result == {"loaded": 950}

        await finished(one, "extract", {"broken": True})
        skipped = await last_load()
        assert (skipped.state, bool(skipped.reason)) == (State.SKIPPED, True)

        alone = await finished(one, "load", None)  # `runJob` of a later link runs it alone
        assert alone.state is State.FAILED
        assert "transform" in alone.error


async def test_a_job_decides_by_what_its_process_uses(instance: Instance) -> None:
    used = 0.9

    async def adaptive(ctx: RunContext) -> dict[str, Any]:
        level = "aggressive" if ctx.resources["used"]() > 0.8 else "light"
        return {"level": level}

    jobs = {"adaptive": {"schedule": "@hourly", "handler": adaptive}}
    async with instance(jobs=jobs, resources={"used": lambda: used}) as scheduler:
        assert (await finished(scheduler, "adaptive")).result == {"level": "aggressive"}
        used = 0.1
        assert (await finished(scheduler, "adaptive")).result == {"level": "light"}
        health = await scheduler.health()  # what the process uses, measured
        assert health.memory is None or health.memory > 0


# -- Advice


async def test_some_errors_are_tried_again_and_others_are_final(instance: Instance) -> None:
    async def act(ctx: RunContext, temporary: bool) -> str:
        if ctx.attempt > 1:
            return "done"
        if temporary:
            raise ConnectionError("away")
        raise GiveUp("the account is closed")

    jobs = {"act": {"handler": act, "retries": 3, "retry_delay": "0s"}}
    async with instance(jobs=jobs) as scheduler:
        again = await finished(scheduler, "act", {"temporary": True})
        final = await finished(scheduler, "act", {"temporary": False})
    assert (again.state, again.attempt) == (State.SUCCEEDED, 2)
    assert (final.state, final.attempt) == (State.FAILED, 1)
    assert "the account is closed" in f"{final.error} {final.reason}"


async def test_durations_and_failures_are_measured_without_code(instance: Instance) -> None:
    async def work(ctx: RunContext, fails: bool) -> None:
        await asyncio.sleep(0.01)
        if fails:
            raise ValueError("broken")

    async with instance(jobs={"work": {"handler": work}}) as scheduler:
        for fails in (False, True):
            await finished(scheduler, "work", {"fails": fails})
        metrics = await scheduler.job_metrics("work")
    assert metrics.duration.max is not None
    assert metrics.duration.max >= 0.01
    [failure] = metrics.recent_failures
    assert "broken" in str(failure.error)


async def test_the_zone_of_a_job_overrides_that_of_the_scheduler(instance: Instance) -> None:
    async def report(ctx: RunContext) -> None: ...

    jobs = {
        "new_york": {
            "schedule": "0 17 * * *",
            "handler": report,
            "timezone": "America/New_York",
        },
        "kolkata": {"schedule": "0 17 * * *", "handler": report},
    }
    async with instance(timezone="Asia/Kolkata", jobs=jobs) as scheduler:
        listed = {job.id: job.next_run_at for job in (await scheduler.list_jobs()).items}
    assert listed["kolkata"] is not None
    assert listed["new_york"] is not None
    assert (listed["kolkata"].hour, listed["kolkata"].minute) == (11, 30)
    assert listed["new_york"].hour in (21, 22)  # by summer and winter time
    assert slots("0 17 * * 1-5", FROM, 1, "America/New_York") == ["Tue 17 Nov 22:00:00"]


async def test_one_of_several_instances_runs_each_slot(instance: Instance) -> None:
    started: list[str] = []

    async def tick(ctx: RunContext) -> None:
        started.append(ctx.run_id)

    jobs = {"tick": {"schedule": "* * * * * *", "handler": tick}}
    async with instance(jobs=jobs) as one, instance(jobs=jobs), instance(jobs=jobs):
        await until(lambda: len(started) >= 3)
        stored = {run.id for run in (await one.list_runs(job="tick")).items}
    assert len(set(started)) == len(started)
    assert set(started[:3]) <= stored


async def test_a_slot_that_falls_into_a_run_is_skipped_with_its_reason(instance: Instance) -> None:
    release = asyncio.Event()
    started: list[str] = []

    async def slow(ctx: RunContext) -> None:
        started.append(ctx.run_id)
        await release.wait()

    jobs = {"slow": {"schedule": "* * * * * *", "handler": slow}}
    async with instance(jobs=jobs) as one, instance(jobs=jobs):
        async with asyncio.timeout(LONG):
            while not (skipped := (await one.list_runs(job="slow", state="skipped")).items):
                await asyncio.sleep(0.05)
        assert len(started) == 1
        assert skipped[-1].reason is not None
        assert "overlap" in skipped[-1].reason
        release.set()


async def test_stop_waits_for_running_jobs(instance: Instance, tmp_path: Path) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def slow(ctx: RunContext) -> str:
        begun.set()
        await release.wait()
        return "complete"

    scheduler = instance(jobs={"slow": {"handler": slow}})
    await scheduler.start()
    run = await scheduler.trigger("slow")
    await begun.wait()
    stopping = asyncio.create_task(scheduler.stop(graceful=True, timeout="1m"))
    done, _ = await asyncio.wait({stopping}, timeout=0.3)
    assert not done
    release.set()
    await stopping
    async with Client(f"file://{tmp_path}/jobs") as client:
        ended = await client.get_run(run.id)
        assert (ended.state, ended.result) == (State.SUCCEEDED, "complete")


# -- Troubleshooting


async def test_why_a_job_did_not_run_has_an_answer(instance: Instance) -> None:
    async def nightly(ctx: RunContext) -> None: ...

    jobs = {"nightly": {"schedule": "0 3 * * *", "handler": nightly}}
    async with instance(timezone="America/Sao_Paulo", jobs=jobs) as scheduler:
        assert "next" in (await scheduler.explain("nightly")).sentence
        await scheduler.pause_job("nightly")
        assert "paused" in (await scheduler.explain("nightly")).sentence


async def test_a_failure_is_never_silent(
    instance: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    async with instance(jobs={"broken": {"handler": fail}}) as scheduler:
        with caplog.at_level(logging.WARNING, logger="mainspring.run"):
            run = await finished(scheduler, "broken")
    assert "out of paper" in caplog.text
    assert run.id in caplog.text
    assert "out of paper" in run.attempts[-1].traceback


async def test_runs_that_must_not_meet_have_a_limit(instance: Instance) -> None:
    overlap = Overlap(1)
    jobs = {"alone": {"handler": overlap.handler, "concurrency": 1}}
    async with instance(jobs=jobs) as one, instance(jobs=jobs):
        for run in await one.enqueue_many("alone", [None] * 10):
            await one.wait(run.id, timeout="1m")
    assert overlap.most == 1
