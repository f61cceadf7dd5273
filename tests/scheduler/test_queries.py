"""Filters of lists and of operations on many jobs or runs."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring import Client, State
from mainspring.errors import InvalidInput


async def test_one_id_may_be_given_where_several_are_expected() -> None:
    """It was taken for a list of letters."""
    async with Client("memory://") as client:
        job = await client.add_job("nightly", handler="work")
        assert await client.pause_jobs("nightly") == {"nightly": None}
        assert await client.resume_jobs(job) == {"nightly": None}
        assert (await client.get_job("nightly")).enabled
        assert [one.id for one in (await client.list_jobs(ids="nightly")).items] == ["nightly"]
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
