"""Clients that add runs of one id or one dedupe key at the same moment."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from mainspring.core.model import State
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql import database
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import RunQuery
from tests.support.postgresql import SharedSchema
from tests.support.records import a_run


async def test_a_finished_run_added_at_the_moment_of_an_unfinished_one_of_its_id(
    schema: SharedSchema,
) -> None:
    store = PostgresStore(schema.url)
    await store.open()
    now = await store.now()
    for n in range(20):
        finished = a_run(now, f"r{n}", state=State.FAILED, finished_at=now)
        answers = await asyncio.gather(
            *(store.add([run]) for run in (a_run(now, f"r{n}"), finished, a_run(now, f"r{n}")))
        )
        assert len({added.run.state for [added] in answers}) == 1
    assert len((await store.find(RunQuery())).items) == 20
    await store.close()


async def test_one_of_many_clients_gets_a_dedupe_key(schema: SharedSchema) -> None:
    store = PostgresStore(schema.url)
    await store.open()
    now = await store.now()
    for n in range(10):
        runs = [a_run(now, f"r{n}-{m}", dedupe_key=f"k{n}") for m in range(8)]
        answers = await asyncio.gather(*(store.add([run]) for run in runs))
        assert sum(not added.duplicate for [added] in answers) == 1
        assert len({added.run.id for [added] in answers}) == 1
    await store.close()


def waiting_for(schema: SharedSchema, connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a client waits for a lock of this one. Other tests use the server too."""
    blocked = "SELECT 1 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    return bool(schema.execute(blocked, [connection.info.backend_pid]))


async def test_a_copy_that_waits_for_a_callers_transaction_lets_others_write(
    schema: SharedSchema,
) -> None:
    """It needs the table for itself, and whatever is written meanwhile queues behind it."""
    store = PostgresStore(schema.url)
    await store.open()
    now = await store.now()
    async with await psycopg.AsyncConnection.connect(schema.server) as connection:
        await store.add([a_run(now, "within")], connection)
        ended = a_run(now, "ended", state=State.SUCCEEDED, finished_at=now)
        copy = asyncio.create_task(store.add([ended]))
        while not waiting_for(schema, connection):
            await asyncio.sleep(0.01)
        async with asyncio.timeout(30):
            await store.add([a_run(now, "other")])
        assert not copy.done()
    assert [added.run.id for added in await copy] == ["ended"]
    await store.close()


async def test_an_add_gives_up_a_key_that_an_open_transaction_has_taken(
    schema: SharedSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not wait any longer than the client, and other keys are added meanwhile."""
    store = PostgresStore(f"{schema.url}&pool_size=2")
    await store.open()
    now = await store.now()
    async with await psycopg.AsyncConnection.connect(schema.server) as connection:
        await store.add([a_run(now, "within", dedupe_key="k")], connection)
        blocked = asyncio.create_task(store.add([a_run(now, "r1", dedupe_key="k")]))
        while not waiting_for(schema, connection):
            await asyncio.sleep(0.01)
        await store.add([a_run(now, "r2", dedupe_key="other")])
        assert not blocked.done()
        blocked.cancel()
        monkeypatch.setattr(database, "LOCK_SECONDS", 0.05)
        with pytest.raises(StoreUnavailable, match="the same dedupe_key: commit it or roll it"):
            await store.add([a_run(now, "r1", dedupe_key="k")])
        async with asyncio.timeout(60):
            while waiting_for(schema, connection):
                await asyncio.sleep(0.01)
    [late] = await store.add([a_run(now, "r3", dedupe_key="k")])
    assert (late.run.id, late.duplicate) == ("within", True)
    await store.close()
