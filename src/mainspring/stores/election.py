"""Elects one holder of a name at a time, by a note that expires by the store's clock.

Any number of clients may compete for one name: the leader of a cluster, or a copy that must be the
only one. The store's clock alone decides when a term has ended. A client that finds no live note
takes the name by compare-and-set, and needs no clock for it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mainspring.core import note_kinds
from mainspring.core.model import Note
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store

LEADER = "keeper"
"""The name that the leader holds, as stores have kept it from the beginning."""


async def elect(store: Store, name: str, holder: str, ttl: timedelta) -> int | None:
    """Become or stay the holder of `name` for `ttl`: the number of the term, or None.

    The number grows whenever the holder changes. A `ttl` of zero resigns. After an error the caller
    may call again: a term that was begun or renewed is recognised by its holder.

    A note that cannot be read (it is damaged, or a newer version wrote it) counts as a term of
    another holder, because that one may rely on it: nobody holds the name until the note expires. A
    note that expires later than `ttl` allows, or never, does not belong to this election; it is
    replaced.
    """
    query = NoteQuery(kind=note_kinds.TERM, names=frozenset({name}), limit=1)
    term = next(iter((await store.notes(query)).items), None)
    if term is None and not ttl:
        return None
    value: dict[str, Any] = {"holder": holder}
    if term is not None and not _is_readable(term):
        ends = term.expires_at
        if not ttl or (ends is not None and ends <= await store.now() + ttl):
            return None
    elif term is not None:
        if term.value["holder"] != holder:
            return None
        # A term that was never renewed has the number of the write that began it.
        value["term"] = term.value.get("term", term.version)
    note = Note(kind=note_kinds.TERM, name=name, value=value, version=term.version if term else 0)
    [version] = await store.put_notes([NoteWrite.put(note, ttl)])
    if version is None or not ttl:
        return None
    number: int = value.get("term", version)
    return number


def _is_readable(term: Note) -> bool:
    value = term.value
    return (
        isinstance(value, dict)
        and isinstance(value.get("holder"), str)
        and isinstance(value.get("term", 0), int)
    )
