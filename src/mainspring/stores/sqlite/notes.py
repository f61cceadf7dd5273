"""Reads and writes notes: small named values with a version and an optional expiry time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from mainspring.core.model import Note, Page
from mainspring.stores.codec import NOTE, row_reader, row_writer
from mainspring.stores.paging import note_cursor, read_note_cursor
from mainspring.stores.protocol import NoteQuery, NoteWrite
from mainspring.stores.sqlite.codec import name_list, span_us
from mainspring.stores.sqlite.statements import WriteTransaction

_COLUMNS = ", ".join(NOTE.fields)
_note = row_reader(NOTE, tuple(NOTE.fields))
_WRITTEN = ("kind", "name", "value", "expires_at")
_note_row = row_writer(NOTE, _WRITTEN)
_LIVE = "(expires_at IS NULL OR expires_at > ?)"


def find(connection: sqlite3.Connection, query: NoteQuery, now: int) -> Page[Note]:
    where = [_LIVE]
    parameters: list[Any] = [now]
    if query.kind is not None:
        where.append("kind = ?")
        parameters.append(query.kind)
    if query.names is not None:
        where.append("name IN (SELECT value FROM json_each(?))")
        parameters.append(name_list(query.names))
    if query.cursor is not None:
        where.append("(kind, name) > (?, ?)")
        parameters += read_note_cursor(query.cursor)
    rows = connection.execute(
        f"SELECT {_COLUMNS} FROM mainspring_notes"
        f" WHERE {' AND '.join(where)} ORDER BY kind, name LIMIT ?",
        (*parameters, max(query.limit, 0)),
    )
    notes = [_note(row) for row in rows]
    return Page(notes, note_cursor(notes[-1]) if notes and len(notes) == query.limit else None)


def put(tx: WriteTransaction, items: Sequence[NoteWrite]) -> list[int | None]:
    return [_put(tx, item) for item in items]


def _put(tx: WriteTransaction, write: NoteWrite) -> int | None:
    same = (write.kind, write.name)
    row = tx.connection.execute(_STORED, (tx.now, *same)).fetchone()
    kept, live = (0, 0) if row is None else row
    if write.expected_version not in (None, live):
        return None
    if write.note is None:
        return 0 if tx.changed(_DROP, *same) else None
    # The version grows also after the note has expired: no writer sees one version twice.
    *columns, ends = _note_row(write.note)
    ttl = None if write.ttl is None else span_us(write.ttl)
    if ttl is not None:
        ends = tx.now + ttl
    tx.connection.execute(_PUT, (kept + 1, ttl, *columns, ends))
    return int(kept) + 1


_STORED = (
    f"SELECT version, CASE WHEN {_LIVE} THEN version ELSE 0 END FROM mainspring_notes"
    " WHERE kind = ? AND name = ?"
)
_PUT = (
    f"INSERT OR REPLACE INTO mainspring_notes (version, ttl, {', '.join(_WRITTEN)})"
    f" VALUES (?, ?{', ?' * len(_WRITTEN)})"
)
_DROP = "DELETE FROM mainspring_notes WHERE kind = ? AND name = ?"
