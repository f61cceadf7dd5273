"""The sweeper prunes history."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Scheduler
from mainspring.errors import InvalidInput
from tests.support.engine import ended
from tests.support.scheduler_fixtures import *  # noqa: F403
from tests.support.scheduler_fixtures import Make


async def test_only_the_newest_finished_runs_of_each_job_are_kept(make: Make) -> None:
    scheduler = make(history=3, prune_every="1s")

    @scheduler.job()
    async def often() -> None: ...

    @scheduler.job()
    async def seldom() -> None: ...

    async with scheduler:
        runs = [await ended(scheduler, await often.enqueue()) for _ in range(7)]
        kept = await ended(scheduler, await seldom.enqueue())
        waiting = await often.options(delay="1h").enqueue()
        async with asyncio.timeout(20):
            while len((await scheduler.list_runs(job="often")).items) > 4:
                await asyncio.sleep(0.05)
        left = [run.id for run in (await scheduler.list_runs(job="often")).items]
        assert left == [waiting.id, *(run.id for run in reversed(runs[-3:]))]
        assert [run.id for run in (await scheduler.list_runs(job="seldom")).items] == [kept.id]
        assert (await scheduler.job_metrics("often")).succeeded == 7


@pytest.mark.parametrize("given", [{"history": 0}, {"history": True}, {"prune_every": "1ms"}])
def test_a_history_that_cannot_be_kept_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as error:
        Scheduler("memory://", **given)
    assert error.value.field == next(iter(given))
