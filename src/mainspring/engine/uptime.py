"""Records when no worker was alive, in one note of the store that all workers update.

The note has the last moment at which a worker was alive, and the newest downtimes. A worker that
announces itself and finds that moment long past records a downtime from then until now.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from mainspring.core import note_kinds
from mainspring.core.model import Note
from mainspring.engine.notes import read_note
from mainspring.stores.protocol import NoteWrite, Store

NAME = "workers"

MOST_DOWNTIMES = 100


class Downtime(Struct, frozen=True):
    """No worker was alive between these two moments, by the store's time."""

    start: datetime
    end: datetime


class Uptime(Struct, frozen=True):
    alive_at: datetime
    downtimes: tuple[Downtime, ...] = ()

    def downtime_at(self, moment: datetime) -> Downtime | None:
        return next((one for one in self.downtimes if one.start <= moment <= one.end), None)


async def read_uptime(store: Store) -> Uptime | None:
    return (await _read(store))[0]


async def record_alive(
    store: Store, now: datetime, interval: timedelta, *, stopping: bool = False
) -> None:
    """Record that a worker is alive, as each does at this interval. `stopping`: for the last time,
    so that a downtime that begins now has its true start."""
    uptime, version = await _read(store)
    if uptime is None:
        uptime = Uptime(now)
    elif not stopping and timedelta() <= now - uptime.alive_at < 0.8 * interval:
        return  # many workers share the note
    elif now - uptime.alive_at > 1.4 * interval:
        downtimes = (*uptime.downtimes, Downtime(uptime.alive_at, now))
        uptime = Uptime(now, downtimes[-MOST_DOWNTIMES:])
    else:
        uptime = Uptime(now, uptime.downtimes)
    value = {
        "alive_at": uptime.alive_at,
        "outages": [[one.start, one.end] for one in uptime.downtimes],
    }
    # Where another worker was quicker, it has recorded the same.
    await store.put_notes(
        [NoteWrite.put(Note(kind=note_kinds.UPTIME, name=NAME, value=value, version=version))]
    )


async def _read(store: Store) -> tuple[Uptime | None, int]:
    note = await read_note(store, note_kinds.UPTIME, NAME)
    if note is None:
        return None, 0
    try:
        downtimes = tuple(Downtime(start, end) for start, end in note.value["outages"])
        return Uptime(note.value["alive_at"], downtimes), note.version
    except (ValueError, TypeError, KeyError):  # written by another version
        return None, note.version
