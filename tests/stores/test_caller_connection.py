"""Enqueue within a transaction of each kind of connection that callers have."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiosqlite
import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy as sa
from django.conf import settings as django_settings
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from django.utils.connection import ConnectionProxy
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from pymongo import AsyncMongoClient, MongoClient
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from mainspring import Client, Enqueue, RunContext, Scheduler, State
from mainspring.core.model import Run
from mainspring.errors import (
    Conflict,
    InvalidInput,
    InvalidState,
    NotStarted,
    RunNotFound,
    StoreUnavailable,
)
from mainspring.stores.postgresql.claim import LaneStarts
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


# -- plain code -----------------------------------------------------------------------------


@contextlib.contextmanager
def plain_shop(url: str) -> Iterator[Scheduler]:
    scheduler = Scheduler(url, workers=0)
    scheduler.job(ship)
    with scheduler.blocking:
        yield scheduler


def plain_ids(scheduler: Scheduler) -> set[str]:
    return {run.id for run in scheduler.blocking.list_runs().items}


def check_plain_code(scheduler: Scheduler, connect: Callable[[], Any]) -> None:
    """In the main thread and in another one: a sync connection belongs to its thread."""
    enqueued: set[str] = set()

    def enqueue() -> None:
        with closing(connect()) as connection:
            enqueued.add(scheduler.blocking.enqueue("ship", within=connection).id)
            connection.commit()
            scheduler.blocking.enqueue("ship", within=connection)
            connection.rollback()

    enqueue()
    thread = threading.Thread(target=enqueue)
    thread.start()
    thread.join()
    assert len(enqueued) == 2
    assert plain_ids(scheduler) == enqueued


def test_plain_code_on_postgresql(schema: SharedSchema) -> None:
    with plain_shop(schema.url) as scheduler:
        check_plain_code(scheduler, lambda: psycopg.connect(schema.server))


def test_plain_code_on_sqlite(file: str) -> None:
    with plain_shop(f"sqlite:///{file}") as scheduler:
        check_plain_code(scheduler, lambda: sqlite3.connect(file))


def test_a_decorated_function_within(file: str) -> None:
    scheduler = Scheduler(f"sqlite:///{file}", workers=0)

    @scheduler.job
    def pack(order: int) -> None: ...

    with scheduler.blocking, closing(sqlite3.connect(file)) as connection:
        within = pack.blocking.options(within=connection, delay="1h")
        run = within.enqueue(1)
        runs = within.enqueue_many([{"order": 2}, {"order": 3}])
        assert plain_ids(scheduler) == set()
        connection.commit()
        assert plain_ids(scheduler) == {run.id, *(run.id for run in runs)}


def django_on_postgresql(schema: SharedSchema) -> dict[str, Any]:
    at = urlsplit(schema.server)
    place = {"HOST": at.hostname, "PORT": at.port, "NAME": at.path[1:], "USER": at.username}
    return {"ENGINE": "django.db.backends.postgresql", **place}


def check_django(scheduler: Scheduler, name: str) -> None:
    django_connections[name].ensure_connection()
    connection = ConnectionProxy(django_connections, name)  # as `django.db.connection` is one
    with pytest.raises(InvalidInput, match=r"transaction\.atomic"):
        scheduler.blocking.enqueue("ship", within=connection)
    with django_transaction.atomic(using=name):
        kept = scheduler.blocking.enqueue("ship", within=connection)
        with contextlib.suppress(_Rollback), django_transaction.atomic(using=name):
            scheduler.blocking.enqueue("ship", within=connection)
            raise _Rollback
        django_connections[name].cursor().execute(INSERT)
        assert plain_ids(scheduler) == set()
    with contextlib.suppress(_Rollback), django_transaction.atomic(using=name):
        scheduler.blocking.enqueue("ship", within=connection)
        raise _Rollback
    assert plain_ids(scheduler) == {kept.id}


def test_django_on_postgresql(schema: SharedSchema) -> None:
    with (
        plain_shop(schema.url) as scheduler,
        django_connection(**django_on_postgresql(schema)) as connection,
    ):
        check_django(scheduler, connection.alias)


def test_django_on_sqlite(file: str) -> None:
    with (
        plain_shop(f"sqlite:///{file}") as scheduler,
        django_connection(ENGINE="django.db.backends.sqlite3", NAME=file) as connection,
    ):
        check_django(scheduler, connection.alias)


def test_a_sync_session_of_mongodb(database_url: str) -> None:
    with plain_shop(database_url) as scheduler, MongoClient[Any](database_url) as client:
        rows = client.get_default_database().rows
        with client.start_session() as session, session.start_transaction():
            rows.insert_one({}, session=session)
            first = scheduler.blocking.enqueue("ship", dedupe_key="k", within=session)
            again = scheduler.blocking.enqueue("ship", dedupe_key="k", within=session)
            follower = scheduler.blocking.enqueue("ship", after=first, within=session)
            assert plain_ids(scheduler) == set()
        assert again.duplicate
        with client.start_session() as session:
            session.start_transaction()
            scheduler.blocking.enqueue("ship", within=session)
            session.abort_transaction()
            with pytest.raises(InvalidInput, match="no transaction"):
                scheduler.blocking.enqueue("ship", within=session)
        with pytest.raises(InvalidInput, match="ended"):
            scheduler.blocking.enqueue("ship", within=session)
        assert plain_ids(scheduler) == {first.id, follower.id}


# -- what is refused ------------------------------------------------------------------------


async def test_what_is_refused_on_postgresql(schema: SharedSchema) -> None:
    open_ones = contextlib.AsyncExitStack()
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop, open_ones:
        bare = open_ones.enter_context(psycopg.connect(schema.server, autocommit=True))
        closed = psycopg.connect(schema.server)
        closed.close()
        without = await asyncpg.connect(schema.server)
        open_ones.push_async_callback(without.close)
        pool = asyncpg.create_pool(schema.server, min_size=1)
        async with pool, pool.acquire() as given_back:
            pass
        engine = sa.create_engine(_dialect(schema.server, "psycopg"))
        alone = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        open_ones.callback(alone.close)
        ended = engine.connect()
        ended.close()
        lite = open_ones.enter_context(closing(sqlite3.connect(":memory:")))
        for within, why in [
            (object(), "object is not accepted"),
            ("postgresql://", "str is not accepted"),
            (engine, "Engine is not accepted"),
            (bare, "in no transaction"),
            (closed, "closed"),
            (without, "in no transaction"),
            (given_back, "given back to its pool"),
            (alone, "in no transaction"),
            (ended, "closed"),
            (lite, "no connection to PostgreSQL"),
        ]:
            with pytest.raises(InvalidInput, match=why) as refused:
                await shop.client.enqueue("ship", within=within)
            assert "psycopg2 or asyncpg, Django's connection" in str(refused.value)
        assert await shop.stored() == []


@pytest.mark.parametrize("has_mainspring", [False, True])
async def test_another_database_is_refused_and_its_transaction_goes_on(
    schema: SharedSchema, has_mainspring: bool
) -> None:
    name = f"other_{schema.name}"
    other = schema.server.rpartition("/")[0] + f"/{name}"
    schema.execute(f"CREATE DATABASE {name}")
    try:
        if has_mainspring:
            async with Client(f"{other}?schema={schema.name}") as client:
                await client.list_jobs()
        async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
            async with await psycopg.AsyncConnection.connect(other) as connection:
                await connection.execute("CREATE TABLE effects AS SELECT 1 AS n")
                for _ in range(2):
                    with pytest.raises(InvalidInput, match="another database than the store's"):
                        await shop.client.enqueue("ship", within=connection)
            assert await shop.stored() == []
            with psycopg.connect(other) as reader:
                assert reader.execute("SELECT n FROM effects").fetchall() == [(1,)]
    finally:
        schema.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize("key", [None, "k"])
def test_a_pipeline_is_refused_before_anything_is_sent(
    schema: SharedSchema, key: str | None
) -> None:
    """Its responses come later: the run would be added all the same."""
    with plain_shop(schema.url) as scheduler:
        with psycopg.connect(schema.server) as connection:
            kept = scheduler.blocking.enqueue("ship", within=connection)
            with connection.pipeline(), pytest.raises(InvalidInput, match="pipeline mode"):
                scheduler.blocking.enqueue("ship", dedupe_key=key, within=connection)
        assert plain_ids(scheduler) == {kept.id}


def test_the_first_statement_of_a_transaction_on_sqlite_waits_for_other_writers(file: str) -> None:
    """SQLite refuses at once to let a transaction write that has read before others wrote."""
    with plain_shop(f"sqlite:///{file}") as scheduler, ThreadPoolExecutor() as threads:
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        with (
            closing(sqlite3.connect(file, timeout=60, **options)) as connection,
            closing(sqlite3.connect(file, **options)) as writer,
        ):
            connection.execute("BEGIN")  # as `transaction.atomic()` of Django does
            writer.execute("BEGIN IMMEDIATE")
            writer.execute(INSERT)
            enqueue = threads.submit(scheduler.blocking.enqueue, "ship", within=connection)
            with pytest.raises(FutureTimeout):
                enqueue.result(timeout=0.5)
            writer.execute("COMMIT")
            run = enqueue.result(timeout=60)
            connection.execute("COMMIT")
        assert plain_ids(scheduler) == {run.id}


async def test_another_deployment_of_mongodb_is_refused(
    database_url: str, sharded_url: str
) -> None:
    name = database_url.rpartition("/")[2].partition("?")[0]
    other = sharded_url.rpartition("/")[0] + f"/{name}"
    async with shop_on(database_url, lambda: 0) as shop:
        async with AsyncMongoClient[Any](other) as client, client.start_session() as session:
            await session.start_transaction()
            with pytest.raises(InvalidInput, match="another deployment"):
                await shop.client.enqueue("ship", within=session)
            await session.abort_transaction()
        assert await shop.stored() == []


async def test_what_is_refused_on_sqlite(file: str, tmp_path: Path) -> None:
    async with shop_on(f"sqlite:///{file}", rows_in_sqlite(file)) as shop:
        with contextlib.ExitStack() as open_ones:
            memory = open_ones.enter_context(closing(sqlite3.connect(":memory:")))
            other = open_ones.enter_context(closing(sqlite3.connect(tmp_path / "other.db")))
            bare = open_ones.enter_context(closing(sqlite3.connect(file, isolation_level=None)))
            closed = sqlite3.connect(file)
            closed.close()
            async with aiosqlite.connect(file) as closed_async:
                pass
            for within, why in [
                (object(), "object is not accepted"),
                (memory, "to memory, not to"),
                (other, r"other\.db, not to"),
                (bare, "commits each statement by itself"),
                (closed, "closed database"),
                (closed_async, "closed"),
            ]:
                with pytest.raises(InvalidInput, match=why) as refused:
                    await shop.client.enqueue("ship", within=within)
                assert "sqlite3 or aiosqlite" in str(refused.value)
            link = tmp_path / "link.db"
            link.symlink_to(file)
            with closing(sqlite3.connect(link)) as linked, linked:
                run = await shop.client.enqueue("ship", within=linked)
        assert await shop.stored() == [run.id]


async def test_a_store_without_transactions_of_callers_refuses() -> None:
    async with shop_on("memory://", lambda: 0) as shop:
        await shop.client.enqueue("ship")  # now the job is known, and the enqueue is planned here
        with pytest.raises(InvalidInput, match="takes part in no transaction of yours"):
            await shop.client.enqueue("ship", within=object())
        assert len(await shop.stored()) == 1


async def test_all_runs_of_a_call_are_in_one_transaction(file: str) -> None:
    async with shop_on(f"sqlite:///{file}", rows_in_sqlite(file)) as shop:
        with pytest.raises(InvalidInput, match="give within to enqueue_many itself"):
            await shop.client.enqueue_many([Enqueue("ship", within=object())])


def test_a_client_that_is_not_open_says_to_open_it_first(file: str) -> None:
    client = Client(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(INSERT)
        with pytest.raises(NotStarted, match="before your transaction begins"):
            client.blocking.enqueue("ship", within=connection)


# -- conflicts on PostgreSQL ----------------------------------------------------------------

ISOLATED = ["REPEATABLE READ", "SERIALIZABLE"]


@asynccontextmanager
async def isolated(schema: SharedSchema, level: str) -> AsyncIterator[Any]:
    """A transaction that has its snapshot."""
    async with await psycopg.AsyncConnection.connect(schema.server) as connection:
        await connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        await connection.execute(INSERT)
        yield connection


@pytest.mark.parametrize("level", ISOLATED)
async def test_a_holder_that_an_isolated_transaction_sees(schema: SharedSchema, level: str) -> None:
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        holder = await shop.client.enqueue("ship", dedupe_key="k")
        async with isolated(schema, level) as connection:
            again = await shop.client.enqueue("ship", dedupe_key="k", within=connection)
            other = await shop.client.enqueue("ship", dedupe_key="l", within=connection)
            plain = await shop.client.enqueue("ship", within=connection)
        assert (again.id, again.duplicate) == (holder.id, True)
        assert await shop.stored() == sorted([holder.id, other.id, plain.id])
        assert shop.count_rows() == 1


@pytest.mark.parametrize("level", ISOLATED)
async def test_a_live_holder_that_is_newer_is_a_serialization_failure(
    schema: SharedSchema, level: str
) -> None:
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        async with isolated(schema, level) as connection:
            holder = await shop.client.enqueue("ship", dedupe_key="k")
            with pytest.raises(psycopg.errors.SerializationFailure):
                await shop.client.enqueue("ship", dedupe_key="k", within=connection)
        assert (await shop.stored(), shop.count_rows()) == ([holder.id], 0)


@pytest.mark.parametrize("level", ISOLATED)
async def test_an_ended_holder_that_is_newer_is_a_conflict(
    schema: SharedSchema, level: str
) -> None:
    """The snapshot hides that it holds the key, and no index knows. The transaction can go on."""
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        async with isolated(schema, level) as connection:
            holder = await shop.client.enqueue("ship", dedupe_key="k", dedupe_for="1d")
            assert await shop.client.cancel(holder)
            with pytest.raises(Conflict, match="begin again"):
                await shop.client.enqueue("ship", dedupe_key="k", within=connection)
            other = await shop.client.enqueue("ship", within=connection)
        assert await shop.stored() == sorted([holder.id, other.id])
        assert shop.count_rows() == 1


async def test_of_two_transactions_one_gets_the_key(schema: SharedSchema) -> None:
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        async with await psycopg.AsyncConnection.connect(schema.server) as second:
            await second.execute(INSERT)
            async with await psycopg.AsyncConnection.connect(schema.server) as first:
                winner = await shop.client.enqueue("ship", dedupe_key="k", within=first)
                waiting = asyncio.create_task(
                    shop.client.enqueue("ship", dedupe_key="k", within=second)
                )
                while not schema.execute("SELECT 1 FROM pg_locks WHERE NOT granted"):
                    await asyncio.sleep(0.01)
            loser = await waiting
        assert (loser.id, loser.duplicate) == (winner.id, True)
        assert (await shop.stored(), shop.count_rows()) == ([winner.id], 1)


async def test_a_long_transaction_with_a_key_leaves_connections_for_others(
    schema: SharedSchema,
) -> None:
    url = f"{schema.url}&pool_size=4"
    async with shop_on(url, rows_in_postgresql(schema)) as shop:
        async with with_async_psycopg(schema.server) as connection:
            holder = await shop.client.enqueue("ship", dedupe_key="k", within=connection)
            waiting = [
                asyncio.create_task(shop.client.enqueue("ship", dedupe_key="k")) for _ in range(8)
            ]
            while not schema.execute("SELECT 1 FROM pg_locks WHERE NOT granted"):
                await asyncio.sleep(0.01)
            async with asyncio.timeout(30):
                await asyncio.gather(*(shop.client.now() for _ in range(20)))
            assert not any(task.done() for task in waiting)
        assert {run.id for run in await asyncio.gather(*waiting)} == {holder.id}


async def test_a_read_that_fails_leaves_no_run_behind(
    schema: SharedSchema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller may commit all the same."""

    async def fail(*_: object) -> bool:
        raise StoreUnavailable("the server of the store is away")

    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        async with with_async_psycopg(schema.server) as connection:
            monkeypatch.setattr("mainspring.stores.postgresql.store.is_held_by_ended", fail)
            with pytest.raises(StoreUnavailable):
                await shop.client.enqueue("ship", dedupe_key="k", within=connection)
        assert (await shop.stored(), shop.count_rows()) == ([], 1)


