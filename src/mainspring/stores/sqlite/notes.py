"""Reads and writes notes: small named values with a version and an optional expiry time."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from mainspring.core.model import Note, Page
from mainspring.stores.codec import NOTE, row_reader, row_writer, to_us
from mainspring.stores.paging import note_cursor, read_note_cursor
from mainspring.stores.protocol import NoteQuery, NoteWrite
from mainspring.stores.sqlite.codec import name_list, span_us
from mainspring.stores.sqlite.write_transaction import WriteTransaction

_COLUMNS = ", ".join(NOTE.fields)
_note = row_reader(NOTE, tuple(NOTE.fields))
_WRITTEN = tuple(name for name in NOTE.fields if name not in ("version", "expires_at"))
_note_row = row_writer(NOTE, _WRITTEN)
_LIVE = "(expires_at IS NULL OR expires_at > ?)"


class NoteRow(NamedTuple):
    """A note to write, as the columns `_WRITTEN`; `columns=None` deletes it."""

    kind: str
    name: str
    expected_version: int | None
    columns: list[Any] | None
    expires_at: int | None
    ttl: int | None

    @classmethod
    def of(cls, write: NoteWrite) -> NoteRow:
        note = write.note
        columns = None if note is None else _note_row(note)
        ends = None if note is None or note.expires_at is None else to_us(note.expires_at)
        ttl = None if write.ttl is None else span_us(write.ttl)
        return cls(write.kind, write.name, write.expected_version, columns, ends, ttl)


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
    found = [_note(row) for row in rows]
    return Page(found, note_cursor(found[-1]) if found and len(found) == query.limit else None)


def put(tx: WriteTransaction, items: Sequence[NoteRow]) -> list[int | None]:
    return [_put(tx, item) for item in items]


def _put(tx: WriteTransaction, item: NoteRow) -> int | None:
    same = (item.kind, item.name)
    row = tx.connection.execute(_STORED, (tx.now, *same)).fetchone()
    kept, live = (0, 0) if row is None else row
    if item.expected_version not in (None, live):
        return None
    if item.columns is None:
        return 0 if tx.changed(_DROP, *same) else None
    # The version grows also after the note has expired: no writer sees one version twice.
    ends = item.expires_at if item.ttl is None else tx.now + item.ttl
    tx.connection.execute(_PUT, (kept + 1, ends, item.ttl, *item.columns))
    return int(kept) + 1


_STORED = (
    f"SELECT version, CASE WHEN {_LIVE} THEN version ELSE 0 END FROM mainspring_notes"
    " WHERE kind = ? AND name = ?"
)
_PUT = (
    f"INSERT OR REPLACE INTO mainspring_notes (version, expires_at, ttl, {', '.join(_WRITTEN)})"
    f" VALUES (?, ?, ?{', ?' * len(_WRITTEN)})"
)
_DROP = "DELETE FROM mainspring_notes WHERE kind = ? AND name = ?"
