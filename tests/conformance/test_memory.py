from __future__ import annotations

from mainspring.store import Store
from mainspring.stores.memory import MemoryStore
from mainspring.testing import StoreConformance


class TestMemory(StoreConformance):
    def make_store(self) -> Store:
        return MemoryStore(self.clock)

    def make_peer(self, store: Store) -> Store:
        return store  # its data live in the object: every client is the same one
