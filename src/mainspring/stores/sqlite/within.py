"""`add(runs, within=…)`: adds runs in a transaction of the caller's own connection to the file.

The transaction holds SQLite's write lock, for which the writer thread waits. It must not wait for
the fair lock between processes: the writer may have that one while it waits for SQLite's. Hints
need nothing: the writers of all processes see the commit by `data_version`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mainspring.core.model import Run
from mainspring.stores.caller_connection import check_upstream, recognise, refuse
from mainspring.stores.codec import from_us
from mainspring.stores.protocol import Added
from mainspring.stores.sqlite.codec import runs_by_id
from mainspring.stores.sqlite.dedupe import NewRun, add_runs
from mainspring.stores.sqlite.schema import check_version
from mainspring.stores.sqlite.statements import WriteTransaction
from mainspring.stores.sqlite.store_clock import StoreClock

ACCEPTED = (
    "a connection of sqlite3 or aiosqlite, Django's connection, or a Session, AsyncSession,"
    " Connection or AsyncConnection of SQLAlchemy"
)
_DRIVERS = ("sqlite3.Connection", "aiosqlite.Connection")


async def add_within(
    path: Path, clock: StoreClock, runs: Sequence[Run], within: Any
) -> list[Added]:
    caller = await recognise(within, ACCEPTED)
    if caller.driver not in _DRIVERS:
        refuse(within, "this is no connection to SQLite", ACCEPTED)
    items = [NewRun.of(run) for run in runs]

    def add(connection: sqlite3.Connection) -> list[Added]:
        kept = connection.row_factory, connection.text_factory
        connection.row_factory, connection.text_factory = None, str
        try:
            _begin(connection, path)
            return _add(connection, path, clock, items)
        finally:
            connection.row_factory, connection.text_factory = kept

    if caller.driver == "sqlite3.Connection":
        return add(caller.connection)
    if caller.connection._connection is None:
        refuse(within, "this connection is closed", ACCEPTED)
    added: list[Added] = await caller.connection._execute(lambda: add(caller.connection._conn))
    return added


def _begin(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a connection that cannot be used; begin where the driver would, at the first write."""
    try:
        [(_, _, file), *_] = connection.execute("PRAGMA database_list").fetchall()  # it is "main"
    except sqlite3.ProgrammingError as error:
        refuse(connection, f"this connection cannot be used ({error})", ACCEPTED)
    if file != str(path) and not (file and os.path.samefile(file, path)):
        refuse(connection, f"this connection is to {file or 'memory'}, not to {path}", ACCEPTED)
    if connection.in_transaction:
        # SQLite lets a transaction wait for the write lock only if it has read nothing before.
        try:
            connection.execute("DELETE FROM mainspring_meta WHERE 0")
        except sqlite3.OperationalError as error:
            if "no such table" not in str(error):  # that is for `check_version` to say
                raise
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
        refuse(connection, "this connection commits each statement by itself", ACCEPTED)
    connection.execute("BEGIN IMMEDIATE")


def _add(
    connection: sqlite3.Connection, path: Path, clock: StoreClock, items: list[NewRun]
) -> list[Added]:
    check_version(connection, path)
    runs = [item.run for item in items]
    upstream = {name for run in runs for name in run.after}
    if upstream:
        check_upstream(runs, set(runs_by_id(connection, upstream, brief=True)))
    now = clock.read(connection)
    connection.execute("SAVEPOINT mainspring")
    try:
        added = add_runs(WriteTransaction(connection, from_us(now), now), items)
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back all of it
            connection.execute("ROLLBACK TO mainspring")
            connection.execute("RELEASE mainspring")
        raise
    connection.execute("RELEASE mainspring")
    return added
