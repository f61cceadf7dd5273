"""Tests of notes, of elections (by notes that expire) and of `wait`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.core import note_kinds, transitions
from mainspring.core.model import Note, replace
from mainspring.stores.election import elect
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import drop_note, put_job, put_note


class NoteTests(Suite):
    async def names(self, store: Store, kind: str = "key", limit: int = 100) -> list[str]:
        query = NoteQuery(kind=kind, limit=limit)
        return [note.name async for note in all_items(store.notes, query)]

    async def note(self, store: Store, name: str = "a", kind: str = "key") -> Note | None:
        page = await store.notes(NoteQuery(kind=kind, names=frozenset({name})))
        return page.items[0] if page.items else None

    async def test_a_note_is_returned_as_it_was_written(self, store: Store) -> None:
        value = {"$set": {"a.b": [1, None, "\u00e9\0"]}, "scopes": ["read"]}
        note = Note(kind="key", name="a", value=value, expires_at=self.at(10))
        assert await put_note(store, note) == 1
        assert await self.note(store) == replace(note, version=1)
        assert await self.note(await self.peer(store)) == replace(note, version=1)

    async def test_a_damaged_note_is_listed_without_its_value(self, store: Store) -> None:
        """An election or a limit may rest on it, so it does not look absent; and the other notes
        of its kind (API keys, workers, breakers) can be read."""
        for name in ("a", "b", "c"):
            await put_note(store, Note(kind="key", name=name, value={"n": name}))
        await self.damage_note(store, "key", "b")
        notes = (await store.notes(NoteQuery(kind="key"))).items
        assert [(note.name, note.value) for note in notes] == [
            ("a", {"n": "a"}),
            ("b", None),
            ("c", {"n": "c"}),
        ]
        assert await put_note(store, replace(notes[1], value="whole")) == 2
        whole = await self.note(store, "b")
        assert whole is not None
        assert whole.value == "whole"

    async def test_notes_of_different_kinds_are_independent(self, store: Store) -> None:
        for kind in ("key", "other"):
            await put_note(store, Note(kind=kind, name="a", value=kind))
        note = await self.note(store, kind="other")
        assert note is not None
        assert note.value == "other"
        assert await self.names(store) == ["a"]
        assert await self.names(store, "neither") == []

    async def test_notes_of_every_kind_are_listed_by_kind_and_name(self, store: Store) -> None:
        keys = [(kind, name) for kind in ("a", "b", "ba") for name in ("", "x", "y")]
        for kind, name in reversed(keys):
            await put_note(store, Note(kind=kind, name=name, value=1))
        for limit in (1, 2, 9, 10):
            listed = all_items(store.notes, NoteQuery(limit=limit))
            assert [(note.kind, note.name) async for note in listed] == keys
        some = await store.notes(NoteQuery(names=frozenset({"x", "nowhere"})))
        assert [(note.kind, note.name) for note in some.items] == [
            (k, "x") for k in ("a", "b", "ba")
        ]

    async def test_notes_are_listed_by_name_page_by_page(self, store: Store) -> None:
        for name in ("c", "a", "e", "b", "d"):
            await put_note(store, Note(kind="key", name=name, value=1))
        for limit in (1, 2, 5, 6):
            assert await self.names(store, limit=limit) == ["a", "b", "c", "d", "e"]
        some = await store.notes(NoteQuery(kind="key", names=frozenset({"b", "d", "x"})))
        assert [note.name for note in some.items] == ["b", "d"]

    async def test_one_of_many_concurrent_writes_of_a_note_wins(self, store: Store) -> None:
        peers = [store, await self.peer(store)]
        notes = [Note(kind="key", name="a", value=n) for n in range(8)]
        puts = (put_note(peers[n % 2], note) for n, note in enumerate(notes))
        assert sorted(await asyncio.gather(*puts), key=str) == [1, *[None] * 7]

    async def test_an_expired_note_may_be_replaced_and_its_version_grows(
        self, store: Store
    ) -> None:
        note = Note(kind="key", name="a", value="old", expires_at=self.at(5))
        await put_note(store, note)
        await self.pass_ticks(5)
        assert await self.note(store) is None
        assert await self.names(store) == []
        fresh = Note(kind="key", name="a", value="new")
        assert await put_note(store, replace(fresh, version=1)) is None
        assert await put_note(store, fresh) == 2
        kept = await self.note(store)
        assert kept is not None
        assert (kept.value, kept.expires_at) == ("new", None)

    async def test_a_note_with_a_ttl_expires_by_the_stores_clock(self, store: Store) -> None:
        note = Note(kind="key", name="a", value=1)
        assert await store.put_notes([NoteWrite.put(note, self.ticks(5))]) == [1]
        kept = await self.note(store)
        assert kept is not None
        assert kept.expires_at is not None
        assert self.at(5) <= kept.expires_at <= await store.now() + self.ticks(5)
        await self.pass_ticks(6)
        assert await self.note(store) is None
        assert await store.put_notes([NoteWrite.put(note, self.ticks(5))]) == [2]
        assert await store.put_notes([NoteWrite.put(replace(note, version=2))]) == [3]
        await self.pass_ticks(6)
        kept = await self.note(store)
        assert kept == replace(note, version=3)

    async def test_the_version_of_a_note_with_a_ttl_survives_maintenance(
        self, store: Store
    ) -> None:
        note = Note(kind="key", name="a", value=1)
        for version in (1, 2, 3):
            assert await store.put_notes([NoteWrite.put(note, self.ticks(1))]) == [version]
            await self.pass_ticks(2)
            await store.maintain(self.start, 10)
            assert await self.note(store) is None

    async def test_a_write_without_an_expected_version_replaces_any_version(
        self, store: Store
    ) -> None:
        for version in (1, 2, 3):
            note = Note(kind="key", name="a", value=version)
            assert await store.put_notes([NoteWrite("key", "a", None, note)]) == [version]
            assert await self.note(store) == replace(note, version=version)

    async def test_writes_of_one_call_are_done_in_order_and_each_by_itself(
        self, store: Store
    ) -> None:
        first, other = (Note(kind="key", name=name, value=1) for name in "ab")
        writes = [
            NoteWrite.put(replace(first, version=3)),
            NoteWrite.put(first),
            NoteWrite.put(first),
            NoteWrite.put(other),
            NoteWrite.put(replace(first, value=2, version=1)),
            NoteWrite.put(replace(first, value=3, version=1)),
            NoteWrite.drop("key", "a", 1),
            NoteWrite.drop("key", "a", 2),
            NoteWrite.drop("key", "a"),
            NoteWrite.put(first),
            NoteWrite.drop("other", "b"),
            NoteWrite.drop("key", "b"),
        ]
        done = [None, 1, None, 1, 2, None, None, 0, None, 1, None, 0]
        assert await store.put_notes(writes) == done
        assert await self.note(store) == replace(first, version=1)
        assert await self.names(store) == ["a"]

    async def test_maintain_deletes_only_expired_notes(self, store: Store) -> None:
        await put_note(store, Note(kind="key", name="a", value=1, expires_at=self.at(5)))
        await put_note(store, Note(kind="key", name="b", value=1, expires_at=self.at(90)))
        await put_note(store, Note(kind="key", name="c", value=1))
        await self.pass_ticks(6)
        assert await store.maintain(self.start, 10) == 0
        assert await drop_note(store, "key", "a") is False
        assert await self.names(store) == ["b", "c"]


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

    async def test_a_term_whose_record_is_damaged_ends_by_itself(self, store: Store) -> None:
        assert await elect(store, "lead", "a", self.ticks(10)) is not None
        await self.damage_note(store, note_kinds.TERM, "lead")
        for holder in ("a", "b"):
            assert await elect(store, "lead", holder, self.ticks(10)) is None
        await self.pass_ticks(11)
        assert await elect(store, "lead", "b", self.ticks(10)) is not None


class WaitTests(Suite):
    hint_timeout = 20.0
    """Real seconds that a hint may take before the test says there was none."""

    async def woken(self, store: Store, by: Any) -> bool:
        await self.hear_earlier_hints(store)
        waiting = asyncio.create_task(store.wait(self.hint_timeout))
        await asyncio.sleep(0.05)
        await by
        return await waiting

    async def hear_earlier_hints(self, store: Store) -> None:
        """A store that begins to listen may wake its waiters, and so may what happened before."""
        while await store.wait(0.05):
            pass

    async def test_a_wait_ends_after_its_timeout(self, store: Store) -> None:
        await self.hear_earlier_hints(store)
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
        await self.hear_earlier_hints(store)
        waiting = asyncio.create_task(store.wait(self.hint_timeout))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await store.add([self.run()])
