"""Tests of elections (by notes that expire) and of `wait`."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from mainspring.core import note_kinds, transitions
from mainspring.core.model import Note
from mainspring.stores.election import elect
from mainspring.stores.protocol import NoteWrite, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import put_job

__all__ = ["ElectionTests", "WaitTests"]


class ElectionTests(Suite):
    async def test_one_candidate_leads_until_its_term_ends(self, store: Store) -> None:
        ttl = self.ticks(10)
        first = await elect(store, "lead", "a", ttl)
        assert first is not None
        assert await elect(store, "lead", "b", ttl) is None
        await self.pass_ticks(6)
        assert await elect(store, "lead", "a", ttl) == first  # and is renewed
        await self.pass_ticks(6)
        assert await elect(store, "lead", "b", ttl) is None
        await self.pass_ticks(6)
        second = await elect(store, "lead", "b", ttl)
        assert second is not None
        assert second > first
        assert await elect(store, "lead", "a", ttl) is None

    async def test_the_number_of_a_term_only_grows(self, store: Store) -> None:
        last = 0
        for n in range(6):
            token = await elect(store, "lead", "ab"[n % 2], self.ticks(1))
            assert token is not None
            assert token > last
            last = token
            await self.pass_ticks(2)

    async def test_another_candidate_leads_as_soon_as_the_leader_resigns(
        self, store: Store
    ) -> None:
        first = await elect(store, "lead", "a", self.ticks(100))
        assert await elect(store, "lead", "a", timedelta()) is None
        second = await elect(store, "lead", "b", self.ticks(100))
        assert first is not None
        assert second is not None
        assert second > first

    async def test_only_the_leader_can_resign(self, store: Store) -> None:
        token = await elect(store, "lead", "a", self.ticks(100))
        assert await elect(store, "lead", "b", timedelta()) is None
        assert await elect(store, "lead", "b", self.ticks(100)) is None
        assert await elect(store, "lead", "a", self.ticks(100)) == token

    async def test_a_term_without_a_holder_that_can_be_read_ends_by_itself(
        self, store: Store
    ) -> None:
        """Its holder may still rely on it, so nobody holds the name until it has expired."""
        values: list[Any] = [None, "a", [], {}, {"holder": 5}, {"holder": "a", "term": "first"}]
        for value in values:
            note = Note(kind=note_kinds.TERM, name="lead", value=value)
            write = NoteWrite(note_kinds.TERM, "lead", None, note, self.ticks(10))
            [version] = await store.put_notes([write])
            assert version is not None
            for holder in ("a", "b"):
                assert await elect(store, "lead", holder, self.ticks(10)) is None
                assert await elect(store, "lead", holder, timedelta()) is None
            await self.pass_ticks(11)
            number = await elect(store, "lead", "b", self.ticks(1))
            assert number is not None
            assert number > version
            await self.pass_ticks(2)

    async def test_a_damaged_term_that_would_never_end_is_replaced(self, store: Store) -> None:
        [version] = await store.put_notes(
            [NoteWrite.put(Note(kind=note_kinds.TERM, name="lead", value={}))]
        )
        assert version is not None
        number = await elect(store, "lead", "b", self.ticks(10))
        assert number is not None
        assert number > version
        assert await elect(store, "lead", "b", self.ticks(10)) == number
        assert await elect(store, "lead", "a", self.ticks(10)) is None

    async def test_a_term_whose_record_is_damaged_ends_by_itself(self, store: Store) -> None:
        assert await elect(store, "lead", "a", self.ticks(10)) is not None
        await self.damage_note(store, note_kinds.TERM, "lead")
        for holder in ("a", "b"):
            assert await elect(store, "lead", holder, self.ticks(10)) is None
        await self.pass_ticks(11)
        assert await elect(store, "lead", "b", self.ticks(10)) is not None

    async def test_elections_of_different_names_are_independent(self, store: Store) -> None:
        assert await elect(store, "one", "a", self.ticks(10)) is not None
        assert await elect(store, "two", "b", self.ticks(10)) is not None


class WaitTests(Suite):
    hint_timeout = 20.0
    """Real seconds that a hint may take before the test says there was none."""

    async def woken(self, store: Store, by: Any) -> bool:
        while await store.wait(0.05):
            pass  # what happened before may still be hinted at
        waiting = asyncio.create_task(store.wait(self.hint_timeout))
        await asyncio.sleep(0.05)
        await by
        return await waiting

    async def test_a_wait_ends_after_its_timeout(self, store: Store) -> None:
        assert await store.wait(0.01) is False
        assert await store.wait(0) is False

    async def test_adding_a_run_wakes_waiters(self, store: Store) -> None:
        assert await self.woken(store, store.add([self.run()])) is True

    async def test_a_commit_wakes_waiters(self, store: Store) -> None:
        run = await self.running(store)
        change = transitions.released(run, self.start, began=True)
        assert await self.woken(store, store.commit([change])) is True

    async def test_changing_a_job_wakes_waiters(self, store: Store) -> None:
        assert await self.woken(store, put_job(store, self.job())) is True

    async def test_every_waiter_wakes(self, store: Store) -> None:
        waiting = [asyncio.create_task(store.wait(self.hint_timeout)) for _ in range(3)]
        await asyncio.sleep(0.05)
        await store.add([self.run()])
        assert await asyncio.gather(*waiting) == [True] * 3

    async def test_a_waiter_can_be_cancelled(self, store: Store) -> None:
        waiting = asyncio.create_task(store.wait(self.hint_timeout))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await store.add([self.run()])
