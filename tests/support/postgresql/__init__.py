"""A schema of PostgreSQL that several tests use, each of which leaves it empty."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

TABLES = ("runs", "jobs", "notes", "upstream", "limits", "counters", "counter_log")


class SharedSchema:
    def __init__(self, server: str, options: str = "") -> None:
        self.server = server
        self.name = f"test_{uuid.uuid4().hex[:12]}"
        self.url = f"{server}?schema={self.name}{options}"

    def execute(self, sql: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """Execute a statement as a program other than the store would; `$` is the schema."""
        with psycopg.connect(self.server, autocommit=True) as connection:
            cursor = connection.execute(sql.replace("$", self.name), parameters)
            return cursor.fetchall() if cursor.description else []

    def empty(self) -> None:
        if self.execute("SELECT to_regclass('$.runs') IS NOT NULL") == [(True,)]:
            self.execute(f"TRUNCATE {', '.join(f'$.{table}' for table in TABLES)}")


@contextmanager
def shared_schema(server: str, options: str = "") -> Iterator[SharedSchema]:
    schema = SharedSchema(server, options)
    try:
        yield schema
    finally:
        schema.execute("DROP SCHEMA IF EXISTS $ CASCADE")
