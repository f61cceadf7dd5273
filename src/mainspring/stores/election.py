"""Elects one holder of a name at a time, by a note that expires by the store's clock.

Any number of clients may compete for one name: the leader of a cluster, or a copy that must be the
only one. The store's clock alone decides when a term has ended. A client that finds no live note
takes the name by compare-and-set, and needs no clock for it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mainspring.core.model import Note
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store

__all__ = ["LEADER", "TERMS", "elect"]

LEADER = "keeper"
"""The name that the leader holds, as stores have kept it since 0.1.0."""

TERMS = "mainspring.term"
"""The kind of the notes."""


async def elect(store: Store, name: str, holder: str, ttl: timedelta) -> int | None:
    """Become or stay the holder of `name` for `ttl`: the number of the term, or None.

    The number grows whenever the holder changes. A `ttl` of zero resigns. After an error the caller
    may call again: a term that was begun or renewed is recognised by its holder.
    """
    query = NoteQuery(kind=TERMS, names=frozenset({name}), limit=1)
    term = next(iter((await store.notes(query)).items), None)
    if term is not None and term.value["holder"] != holder:
        return None
    if term is None and not ttl:
        return None
    value: dict[str, Any] = {"holder": holder}
    if term is not None:
        # A term that was never renewed has the number of the write that began it.
        value["term"] = term.value.get("term", term.version)
    note = Note(kind=TERMS, name=name, value=value, version=term.version if term else 0)
    [version] = await store.put_notes([NoteWrite.put(note, ttl)])
    if version is None or not ttl:
        return None
    number: int = value.get("term", version)
    return number
