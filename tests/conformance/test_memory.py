from __future__ import annotations

from typing import Any

from mainspring.store import Store
from mainspring.stores.memory import MemoryStore
from mainspring.testing import StoreConformance


class TestMemory(StoreConformance):
    def make_store(self) -> Store:
        return MemoryStore(self.clock)

    def make_peer(self, store: Store) -> Store:
        return store  # its data live in the object: every client is the same one

    async def write_effect(self, session: Any, name: str) -> None:
        self.write_effect_blocking(session, name)

    def write_effect_blocking(self, session: Any, name: str) -> None:
        session.setdefault("effects", []).append(name)

    async def effects(self, store: Store) -> list[str]:
        assert isinstance(store, MemoryStore)
        return sorted(store.data.get("effects", []))
