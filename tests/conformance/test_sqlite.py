from __future__ import annotations

import pytest

from mainspring.store import Store
from mainspring.testing import StoreConformance

sqlite = pytest.importorskip("mainspring.stores.sqlite")


class TestSqlite(StoreConformance):
    def make_store(self) -> Store:
        store: Store = sqlite.SqliteStore(str(self.place / "jobs.db"), self.clock)
        return store
