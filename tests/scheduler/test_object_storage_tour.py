"""What users of the s3db scheduler plug-in expect, on a store that is only a directory of objects:
what several instances share, and the plug-in's own examples. Its options, methods and events are
mapped in docs/how-to/coming-from/s3db-scheduler.md, and are tested where each of them is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client, Event, RunContext, Scheduler, State
from mainspring.errors import JobNotFound
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


# -- Examples of use


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
