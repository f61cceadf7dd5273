"""Which items of a batch a store can handle in one step."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model import Job, replace
from mainspring.core.policy import Policy
from mainspring.core.schedules import cron
from mainspring.engine.slots import plan
from mainspring.stores import open_store
from mainspring.stores.protocol import JobQuery
from mainspring.stores.sqlite import jobs
from mainspring.testing.store_calls import put_job


async def test_chains_of_many_jobs_fire_in_as_many_steps_as_one_on_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job catches up with all its slots, one after another. Job by job that would be a step
    for each slot of each job."""
    store = open_store(f"sqlite:///{tmp_path}/jobs.db")
    await store.open()
    now = await store.now()
    late = now - timedelta(seconds=3)
    for n in range(20):
        job = Job(id=f"j{n}", handler="work", created_at=late, updated_at=late, next_run_at=late)
        policy = Policy.make(misfire="all")
        assert await put_job(store, replace(job, schedule=cron("* * * * * *"), policy=policy))
    steps: list[int] = []
    whole = jobs._fire

    def counted(tx: Any, firings: Any, fired: Any) -> None:
        steps.append(len(firings))
        whole(tx, firings, fired)

    monkeypatch.setattr(jobs, "_fire", counted)
    due = (await store.jobs(JobQuery(due=now))).items
    chains = [plan(job, now)[0] for job in due]
    [length] = {len(chain) for chain in chains}
    assert length > 1
    fired = await store.fire([one for chain in chains for one in chain])
    await store.close()
    assert [one.done for one in fired] == [True] * 20 * length
    assert steps == [20] * length
