"""Clients that add runs of one id or one dedupe key at the same moment."""

from __future__ import annotations

import asyncio

from mainspring.core.model import State
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
