"""MongoDB with many processes and many runs, beside bare pymongo.

One mongod, a replica set of one, on loopback.

    processes    no-op runs drained by one process and by four
    limit        concurrency=5, four processes, runs of 1 ms, beside a bare loop that holds slots
"""

from __future__ import annotations

import threading
import time
from typing import Any

from bench import bare_mongodb, mongodb_workers
from bench.measure import ratio, rounds, spread
from bench.mongodb import database, fill
from bench.mongodb_workers import MeasuredProcesses
from tests.support.servers.mongodb import ReplicaSet

ROUNDS = 5
RUNS = 5_000
LIMIT = 5
PROCESSES = 4
LIMITED_RUNS = 600
HEAD_START = 5.0
"""Seconds to enqueue everything in, before it falls due."""


def run() -> dict[str, Any]:
    with ReplicaSet(1, election_timeout=10) as servers:
        return {
            "processes": processes(servers.url),
            "limit": limits(servers.url),
        }


# -- processes, and a limit over them -------------------------------------------------------


def processes(url: str) -> dict[str, Any]:
    """Both fill the cores of a small machine, so that noise tells most: now this one is first, now
    that."""
    one: list[float] = []
    four: list[float] = []
    for at in rounds(ROUNDS, "processes"):
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
    for _ in rounds(ROUNDS, "limit"):
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
