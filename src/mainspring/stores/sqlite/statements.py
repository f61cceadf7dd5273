"""What every function that writes gets: the transaction, and many rows in one step of SQLite.

Python's sqlite3 releases the interpreter lock at every step. Beside a busy event loop it then waits
up to 5 ms to get the lock back. So one step writes many rows, as a multi-row `VALUES`, and reads
many rows, as one JSON text. A batch of 200 beside a busy thread takes 15 to 40 ms this way, and
about a second row by row (docs/decisions/0002-sqlite-store.md).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

# A batch is padded with empty rows up to one of these sizes, so that few statements are needed and
# all stay prepared.
_SIZES = (1, 4, 16, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
_MOST_PARAMETERS = 32_000  # SQLite allows 32,766

BulkSql = tuple[str, str, int]
"""The SQL before and after the rows of a `VALUES`, and the number of columns of a row."""


@dataclass(frozen=True, slots=True)
class WriteTransaction:
    """`time` and `now` are the store's time when it began, `now` in microseconds. `one_by_one`: no
    two changes are applied together (see `commit.PartlyRepeated`)."""

    connection: sqlite3.Connection
    time: datetime
    now: int
    one_by_one: bool = False

    def value(self, sql: str, *parameters: Any) -> Any:
        """The first value of the first row (None if there is no row)."""
        row = self.connection.execute(sql, parameters).fetchone()
        return row and row[0]

    def changed(self, sql: str, *parameters: Any) -> int:
        """Execute a statement that writes; return how many rows it changed."""
        return self.connection.execute(sql, parameters).rowcount


def one_value(connection: sqlite3.Connection, sql: str, parameters: Sequence[Any] = ()) -> Any:
    """The one value of a statement. Bytes in it that are not UTF-8 are damage to one record of many
    and become U+FFFD; the rest is unchanged."""
    try:
        return connection.execute(sql, parameters).fetchone()[0]
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode to UTF-8"):
            raise
    kept, connection.text_factory = connection.text_factory, _with_marks
    try:
        return connection.execute(sql, parameters).fetchone()[0]
    finally:
        connection.text_factory = kept


def _with_marks(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def bulk(
    connection: sqlite3.Connection, sql: BulkSql, rows: Sequence[Sequence[Any]], *after: Any
) -> int:
    """Write with `head VALUES (…), (…) tail`; return how many rows it changed. `after` are the
    parameters of the tail.

    The statement must ignore rows whose first column is null: those are the padding.
    """
    statements = _in_chunks(sql, rows, after)
    return sum(connection.execute(*statement).rowcount for statement in statements)


def select(
    connection: sqlite3.Connection, sql: BulkSql, rows: Sequence[Sequence[Any]], *after: Any
) -> list[Any]:
    """Read with `head VALUES (…), (…) tail`: one value for each chunk of the rows.

    Lists of text are passed like this and not as JSON, because SQLite's JSON cuts text at a NUL.
    `after` are the parameters of the tail.
    """
    return [
        one_value(connection, statement, parameters)
        for statement, parameters in _in_chunks(sql, rows, after)
    ]


def _in_chunks(
    sql: BulkSql, rows: Sequence[Sequence[Any]], after: Sequence[Any]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    width = sql[2]
    most = max(size for size in _SIZES if size * width <= _MOST_PARAMETERS)
    for start in range(0, len(rows), most):
        part = rows[start : start + most]
        size = next(size for size in _SIZES if size >= len(part))
        values = [value for row in part for value in row]
        values += [None] * ((size - len(part)) * width)
        yield _bulk_sql(sql, size), (*values, *after)


@lru_cache(maxsize=1024)
def _bulk_sql(sql: BulkSql, size: int) -> str:
    head, tail, width = sql
    row = f"({','.join('?' * width)})"
    return head + ",".join([row] * size) + tail
