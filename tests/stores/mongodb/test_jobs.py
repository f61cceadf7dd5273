"""A firing that MongoDB refuses."""

from __future__ import annotations

import asyncio
from typing import Any

from pymongo import MongoClient

from mainspring import Event, Scheduler


async def test_a_firing_that_mongodb_refuses_harms_no_other_job(
    replica_set_url: str, database_name: str, database_url: str
) -> None:
    """As a document over 16 MiB would be: here a rule of the collection refuses one job's runs."""
    scheduler = Scheduler(database_url)
    refused, ticked = asyncio.Event(), asyncio.Event()
    told: list[str | None] = []

    def heard(event: Event) -> None:
        told.append(event.job_id)
        refused.set()

    scheduler.on("scheduler.error", heard)

    @scheduler.job(id="handler")
    async def handler() -> None: ...

    @scheduler.job("1s")
    async def tick() -> None:
        ticked.set()

    async with asyncio.timeout(60), scheduler:
        with MongoClient[dict[str, Any]](replica_set_url) as client:
            rule = {"job_id": {"$ne": "bad"}}
            client[database_name].command("collMod", "mainspring_runs", validator=rule)
        await scheduler.add_job("bad", handler="handler", schedule="1s")
        await refused.wait()
        for _ in range(3):
            ticked.clear()
            await ticked.wait()
        assert (await scheduler.list_runs(job="bad")).items == []
    assert told == ["bad"]
