"""Many rows, one step.

Python's sqlite3 lets go of the interpreter lock at every step, and beside a busy event loop
it waits up to 5 ms to have it back. So many rows travel in one step: down as one multi-row
`VALUES`, up as one JSON text (docs/decisions/0002-sqlite-store.md has the figures: a batch
of 200 beside a busy thread takes 15 to 40 ms so, and about a second row by row).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

__all__ = ["BulkSql", "bulk", "select"]

# A batch is padded with empty rows up to one of these sizes, so that few statements serve all
# and stay prepared.
_SIZES = (1, 4, 16, 64, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
_MOST_PARAMETERS = 32_000  # SQLite allows 32,766

BulkSql = tuple[str, str, int]
"""What stands before and after the rows of a `VALUES`, and how wide a row is."""


def bulk(connection: sqlite3.Connection, sql: BulkSql, rows: Sequence[Sequence[Any]]) -> int:
    """Write with `head VALUES (…), (…) tail`; say how many rows that changed.

    The statement must pass over rows whose first column is null: those are the padding.
    """
    return sum(cursor.rowcount for cursor in _in_chunks(connection, sql, rows, ()))


def select(
    connection: sqlite3.Connection, sql: BulkSql, rows: Sequence[Sequence[Any]], *after: Any
) -> list[Any]:
    """Read with `head VALUES (…), (…) tail`: one value for each chunk of the rows.

    Lists of text come so, and not as JSON, because SQLite's JSON cuts text at a NUL.
    `after` are the parameters of the tail.
    """
    return [cursor.fetchone()[0] for cursor in _in_chunks(connection, sql, rows, after)]


def _in_chunks(
    connection: sqlite3.Connection,
    sql: BulkSql,
    rows: Sequence[Sequence[Any]],
    after: Sequence[Any],
) -> Iterator[sqlite3.Cursor]:
    width = sql[2]
    most = max(size for size in _SIZES if size * width <= _MOST_PARAMETERS)
    for start in range(0, len(rows), most):
        part = rows[start : start + most]
        size = next(size for size in _SIZES if size >= len(part))
        values = [value for row in part for value in row]
        values += [None] * ((size - len(part)) * width)
        yield connection.execute(_bulk_sql(sql, size), (*values, *after))


@lru_cache(maxsize=1024)
def _bulk_sql(sql: BulkSql, size: int) -> str:
    head, tail, width = sql
    row = f"({','.join('?' * width)})"
    return head + ",".join([row] * size) + tail
