"""The pause of all firing: a note in the store that every node reads before it fires.

While it stands, no node fires a slot. Slots that pass meanwhile do not run later: when firing is
resumed, each job records those that it has passed over as one skipped run. Jobs are not changed by
it, so one that is paused by itself stays paused.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from mainspring.core.model import Note
from mainspring.errors import Conflict
from mainspring.stores.protocol import NoteQuery, NoteWrite, Store

__all__ = ["FiringPause", "pause_firing", "read_pause", "resume_firing"]

KIND = "mainspring.pause"
NAME = "all"

TRIES = 20


class FiringPause(Struct, frozen=True):
    """Since when all firing is paused (None: it is not), and when it was last resumed. Slots up to
    that moment do not run any more."""

    since: datetime | None = None
    resumed_at: datetime | None = None


async def read_pause(store: Store) -> FiringPause:
    return _read(await _find(store))


async def pause_firing(store: Store) -> FiringPause:
    """Pause all firing. A pause that stands is kept as it is."""
    for _ in range(TRIES):
        note = await _find(store)
        found = _read(note)
        if found.since is not None:
            return found
        wanted = FiringPause(since=await store.now(), resumed_at=found.resumed_at)
        if await _put(store, note, wanted):
            return wanted
    raise Conflict("others pause and resume firing all the time; try again")


async def resume_firing(store: Store) -> FiringPause | None:
    """Resume firing. None: it was not paused."""
    for _ in range(TRIES):
        note = await _find(store)
        if _read(note).since is None:
            return None
        wanted = FiringPause(since=None, resumed_at=await store.now())
        if await _put(store, note, wanted):
            return wanted
    raise Conflict("others pause and resume firing all the time; try again")


async def _find(store: Store) -> Note | None:
    page = await store.notes(NoteQuery(kind=KIND, names=frozenset({NAME}), limit=1))
    return page.items[0] if page.items else None


async def _put(store: Store, note: Note | None, wanted: FiringPause) -> bool:
    value = {"since": wanted.since, "resumed_at": wanted.resumed_at}
    version = note.version if note is not None else 0
    made = Note(kind=KIND, name=NAME, value=value, version=version)
    [kept] = await store.put_notes([NoteWrite.put(made)])
    return kept is not None


def _read(note: Note | None) -> FiringPause:
    value: Any = {} if note is None else note.value
    return FiringPause(since=value.get("since"), resumed_at=value.get("resumed_at"))
