"""Two schedulers share one MongoDB database."""

from __future__ import annotations

import asyncio
from typing import Any

from pymongo import MongoClient

from mainspring import Event, Scheduler
from mainspring.core.model import State
from tests.support.servers.mongodb import with_database


async def test_two_schedulers_share_the_work(replica_set_url: str, database_name: str) -> None:
    url = with_database(replica_set_url, database_name)
    running, most = 0, 0
    names: set[str] = set()
    both, two_at_once = asyncio.Event(), asyncio.Barrier(2)

    def made(name: str) -> Scheduler:
        scheduler = Scheduler(url, workers=10, poll="5s")

        @scheduler.job(id="double")
        async def double(n: int) -> list[object]:
            names.add(name)
            if names == {"one", "two"}:
                both.set()
            await both.wait()  # at first each has more than its slots hold
            return [name, n * 2]

        @scheduler.job(id="narrow", concurrency=2)
        async def narrow() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await two_at_once.wait()
            running -= 1

        return scheduler

    async with made("one") as one, made("two") as two:
        runs = await one.enqueue_many("double", [{"n": n} for n in range(40)])
        narrow = await two.enqueue_many("narrow", [None] * 12)
        done = [await two.wait(run.id, 60) for run in runs]
        assert [run.result[1] for run in done] == [n * 2 for n in range(40)]
        ended = [await one.wait(run.id, 60) for run in narrow]
        assert {run.state for run in ended} == {State.SUCCEEDED}
        assert most == 2


async def test_runs_enqueued_together_run_in_their_order(
    replica_set_url: str, database_name: str
) -> None:
    """Though they lie in several lanes, all of one moment."""
    scheduler = Scheduler(with_database(replica_set_url, database_name), workers=1)
    seen: list[int] = []

    @scheduler.job()
    async def note(n: int) -> None:
        seen.append(n)

    async with scheduler:
        runs = await note.enqueue_many([{"n": n} for n in range(150)])
        await scheduler.wait(runs[-1].id, 60)
        assert seen == list(range(150))
        listed = (await scheduler.list_runs(limit=150)).items
        assert [run.id for run in listed] == [run.id for run in reversed(runs)]


async def test_a_firing_that_mongodb_refuses_harms_no_other_job(
    replica_set_url: str, database_name: str
) -> None:
    """As a document over 16 MiB would be: here a rule of the collection refuses one job's runs."""
    scheduler = Scheduler(with_database(replica_set_url, database_name))
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
