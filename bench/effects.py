"""Effect-once beside at-least-once: what a transaction of each handler's own costs.

`python -m bench effects` measures SQLite in a temporary file, and the replica set whose URL
`MAINSPRING_BENCH_MONGODB` names. The handler writes one row (document) of its own; at least once
does so in a commit of its own, which is what it would take without `ctx.transaction()`.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.measure import ratio, rounds, spread
from mainspring import RunContext, Scheduler

ROUNDS = 5
COUNT = 300
CAPACITY = 10


def run() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        report = {"sqlite": asyncio.run(_measure_sqlite(Path(place) / "bench.db"))}
    if url := os.environ.get("MAINSPRING_BENCH_MONGODB"):
        report["mongodb"] = asyncio.run(_measure_mongodb(url))
    return report


async def _measure_sqlite(file: Path) -> dict[str, Any]:
    connection = sqlite3.connect(file, timeout=30, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE effects (run TEXT)")
    insert = "INSERT INTO effects VALUES (?)"

    async def inside(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            session.execute(insert, (ctx.run_id,))

    async def beside(ctx: RunContext) -> None:
        connection.execute(insert, (ctx.run_id,))

    try:
        return await _measure(f"sqlite:///{file}", inside, beside)
    finally:
        connection.close()


async def _measure_mongodb(url: str) -> dict[str, Any]:
    from pymongo import AsyncMongoClient

    client: Any = AsyncMongoClient(url, w="majority")
    effects = client["bench_effects"].effects
    await effects.drop()
    await effects.insert_one({"run": "first"})

    async def inside(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            mine = session.client["bench_effects"].effects
            await mine.insert_one({"run": ctx.run_id}, session=session)

    async def beside(ctx: RunContext) -> None:
        await effects.insert_one({"run": ctx.run_id})

    try:
        return await _measure(url, inside, beside)
    finally:
        await client.drop_database("bench_effects")
        await client.close()


async def _measure(url: str, inside: Any, beside: Any) -> dict[str, Any]:
    once: list[float] = []
    least: list[float] = []
    for _ in rounds(ROUNDS, f"effects on {url.partition(':')[0]}"):
        once.append(await _rate(url, inside, delivery="effect_once"))
        least.append(await _rate(url, beside))
    return {
        "effect once, runs a second": spread(once),
        "at least once, runs a second": spread(least),
        "ratio": ratio(once, least),
    }


async def _rate(url: str, handler: Callable[[RunContext], Awaitable[None]], **policy: Any) -> float:
    scheduler = Scheduler(url, workers=CAPACITY)
    scheduler.job(id=handler.__name__, **policy)(handler)
    over = asyncio.Event()
    left = COUNT

    def ended(event: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            over.set()

    scheduler.on("run.succeeded", ended)
    async with scheduler:
        began = time.perf_counter()
        await scheduler.enqueue_many(handler.__name__, [None] * COUNT)
        await over.wait()
        return COUNT / (time.perf_counter() - began)
