"""A client that dies or freezes in a transaction of the store delays other clients only briefly."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from mainspring.core.model import Job, Source, State, replace, slot_run_id
from mainspring.core.policy import Policy
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql.database import CALL_SECONDS
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import Claim, JobQuery, RunQuery
from mainspring.testing.store_calls import claim_runs, put_job
from tests.support.postgresql import SharedSchema
from tests.support.records import a_firing, a_run

_OTHER_CLIENT = """
import asyncio, os, signal, sys
from contextlib import suppress
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql import database
from mainspring.stores.postgresql.store import PostgresStore
from tests.stores.postgresql.test_dead_clients import add, claim, fire

async def main():
    store = PostgresStore(sys.argv[1])
    await store.open()
    written, resumed = [], asyncio.Event()

    class Stopping(database.Transaction):
        async def begin(self, *, idle=None, lock=0):
            return await super().begin(idle=idle and 2, lock=lock)

    async def stop_before_commit(self, work, limit, *, alone, **options):
        if alone:
            return await transact(self, work, limit, alone=True)
        async def stopped(tx):
            done = await work(tx)
            written.append(tx)
            if len(written) == 3:
                print("locked", flush=True)
                if sys.argv[2] == "SIGSTOP":
                    os.kill(os.getpid(), signal.SIGSTOP)
                    resumed.set()
            await resumed.wait()
            return done
        return await transact(self, stopped, limit, alone=False, **options)

    transact, database.Database._transact = database.Database._transact, stop_before_commit
    database.Transaction = Stopping
    ends = await asyncio.gather(
        *(operation(store, "theirs") for operation in (add, fire, claim)), return_exceptions=True
    )
    print(all(isinstance(end, StoreUnavailable) for end in ends), flush=True)

asyncio.run(main())
"""


async def add(store: PostgresStore, name: str) -> bool:
    """Add a run with the key that all clients use; whether it was added."""
    run = a_run(await store.now(), name, job_id="keyed", handler="other", dedupe_key="k")
    [added] = await store.add([run])
    return not added.duplicate


async def fire(store: PostgresStore, name: str) -> bool:
    [job] = (await store.jobs(JobQuery(ids=frozenset({"due"})))).items
    at = job.created_at
    slot = a_run(at, slot_run_id("due", at), job_id="due", handler="other", source=Source.SCHEDULE)
    [fired] = await store.fire([a_firing(job, slot)])
    return fired.done


async def claim(store: PostgresStore, name: str) -> bool:
    """Claim a run of a job that may run once at a time."""
    lease = timedelta(minutes=5)
    wanted = Claim(worker=name, handlers=frozenset({"work"}), limit=2, lease=lease)
    return len(await claim_runs(store, wanted)) == 1


@asynccontextmanager
async def other_client(url: str, end: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has written in three transactions, and has committed none."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _OTHER_CLIENT, url, end, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"locked\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
async def test_a_client_that_ends_or_freezes_in_its_transactions_holds_up_nobody_for_long(
    schema: SharedSchema, end: str
) -> None:
    """The server rolls back what a frozen client has begun."""
    store = PostgresStore(schema.url)
    await store.open()
    now = await store.now()
    job = Job(id="due", handler="other", created_at=now, updated_at=now, next_run_at=now)
    assert await put_job(store, job)
    limited = replace(job, id="limited", next_run_at=None, policy=Policy.make(concurrency=1))
    assert await put_job(store, limited)
    [before] = (await store.jobs(JobQuery(ids=frozenset({"due"})))).items
    await store.add([a_run(now, f"limited-{n}", job_id="limited") for n in range(2)])
    async with other_client(schema.url, end) as other, asyncio.timeout(CALL_SECONDS):
        if end == "SIGKILL":
            other.kill()
        ours = (operation(store, "ours") for operation in (add, fire, claim))
        assert await asyncio.gather(*ours) == [True, True, True]
        if end == "SIGSTOP":
            other.send_signal(signal.SIGCONT)
            assert other.stdout is not None
            assert await other.stdout.readline() == b"True\n"
    runs = (await store.find(RunQuery())).items
    [after] = (await store.jobs(JobQuery(ids=frozenset({"due"})))).items
    await store.close()
    assert sorted(run.id for run in runs if run.job_id != "due") == [
        "limited-0",
        "limited-1",
        "ours",
    ]
    assert [run.id for run in runs if run.job_id == "due"] == [slot_run_id("due", now)]
    assert [run.worker for run in runs if run.state is State.RUNNING] == ["ours"]
    assert after.version == before.version + 1


async def test_the_server_ends_a_transaction_whose_client_is_silent(
    schema: SharedSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(schema.url)
    await store.open()
    monkeypatch.setattr("mainspring.stores.postgresql.database.CALL_SECONDS", 0.5)

    async def pause(tx: object) -> None:
        await asyncio.sleep(3)

    with pytest.raises(StoreUnavailable):
        await store._db.transact(pause, limit=60)
    assert await store.now()
    await store.close()
