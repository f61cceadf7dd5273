"""A server that dies, comes back, and cuts connections."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from mainspring import Scheduler, State
from mainspring.core.model import Run
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import RunQuery
from tests.support.postgresql import SharedSchema
from tests.support.servers.postgresql import Postgres


@pytest.fixture
def server() -> Iterator[Postgres]:
    with Postgres() as started:
        yield started


async def test_calls_fail_while_the_server_is_away_and_work_again(server: Postgres) -> None:
    store = PostgresStore(server.url)
    await store.open()
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.find(RunQuery())
    server.start()
    assert (await store.find(RunQuery())).items == []
    await store.close()


async def test_a_run_survives_a_restart_of_the_server(server: Postgres) -> None:
    scheduler = Scheduler(server.url, lease="3s")
    ran: list[int] = []

    @scheduler.job(retries=3)
    async def work(n: int) -> None:
        ran.append(n)

    async with scheduler:
        before = await work.enqueue(1)
        assert (await scheduler.wait(before.id, 30)).state is State.SUCCEEDED
        server.kill()
        server.start()
        after = await work.enqueue(2)
        assert (await scheduler.wait(after.id, 60)).state is State.SUCCEEDED
    assert ran == [1, 2]


async def test_connections_that_are_cut_are_replaced(schema: SharedSchema) -> None:
    store = PostgresStore(schema.url)
    await store.open()
    now = datetime.now(UTC)
    for n in range(3):
        schema.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND application_name = 'mainspring' AND query LIKE '%%$%%'"
        )
        run = Run(id=f"r{n}", job_id="j", handler="h", created_at=now, scheduled_at=now, run_at=now)
        for _ in range(20):
            try:
                await store.add([run])
                break
            except StoreUnavailable:
                await asyncio.sleep(0.1)
    assert {run.id for run in (await store.find(RunQuery())).items} == {"r0", "r1", "r2"}
    await store.close()


async def test_a_hint_reaches_another_client(schema: SharedSchema) -> None:
    here, there = PostgresStore(schema.url), PostgresStore(schema.url)
    await here.open()
    await there.open()
    now = datetime.now(UTC) + timedelta(hours=1)
    for n in range(100):  # the first ones may come before it listens
        waiting = asyncio.create_task(there.wait(2))
        await asyncio.sleep(0.1)
        run = Run(id=f"r{n}", job_id="j", handler="h", created_at=now, scheduled_at=now, run_at=now)
        await here.add([run])
        if await waiting:
            break
    else:
        pytest.fail("no hint came")
    await here.close()
    await there.close()
