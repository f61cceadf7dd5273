"""What counting ended runs costs a drain, and what health and metrics cost at a million runs.

drain    runs a second that one worker ends, with counting and without it, in turns (the worker
         starts when all runs are enqueued); SQLite in a temporary file, MongoDB on loopback
read     milliseconds of `job_health`, `job_metrics`, `stats` and `counts` of a day, in an SQLite
         file with a few finished runs and with many (of 20 jobs, over 7 days)
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from bench.measure import rounds, say
from mainspring import Scheduler
from mainspring.core.model import Run, State
from mainspring.stores.mongodb import counters as mongodb_counters
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite import commit as sqlite_commit
from tests.support.servers.mongodb import ReplicaSet, with_database

RUNS_DRAINED = 5_000
ROUNDS = 5
MANY_RUNS = 1_000_000
FEW_RUNS = 1_000
JOBS = 20
BATCH = 5_000
TIMES = 20


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place, ReplicaSet(1, election_timeout=10) as servers:
        return {
            "drain": {
                "sqlite": _drains(lambda n: f"sqlite:///{place}/drain{n}.db"),
                "mongodb": _drains(lambda n: with_database(servers.url, f"statistics{n}")),
            },
            "read": {
                f"{FEW_RUNS} runs": asyncio.run(_reads(Path(place) / "few.db", FEW_RUNS)),
                f"{MANY_RUNS} runs": asyncio.run(_reads(Path(place) / "many.db", MANY_RUNS)),
            },
        }


def _drains(url_of: Callable[[str], str]) -> dict[str, Any]:
    counted, uncounted = [], []
    for turn in rounds(ROUNDS, "drain"):
        counted.append(asyncio.run(_drain(url_of(f"{turn}a"))))
        with ExitStack() as stack:
            stack.enter_context(patch.object(sqlite_commit, "count", lambda tx, endings: None))
            stack.enter_context(patch.object(mongodb_counters, "count_updates", lambda endings: []))
            uncounted.append(asyncio.run(_drain(url_of(f"{turn}b"))))
    pairs = zip(counted, uncounted, strict=True)
    return {
        "runs_a_second_counted": round(median(counted)),
        "runs_a_second_uncounted": round(median(uncounted)),
        "counted_to_uncounted": round(median(one / other for one, other in pairs), 3),
    }


async def _drain(url: str) -> float:
    async with Scheduler(url, workers=0) as producer:

        @producer.job(id="work")
        async def queued() -> None: ...

        await queued.enqueue_many([{}] * RUNS_DRAINED)
    worker = Scheduler(url, workers=50)
    left, over = RUNS_DRAINED, asyncio.Event()

    @worker.job(id="work")
    async def work() -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set()

    began = time.perf_counter()
    async with worker:
        await over.wait()
    return RUNS_DRAINED / (time.perf_counter() - began)


async def _reads(path: Path, count: int) -> dict[str, float]:
    say(f"filling {count:,} runs")
    await _fill(path, count)
    async with Scheduler(f"sqlite:///{path}", workers=0) as scheduler:
        for n in range(JOBS):
            await scheduler.add_job(f"job{n}", handler="work")
        day = await scheduler.now() - timedelta(days=1)
        return {
            "job_health_ms": await _milliseconds(lambda: scheduler.job_health("job0")),
            "job_metrics_day_ms": await _milliseconds(lambda: scheduler.job_metrics("job0")),
            "job_metrics_week_ms": await _milliseconds(lambda: scheduler.job_metrics("job0", "7d")),
            "stats_ms": await _milliseconds(scheduler.stats),
            "counts_of_a_day_ms": await _milliseconds(lambda: scheduler.counts(since=day)),
        }


async def _fill(path: Path, count: int) -> None:
    store = SqliteStore(path)
    await store.open()
    now = datetime.now(UTC)
    step = timedelta(days=7) / count
    for start in range(0, count, BATCH):
        await store.add(
            [
                _ended_run(n, now - step * (count - n))
                for n in range(start, min(start + BATCH, count))
            ]
        )
    await store.close()


def _ended_run(n: int, at: datetime) -> Run:
    return Run(
        id=f"run{n:08}",
        job_id=f"job{n % JOBS}",
        handler="work",
        created_at=at,
        scheduled_at=at,
        run_at=at,
        state=State.FAILED if n % 25 == 0 else State.SUCCEEDED,
        error="ValueError: no" if n % 25 == 0 else None,
        attempt=1,
        started_at=at + timedelta(milliseconds=n % 40),
        finished_at=at + timedelta(milliseconds=n % 40 + n % 5000),
    )


async def _milliseconds(call: Callable[[], Awaitable[Any]]) -> float:
    await call()
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return round(median(times) * 1000, 2)
