"""Many clients that write the same jobs at once."""

from __future__ import annotations

import asyncio

from mainspring.core.model import Job
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import JobQuery, JobWrite
from tests.support.postgresql import SharedSchema


async def test_clients_that_register_the_same_jobs_at_once_all_succeed(
    schema: SharedSchema,
) -> None:
    """As many programs do that start together: conflicts are repeated, and none gives up."""
    stores = [PostgresStore(schema.url) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    now = await stores[0].now()
    ids = [f"job{n:02}" for n in range(30)]

    async def register(store: PostgresStore, names: list[str]) -> None:
        for _ in range(5):
            jobs = [Job(id=name, handler="work", created_at=now, updated_at=now) for name in names]
            done = await store.put_jobs([JobWrite(job.id, None, job) for job in jobs])
            assert all(done)

    orders = (ids, ids[::-1])
    await asyncio.gather(
        *(register(store, orders[at % 2]) for at, store in enumerate(stores) for _ in range(4))
    )
    found = (await stores[0].jobs(JobQuery(limit=100))).items
    assert sorted(job.id for job in found) == ids
    await asyncio.gather(*(store.close() for store in stores))
