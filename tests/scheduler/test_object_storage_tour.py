"""What users of the s3db scheduler plug-in expect, on a store that is only a directory of objects:
what several instances share, and the plug-in's own examples. Its options, methods and events are
mapped in docs/how-to/coming-from/s3db-scheduler.md, and are tested where each of them is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mainspring import RunContext, Scheduler
from mainspring.errors import JobNotFound

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


async def test_add_update_list_and_remove_a_job_from_any_instance(instance: Instance) -> None:
    async def backup(ctx: RunContext) -> dict[str, bool]:
        return {"completed": True}

    async with instance() as first, instance() as other:
        first.add_handler("backup", backup)
        await first.add_job(
            "custom_backup", handler="backup", schedule="0 4 * * *", description="Nightly copy"
        )
        assert [job.id for job in (await other.list_jobs()).items] == ["custom_backup"]

        changed = await other.update_job("custom_backup", schedule="0 0 */2 * *", enabled=False)
        assert (changed.enabled, changed.next_run_at) == (False, None)
        resumed = await first.resume_job("custom_backup")
        assert resumed.next_run_at is not None
        assert resumed.next_run_at.day % 2 == 1
        assert resumed.description == "Nightly copy"  # what is not named stays

        run = await other.trigger("custom_backup")
        assert (await first.wait(run.id, timeout="1m")).result == {"completed": True}

        await other.remove_job("custom_backup")
        with pytest.raises(JobNotFound):
            await first.get_job("custom_backup")
        assert (await first.list_jobs()).items == []
