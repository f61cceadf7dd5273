"""The write transaction that is passed to every function that writes."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import datetime
from typing import Any


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
