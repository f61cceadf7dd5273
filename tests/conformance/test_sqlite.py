from __future__ import annotations

from mainspring.store import Store
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing import StoreConformance


class TestSqlite(StoreConformance):
    def make_store(self) -> Store:
        return SqliteStore(str(self.place / "jobs.db"), self.clock)
