"""MongoDB: adds with dedupe keys and firings through the store, beside bare transactions.

`python -m bench transactions` starts a replica set of one member on loopback. Both sides write the
same documents with the same indexes and the same checks, each operation in one transaction. The
store's side goes through its public methods. The bare side calls the driver: it looks for runs of
the same id, for holders of the keys and for unfinished runs of the jobs, and writes. So the ratio
says what the store's own work costs: reading and writing values, the overlap of slots, and sessions
that others can end.
"""

from __future__ import annotations

import asyncio
import copy
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from bench.slots import empty_store
from mainspring.core.model import Job, Run, new_run_id, replace, slot_run_id
from mainspring.core.policy import Overlap
from mainspring.core.schedules import every
from mainspring.stores import open_store
from mainspring.stores.protocol import Firing, JobQuery, JobWrite, Store

JOBS = 300
ROUNDS = {1: 60, 100: 20}
Operation = Callable[[int], Awaitable[None]]


def run() -> dict[str, Any]:
    with empty_store("mongodb") as (url, _):
        return asyncio.run(_measure(url))


async def _measure(url: str) -> dict[str, Any]:
    store = open_store(url)
    await store.open()
    rng = random.Random(1)
    through_store = _Store(store, rng)
    await through_store.prepare()
    bare = _Bare(url, rng)
    await bare.prepare()
    figures: dict[str, Any] = {}
    for name, ours, theirs in (
        ("add with keys", through_store.add, bare.add),
        ("fire", through_store.fire, bare.fire),
    ):
        for size, rounds in ROUNDS.items():
            figures[f"{name}, {size} at once"] = await _side_by_side(ours, theirs, size, rounds)
    figures["add with keys, four clients, runs a second"] = {
        "store": await _four_at_once(through_store.add),
        "bare": await _four_at_once(bare.add),
    }
    await store.close()
    await bare.close()
    return figures


async def _side_by_side(ours: Operation, theirs: Operation, size: int, rounds: int) -> Any:
    times: dict[str, list[float]] = {"store": [], "bare": []}
    for _ in range(rounds):
        for side, operation in (("store", ours), ("bare", theirs)):
            started = time.perf_counter()
            await operation(size)
            times[side].append(time.perf_counter() - started)
    medians = {side: round(median(taken) * 1000, 2) for side, taken in times.items()}
    ratio = round(median(times["store"]) / median(times["bare"]), 2)
    return {f"{side}_ms": value for side, value in medians.items()} | {"ratio": ratio}


async def _four_at_once(operation: Operation) -> int:
    async def client() -> None:
        for _ in range(10):
            await operation(25)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(4)))
    return round(1000 / (time.perf_counter() - started))


class _Store:
    """The operations through the store's own methods."""

    def __init__(self, store: Store, rng: random.Random) -> None:
        self._store = store
        self._rng = rng

    async def prepare(self) -> None:
        now = await self._store.now()
        job = Job(
            id="job",
            handler="work",
            created_at=now,
            updated_at=now,
            schedule=every("1s"),
            next_run_at=now,
            version=1,
        )
        await self._store.put_jobs(
            [JobWrite.add(replace(job, id=f"job-{number}")) for number in range(JOBS)]
        )
        await self.add(1)

    async def add(self, count: int) -> None:
        now = await self._store.now()
        await self._store.add(
            [self._run(now, f"{self._rng.getrandbits(64)}") for _ in range(count)]
        )

    async def fire(self, count: int) -> None:
        now = await self._store.now()
        chosen = self._rng.sample(range(JOBS), count)
        query = JobQuery(ids=frozenset(f"job-{number}" for number in chosen), limit=1000)
        firings = [
            Firing(
                job_id=job.id,
                version=job.version,
                runs=(replace(self._run(now), id=slot_run_id(job.id, now), job_id=job.id),),
                overlap=Overlap.ALLOW,
                next_run_at=now + timedelta(seconds=1),
                last_run_at=now,
            )
            for job in (await self._store.jobs(query)).items
        ]
        assert all(fired.done for fired in await self._store.fire(firings))

    def _run(self, now: datetime, key: str | None = None) -> Run:
        return Run(
            id=new_run_id(now, self._rng),
            job_id="job",
            handler="work",
            created_at=now,
            scheduled_at=now,
            run_at=now,
            dedupe_key=key,
            payload={"n": 1},
        )


class _Bare:
    """The same operations by the driver, on copies of the store's documents."""

    def __init__(self, url: str, rng: random.Random) -> None:
        from pymongo import AsyncMongoClient

        self._client: Any = AsyncMongoClient(url, w="majority")
        self._database = self._client["bench_bare"]
        self._rng = rng

    async def prepare(self) -> None:
        stored = self._client.get_default_database()
        names = await stored.list_collection_names()
        runs, jobs = (
            stored[next(name for name in names if name.endswith(kind))] for kind in ("runs", "jobs")
        )
        self._sample = await runs.find_one({})
        for name in ("runs", "keys", "jobs"):
            await self._database.create_collection(name)
        for index in await (await runs.list_indexes()).to_list():
            if index["name"] != "_id_":
                wanted = ("name", "partialFilterExpression")
                more = {name: index[name] for name in wanted if name in index}
                await self._database.runs.create_index(list(index["key"].items()), **more)
        await self._database.jobs.insert_many([job async for job in jobs.find({})])

    async def close(self) -> None:
        await self._client.close()

    async def add(self, count: int) -> None:
        runs = [self._run() for _ in range(count)]
        keys = [{"_id": f"{self._rng.getrandbits(64)}", "run": run["_id"]} for run in runs]

        async def write(session: Any) -> None:
            database = self._database
            await database.runs.find(
                {"_id": {"$in": [r["_id"] for r in runs]}}, session=session
            ).to_list()
            await (
                database["keys"]
                .find({"_id": {"$in": [k["_id"] for k in keys]}}, session=session)
                .to_list()
            )
            await database["keys"].insert_many(keys, session=session)
            await database.runs.insert_many(runs, session=session)

        async with self._client.start_session() as session:
            await session.with_transaction(write)

    async def fire(self, count: int) -> None:
        from pymongo import UpdateOne

        ids = [f"job-{number}" for number in self._rng.sample(range(JOBS), count)]
        jobs = await self._database.jobs.find({"_id": {"$in": ids}}).to_list()
        runs = [self._run() for _ in jobs]

        async def write(session: Any) -> None:
            unfinished = {
                "job_id": {"$in": ids},
                "state": {"$in": ["pending", "running", "waiting"]},
            }
            await self._database.runs.find(unfinished, {"_id": 1}, session=session).to_list()
            updates = [
                UpdateOne(
                    {"_id": job["_id"], "version": job["version"]},
                    {"$inc": {"version": 1}, "$set": {"last_run_at": datetime.now(UTC)}},
                )
                for job in jobs
            ]
            await self._database.jobs.bulk_write(updates, ordered=False, session=session)
            await self._database.runs.insert_many(runs, session=session)

        async with self._client.start_session() as session:
            await session.with_transaction(write)

    def _run(self) -> dict[str, Any]:
        return {**copy.deepcopy(self._sample), "_id": f"{self._rng.getrandbits(96):024x}"}
