"""What claims, enqueues, lists, health and pruning cost as the history and the backlog grow.

    python -m bench growth [--store sqlite|mongodb|both] [--most 1000000] [--json]

A store is filled with copies of two runs that it wrote itself, one that succeeded and one that is
pending: in SQL on SQLite, by the driver on MongoDB. It is measured at 10 thousand finished runs, at
100 thousand and so on; as many are pending, but at most a million on SQLite and 100 thousand on
MongoDB. Milliseconds, the median of some calls one after another: claim 200 runs, enqueue one, the
newest 50 runs, health of a job, the counts of all unfinished runs (`stats`), delete 100 old runs.

Up to a million the whole takes four minutes. `--most 10000000` takes ten more, to fill the file.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from pymongo import MongoClient

from bench.measure import folder, say
from mainspring import Scheduler
from mainspring.core import transitions
from mainspring.core.clock import to_us
from mainspring.core.model import Run
from mainspring.stores import open_store
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from mainspring.stores.protocol import Claim, RunQuery, Store
from mainspring.testing.store_calls import claim_runs
from tests.support.servers.mongodb import ReplicaSet, with_database

FIRST = 10_000
STORES = ("sqlite", "mongodb")
JOBS = 20
TIMES = 15
CLAIM = 200
BATCH = 100_000
WEEK, MICROSECOND = timedelta(days=7), timedelta(microseconds=1)
MOMENTS = ("created_at", "scheduled_at", "run_at", "started_at", "finished_at")
Copy = Callable[[str, range, int, int], None]
"""Makes copies of a run, with these numbers in their ids. The first moment, and the microseconds
from one to the next, give the time of each."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", choices=[*STORES, "both"], default="both")
    parser.add_argument("--most", type=int, default=1_000_000, help="finished runs")
    parser.add_argument(
        "--seconds", type=int, default=3600, help="begin no filling that ends later"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if options.store in ("sqlite", "both"):
        with folder() as path:
            url = f"sqlite:///{path / 'growth.db'}"
            copy = partial(copy_in_sqlite, path / "growth.db")
            figures["sqlite"] = asyncio.run(
                grow(url, copy, 1_000_000, options.most, options.seconds)
            )
    if options.store in ("mongodb", "both"):
        with ReplicaSet(1, election_timeout=10) as servers:
            url = with_database(servers.url, "bench_growth")
            copy = partial(copy_in_mongodb, url)
            most = min(options.most, 1_000_000)
            figures["mongodb"] = asyncio.run(grow(url, copy, 100_000, most, options.seconds))
    return figures


async def grow(
    url: str, copy: Copy, most_pending: int, most: int, seconds: float
) -> dict[str, Any]:
    """The milliseconds of each operation at each size."""
    store = open_store(url)
    await store.open()
    await _write_templates(store)
    first, step = to_us(await store.now() - WEEK), WEEK / most // MICROSECOND
    figures: dict[str, Any] = {}
    finished = pending = 0
    size, took, ends = FIRST, 0.0, time.monotonic() + seconds
    while size <= most and time.monotonic() + 8 * took < ends:
        say(f"growth: filling to {size:,} finished runs")
        began = time.perf_counter()
        backlog = min(size, most_pending)
        for template, start, end in (("finished", finished, size), ("pending", pending, backlog)):
            for at in range(start, end, BATCH):
                copy(template, range(at, min(at + BATCH, end)), first, step)
        finished, pending = size, backlog
        took = time.perf_counter() - began
        say(f"growth: measuring at {size:,} finished runs")
        figures[f"{size} finished"] = {
            "pending": pending,
            "filled_in_s": round(took),
            **await _operations(store, url, size),
        }
        size *= 10
    await store.close()
    return figures


async def _write_templates(store: Store) -> None:
    now = await store.now()
    runs = [_run(now, "finished", "other"), _run(now, "pending", "work")]
    await store.add(runs)
    claim = Claim(worker="bench", handlers=frozenset({"other"}), limit=1, lease=WEEK)
    [claimed] = await claim_runs(store, claim)
    assert await store.commit([transitions.succeeded(claimed, now, {"ok": True})]) == [True]


def _run(now: datetime, run_id: str, handler: str) -> Run:
    return Run(
        id=run_id,
        job_id="job0" if handler == "other" else "work",
        handler=handler,
        created_at=now,
        scheduled_at=now,
        run_at=now,
        payload={"to": "someone@example.org", "subject": "hello"},
    )


async def _operations(store: Store, url: str, size: int) -> dict[str, float]:
    made = iter(range(10**9))
    claim = Claim(worker="bench", handlers=frozenset({"work"}), limit=CLAIM, lease=WEEK)

    async def enqueue() -> None:
        await store.add([_run(await store.now(), f"new-{size}-{next(made)}", "work")])

    async def prune() -> None:
        assert await store.maintain(await store.now(), 100) == 100

    async with Scheduler(url, workers=0) as client:
        await client.add_job("job0", handler="other", replace=True)
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "claim_200_ms": lambda: claim_runs(store, claim),
            "enqueue_ms": enqueue,
            "list_50_ms": lambda: store.find(RunQuery(limit=50, brief=True)),
            "job_health_ms": lambda: client.job_health("job0"),
            "stats_ms": client.stats,
            "prune_100_ms": prune,
        }
        return {name: await _milliseconds(call) for name, call in calls.items()}


async def _milliseconds(call: Callable[[], Awaitable[Any]]) -> float:
    """The first calls find the pages of the database cold, whatever its size."""
    times = []
    for _ in range(TIMES + 2):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return round(median(times[2:]) * 1000, 2)


def copy_in_sqlite(path: Path, template: str, numbers: range, first: int, step: int) -> None:
    moment = f"{first} + {step} * number"
    job = f"'job' || number % {JOBS}" if template == "finished" else "job_id"
    with closing(sqlite3.connect(path, timeout=60)) as database, database:
        database.execute("PRAGMA synchronous = OFF")
        shown = database.execute("SELECT * FROM mainspring_runs LIMIT 0").description
        columns = [name for name, *_ in shown if name != "seq"]
        values = {
            **{name: f'"{name}"' for name in columns},
            **{name: f"iif({name} IS NULL, NULL, {moment})" for name in MOMENTS},
            "id": f"printf('{template}%026d', number)",
            "job_id": job,
        }
        database.execute(
            "WITH RECURSIVE numbers (number) AS (SELECT ? UNION ALL SELECT number + 1 FROM numbers"
            " WHERE number + 1 < ?)"
            f" INSERT INTO mainspring_runs ({', '.join(map(repr, columns))})"
            f" SELECT {', '.join(values[name] for name in columns)}"
            " FROM numbers, (SELECT * FROM mainspring_runs WHERE id = ?)",
            (numbers.start, numbers.stop, template),
        )


def copy_in_mongodb(url: str, template: str, numbers: range, first: int, step: int) -> None:
    with MongoClient[dict[str, Any]](url) as client:
        runs = client.get_default_database()[f"{DEFAULT_PREFIX}runs"]
        stored = runs.find_one({"_id": template})
        assert stored is not None
        moments = [name for name in MOMENTS if stored.get(name) is not None]
        for start in range(numbers.start, numbers.stop, 10_000):
            runs.insert_many(
                {
                    **stored,
                    **dict.fromkeys(moments, first + step * number),
                    "_id": f"{template}{number:026}",
                    **({"job_id": f"job{number % JOBS}"} if template == "finished" else {}),
                }
                for number in range(start, min(start + 10_000, numbers.stop))
            )
