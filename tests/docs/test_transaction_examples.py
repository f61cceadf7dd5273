"""The examples of how-to/enqueue-in-your-own-transaction.md on PostgreSQL and MongoDB, and that of
how-to/write-effects-once.md on PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from django.conf import settings
from django.db import connections
from pymongo import AsyncMongoClient
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from mainspring import Scheduler
from tests.support.doc_examples import DOCS, blocks
from tests.support.postgresql import SharedSchema
from tests.support.servers.fixtures import *  # noqa: F403

PAGE = DOCS / "how-to" / "enqueue-in-your-own-transaction.md"
EFFECTS_PAGE = DOCS / "how-to" / "write-effects-once.md"


@pytest.fixture
def database(postgresql_url: str) -> Iterator[str]:
    """A database of the page's own, with its table."""
    name = f"page_{uuid.uuid4().hex[:12]}"
    server = SharedSchema(postgresql_url)
    server.execute(f"CREATE DATABASE {name}")
    url = postgresql_url.rpartition("/")[0] + f"/{name}"
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (number int)")
    yield url
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def page(kind: str, placeholder: str, url: str) -> dict[str, Any]:
    """What the examples of a kind define."""
    source = "\n\n".join(block.text for block in blocks(PAGE) if block.kind == kind)
    assert source.count(placeholder) == 1
    defined: dict[str, Any] = {"__name__": "page"}
    exec(compile(source.replace(placeholder, url), str(PAGE), "exec"), defined)
    return defined


async def check(scheduler: Scheduler, numbers: list[int]) -> None:
    runs = [await scheduler.get_run(run) for run in (await scheduler.list_runs()).items]
    assert sorted(run.payload["number"] for run in runs) == numbers


async def test_async_examples_on_postgresql(database: str) -> None:
    defined = page("postgresql", "postgresql://app@db/shop", database)
    defined["scheduler"].configure(workers=0)
    engine = create_async_engine(database.replace("postgresql:", "postgresql+asyncpg:"))
    async with (
        defined["scheduler"] as scheduler,
        await psycopg.AsyncConnection.connect(database) as connection,
        asyncpg.create_pool(database, min_size=1) as pool,
        AsyncSession(engine) as session,
    ):
        await defined["place_order"](connection, 1)
        await defined["place_order_by_asyncpg"](pool, 2)
        await defined["place_order_in_async_session"](session, 3)
        await check(scheduler, [1, 2, 3])
    await engine.dispose()
    with psycopg.connect(database) as reader:
        assert reader.execute("SELECT number FROM orders").fetchall() == [(1,), (2,), (3,)]


def test_plain_examples_on_postgresql(database: str) -> None:
    defined = page("postgresql", "postgresql://app@db/shop", database)
    scheduler = defined["scheduler"]
    scheduler.configure(workers=0)
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
    at = urlsplit(database)
    place = {"HOST": at.hostname, "PORT": at.port, "NAME": at.path[1:], "USER": at.username}
    options = {"ENGINE": "django.db.backends.postgresql", **place}
    kept = dict(connections.databases)
    connections.databases.update(connections.configure_settings({"default": options}))
    engine = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg2:"))
    try:
        with (
            scheduler.blocking as client,
            psycopg.connect(database) as connection,
            Session(engine) as session,
        ):
            defined["place_order_plainly"](connection, 1)
            defined["place_order_in_session"](session, 2)
            defined["place_order_in_django"](3)
            client.wait_for(check(scheduler, [1, 2, 3]))
    finally:
        connections["default"].close()
        engine.dispose()
        del connections["default"]
        connections.databases.clear()
        connections.databases.update(kept)
    with psycopg.connect(database) as reader:
        assert reader.execute("SELECT number FROM orders").fetchall() == [(1,), (2,), (3,)]


async def test_sql_example(database: str) -> None:
    defined = page("postgresql", "postgresql://app@db/shop", database)
    defined["scheduler"].configure(workers=0)
    [sql] = [block.text for block in blocks(PAGE) if block.language == "sql"]
    async with defined["scheduler"] as scheduler:
        with psycopg.connect(database) as connection:
            connection.execute(sql.encode())
            connection.execute("INSERT INTO orders VALUES (1), (2)")
        await check(scheduler, [1, 2])


def test_effects_example_on_postgresql(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE accounts (name text PRIMARY KEY, cents int)")
        connection.execute("INSERT INTO accounts VALUES ('ada', 1000), ('grace', 1000)")
    [block] = [one.text for one in blocks(EFFECTS_PAGE) if one.kind == "postgresql"]
    assert block.count("postgresql://app@db/shop") == 1
    script = tmp_path / "page.py"
    script.write_text(block.replace("postgresql://app@db/shop", database))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    with psycopg.connect(database) as reader:
        assert reader.execute("SELECT * FROM accounts").fetchall() == [("grace", 1000)]


async def test_mongodb_example(database_url: str) -> None:
    defined = page("mongodb", "mongodb://db1,db2,db3/shop?replicaSet=rs", database_url)
    defined["scheduler"].configure(workers=0)
    async with defined["scheduler"] as scheduler, AsyncMongoClient[Any](database_url) as client:
        try:
            await defined["place_order"](client, 1)
            await check(scheduler, [1])
            assert await client.shop.orders.count_documents({"_id": 1}) == 1
        finally:
            await client.drop_database("shop")
