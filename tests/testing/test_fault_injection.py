"""`FaultyStore` injects errors, delays and outages."""

from __future__ import annotations

import asyncio

import pytest

from mainspring.core.model import Note, replace
from mainspring.errors import StoreUnavailable
from mainspring.stores.memory import MemoryStore
from mainspring.testing import FaultyStore, RandomFaults, ScriptedFaults, VirtualClock, run_virtual
from mainspring.testing.store_calls import put_note


class TestFaultyStore:
    def test_an_error_before_does_nothing_and_one_after_did_it(self) -> None:
        async def main() -> None:
            plan = ScriptedFaults({"put_notes": ["before", "after", None]})
            store = FaultyStore(MemoryStore(VirtualClock()), plan)
            note = Note(kind="k", name="n", value=1)
            with pytest.raises(StoreUnavailable):
                await put_note(store, note)
            with pytest.raises(StoreUnavailable):
                await put_note(store, replace(note, value=2))
            assert await put_note(store, note) is None  # the second is there
            assert store.injected == {("put_notes", "before"): 1, ("put_notes", "after"): 1}
            assert store.calls["put_notes"] == 3

        run_virtual(main)

    def test_delays_and_outages(self) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            store = FaultyStore(
                MemoryStore(VirtualClock()), RandomFaults(3, delay=2, outages=[(100, 200)])
            )
            await store.now()
            assert 0 < loop.time() < 2
            outcomes = []
            while loop.time() < 300:
                try:
                    await store.counts()
                    outcomes.append((loop.time(), True))
                except StoreUnavailable:
                    outcomes.append((loop.time(), False))
                await asyncio.sleep(5)
            assert all(fine != (100 <= at < 200) for at, fine in outcomes)
            assert store.injected["counts", "outage"] > 10

        run_virtual(main)

    def test_rates_by_seed_and_methods(self) -> None:
        async def outcomes(seed: int) -> list[bool]:
            plan = RandomFaults(seed, before=0.2, after=0.1, methods={"now"})
            store = FaultyStore(MemoryStore(VirtualClock()), plan)
            fine = []
            for _ in range(300):
                await store.counts()
                try:
                    await store.now()
                    fine.append(True)
                except StoreUnavailable:
                    fine.append(False)
            assert 30 < store.injected["now", "before"] < 90
            assert 10 < store.injected["now", "after"] < 60
            return fine

        assert run_virtual(outcomes(1)) == run_virtual(outcomes(1)) != run_virtual(outcomes(2))
