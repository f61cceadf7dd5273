"""A write transaction, as the functions that work inside it see it."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Transaction"]


@dataclass(frozen=True, slots=True)
class Transaction:
    """`time` and `now` are the store's clock at its beginning, the latter in microseconds."""

    connection: sqlite3.Connection
    time: datetime
    now: int

    def value(self, sql: str, *parameters: Any) -> Any:
        """The first value of the first row (None where there is no row)."""
        row = self.connection.execute(sql, parameters).fetchone()
        return row and row[0]

    def changed(self, sql: str, *parameters: Any) -> int:
        """Run a statement that writes; say how many rows it changed."""
        return self.connection.execute(sql, parameters).rowcount
