"""What users of the s3db scheduler plug-in expect, on a store that is only a directory of objects:
each row of docs/how-to/coming-from/s3db-scheduler.md that reaches the store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mainspring import RunContext, Scheduler
from mainspring.core.model import State

HERE = "tests.scheduler.test_object_storage_tour"


async def clean_up(ctx: RunContext) -> dict[str, int]:
    database = ctx.resources["database"]
    database["cleaned"] = database.get("cleaned", 0) + 1
    return {"deleted": 3}


async def fail(ctx: RunContext) -> None:
    raise ValueError("out of paper")


async def tick(ctx: RunContext) -> None:
    slots: list[str] = ctx.resources["slots"]
    slots.append(ctx.run_id)
    if len(slots) == 3:
        ctx.resources["enough"].set()


JOBS: dict[str, Any] = {
    "daily_cleanup": {"schedule": "0 3 * * *", "handler": f"{HERE}:clean_up", "retries": 2},
    "report": {"handler": f"{HERE}:fail", "retries": 1, "retry_delay": "0s"},
    "at_start": {"schedule": "0 4 1 1 *", "handler": f"{HERE}:clean_up", "run_on_start": True},
}


async def test_the_plug_ins_page_works_on_a_directory_of_objects(tmp_path: Path) -> None:
    database: dict[str, int] = {}

    def instance() -> Scheduler:
        return Scheduler(
            f"file://{tmp_path}/jobs",
            timezone="America/Sao_Paulo",
            workers=5,
            retention="30d",
            prune_every="1m",
            resources={"database": database},
            jobs=JOBS,
        )

    async with instance() as one, instance() as other:
        listed = {job.id for job in (await other.list_jobs()).items}
        assert listed == set(JOBS)

        # runOnStart: once, though two instances start
        [first] = (await one.list_runs(job="at_start")).items
        assert (await one.wait(first.id, timeout="1m")).state is State.SUCCEEDED
        assert database == {"cleaned": 1}

        # runJob, with the result, whichever instance runs it
        run = await one.trigger("daily_cleanup")
        done = await other.wait(run.id, timeout="1m")
        assert (done.state, done.result) == (State.SUCCEEDED, {"deleted": 3})
        assert database == {"cleaned": 2}

        # retries after the first attempt, and history by status
        run = await other.trigger("report")
        failed = await one.wait(run.id, timeout="1m")
        assert (failed.state, failed.attempt) == (State.FAILED, 2)
        found = (await one.list_runs(state="failed")).items
        assert [(entry.id, entry.job_id) for entry in found] == [(run.id, "report")]
        assert (await one.list_runs(job="daily_cleanup", state="failed")).items == []

        # statistics, and health by rate
        good, bad = await one.job_health("daily_cleanup"), await other.job_health("report")
        assert (good.success_rate, bad.success_rate) == (1.0, 0.0)
        assert good.status != bad.status
        metrics = await one.job_metrics("daily_cleanup")
        assert (metrics.total, metrics.succeeded) == (1, 1)

        # updateJob and removeJob reach the other instance
        await one.pause_job("daily_cleanup")
        assert not (await other.get_job("daily_cleanup")).enabled

    async with instance() as again:  # it is all in the objects
        runs = (await again.list_runs(job="report")).items
        assert [entry.state for entry in runs] == [State.FAILED]


async def test_one_of_several_instances_runs_each_slot(tmp_path: Path) -> None:
    slots: list[str] = []
    enough = asyncio.Event()

    def instance() -> Scheduler:
        return Scheduler(
            f"file://{tmp_path}/jobs",
            resources={"slots": slots, "enough": enough},
            jobs={"tick": {"schedule": "* * * * * *", "handler": f"{HERE}:tick"}},
        )

    async with instance() as one, instance(), instance():
        await enough.wait()
        stored = {run.id for run in (await one.list_runs(job="tick")).items}
    assert len(set(slots)) == len(slots)
    assert set(slots[:3]) <= stored


async def test_history_is_cleaned_up_on_its_interval(tmp_path: Path) -> None:
    scheduler = Scheduler(
        f"file://{tmp_path}/jobs",
        retention="1s",
        prune_every="1s",
        resources={"database": {}},
        jobs={"clean": {"handler": f"{HERE}:clean_up"}},
    )
    async with scheduler:
        run = await scheduler.trigger("clean")
        assert (await scheduler.wait(run.id, timeout="1m")).state is State.SUCCEEDED
        while (await scheduler.list_runs(job="clean")).items:
            await asyncio.sleep(0.05)
        metrics = await scheduler.job_metrics("clean")
        assert metrics.succeeded == 1  # statistics outlive the runs