async def test_a_savepoint_takes_its_runs_with_it(schema: SharedSchema, file: str) -> None:
    for url, opened in [(schema.url, with_psycopg(schema.server)), (file, with_sqlite3(file))]:
        store = url if "://" in url else f"sqlite:///{url}"
        async with shop_on(store, lambda: 0) as shop:
            async with opened as connection:
                kept = await shop.client.enqueue("ship", within=connection)
                connection.execute("SAVEPOINT mainspring")  # also the name that the store uses
                await shop.client.enqueue("ship", dedupe_key="k", within=connection)
                connection.execute("ROLLBACK TO mainspring")
                again = await shop.client.enqueue("ship", dedupe_key="k", within=connection)
            assert not again.duplicate
            assert await shop.stored() == sorted([kept.id, again.id])


async def test_an_error_of_the_connection_is_raised_as_its_library_raises_it(
    schema: SharedSchema,
) -> None:
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        with psycopg.connect(schema.server) as connection:
            await shop.client.enqueue("ship", within=connection)
            with pytest.raises(psycopg.Error):
                connection.execute("SELECT broken")
            with pytest.raises(psycopg.errors.InFailedSqlTransaction):
                await shop.client.enqueue("ship", within=connection)
        assert await shop.stored() == []


# -- workers --------------------------------------------------------------------------------


