"""Notes: small named values with a version and, perhaps, an end."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from mainspring.core import codec
from mainspring.core.model import Note, Page
from mainspring.stores.protocol import NoteQuery
from mainspring.stores.sqlite.codec import from_us, name_list, to_us
from mainspring.stores.sqlite.write_transaction import Transaction

__all__ = ["drop", "find", "kinds", "put"]

_LIVE = "(expires_at IS NULL OR expires_at > ?)"


def find(connection: sqlite3.Connection, query: NoteQuery, now: int) -> Page[Note]:
    sql = (
        f"SELECT name, version, expires_at, value FROM mainspring_notes WHERE kind = ? AND {_LIVE}"
    )
    parameters: list[Any] = [query.kind, now]
    if query.names is not None:
        sql += " AND name IN (SELECT value FROM json_each(?))"
        parameters.append(name_list(query.names))
    if query.cursor is not None:
        sql += " AND name > ?"
        parameters.append(query.cursor)
    rows = connection.execute(f"{sql} ORDER BY name LIMIT ?", (*parameters, max(query.limit, 0)))
    found = [
        Note(
            kind=query.kind,
            name=name,
            value=codec.decode(value),
            version=version,
            expires_at=None if expires_at is None else from_us(expires_at),
        )
        for name, version, expires_at, value in rows
    ]
    full = found and len(found) == query.limit
    return Page(found, found[-1].name if full else None)


def kinds(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT DISTINCT kind FROM mainspring_notes ORDER BY kind")
    return [kind for (kind,) in rows]


def put(tx: Transaction, items: Sequence[Note]) -> list[int | None]:
    return [_put(tx, note) for note in items]


def _put(tx: Transaction, note: Note) -> int | None:
    ends = None if note.expires_at is None else to_us(note.expires_at)
    text = codec.encode(note.value, what="note")
    row = tx.connection.execute(
        _PUT, (note.kind, note.name, ends, text, note.version, tx.now)
    ).fetchone()
    return None if row is None else int(row[0])


# The WHERE of the SELECT keeps a version above zero from making a note that is not there. One
# that has expired counts as version zero, but its number grows on: nobody meets it twice.
_PUT = f"""
INSERT INTO mainspring_notes (kind, name, version, expires_at, value)
SELECT ?1, ?2, 1, ?3, ?4 WHERE ?5 = 0 OR EXISTS (
    SELECT 1 FROM mainspring_notes WHERE kind = ?1 AND name = ?2
)
ON CONFLICT (kind, name) DO UPDATE SET version = version + 1, expires_at = ?3, value = ?4
WHERE CASE WHEN {_LIVE.replace("?", "?6")} THEN version ELSE 0 END = ?5
RETURNING version
"""


def drop(tx: Transaction, items: Sequence[tuple[str, str]]) -> list[bool]:
    sql = "DELETE FROM mainspring_notes WHERE kind = ? AND name = ?"
    return [bool(tx.changed(sql, kind, name)) for kind, name in items]
