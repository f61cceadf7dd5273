"""The conformance suite on the memory store."""

from __future__ import annotations

from typing import Any

from mainspring.core.model import replace
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Store
from mainspring.testing import StoreConformance
from mainspring.testing.conformance.base import Repair

_EMPTY: dict[str, Any] = {"attempts": (), "after": ()}


class TestMemory(StoreConformance):
    reads_clock = True
    refuses_when_closed = False

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

    async def damage_run(self, store: Store, run_id: str, part: str) -> Repair:
        assert isinstance(store, MemoryStore)
        runs = store._runs
        whole = runs[run_id]
        hidden = {} if part in ("source", "state") else {part: _EMPTY.get(part)}
        runs[run_id] = replace(whole, unreadable="damaged", **hidden)

        async def repair() -> None:
            now = runs[run_id]
            parts = {name: getattr(whole, name) for name in hidden}
            still = {n: part for n, part in parts.items() if getattr(now, n) == hidden[n]}
            runs[run_id] = replace(now, unreadable=None, **still)

        return repair

    async def damage_job(self, store: Store, job_id: str, part: str) -> Repair:
        assert isinstance(store, MemoryStore)
        jobs = store._jobs
        jobs[job_id] = replace(jobs[job_id], unreadable="damaged")

        async def repair() -> None:
            jobs[job_id] = replace(jobs[job_id], unreadable=None)

        return repair
