"""Clients that end or freeze in transactions of a store, and what others can do then."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from mainspring.core.model import Job, Source, State, replace, slot_run_id
from mainspring.core.policy import Policy
from mainspring.stores.protocol import Claim, JobQuery, RunQuery, Store
from mainspring.testing.store_calls import claim_runs, put_job
from tests.support.records import a_firing, a_run


async def prepare(store: Store) -> Job:
    """A job that is due, and a job of which one run may be running, with two pending runs."""
    now = await store.now()
    job = Job(id="due", handler="other", created_at=now, updated_at=now, next_run_at=now)
    assert await put_job(store, job)
    limited = replace(job, id="limited", next_run_at=None, policy=Policy.make(concurrency=1))
    assert await put_job(store, limited)
    await store.add([a_run(now, f"limited-{n}", job_id="limited") for n in range(2)])
    return await due_job(store)


async def due_job(store: Store) -> Job:
    [job] = (await store.jobs(JobQuery(ids=frozenset({"due"})))).items
    return job


async def add(store: Store, name: str) -> bool:
    """Add a run with the key that all clients use; whether it was added."""
    run = a_run(await store.now(), name, job_id="keyed", handler="other", dedupe_key="k")
    [added] = await store.add([run])
    return not added.duplicate


async def fire(store: Store, name: str) -> bool:
    job = await due_job(store)
    at = job.created_at
    slot = a_run(at, slot_run_id("due", at), job_id="due", handler="other", source=Source.SCHEDULE)
    [fired] = await store.fire([a_firing(job, slot)])
    return fired.done


async def claim(store: Store, name: str) -> bool:
    """Claim a run of a job that may run once at a time."""
    lease = timedelta(minutes=5)
    wanted = Claim(worker=name, handlers=frozenset({"work"}), limit=2, lease=lease)
    return len(await claim_runs(store, wanted)) == 1


@asynccontextmanager
async def other_client(code: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has written in three transactions, and has committed none."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"locked\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def check_that_all_is_ours(store: Store, before: Job) -> None:
    """Nothing that the other client had begun is there; the job was `before` then."""
    runs = (await store.find(RunQuery())).items
    slot = slot_run_id("due", before.created_at)
    assert sorted(run.id for run in runs) == sorted(["limited-0", "limited-1", "ours", slot])
    assert [run.worker for run in runs if run.state is State.RUNNING] == ["ours"]
    assert (await due_job(store)).version == before.version + 1
