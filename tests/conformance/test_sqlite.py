"""The conformance suite on the SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

from mainspring.stores.protocol import Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing import StoreConformance
from mainspring.testing.conformance.base import Repair

BROKEN = '{"broken'


class TestSqlite(StoreConformance):
    reads_clock = True

    def make_store(self) -> Store:
        return SqliteStore(str(self.place / "jobs.db"), self.clock)

    async def write_effect(self, session: Any, name: str) -> None:
        self.write_effect_blocking(session, name)

    def write_effect_blocking(self, session: Any, name: str) -> None:
        session.execute("CREATE TABLE IF NOT EXISTS effects (name TEXT)")
        session.execute("INSERT INTO effects VALUES (?)", (name,))

    async def effects(self, store: Store) -> list[str]:
        with closing(sqlite3.connect(self.place / "jobs.db")) as connection:
            if not connection.execute(
                "SELECT 1 FROM sqlite_schema WHERE name = 'effects'"
            ).fetchone():
                return []
            return [name for [name] in connection.execute("SELECT name FROM effects ORDER BY name")]

    @asynccontextmanager
    async def caller_transaction(self, store: Store) -> AsyncIterator[Any]:
        with closing(sqlite3.connect(self.place / "jobs.db")) as connection, connection:
            yield connection

    async def damage_run(self, store: Store, run_id: str, part: str) -> Repair:
        where = f'UPDATE mainspring_runs SET "{part}" = ? WHERE id = ?'
        [whole] = self._sql(f'SELECT "{part}" FROM mainspring_runs WHERE id = ?', run_id)
        self._sql(where, BROKEN, run_id)

        async def repair() -> None:
            self._sql(f'{where} AND "{part}" = ?', whole, run_id, BROKEN)

        return repair

    async def damage_job(self, store: Store, job_id: str, part: str) -> Repair:
        column = "tags" if part == "definition" else part
        where = f"UPDATE mainspring_jobs SET {column} = ? WHERE id = ?"
        [whole] = self._sql(f"SELECT {column} FROM mainspring_jobs WHERE id = ?", job_id)
        self._sql(where, BROKEN, job_id)

        async def repair() -> None:
            self._sql(where, whole, job_id)

        return repair

    async def damage_note(self, store: Store, kind: str, name: str) -> None:
        where = "UPDATE mainspring_notes SET value = ? WHERE kind = ? AND name = ?"
        self._sql(where, BROKEN, kind, name)

    async def damage_every_field(
        self, store: Store, kind: str, record_id: str
    ) -> AsyncIterator[str]:
        table = f"mainspring_{kind}s"
        with closing(sqlite3.connect(self.place / "jobs.db")) as connection:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        columns = [name for name in columns if name not in ("seq", "id")]
        names = ", ".join(f'"{name}"' for name in columns)
        whole = self._sql(f"SELECT {names} FROM {table} WHERE id = ?", record_id)
        again = ", ".join(f'"{name}" = ?' for name in columns)
        for column in columns:
            for value in ("NULL", "'x'", "-7.5", "x'ff'", "CAST(x'ff' AS TEXT)", f"{2**62}"):
                damage = f'UPDATE {table} SET "{column}" = {value} WHERE id = ?'
                try:
                    self._sql(damage, record_id)
                except sqlite3.IntegrityError:
                    continue  # the table itself refuses it
                yield damage
                self._sql(f"UPDATE {table} SET {again} WHERE id = ?", *whole, record_id)

    def _sql(self, sql: str, *parameters: Any) -> list[Any]:
        """The first row, as a program other than the store reads or writes it."""
        with closing(sqlite3.connect(self.place / "jobs.db")) as connection, connection:
            return list(connection.execute(sql, parameters).fetchone() or ())
