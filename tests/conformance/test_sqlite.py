from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from mainspring.store import Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing import StoreConformance


class TestSqlite(StoreConformance):
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
