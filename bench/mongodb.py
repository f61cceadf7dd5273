"""Jobs a second on MongoDB at `w: majority`, beside bare pymongo and beside npm's schedulers.

One mongod, a replica set of one, on loopback. Each round runs all sides one after another, so that
each ratio is of neighbours in time. The results are medians of these ratios.

    drain        no-op runs in one process: ours, the bare loop, mongo-job-scheduler, agenda
    processes    the same by one process and by four
    limit        concurrency=5, four processes, runs of 1 ms, beside a bare loop that holds slots
    latency      enqueue to start on an idle worker in another process, beside an insert, a tailable
                 cursor and a claim; and what that worker costs while nothing happens
    claim        the cost of a claim of 200 at 10 thousand and at 1 million pending
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from typing import Any

from bench import bare_mongodb, mongodb_workers, npm_peers
from bench.measure import milliseconds, ratio, rounded, spread
from bench.mongodb_workers import IDLE_SECONDS, WORKERS, MeasuredProcesses
from mainspring import Scheduler
from mainspring.core.model import Run, new_run_id
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import Claim
from mainspring.testing.store_calls import claim_runs
from tests.support.servers.mongodb import ReplicaSet, with_database

ROUNDS = 3
PROCESS_ROUNDS = 9
RUNS = 20_000
BATCHES = (500, 1000)
LIMIT = 5
PROCESSES = 4
LIMITED_RUNS = 5_000
HEAD_START = 10.0
"""Seconds to enqueue everything in, before it falls due."""
SAMPLES = 300
CLAIM = 200
SIZES = {"10,000 pending": 10_000, "1,000,000 pending": 1_000_000}
CLAIM_ROUNDS = 20


def run() -> dict[str, Any]:
    with ReplicaSet(1, election_timeout=10) as servers:
        url = servers.url
        return {
            "drain": drains(url),
            "processes": processes(url),
            "limit": limits(url),
            "latency": latencies(url),
            "idle": idle(url),
            "claim": claims(url),
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
    for _ in range(ROUNDS):
        for name, value in drain_round(url).items():
            figures.setdefault(name, []).append(value)
    peers = [name for name in figures if name in npm_peers.SETTINGS]
    return {
        "jobs_per_second": {name: spread(values) for name, values in figures.items()},
        "of_bare_loop": ratio(figures["mainspring"], figures["bare loop"]),
        **{f"of_{name}": ratio(figures["mainspring"], figures[name]) for name in peers},
        "runs_per_round": {"mainspring": RUNS, "bare loop": RUNS, "peers": npm_peers.RUNS},
    }


def drain_round(url: str) -> dict[str, float]:
    """The bare loop at its best batch, before and after ours: noise that grows meets both."""
    first = max(bare_drain(url, batch) for batch in BATCHES)
    ours = our_drain(url)
    second = max(bare_drain(url, batch) for batch in BATCHES)
    figures = {"mainspring": ours, "bare loop": (first + second) / 2}
    for peer, settings in npm_peers.SETTINGS.items():
        figures[peer] = npm_peers.drain(peer, url, *settings)
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


# -- processes, and a limit over them -------------------------------------------------------


def processes(url: str) -> dict[str, Any]:
    """Both fill the cores of a small machine, so that noise tells most: more rounds than elsewhere,
    and now this one first, now that."""
    one: list[float] = []
    four: list[float] = []
    for at in range(PROCESS_ROUNDS):
        sides = [(1, one), (PROCESSES, four)]
        for count, rates in reversed(sides) if at % 2 else sides:
            rates.append(processes_drain(url, count, RUNS)["rate"])
    return {
        "jobs_per_second": {"one": spread(one), "four": spread(four)},
        "four_of_one": ratio(four, one),
    }


def processes_drain(
    url: str, count: int, runs: int, seconds: float = 0, limit: int | None = None
) -> Any:
    """The workers are up and idle when all runs fall due at once: how long a Python program takes
    to start is no matter of throughput."""
    with database(url) as (place, name):
        workers = MeasuredProcesses(mongodb_workers.worker, [(place, seconds, limit)] * count)
        workers.send("go")
        fill(place, "work", runs, HEAD_START, concurrency=limit)
        with RunWatcher(url, name, limited=limit is not None) as watch:
            watch.wait()
            workers.send("stop")
        shares = workers.results()
    assert sum(shares) == runs
    return {"rate": runs / watch.seconds, "most": watch.most, "shares": shares}


class RunWatcher:
    """Looks every few milliseconds whether all runs have ended and, under a limit, how many hold a
    valid lease. The clock begins with the first that was claimed: processes start at different
    speeds. (That one may have ended before it is seen.)"""

    PAUSE = 0.01

    def __init__(self, url: str, name: str, *, limited: bool) -> None:
        self._url, self._name, self._limited = url, name, limited
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.most = 0
        self.seconds = 0.0

    def __enter__(self) -> RunWatcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait(self) -> None:
        assert self._over.wait(600), "the runs were not worked off in ten minutes"

    def _watch(self) -> None:
        began = None
        with bare_mongodb.connect(self._url) as client:
            runs = bare_mongodb.runs_of(client, self._name)
            while not self._over.wait(self.PAUSE):
                if began is None and runs.find_one({"state": {"$ne": "pending"}}, {"_id": 1}):
                    began = time.perf_counter()
                if self._limited:
                    self.most = max(self.most, count_valid_leases(runs))
                left = {"state": {"$in": ["pending", "running"]}}
                if began and not runs.find_one(left, {"_id": 1}):
                    self.seconds = time.perf_counter() - began
                    self._over.set()


def count_valid_leases(runs: Any) -> int:
    """How many runs have a valid lease."""
    valid = {"$gt": [{"$add": ["$leased_at", {"$divide": ["$lease", 1000]}]}, "$$NOW"]}
    running = {"state": "running", "leased_at": {"$type": "date"}, "$expr": valid}
    return len(list(runs.find(running, {"_id": 1})))


def limits(url: str) -> dict[str, Any]:
    ours, bare, most, shares = [], [], [], []
    for _ in range(ROUNDS):
        bare.append(bare_limit(url))
        each = processes_drain(url, PROCESSES, LIMITED_RUNS, 0.001, LIMIT)
        ours.append(each["rate"])
        most.append(each["most"])
        shares.append(each["shares"])
    return {
        "jobs_per_second": {"mainspring": spread(ours), "bare loop": spread(bare)},
        "of_bare_loop": ratio(ours, bare),
        "most_seen_at_once": max(most),
        "shares_of_processes": shares[-1],
        "runs_per_round": LIMITED_RUNS,
    }


def bare_limit(url: str) -> float:
    with database(url) as (place, name):
        fill(place, "work", LIMITED_RUNS, concurrency=LIMIT)
        least, more = divmod(LIMIT, PROCESSES)
        parts = [least + (n < more) for n in range(PROCESSES)]
        workers = MeasuredProcesses(
            mongodb_workers.bare_slots, [(url, name, LIMIT, part) for part in parts]
        )
        with RunWatcher(url, name, limited=True) as watch:
            workers.send("go")
            watch.wait()
        assert sum(workers.results()) == LIMITED_RUNS
        assert watch.most <= LIMIT
        return LIMITED_RUNS / watch.seconds


# -- latency --------------------------------------------------------------------------------


def latencies(url: str) -> dict[str, Any]:
    ours, bare = [], []
    for at in range(2):
        ours.append(milliseconds(our_latency(url, at)))
        bare.append(milliseconds(bare_latency(url, at)))
    return {
        "mainspring": ours,
        "bare": bare,
        "p99_of_bare": ratio([o["p99_ms"] for o in ours], [b["p99_ms"] for b in bare]),
        "p50_of_bare": ratio([o["p50_ms"] for o in ours], [b["p50_ms"] for b in bare]),
    }


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


# -- claim ----------------------------------------------------------------------------------


def claims(url: str) -> dict[str, Any]:
    return asyncio.run(_claims(url))


async def _claims(url: str) -> dict[str, Any]:
    """In turns, each after one that is not counted: the first after the other finds its pages cold.
    What is claimed stays claimed, so that the backlog shrinks by little."""
    times: dict[str, list[float]] = {name: [] for name in SIZES}
    stores = {name: MongoStore(with_database(url, f"bench_claim_{SIZES[name]}")) for name in SIZES}
    for name, store in stores.items():
        await store.open()
        await _backlog(store, SIZES[name])
    claim = Claim(
        worker="bench", handlers=frozenset({"work"}), limit=CLAIM, lease=timedelta(minutes=10)
    )
    for _ in range(CLAIM_ROUNDS):
        for name, store in stores.items():
            began = time.perf_counter()
            assert len(await claim_runs(store, claim)) == CLAIM
            times[name].append(time.perf_counter() - began)
    for store in stores.values():
        await store.close()
    with bare_mongodb.connect(url) as client:
        for size in SIZES.values():
            client.drop_database(f"bench_claim_{size}")
    cost = {name: median(values[1:]) for name, values in times.items()}
    least, most = cost.values()
    return {
        f"ms_per_claim_of_{CLAIM}": {name: round(value * 1000, 2) for name, value in cost.items()},
        "million_to_ten_thousand": round(most / least, 2),
    }


async def _backlog(store: MongoStore, count: int) -> None:
    now = await store.now()
    rng = random.Random(1)
    for start in range(0, count, 10_000):
        await store.add(
            [
                Run(
                    id=new_run_id(now, rng),
                    job_id="work",
                    handler="work",
                    created_at=now,
                    scheduled_at=now,
                    run_at=now + timedelta(microseconds=n),
                    payload={"n": n},
                )
                for n in range(start, min(count, start + 10_000))
            ]
        )
