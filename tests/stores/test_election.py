"""Elections, which are the same over the notes of every store: here those of the memory store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.core import note_kinds
from mainspring.core.model import Note
from mainspring.stores.election import elect
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import NoteWrite
from mainspring.testing import FakeClock

TTL = timedelta(seconds=10)
RESIGN = timedelta()

clock = FakeClock()


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(clock)


async def lead(store: MemoryStore, holder: str, name: str = "lead") -> int:
    number = await elect(store, name, holder, TTL)
    assert number is not None
    return number


async def damage(store: MemoryStore, value: Any, ttl: timedelta | None = TTL) -> int:
    """Write a term that cannot be read. Gives its version."""
    note = Note(kind=note_kinds.TERM, name="lead", value=value)
    [version] = await store.put_notes([NoteWrite(note.kind, note.name, None, note, ttl)])
    assert version is not None
    return version


async def test_the_number_of_a_term_grows_when_the_holder_changes(store: MemoryStore) -> None:
    numbers = []
    for holder, seconds in (("a", 9), ("a", 12), ("b", 12), ("a", 12), ("b", 12)):
        numbers.append(await lead(store, holder))
        clock.advance(seconds)
    assert numbers[0] == numbers[1]
    assert numbers[1:] == sorted(set(numbers))


async def test_only_the_leader_can_resign_and_another_leads_at_once(store: MemoryStore) -> None:
    first = await lead(store, "a")
    assert await elect(store, "lead", "b", RESIGN) is None
    assert await elect(store, "lead", "b", TTL) is None
    assert await lead(store, "a") == first
    assert await elect(store, "lead", "a", RESIGN) is None
    assert await lead(store, "b") > first
    assert await lead(store, "a", "another name") == 1


@pytest.mark.parametrize(
    "value", [None, "a", [], {}, {"holder": 5}, {"holder": "a", "term": "first"}], ids=str
)
async def test_a_term_without_a_holder_that_can_be_read_ends_by_itself(
    store: MemoryStore, value: Any
) -> None:
    """Its holder may still rely on it, so nobody holds the name until it has expired."""
    version = await damage(store, value)
    for holder in ("a", "b"):
        assert await elect(store, "lead", holder, TTL) is None
        assert await elect(store, "lead", holder, RESIGN) is None
    clock.advance(11)
    assert await lead(store, "b") > version


async def test_a_damaged_term_that_would_never_end_is_replaced(store: MemoryStore) -> None:
    version = await damage(store, {}, ttl=None)
    number = await lead(store, "b")
    assert number > version
    assert await lead(store, "b") == number
    assert await elect(store, "lead", "a", TTL) is None
