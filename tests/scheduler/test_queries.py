"""Filters of lists and of operations on many jobs or runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Client, RunContext, State
from mainspring.core.model import Outcome
from mainspring.errors import InvalidInput
from tests.support.engine import ended
from tests.support.scheduler_fixtures import Make


async def test_one_id_may_be_given_where_several_are_expected() -> None:
    """It was taken for a list of letters."""
    async with Client("memory://") as client:
        job = await client.add_job("nightly", handler="work")
        assert await client.pause_jobs("nightly") == {"nightly": None}
        assert await client.resume_jobs(job) == {"nightly": None}
        assert (await client.get_job("nightly")).enabled
        assert [job.id for job in (await client.list_jobs(ids="nightly")).items] == ["nightly"]
        await client.counts(jobs="nightly")
        run = await client.enqueue("nightly")
        assert (await client.cancel_runs(run.id)).done == 1
        assert (await client.retry_runs(run.id)).done == 1
        assert (await client.cancel_runs([run.id])).done == 1
        assert (await client.get_run(run.id)).state is State.CANCELLED
        assert (await client.remove_runs(run.id)).done == 1
        assert await client.remove_jobs(["nightly"]) == {"nightly": None}


@pytest.mark.parametrize("ids", [7, [7], [None], [b"x"]])
async def test_what_is_no_id_is_refused(ids: Any) -> None:
    async with Client("memory://") as client:
        for call in (client.pause_jobs, client.remove_jobs, client.cancel_runs, client.retry_runs):
            with pytest.raises(InvalidInput, match="ids are the ids of jobs or runs") as refused:
                await call(ids)
            assert refused.value.field == "ids"
        with pytest.raises(InvalidInput, match="jobs are the ids"):
            await client.counts(jobs=ids)


@pytest.mark.parametrize("page", [{"offset": -5}, {"offset": True}, {"limit": True}, {"limit": 0}])
async def test_a_page_that_cannot_be_is_refused(page: Any) -> None:
    async with Client("memory://") as client:
        with pytest.raises(InvalidInput) as refused:
            await client.list_jobs(**page)
        assert refused.value.field in page
        if "limit" in page:
            with pytest.raises(InvalidInput):
                await client.list_runs(**page)
            with pytest.raises(InvalidInput):
                await client.cancel_runs(**page)


async def test_runs_of_which_an_attempt_timed_out_are_listed(make: Make) -> None:
    scheduler = make()

    @scheduler.job(timeout="20ms", retries=1, retry_delay="1ms")
    async def work(ctx: RunContext, how: str) -> None:
        if how == "fail" or (how == "fail later" and ctx.attempt == 2):
            raise ValueError
        if how != "succeed" and ctx.attempt == 1:
            await asyncio.Event().wait()

    ways = ["time out", "fail", "fail later", "succeed", *["fail"] * 6, "time out"]
    async with scheduler:
        runs = [await ended(scheduler, await work.enqueue(how=how)) for how in ways]
        expected = [
            run.id
            for run in reversed(runs)
            if any(attempt.outcome is Outcome.TIMED_OUT for attempt in run.attempts)
        ]
        assert len(expected) >= 3
        for limit in (1, 2, 100):
            listed, cursor = list[str](), None
            while True:
                page = await scheduler.list_runs(
                    job=work, timed_out=True, brief=True, limit=limit, cursor=cursor
                )
                assert len(page.items) <= limit
                assert all(run.brief and not run.attempts for run in page.items)
                listed += [run.id for run in page.items]
                if (cursor := page.cursor) is None:
                    break
            assert listed == expected
        failed = await scheduler.list_runs(timed_out=True, state="failed")
        assert "fail later" in [run.payload["how"] for run in failed.items if run.payload]
