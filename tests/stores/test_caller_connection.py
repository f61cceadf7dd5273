"""Enqueue within a transaction of each kind of connection that callers have."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy as sa
from django.conf import settings as django_settings
from django.db import connections as django_connections
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from mainspring import Client, Enqueue, Scheduler, State
from mainspring.core.model import Run
from mainspring.errors import RunNotFound
from tests.support.postgresql import SharedSchema, shared_schema

Open = Callable[[str], AbstractAsyncContextManager[Any]]
"""Opens a connection with a transaction that has written a row. The block's end commits, an error
rolls back."""

TABLE = f"orders_{uuid.uuid4().hex[:12]}"
INSERT = f"INSERT INTO {TABLE} VALUES ('row')"


# -- how each library opens one -------------------------------------------------------------


@asynccontextmanager
async def with_psycopg(url: str) -> AsyncIterator[Any]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        connection.execute(INSERT)
        yield connection


@asynccontextmanager
async def with_psycopg_autocommit_block(url: str) -> AsyncIterator[Any]:
    options: dict[str, Any] = {"autocommit": True, "cursor_factory": psycopg.RawCursor}
    with psycopg.connect(url, **options) as connection, connection.transaction():
        connection.execute(INSERT)
        yield connection


@asynccontextmanager
async def with_async_psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        await connection.execute(INSERT)
        yield connection


@asynccontextmanager
async def with_psycopg_pool(url: str) -> AsyncIterator[Any]:
    async with AsyncConnectionPool(url, open=False) as pool, pool.connection() as connection:
        await connection.execute(INSERT)
        yield connection


@asynccontextmanager
async def with_psycopg2(url: str) -> AsyncIterator[Any]:
    factory = psycopg2.extras.RealDictCursor
    with closing(psycopg2.connect(url, cursor_factory=factory)) as connection, connection:
        connection.cursor().execute(INSERT)
        yield connection


@asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(INSERT)
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        await connection.execute(INSERT)
        yield connection


def _dialect(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def with_session(driver: str) -> Open:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = sa.create_engine(_dialect(url, driver))
        with Session(engine) as session, session.begin():
            session.execute(sa.text(INSERT))
            yield session
        engine.dispose()

    return opened


def with_async_session(driver: str) -> Open:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Any]:
        engine = create_async_engine(_dialect(url, driver))
        async with AsyncSession(engine) as session, session.begin():
            yield session
            await session.execute(sa.text(INSERT))  # the enqueue is its first statement
        await engine.dispose()

    return opened


@asynccontextmanager
async def with_scoped_session(url: str) -> AsyncIterator[Any]:
    engine = sa.create_engine(_dialect(url, "psycopg"))
    session = scoped_session(sessionmaker(engine))
    try:
        yield session
        session.execute(sa.text(INSERT))
        session.commit()
    finally:
        session.remove()
        engine.dispose()


@asynccontextmanager
async def with_sqlalchemy_connection(url: str) -> AsyncIterator[Any]:
    engine = sa.create_engine(_dialect(url, "psycopg"))
    with engine.connect() as connection:
        yield connection
        connection.execute(sa.text(INSERT))
        connection.commit()
    engine.dispose()


@asynccontextmanager
async def with_async_sqlalchemy_connection(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(_dialect(url, "asyncpg"))
    async with engine.connect() as connection:
        yield connection
        await connection.execute(sa.text(INSERT))
        await connection.commit()
    await engine.dispose()


@asynccontextmanager
async def with_sqlite3(url: str) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(url)) as connection, connection:
        connection.row_factory = lambda cursor, row: {"row": row}
        connection.text_factory = bytes
        yield connection
        connection.execute(INSERT)


@asynccontextmanager
async def with_sqlite3_explicit(url: str) -> AsyncIterator[Any]:
    with closing(sqlite3.connect(url, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute(INSERT)
        yield connection
        connection.execute("COMMIT")


@asynccontextmanager
async def with_aiosqlite(url: str) -> AsyncIterator[Any]:
    async with aiosqlite.connect(url) as connection:
        await connection.execute(INSERT)
        yield connection
        await connection.commit()


@asynccontextmanager
async def with_sqlite_session(url: str) -> AsyncIterator[Any]:
    engine = sa.create_engine(f"sqlite:///{url}")
    with Session(engine) as session, session.begin():
        yield session
        session.execute(sa.text(INSERT))
    engine.dispose()


@asynccontextmanager
async def with_async_sqlite_session(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(f"sqlite+aiosqlite:///{url}")
    async with AsyncSession(engine) as session, session.begin():
        session.add_all([])
        yield session
        await session.execute(sa.text(INSERT))
    await engine.dispose()


@contextlib.contextmanager
def django_connection(**database: Any) -> Iterator[Any]:
    if not django_settings.configured:
        django_settings.configure(DATABASES={}, USE_TZ=True)
    name = f"db{len(django_connections.databases)}"
    django_connections.databases[name] = django_connections.configure_settings(
        {"default": database}
    )["default"]
    try:
        yield django_connections[name]
    finally:
        django_connections[name].close()


ON_POSTGRESQL: dict[str, Open] = {
    "psycopg": with_psycopg,
    "psycopg autocommit and block": with_psycopg_autocommit_block,
    "psycopg async": with_async_psycopg,
    "psycopg pool": with_psycopg_pool,
    "psycopg2": with_psycopg2,
    "asyncpg": with_asyncpg,
    "asyncpg pool": with_asyncpg_pool,
    "Session on psycopg": with_session("psycopg"),
    "Session on psycopg2": with_session("psycopg2"),
    "AsyncSession on psycopg": with_async_session("psycopg"),
    "AsyncSession on asyncpg": with_async_session("asyncpg"),
    "scoped_session": with_scoped_session,
    "Connection": with_sqlalchemy_connection,
    "AsyncConnection": with_async_sqlalchemy_connection,
}
ON_SQLITE: dict[str, Open] = {
    "sqlite3": with_sqlite3,
    "sqlite3 with BEGIN": with_sqlite3_explicit,
    "aiosqlite": with_aiosqlite,
    "Session": with_sqlite_session,
    "AsyncSession": with_async_sqlite_session,
}


# -- stores with a table of the caller ------------------------------------------------------


@pytest.fixture(scope="module")
def shared(postgresql_url: str) -> Iterator[SharedSchema]:
    with shared_schema(postgresql_url) as schema:
        schema.execute(f"CREATE TABLE public.{TABLE} (name text)")
        yield schema
        schema.execute(f"DROP TABLE public.{TABLE}")


@pytest.fixture
def schema(shared: SharedSchema) -> Iterator[SharedSchema]:
    yield shared
    shared.execute(f"TRUNCATE public.{TABLE}")
    shared.empty()


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE {TABLE} (name TEXT)")
    return str(path)


class Shop:
    """A client of the store, and what the caller's own table holds."""

    def __init__(self, client: Client, count: Callable[[], int]) -> None:
        self.client = client
        self.count_rows = count

    async def stored(self) -> list[str]:
        return sorted(run.id for run in (await self.client.list_runs()).items)


