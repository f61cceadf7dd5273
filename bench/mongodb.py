"""Jobs a second on MongoDB at `w: majority`, beside bare pymongo. (`peers` has npm's schedulers.)

One mongod, a replica set of one, on loopback. Each round runs all sides one after another, so that
each ratio is of neighbours in time. The results are medians of these ratios.

    drain        no-op runs in one process: ours, the bare loop
    latency      enqueue to start on an idle worker in another process, beside an insert, a tailable
                 cursor and a claim; and what that worker costs while nothing happens
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from bench import bare_mongodb, mongodb_workers
from bench.measure import compare_latencies, ratio, rounded, rounds, spread
from bench.mongodb_workers import IDLE_SECONDS, WORKERS, MeasuredProcesses
from mainspring import Scheduler
from tests.support.servers.mongodb import ReplicaSet, with_database

ROUNDS = 5
RUNS = 6_000
BATCHES = (500, 1000)
SAMPLES = 60


def run() -> dict[str, Any]:
    with ReplicaSet(1, election_timeout=10) as servers:
        url = servers.url
        return {
            "drain": drains(url),
            "latency": latencies(url),
            "idle": idle(url),
        }


@contextmanager
def database(url: str) -> Iterator[tuple[str, str]]:
    """The URL of a database that is dropped afterwards, and its name."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    try:
        yield with_database(url, name), name
    finally:
        with bare_mongodb.connect(url) as client:
            client.drop_database(name)


def fill(url: str, job: str, count: int, delay: float = 0, **policy: Any) -> None:
    """So many runs of a job, due at one moment, as the store writes them."""
    asyncio.run(_fill(url, job, count, delay, policy))


async def _fill(url: str, job: str, count: int, delay: float, policy: dict[str, Any]) -> None:
    async with Scheduler(url, workers=0) as producer:

        @producer.job(id=job, **policy)
        async def work(n: int) -> None: ...

        due = await producer.now() + timedelta(seconds=delay)
        for start in range(0, count, 10_000):
            payloads = [{"n": n} for n in range(start, min(count, start + 10_000))]
            await producer.enqueue_many(job, payloads, at=due)


# -- drain ----------------------------------------------------------------------------------


def drains(url: str) -> dict[str, Any]:
    figures: dict[str, list[float]] = {}
    for _ in rounds(ROUNDS, "drain"):
        for name, value in drain_round(url).items():
            figures.setdefault(name, []).append(value)
    return {
        "jobs_per_second": {name: spread(values) for name, values in figures.items()},
        "of_bare_loop": ratio(figures["mainspring"], figures["bare loop"]),
        "runs_per_round": RUNS,
    }


def drain_round(url: str) -> dict[str, float]:
    """The bare loop at its best batch, before and after ours: noise that grows meets both."""
    first = max(bare_drain(url, batch) for batch in BATCHES)
    ours = our_drain(url)
    second = max(bare_drain(url, batch) for batch in BATCHES)
    figures = {"mainspring": ours, "bare loop": (first + second) / 2}
    return {name: rounded(value) for name, value in figures.items()}


def bare_drain(url: str, batch: int) -> float:
    with database(url) as (place, name):
        fill(place, "noop", RUNS)
        began = time.perf_counter()
        assert bare_mongodb.drain(url, name, "noop", batch) == RUNS
        return RUNS / (time.perf_counter() - began)


def our_drain(url: str) -> float:
    with database(url) as (place, _):
        fill(place, "noop", RUNS)
        return asyncio.run(_our_drain(place))


async def _our_drain(url: str) -> float:
    """From the start of the scheduler until everything is recorded."""
    done = 0
    reached = asyncio.Event()
    scheduler = Scheduler(url, workers=WORKERS)

    @scheduler.job(id="noop")
    async def noop(n: int) -> None:
        nonlocal done
        done += 1
        if done == RUNS:
            reached.set()

    began = time.perf_counter()
    async with scheduler:
        await reached.wait()
        while (await scheduler.stats()).runs["succeeded"] < RUNS:
            await asyncio.sleep(0.005)
        return RUNS / (time.perf_counter() - began)


# -- latency --------------------------------------------------------------------------------


def latencies(url: str) -> dict[str, Any]:
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    for at in rounds(ROUNDS, "latency"):
        ours.append(our_latency(url, at))
        bare.append(bare_latency(url, at))
    return compare_latencies(ours, bare)


def gaps(seed: int) -> list[float]:
    """Pauses between samples: longer than a start takes, so that each finds an idle worker."""
    rng = random.Random(seed)
    return [rng.uniform(0.03, 0.08) for _ in range(SAMPLES)]


def our_latency(url: str, seed: int) -> list[float]:
    with database(url) as (place, _):
        workers = MeasuredProcesses(mongodb_workers.listener, [(place,)])
        asyncio.run(_produce(place, seed))
        workers.send("stop")
        [taken] = workers.results()
        assert len(taken) == SAMPLES
        return list(taken)


async def _produce(url: str, seed: int) -> None:
    async with Scheduler(url, workers=0) as producer:
        await asyncio.sleep(0.5)
        for gap in gaps(seed):
            await asyncio.sleep(gap)
            await producer.enqueue("ping", {"sent": time.time()})
        await asyncio.sleep(0.5)


def bare_latency(url: str, seed: int) -> list[float]:
    with database(url) as (place, name):
        fill(place, "ping", 0)
        with bare_mongodb.connect(url) as client:
            client[name].create_collection("bare_hints", capped=True, size=64 * 1024)
            client[name]["bare_hints"].insert_one({"first": True})
        workers = MeasuredProcesses(mongodb_workers.bare_listener, [(url, name, SAMPLES)])
        time.sleep(0.5)
        bare_mongodb.ping(url, name, gaps(seed), "ping")
        [taken] = workers.results()
        return list(taken)


def idle(url: str) -> dict[str, Any]:
    with database(url) as (place, _):
        shares = []
        for _ in range(2):
            [used] = MeasuredProcesses(mongodb_workers.idler, [(place,)]).results()
            shares.append(used / IDLE_SECONDS * 100)
    return {"percent_of_a_core": [round(share, 2) for share in shares]}
