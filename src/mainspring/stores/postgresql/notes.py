"""Reads and writes notes: small named values with a version and an optional expiry time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from mainspring.core.model import Note, Page
from mainspring.stores.codec import NOTE, row_reader, row_writer, to_us
from mainspring.stores.paging import note_cursor, read_note_cursor
from mainspring.stores.postgresql.database import Transaction
from mainspring.stores.protocol import TTL_NOTE_KEPT, NoteQuery, NoteWrite

_US = timedelta(microseconds=1)
_COLUMNS = ", ".join(NOTE.fields)
_note = row_reader(NOTE, tuple(NOTE.fields))
_WRITTEN = tuple(name for name in NOTE.fields if name not in ("version", "expires_at"))
_note_row = row_writer(NOTE, _WRITTEN)


async def find(tx: Transaction, query: NoteQuery, now: int) -> Page[Note]:
    where, parameters = ["(expires_at IS NULL OR expires_at > %s)"], [now]
    conditions: list[tuple[str, list[Any] | None]] = [
        ("kind = %s", None if query.kind is None else [query.kind]),
        ("name = ANY(%s)", None if query.names is None else [list(query.names)]),
        (
            "(kind, name) > (%s, %s)",
            None if query.cursor is None else read_note_cursor(query.cursor),
        ),
    ]
    for condition, values in conditions:
        if values is not None:
            where.append(condition)
            parameters += values
    rows = await tx.rows(
        f"SELECT {_COLUMNS} FROM mainspring.notes WHERE {' AND '.join(where)}"
        " ORDER BY kind, name LIMIT %s",
        [*parameters, max(query.limit, 0)],
    )
    notes = [_note(row) for row in rows]
    return Page(notes, note_cursor(notes[-1]) if notes and len(notes) == query.limit else None)


_STORED = """
SELECT version, expires_at FROM mainspring.notes WHERE kind = %s AND name = %s FOR UPDATE
"""
_INSERT = (
    f"INSERT INTO mainspring.notes (version, expires_at, ttl, {', '.join(_WRITTEN)})"
    f" VALUES (%s, %s, %s{', %s' * len(_WRITTEN)})"
)
_UPDATE = (
    f"UPDATE mainspring.notes SET version = %s, expires_at = %s, ttl = %s,"
    f" {', '.join(f'{name} = %s' for name in _WRITTEN)} WHERE kind = %s AND name = %s"
)
_DROP = "DELETE FROM mainspring.notes WHERE kind = %s AND name = %s"


async def lock(tx: Transaction, writes: Sequence[NoteWrite]) -> None:
    """Lock the notes in one order, so that two clients do not wait for each other."""
    if len(writes) > 1:
        kinds, names = [write.kind for write in writes], [write.name for write in writes]
        await tx.rows(_LOCK, [kinds, names])


_LOCK = """
SELECT 1 FROM mainspring.notes WHERE (kind, name) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
ORDER BY kind, name FOR UPDATE
"""


async def put(tx: Transaction, write: NoteWrite) -> int | None:
    """Write a note by compare-and-set. Two clients that insert the same note conflict: the
    transaction of one of them is sent again."""
    same = [write.kind, write.name]
    rows = await tx.rows(_STORED, same)
    kept, ends = rows[0] if rows else (0, None)
    live = 0 if ends is not None and ends <= tx.now else kept
    if write.expected_version not in (None, live):
        return None
    if write.note is None:
        return 0 if await tx.changed(_DROP, same) else None
    # The version grows also after the note has expired: no writer sees one version twice.
    ttl = None if write.ttl is None else write.ttl // _US
    until = None if write.note.expires_at is None else to_us(write.note.expires_at)
    values = [kept + 1, until if ttl is None else tx.now + ttl, ttl, *_note_row(write.note)]
    if rows:
        await tx.changed(_UPDATE, [*values, *same])
    else:
        await tx.changed(_INSERT, values)
    return int(kept) + 1


async def prune(tx: Transaction) -> None:
    await tx.changed(
        "DELETE FROM mainspring.notes WHERE expires_at <= %s AND (ttl IS NULL OR expires_at <= %s)",
        [tx.now, tx.now - TTL_NOTE_KEPT // _US],
    )
