"""Reads one note of the store by its kind and name."""

from __future__ import annotations

from mainspring.core.model import Note
from mainspring.stores.protocol import NoteQuery, Store


async def read_note(store: Store, kind: str, name: str) -> Note | None:
    """The note, or None if there is none or it has expired."""
    page = await store.notes(NoteQuery(kind=kind, names=frozenset({name}), limit=1))
    return page.items[0] if page.items else None