@asynccontextmanager
async def shop_on(url: str, count: Callable[[], int]) -> AsyncIterator[Shop]:
    scheduler = Scheduler(url, workers=0)
    scheduler.job(ship)
    async with scheduler:
        yield Shop(scheduler, count)


async def ship(order: str = "none") -> None: ...


def rows_in_postgresql(schema: SharedSchema) -> Callable[[], int]:
    return lambda: schema.execute(f"SELECT count(*) FROM public.{TABLE}")[0][0]


def rows_in_sqlite(file: str) -> Callable[[], int]:
    def count() -> int:
        with closing(sqlite3.connect(file)) as connection:
            [number] = connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()
            return int(number)

    return count


class _Rollback(Exception):
    pass


async def check_commit_and_rollback(shop: Shop, url: str, open_transaction: Open) -> None:
    client = shop.client
    with contextlib.suppress(_Rollback):
        async with open_transaction(url) as connection:
            await client.enqueue("ship", {"order": "gone"}, within=connection)
            raise _Rollback
    assert (await shop.stored(), shop.count_rows()) == ([], 0)

    async with open_transaction(url) as connection:
        first = await client.enqueue("ship", {"order": "é"}, dedupe_key="k", within=connection)
        again = await client.enqueue("ship", dedupe_key="k", within=connection)
        follower = await client.enqueue("ship", after=first, within=connection)
        late, later = await client.enqueue_many(
            "ship", [{"order": "1"}, {"order": "2"}], delay="1h", within=connection
        )
        [mixed] = await client.enqueue_many([Enqueue("ship", priority=9)], within=connection)
        with pytest.raises(RunNotFound):
            await client.enqueue("ship", after="nothing", within=connection)
    assert (again.id, again.duplicate) == (first.id, True)
    assert follower.state is State.WAITING
    assert late.run_at > first.run_at
    runs: list[Run] = [first, follower, late, later, mixed]
    assert await shop.stored() == sorted(run.id for run in runs)
    assert (await client.get_run(first)).payload == {"order": "é"}
    assert shop.count_rows() == 1


@pytest.mark.parametrize("kind", ON_POSTGRESQL)
async def test_the_run_and_the_row_are_committed_together_on_postgresql(
    schema: SharedSchema, kind: str
) -> None:
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        await check_commit_and_rollback(shop, schema.server, ON_POSTGRESQL[kind])


@pytest.mark.parametrize("kind", ON_SQLITE)
async def test_the_run_and_the_row_are_committed_together_on_sqlite(file: str, kind: str) -> None:
    async with shop_on(f"sqlite:///{file}", rows_in_sqlite(file)) as shop:
        await check_commit_and_rollback(shop, file, ON_SQLITE[kind])
