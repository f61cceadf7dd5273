"""A row and a run in one transaction of the program: `enqueue(within=…)` beside a bare insert.

`python -m bench within` times whole transactions, commit included, in turns. The bare side writes
the same columns of the same run with one statement of the driver, and so neither checks nor
recognises anything. PostgreSQL and the replica set (one member) are started on loopback, with their
usual durability.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from pymongo import AsyncMongoClient

from bench.measure import folder, say
from mainspring import Client, Scheduler
from mainspring.core import codec
from mainspring.core.model import Run, new_run_id
from mainspring.stores.mongodb.codec import run_document
from mainspring.stores.postgresql.codec import INSERT_RUNS, arrays, run_row
from mainspring.stores.sql import Lane
from mainspring.stores.sqlite import codec as sqlite_codec

TRANSACTIONS = 1000
WARM_UP = 50
PAYLOAD = {"order": 4711, "to": "ada@example.org"}

Transact = Callable[[str], Awaitable[None]]
"""One transaction, with a run of that id; the empty id: by Mainspring."""


def run() -> dict[str, Any]:
    from tests.support.servers.mongodb import ReplicaSet, with_database
    from tests.support.servers.postgresql import Postgres

    figures: dict[str, Any] = {}
    with folder() as path:
        file = path / "jobs.db"
        figures["sqlite, sqlite3"] = asyncio.run(_measure(f"sqlite:///{file}", _on_sqlite(file)))
    with Postgres() as server:
        for name, connect in (("psycopg async", _on_async_psycopg), ("psycopg", _on_psycopg)):
            figures[f"postgresql, {name}"] = asyncio.run(_measure(server.url, connect(server.url)))
    with ReplicaSet(1, election_timeout=10) as servers:
        url = with_database(servers.url, "bench_within")
        figures["mongodb, async session"] = asyncio.run(_measure(url, _on_mongodb(url)))
    return figures


async def _measure(url: str, connect: Callable[[Client], Awaitable[Transact]]) -> dict[str, Any]:
    scheduler = Scheduler(url, workers=0)
    scheduler.job(ship)
    async with scheduler:
        transact = await connect(scheduler)
        rng = random.Random(1)
        times: dict[str, list[float]] = {"within": [], "bare": []}
        for n in range(WARM_UP + TRANSACTIONS):
            if n % 250 == 0:
                say(f"{url.partition(':')[0]}: transaction {n}")
            sides = [("within", ""), ("bare", new_run_id(datetime.now(UTC), rng))]
            for side, run_id in sides if n % 2 else reversed(sides):  # each is first in turn
                started = time.perf_counter()
                await transact(run_id)
                if n >= WARM_UP:
                    times[side].append(time.perf_counter() - started)
    within, bare = (median(times[side]) * 1000 for side in ("within", "bare"))
    return {
        "within_ms": round(within, 3),
        "bare_ms": round(bare, 3),
        "ratio": round(within / bare, 2),
    }


async def ship(order: int, to: str) -> None: ...


def _bare_run(run_id: str) -> Run:
    now = datetime.now(UTC)
    return Run(
        id=run_id,
        job_id="ship",
        handler="ship",
        payload=PAYLOAD,
        created_at=now,
        scheduled_at=now,
        run_at=now,
    )


def _on_async_psycopg(url: str) -> Callable[[Client], Awaitable[Transact]]:
    async def connect(client: Client) -> Transact:
        connection = await psycopg.AsyncConnection.connect(url)
        await connection.execute("CREATE TABLE IF NOT EXISTS orders (name text)")
        await connection.commit()

        async def transact(run_id: str) -> None:
            await connection.execute("INSERT INTO orders VALUES (%s)", ["row"])
            if run_id:
                rows = arrays([run_row(_bare_run(run_id))])
                await connection.execute(INSERT_RUNS, rows, binary=True)
            else:
                await client.enqueue("ship", PAYLOAD, within=connection)
            await connection.commit()

        return transact

    return connect


def _on_psycopg(url: str) -> Callable[[Client], Awaitable[Transact]]:
    async def connect(client: Client) -> Transact:
        connection = psycopg.connect(url)

        async def transact(run_id: str) -> None:
            connection.execute("INSERT INTO orders VALUES (%s)", ["row"])
            if run_id:
                connection.execute(INSERT_RUNS, arrays([run_row(_bare_run(run_id))]), binary=True)
            else:
                await client.enqueue("ship", PAYLOAD, within=connection)
            connection.commit()

        return transact

    return connect


def _on_sqlite(file: Path) -> Callable[[Client], Awaitable[Transact]]:
    async def connect(client: Client) -> Transact:
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE orders (name TEXT)")

        async def transact(run_id: str) -> None:
            connection.execute("INSERT INTO orders VALUES (?)", ["row"])
            if run_id:
                run = _bare_run(run_id)
                row = (run, Lane.of(run).name, codec.encode(PAYLOAD))
                sqlite_codec.insert_runs(connection, [row])
            else:
                await client.enqueue("ship", PAYLOAD, within=connection)
            connection.commit()

        return transact

    return connect


def _on_mongodb(url: str) -> Callable[[Client], Awaitable[Transact]]:
    async def connect(client: Client) -> Transact:
        database = AsyncMongoClient[dict[str, Any]](url).get_default_database()

        async def transact(run_id: str) -> None:
            async with (
                database.client.start_session() as session,
                await session.start_transaction(),
            ):
                await database.orders.insert_one({"name": "row"}, session=session)
                if run_id:
                    document = run_document(_bare_run(run_id), codec.encode(PAYLOAD))
                    await database.mainspring_runs.insert_one(document, session=session)
                else:
                    await client.enqueue("ship", PAYLOAD, within=session)

        return transact

    return connect
