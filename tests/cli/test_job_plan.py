from __future__ import annotations

import pytest

from mainspring import Scheduler
from mainspring.cli.job_plan import describe_plan
from mainspring.cli.start_output import print_start
from tests.support.service import until


def work() -> None: ...


async def test_jobs_without_a_next_slot_say_what_makes_them_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    scheduler = Scheduler("memory://")
    scheduler.add_handler("work", work)
    scheduler.job("2020-01-01T00:00:00Z", id="once")(work)

    async def is_over() -> bool:
        return (await scheduler.get_job("once")).next_run_at is None

    async with scheduler:
        await until(is_over)
        await scheduler.add_job("asked", handler="work")
        await scheduler.add_job("warm", handler="work", run_on_start=True)
        await scheduler.add_job("later", handler="work", after=["asked"], run_on_start=True)
        plans = {job.id: describe_plan(job) for job in (await scheduler.list_jobs()).items}
        await print_start(scheduler, as_json=False)
    assert plans == {
        "asked": "when enqueued",
        "later": "after asked, when a worker starts",
        "once": "its schedule is over (Once, at 2020-01-01 00:00:00, UTC)",
        "warm": "when a worker starts",
    }
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    assert "once   its schedule is over" in lines
    assert "warm   when a worker starts" in lines
    assert "asked  when enqueued" in lines
