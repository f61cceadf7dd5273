"""The pause of all firing: a note in the store that every node reads before it fires.

While this note exists, no node fires a slot. Slots that pass meanwhile do not run later: when
firing is resumed, each job records those that it has passed over as one skipped run. Jobs are not
changed by it, so one that is paused by itself stays paused.
"""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct, convert, to_builtins

from mainspring.core import note_kinds
from mainspring.core.model import Note, replace
from mainspring.engine.store_retry import TRIES, contended
from mainspring.stores.paging import read_note
from mainspring.stores.protocol import NoteWrite, Store

NAME = "all"

MOST_ENDED = 20
"""Pauses that are over and still kept: a job whose slots passed during one may be planned much
later."""

Moment = Annotated[datetime, Meta(tz=True)]


class FiringPause(Struct, frozen=True):
    """Since when all firing is paused (None: it is not), and from when to when it was paused
    before, oldest first. Slots of these spans do not run any more."""

    since: Moment | None = None
    ended: tuple[tuple[Moment, Moment], ...] = ()


async def read_pause(store: Store) -> FiringPause:
    return _read(await read_note(store, note_kinds.PAUSE, NAME))


async def pause_firing(store: Store) -> FiringPause:
    """Pause all firing. A pause that stands is kept as it is."""
    for _ in range(TRIES):
        note = await read_note(store, note_kinds.PAUSE, NAME)
        pause = _read(note)
        if pause.since is not None:
            return pause
        wanted = replace(pause, since=await store.now())
        if await _put(store, note, wanted):
            return wanted
    raise contended("the pause of all firing")


async def resume_firing(store: Store) -> FiringPause | None:
    """Resume firing. None: it was not paused."""
    for _ in range(TRIES):
        note = await read_note(store, note_kinds.PAUSE, NAME)
        pause = _read(note)
        if pause.since is None:
            return None
        now = await store.now()
        span = (min(pause.since, now), now)  # the clock may have been set back
        wanted = FiringPause(ended=(*pause.ended, span)[-MOST_ENDED:])
        if await _put(store, note, wanted):
            return wanted
    raise contended("the pause of all firing")


async def _put(store: Store, note: Note | None, wanted: FiringPause) -> bool:
    value = to_builtins(wanted, builtin_types=(datetime,))
    version = note.version if note is not None else 0
    changed = Note(kind=note_kinds.PAUSE, name=NAME, value=value, version=version)
    [kept] = await store.put_notes([NoteWrite.put(changed)])
    return kept is not None


def _read(note: Note | None) -> FiringPause:
    """A note that cannot be read does not pause: else a damaged one would stop all firing."""
    with contextlib.suppress(ValueError, TypeError):
        if note is not None:
            return convert(note.value, FiringPause)
    return FiringPause()
