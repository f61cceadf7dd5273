"""The store on object storage beside SQLite: runs a second, latency, requests, and their price.

Each side does the same: an S3 server (SeaweedFS) and a directory on this machine, and SQLite.

    drain      no-op runs that are enqueued at once, in one process; and requests a run
    alone      runs that are enqueued one after another on an idle scheduler: enqueue to start,
               and requests a run
    idle       requests a minute of two schedulers on one store that have nothing to do
    collection requests of one collection of garbage, which is done once an hour
    writers    1, 4 and 32 clients of one store that write all the time, on virtual time
    month      what the requests cost in a month, by the list price of Amazon S3: two schedulers,
               and runs that come one by one or a thousand at a time
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

from bench.measure import folder, milliseconds, rounded
from bench.object_writers import measure_writers
from mainspring import Scheduler
from mainspring.stores import open_store
from mainspring.stores.objects import ObjectStore
from mainspring.stores.protocol import Store
from tests.support.servers.seaweedfs import BUCKET, SeaweedFs, environment

RUNS = 1000
SAMPLES = 30
IDLE_SECONDS = 120.0
WRITER_SECONDS = 60.0
SETTLE_SECONDS = 10.0
"""What a start causes is over then."""

RUNS_A_DAY = (10, 1_000, 100_000)
DOLLARS_A_MILLION = {"put": 5.0, "list": 5.0, "get": 0.4, "head": 0.4, "delete": 0.0}
"""Amazon S3 Standard, us-east-1, list price of 2026. Reading the clock counts as `head`."""
MINUTES_A_MONTH = 60 * 24 * 365 / 12
DAYS_A_MONTH = 365 / 12


def run() -> dict[str, Any]:
    with folder() as path, server() as endpoint:
        places = {
            "sqlite": f"sqlite:///{path}/jobs.db",
            "directory": f"file://{path}/bucket",
            "s3": f"s3://{BUCKET}/bench-{uuid4().hex[:12]}?endpoint={endpoint}",
        }
        collection = asyncio.run(collect_garbage(places["s3"]))
        figures: dict[str, Any] = {side: asyncio.run(measure(url)) for side, url in places.items()}
        idle = asyncio.run(measure_idle(places["s3"]))
    for side in ("directory", "s3"):
        ratio = figures[side]["drain"]["runs_per_s"] / figures["sqlite"]["drain"]["runs_per_s"]
        figures[side]["drain"]["of_sqlite"] = {"ratio": round(ratio, 3)}
    s3 = figures["s3"]
    hourly = {kind: count / 60 for kind, count in collection.items()}
    waiting = [*idle.values(), hourly]
    return {
        **figures,
        "idle": idle,
        "collection": collection,
        "writers": measure_writers(WRITER_SECONDS),
        "month": {
            f"{runs} runs a day": {
                "one by one": dollars(waiting, s3["alone"]["requests_per_run"], runs),
                "a thousand at a time": dollars(waiting, s3["drain"]["requests_per_run"], runs),
            }
            for runs in RUNS_A_DAY
        },
    }


@contextmanager
def server() -> Iterator[str]:
    """An S3 server, and the credentials for it in the environment."""
    before = dict(os.environ)
    os.environ |= environment()
    try:
        with SeaweedFs() as servers:
            yield servers.url
    finally:
        os.environ.clear()
        os.environ |= before


async def measure(url: str) -> dict[str, Any]:
    store = open_store(url)
    started: list[float] = []
    handled = 0
    all_handled = asyncio.Event()
    scheduler = Scheduler(store)

    @scheduler.job(id="work")
    async def work(sent: float | None = None) -> None:
        nonlocal handled
        handled += 1
        if handled == RUNS:
            all_handled.set()
        if sent is not None:
            started.append(time.time() - sent)

    async with scheduler:
        await asyncio.sleep(SETTLE_SECONDS)
        before, began = _requests(store), time.perf_counter()
        runs = await scheduler.enqueue_many("work", [None] * RUNS)
        await all_handled.wait()
        await scheduler.wait(runs[-1].id)
        took, drained = time.perf_counter() - began, _requests(store) - before
        await asyncio.sleep(SETTLE_SECONDS)
        before = _requests(store)
        for _ in range(SAMPLES):
            one = await scheduler.enqueue("work", {"sent": time.time()})
            await scheduler.wait(one.id)
        alone = _requests(store) - before
    return {
        "drain": {"runs_per_s": rounded(RUNS / took), "requests_per_run": _each(drained, RUNS)},
        "alone": {**milliseconds(started), "requests_per_run": _each(alone, SAMPLES)},
    }


async def collect_garbage(url: str) -> dict[str, float]:
    """Make the store, and collect garbage there: no scheduler does so within the next hour, so the
    other figures are free of it."""
    store = open_store(url)
    await store.open()
    before = _requests(store)
    await store.maintain(await store.now() - timedelta(days=30), 1)
    spent = _requests(store) - before
    await store.close()
    return _each(spent, 1)


async def measure_idle(url: str) -> dict[str, dict[str, float]]:
    """Requests a minute of two schedulers, of which one leads."""
    stores = [open_store(url), open_store(url)]
    async with Scheduler(stores[0]) as first, Scheduler(stores[1]) as second:
        await asyncio.sleep(SETTLE_SECONDS)
        before = [_requests(store) for store in stores]
        await asyncio.sleep(IDLE_SECONDS)
        spent = [_requests(store) - known for store, known in zip(stores, before, strict=True)]
        names = ["leader" if one.is_leader else "follower" for one in (first, second)]
    minutes = IDLE_SECONDS / 60
    return {name: _each(count, minutes) for name, count in zip(names, spent, strict=True)}


def dollars(
    waiting: Iterable[Mapping[str, float]], a_run: Mapping[str, float], runs_a_day: int
) -> dict[str, float]:
    """`waiting`: the requests of each scheduler in a minute, and others that are always there."""
    always = sum(_price(requests) for requests in waiting) * MINUTES_A_MONTH
    return {"dollars": round(always + _price(a_run) * runs_a_day * DAYS_A_MONTH, 2)}


def _price(requests: Mapping[str, float]) -> float:
    return sum(DOLLARS_A_MILLION[kind] * count / 1e6 for kind, count in requests.items())


def _requests(store: Store) -> Counter[str]:
    return store.bucket.requests.copy() if isinstance(store, ObjectStore) else Counter()


def _each(requests: Mapping[str, int], count: float) -> dict[str, float]:
    return {kind: round(number / count, 3) for kind, number in sorted(requests.items())}