async def wait_until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await holds():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("store", ["postgresql", "sqlite"])
async def test_a_long_transaction_while_workers_run(
    schema: SharedSchema, file: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run starts after the commit, although workers have taken later ones of the lane; and so
    does one whose upstream run ended before the commit."""
    monkeypatch.setattr(LaneStarts, "BUSY", 20)
    url = schema.url if store == "postgresql" else f"sqlite:///{file}"
    opened = with_async_psycopg(schema.server) if store == "postgresql" else with_aiosqlite(file)
    scheduler = Scheduler(url)
    started: set[str] = set()

    @scheduler.job
    async def work(name: str) -> None:
        started.add(name)

    async def fill(part: str) -> None:
        """On SQLite it waits for the end of the caller's transaction."""
        runs = await work.enqueue_many([{"name": f"{part} {n}"} for n in range(50)])
        await asyncio.gather(*(scheduler.wait(run, timeout=60) for run in runs))

    async with scheduler:
        upstream = await work.enqueue("upstream")
        await fill("early")
        async with opened as connection:
            run = await work.options(within=connection).enqueue("late")
            follower = await work.options(within=connection, after=upstream).enqueue("follower")
            filling = asyncio.create_task(fill("later"))
            await asyncio.sleep(2.5)
            assert not started & {"late", "follower"}
        assert (await scheduler.wait(run, timeout=30)).state is State.SUCCEEDED
        assert (await scheduler.wait(follower, timeout=60)).state is State.SUCCEEDED
        await filling
        assert (await scheduler.counts()).total(State.SUCCEEDED) == 103


@pytest.mark.parametrize("store", ["postgresql", "sqlite", "mongodb"])
async def test_an_effect_once_handler_enqueues_within_its_own_transaction(
    schema: SharedSchema, file: str, database_url: str, store: str
) -> None:
    """The run exists exactly if the block commits: the first attempt rolls back."""
    urls = {"postgresql": schema.url, "sqlite": f"sqlite:///{file}", "mongodb": database_url}
    scheduler = Scheduler(urls[store])

    @scheduler.job
    async def follow(attempt: int) -> int:
        return attempt

    @scheduler.job(delivery="effect_once", retries=2, retry_delay=0.01)
    async def charge(ctx: RunContext) -> None:
        async with ctx.transaction() as session:
            with pytest.raises(InvalidState, match="as `within`"):
                await follow.enqueue(0)
            await follow.options(within=session, dedupe_key="follow").enqueue(ctx.attempt)
            if ctx.attempt == 1:
                raise RuntimeError("the first attempt fails")

    @scheduler.job(delivery="effect_once", retries=2, retry_delay=0.01)
    def charge_plainly(ctx: RunContext) -> None:
        with ctx.transaction() as session:
            follow.blocking.options(within=session).enqueue(ctx.attempt)
            if ctx.attempt == 1:
                raise RuntimeError("the first attempt fails")

    async with scheduler:
        for job in (charge, charge_plainly):
            run = await job.enqueue()
            assert (await scheduler.wait(run, timeout=60)).state is State.SUCCEEDED

        async def both_ended() -> bool:
            runs = (await scheduler.list_runs(job="follow")).items
            return len(runs) == 2 and all(run.finished for run in runs)

        await wait_until(both_ended)
        runs = [await scheduler.get_run(r) for r in (await scheduler.list_runs(job="follow")).items]
        assert [run.result for run in runs] == [2, 2]


async def test_what_becomes_of_the_job_meanwhile(schema: SharedSchema) -> None:
    """Paused, removed, removed and made again, run on each node, followed by another job."""
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        client = shop.client
        for name in ("paused", "removed", "anew", "first"):
            await client.add_job(name, handler="ship")
        await client.add_job("second", handler="ship", after="first")
        await client.add_job("everywhere", handler="ship", each_node=True)
        await client.pause_job("paused")
        async with with_async_psycopg(schema.server) as connection:
            runs = {
                name: await client.enqueue(name, within=connection)
                for name in ("paused", "removed", "anew", "first", "everywhere")
            }
            async with asyncio.timeout(30):  # a skipped run waits for no transaction
                skipped = await client.enqueue("everywhere")
            await client.remove_job("removed")
            await client.remove_job("anew")
            await client.add_job("anew", handler="ship")
        assert runs["everywhere"].state is State.SKIPPED  # no worker is alive
        states = {run.job_id: run.state for run in (await client.list_runs()).items}
        assert states.pop("second") is State.WAITING
        assert states == {name: run.state for name, run in runs.items()}
        assert skipped.state is State.SKIPPED
        assert (await client.counts()).total(State.SKIPPED) == 2

        worker = Scheduler(schema.url)
        worker.job(ship)
        async with worker:
            for name, state in [
                ("paused", State.SUCCEEDED),
                ("removed", State.CANCELLED),
                ("anew", State.CANCELLED),
                ("first", State.SUCCEEDED),
            ]:
                assert (await worker.wait(runs[name], timeout=60)).state is state


# -- hints ----------------------------------------------------------------------------------


def in_session(schema: SharedSchema, scheduler: Scheduler) -> Run:
    engine = sa.create_engine(_dialect(schema.server, "psycopg"))
    with Session(engine) as session, session.begin():
        with session.begin_nested():
            run = scheduler.blocking.enqueue("ship", within=session)
        time.sleep(0.3)  # a hint that came with the savepoint would find nothing, and be lost
    engine.dispose()
    return run


def in_async_session(schema: SharedSchema, scheduler: Scheduler) -> Run:
    async def enqueue() -> Run:
        engine = create_async_engine(_dialect(schema.server, "asyncpg"))
        async with AsyncSession(engine) as session, session.begin():
            run = await scheduler.enqueue("ship", within=session)
        await engine.dispose()
        return run

    return asyncio.run(enqueue())


def in_django(schema: SharedSchema, scheduler: Scheduler) -> Run:
    with django_connection(**django_on_postgresql(schema)) as connection:
        with django_transaction.atomic(using=connection.alias):
            run = scheduler.blocking.enqueue("ship", within=connection)
            time.sleep(0.3)
        return run


@pytest.mark.parametrize("enqueue", [in_session, in_async_session, in_django])
async def test_a_hint_follows_the_commit(
    schema: SharedSchema, enqueue: Callable[[SharedSchema, Scheduler], Run]
) -> None:
    """The worker would look only once a minute."""
    producer, worker = Scheduler(schema.url, workers=0), Scheduler(schema.url, poll="1m")
    producer.job(ship)
    worker.job(ship)
    async with worker, producer:
        for _ in range(20):  # until it listens
            early = await producer.enqueue("ship")
            with contextlib.suppress(TimeoutError):
                await worker.wait(early, timeout=1)
                break
        run = await asyncio.to_thread(enqueue, schema, producer)
        assert (await worker.wait(run, timeout=30)).state is State.SUCCEEDED


async def test_a_session_that_lives_for_long_gets_one_listener(schema: SharedSchema) -> None:
    engine = sa.create_engine(_dialect(schema.server, "psycopg"))
    async with shop_on(schema.url, rows_in_postgresql(schema)) as shop:
        with Session(engine) as session:
            for _ in range(3):
                await shop.client.enqueue("ship", within=session)
                session.commit()
            assert len(session.dispatch.after_commit) == 1
    engine.dispose()
