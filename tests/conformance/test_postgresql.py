"""The suite on real servers: the newest PostgreSQL, the oldest, and without `SKIP LOCKED` and
prepared statements, as on compatible servers and behind poolers.

Time is moved by a clock that takes the place of the server's, so that the suite need not sleep;
`TestByTheServersClock` runs what hangs on time most, on the server's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from psycopg import AsyncConnection

from mainspring.stores.postgresql import PostgresStore
from mainspring.stores.protocol import Store
from mainspring.testing import StoreConformance
from mainspring.testing.conformance.base import Repair
from tests.support.postgresql import SharedSchema, shared_schema
from tests.support.servers_clock import ByTheServersClock

BROKEN = '{"broken'


class OnPostgres(StoreConformance):
    shared: SharedSchema

    def make_store(self) -> Store:
        return PostgresStore(self.shared.url, self.clock)

    async def write_effect(self, session: Any, name: str) -> None:
        await session.execute(f"INSERT INTO {self.shared.name}.effects VALUES (%s)", [name])

    def write_effect_blocking(self, session: Any, name: str) -> None:
        session.execute(f"INSERT INTO {self.shared.name}.effects VALUES (%s)", [name])

    async def effects(self, store: Store) -> list[str]:
        return [name for (name,) in self.shared.execute("SELECT name FROM $.effects ORDER BY 1")]

    @asynccontextmanager
    async def caller_transaction(self, store: Store) -> AsyncIterator[Any]:
        async with await AsyncConnection.connect(self.shared.server) as connection:
            yield connection

    async def damage_run(self, store: Store, run_id: str, part: str) -> Repair:
        return self._damage("runs", run_id, part)

    async def damage_job(self, store: Store, job_id: str, part: str) -> Repair:
        return self._damage("jobs", job_id, "policy" if part == "definition" else part)

    async def damage_note(self, store: Store, kind: str, name: str) -> None:
        sql = "UPDATE $.notes SET value = %s WHERE kind = %s AND name = %s"
        self.shared.execute(sql, [BROKEN, kind, name])

    def _damage(self, table: str, record: str, column: str) -> Repair:
        select = f'SELECT "{column}" FROM $.{table} WHERE id = %s'
        [[before]] = self.shared.execute(select, [record])
        update = f'UPDATE $.{table} SET "{column}" = %s WHERE id = %s'
        self.shared.execute(update, [BROKEN, record])

        async def repair() -> None:  # what was overwritten stays so
            self.shared.execute(f'{update} AND "{column}" = %s', [before, record, BROKEN])

        return repair

    async def damage_every_field(
        self, store: Store, kind: str, record_id: str
    ) -> AsyncIterator[str]:
        table = f"{kind}s"
        columns = self.shared.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = '$' AND"
            f" table_name = '{table}' AND data_type = 'text' AND is_generated = 'NEVER'"
            " AND column_name <> 'id' ORDER BY 1"
        )
        for (column,) in columns:
            repair = self._damage(table, record_id, column)
            yield f"{column}: {BROKEN}"
            await repair()


@pytest.fixture(scope="module")
def newest(postgresql_url: str) -> Iterator[SharedSchema]:
    with shared_schema(postgresql_url) as schema:
        yield schema


@pytest.fixture(scope="module")
def oldest(oldest_postgresql_url: str) -> Iterator[SharedSchema]:
    with shared_schema(oldest_postgresql_url) as schema:
        yield schema


@pytest.fixture(scope="module")
def plain(postgresql_url: str) -> Iterator[SharedSchema]:
    with shared_schema(postgresql_url, "&prepare=false&skip_locked=false&listen=false") as schema:
        yield schema


def _emptied(schema: SharedSchema) -> Iterator[None]:
    schema.execute("CREATE SCHEMA IF NOT EXISTS $")
    schema.execute("CREATE TABLE IF NOT EXISTS $.effects (name text)")
    yield
    schema.execute("TRUNCATE $.effects")
    schema.empty()


class TestNewest(OnPostgres):
    @pytest.fixture(autouse=True)
    def _server(self, newest: SharedSchema) -> Iterator[None]:
        self.shared = newest
        yield from _emptied(newest)


@pytest.mark.thorough
class TestOldest(OnPostgres):
    @pytest.fixture(autouse=True)
    def _server(self, oldest: SharedSchema) -> Iterator[None]:
        self.shared = oldest
        yield from _emptied(oldest)


@pytest.mark.thorough
class TestWithoutSkipLocked(OnPostgres):
    @pytest.fixture(autouse=True)
    def _server(self, plain: SharedSchema) -> Iterator[None]:
        self.shared = plain
        yield from _emptied(plain)


class TestByTheServersClock(ByTheServersClock):
    shared: SharedSchema

    @pytest.fixture(autouse=True)
    def _server(self, newest: SharedSchema) -> Iterator[None]:
        self.shared = newest
        yield
        newest.empty()

    def make_store(self) -> Store:
        return PostgresStore(self.shared.url)
