"""What runs cost on MongoDB: bytes on disk and in the oplog, `counts`, pages, connections.

One mongod, a replica set of one (of three for the connections), on loopback, with a cache of
0.25 GB: about what the indexes of a million runs take.

    a run        bytes that a run leaves in the oplog from `enqueue` to its end, in batches
    waiting      runs that were enqueued and not begun: documents, storage, indexes
    kept         a million ended runs: copies of some that a scheduler worked off, with ids of their
                 own, spread over twenty jobs and ten days; documents, storage, each index
    counts       all of them counted, as `stats`, `/metrics` and `doctor` do, beside a tenth of them
    pages        the first page of a hundred, and one from the middle
    connections  of one process: idle, at work, with transactions in async and in plain handlers
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from pymongo import MongoClient

from bench.measure import say
from mainspring import RunContext, Scheduler
from mainspring.core.clock import to_us
from mainspring.core.model import LIVE, new_run_id
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import RunQuery
from tests.support.servers.mongodb import ReplicaSet, with_database

RUNS_STORED = int(os.environ.get("BENCH_SIZING_RUNS", "1000000"))
SAMPLE = 2000
JOBS = 20
DAYS = 10
BATCH = 5000
TIMES = 5
PAYLOADS: dict[str, Callable[[random.Random], Any]] = {
    "small payload": lambda rng: {"customer": rng.randrange(10**6), "kind": "invoice"},
    "payload of 1 KiB": lambda rng: {"text": f"{rng.getrandbits(4000):01000x}"},
}
Document = dict[str, Any]


def run() -> dict[str, Any]:
    with (
        ReplicaSet(1, election_timeout=10) as servers,
        MongoClient[Document](servers.url) as client,
    ):
        return {
            "a run": asyncio.run(_measure_ended_runs(servers.url, client)),
            "waiting": asyncio.run(_waiting(servers.url, client)),
            "kept": _measure_stored_runs(servers.url, client),
            "connections": connections(),
        }


# -- a run ----------------------------------------------------------------------------------


async def _measure_ended_runs(url: str, client: MongoClient[Document]) -> dict[str, Any]:
    """Runs that a scheduler has ended, in a database for each payload; and their traces."""
    figures: dict[str, Any] = {}
    for name, payload in PAYLOADS.items():
        rng = random.Random(1)
        before = _oplog(client)
        async with Scheduler(with_database(url, _database(name)), workers=20) as scheduler:

            @scheduler.job()
            async def work(**given: Any) -> None:
                pass

            await work.enqueue_many([payload(rng) for _ in range(SAMPLE)])
            await _all_ended(scheduler)
        runs_kept = client[_database(name)]["mainspring_runs"]
        [found] = runs_kept.aggregate(
            [{"$group": {"_id": None, "bytes": {"$avg": {"$bsonSize": "$$ROOT"}}}}]
        )
        figures[name] = {
            "document_bytes": round(found["bytes"]),
            "oplog_bytes": round((_oplog(client) - before) / SAMPLE),
        }
    return figures


async def _all_ended(scheduler: Scheduler) -> None:
    while LIVE & {state for state, count in (await scheduler.stats()).runs.items() if count}:
        await asyncio.sleep(0.1)


def _database(name: str) -> str:
    return "sizing_" + name.replace(" ", "_")


def _oplog(client: MongoClient[Document]) -> int:
    return int(client["local"].command("collStats", "oplog.rs")["size"])


async def _waiting(url: str, client: MongoClient[Document]) -> dict[str, Any]:
    rng = random.Random(1)
    payload = PAYLOADS["small payload"]
    async with Scheduler(with_database(url, "sizing_waiting"), workers=0) as scheduler:

        @scheduler.job()
        async def work(**given: Any) -> None:
            pass

        for _ in range(max(1, RUNS_STORED // 20 // 1000)):
            await work.enqueue_many([payload(rng) for _ in range(1000)])
    return _bytes(client, "sizing_waiting")


def _bytes(client: MongoClient[Document], database: str) -> dict[str, Any]:
    client.admin.command("fsync")
    found = client[database].command("collStats", "mainspring_runs")
    runs = found["count"]
    return {
        "runs": runs,
        "bytes_a_run": {
            "document": round(found["avgObjSize"]),
            "storage": round(found["storageSize"] / runs),
            "indexes": round(found["totalIndexSize"] / runs),
        },
        "index_bytes_a_run": {
            index: round(size / runs, 1) for index, size in found["indexSizes"].items()
        },
    }


# -- kept -----------------------------------------------------------------------------------


def _measure_stored_runs(url: str, client: MongoClient[Document]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name in PAYLOADS:
        count = RUNS_STORED if name == "small payload" else RUNS_STORED // 10
        database = _database(name)
        tenth = asyncio.run(_measure_counts(with_database(url, database), client, count // 10))
        whole = asyncio.run(_measure_counts(with_database(url, database), client, count))
        figures[name] = {
            **_bytes(client, database),
            f"at {count // 10}": tenth,
            f"at {count}": whole,
        }
    return figures


async def _measure_counts(url: str, client: MongoClient[Document], count: int) -> dict[str, Any]:
    """Fill up to so many, then what it takes to count and to list them."""
    runs = client.get_database(url.rpartition("/")[2].partition("?")[0])["mainspring_runs"]
    say(f"filling {count:,} runs")
    missing = count - runs.estimated_document_count()
    samples = list(runs.find().limit(1000))
    for batch in _copies(samples, missing):
        runs.insert_many(batch, ordered=False)
    store = MongoStore(url)
    await store.open()
    try:
        day = datetime.now(UTC) - timedelta(days=1)
        middle = f"{to_us(datetime.now(UTC) - timedelta(days=DAYS / 2))}:"
        return {
            "counts_ms": await _milliseconds(lambda: store.counts()),
            "counts_with_a_day_ms": await _milliseconds(lambda: store.counts(day)),
            "first_page_ms": await _milliseconds(lambda: store.find(RunQuery())),
            "middle_page_ms": await _milliseconds(lambda: store.find(RunQuery(cursor=middle))),
        }
    finally:
        await store.close()


def _copies(samples: list[Document], count: int) -> Iterator[list[Document]]:
    """In the order of time, as runs come."""
    rng, start = random.Random(count), datetime.now(UTC) - timedelta(days=DAYS)
    step = timedelta(days=DAYS) / max(1, count)
    batch = []
    for n in range(count):
        made = start + step * n
        at = to_us(made)
        batch.append(
            {
                **samples[n % len(samples)],
                "_id": new_run_id(made, rng),
                "job_id": f"reports.daily-{n % JOBS}",
                **dict.fromkeys(("created_at", "scheduled_at", "run_at", "finished_at"), at),
                **({"state": "failed", "failures": 1} if n % 100 == 0 else {}),
            }
        )
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def _milliseconds(call: Callable[[], Awaitable[Any]]) -> float:
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return round(median(taken) * 1000, 1)


# -- connections ----------------------------------------------------------------------------


def connections() -> dict[str, Any]:
    with ReplicaSet(3, election_timeout=10) as servers, ExitStack() as stack:
        members = {"primary": servers.primary(), "secondary": servers.secondaries()[0]}
        clients = {
            name: stack.enter_context(
                MongoClient[Document](f"mongodb://{member.address}/?directConnection=true")
            )
            for name, member in members.items()
        }
        return asyncio.run(_connections(servers.url, clients))


async def _connections(url: str, clients: dict[str, MongoClient[Document]]) -> dict[str, Any]:
    """Of a process with 20 workers; under load the most that were there at once."""
    scheduler = Scheduler(with_database(url, "sizing_connections"), workers=20)

    @scheduler.job()
    async def work(ctx: RunContext) -> None:
        await asyncio.sleep(0.01)

    @scheduler.job(delivery="effect_once")
    async def once(ctx: RunContext) -> None:
        async with ctx.transaction():
            await asyncio.sleep(0.01)

    @scheduler.job(delivery="effect_once")
    def once_plain(ctx: RunContext) -> None:
        with ctx.transaction():
            time.sleep(0.01)

    def open_connections() -> Counter[str]:
        return Counter({name: _open(client) for name, client in clients.items()})

    figures = {}
    async with scheduler:
        await asyncio.sleep(3)
        figures["idle"] = dict(open_connections())
        for job in (work, once, once_plain):
            await job.enqueue_many([{}] * 500)
            ended = asyncio.create_task(_all_ended(scheduler))
            most: Counter[str] = Counter()
            while not ended.done():
                most |= await asyncio.to_thread(open_connections)
                await asyncio.sleep(0.1)
            await ended
            figures[f"at work: {job.id}"] = dict(most)
    return figures


def _open(client: MongoClient[Document]) -> int:
    """Connections that call themselves ours, whether or not they are busy; the driver's own, for
    watching the server, among them."""
    pipeline: list[Document] = [
        {"$currentOp": {"allUsers": True, "idleConnections": True}},
        {"$match": {"appName": "mainspring"}},
        {"$group": {"_id": "$client"}},
    ]
    return len(list(client.admin.aggregate(pipeline)))
