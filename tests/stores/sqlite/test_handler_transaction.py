"""The connection of a handler's transaction, and its turn of the writer."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import Run, State
from mainspring.errors import InvalidState, TransactionExpired
from mainspring.stores.protocol import Held
from mainspring.stores.sqlite import SqliteStore
from mainspring.stores.sqlite.handler_transaction import SqliteTransaction
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.sqlite_store import a_claim, a_run

LEASE = timedelta(seconds=30)


async def running(store: SqliteStore, run_id: str = "run") -> Run:
    await store.add([a_run(run_id)])
    [run] = await claim_runs(store, a_claim(limit=1))
    return run


def turn(
    store: SqliteStore, run: Run, limit: float = 10, *, blocking: bool = False
) -> SqliteTransaction:
    held = Held(run.id, run.token)
    return store.transaction(held, timedelta(seconds=limit), blocking=blocking)


async def committed(store: SqliteStore, turn: SqliteTransaction, run: Run) -> bool:
    return await turn.commit(transitions.succeeded(run, await store.now(), None))


def kept(tmp_path: Path) -> list[Any]:
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        return connection.execute("SELECT * FROM effects ORDER BY 1").fetchall()


async def test_a_handler_cannot_end_its_transaction_itself(
    store: SqliteStore, tmp_path: Path
) -> None:
    run = await running(store)
    mine = turn(store, run)
    session = await mine.begin()
    session.execute("CREATE TABLE effects (name TEXT)")
    for end in (session.commit, session.rollback, session.close):
        with pytest.raises(InvalidState, match="by the end of its block alone"):
            end()
    for words in ("COMMIT", "END", "ROLLBACK", "BEGIN"):
        with pytest.raises(InvalidState, match="SAVEPOINT"):
            session.execute(words)
    with pytest.raises(InvalidState):
        session.isolation_level = None  # Python's own way of a commit
    with session:
        session.execute("INSERT INTO effects VALUES ('with')")
    session.execute("SAVEPOINT here")
    session.execute("INSERT INTO effects VALUES ('undone')")
    session.execute("ROLLBACK TO here")
    session.cursor().executescript(
        "INSERT INTO effects VALUES ('one; two'); INSERT INTO effects VALUES ('three')"
    )
    session.executemany("INSERT INTO effects VALUES (?)", [("four",)])
    assert await committed(store, mine, run)
    assert kept(tmp_path) == [("four",), ("one; two",), ("three",), ("with",)]


async def test_a_connection_is_over_with_its_block(store: SqliteStore, tmp_path: Path) -> None:
    run = await running(store)
    mine = turn(store, run)
    session = await mine.begin()
    session.row_factory, session.text_factory = sqlite3.Row, bytes
    session.execute("CREATE TABLE effects (name TEXT)")
    reading = session.execute("INSERT INTO effects VALUES ('a'), ('b') RETURNING name")
    assert reading.fetchone()[0] == b"a"  # and the other row is never asked for
    assert await committed(store, mine, run)
    for late in (session, reading):
        with pytest.raises((TransactionExpired, sqlite3.ProgrammingError)):
            late.execute("INSERT INTO effects VALUES ('late')")
    assert kept(tmp_path) == [("a",), ("b",)]


async def test_a_late_handler_cannot_write_in_the_next_transaction(
    store: SqliteStore, tmp_path: Path
) -> None:
    first, second = await running(store, "first"), await running(store, "second")
    mine = turn(store, first)
    late = await mine.begin()
    cursor = late.execute("CREATE TABLE effects (name TEXT)")
    assert isinstance(late, sqlite3.Connection)
    assert await committed(store, mine, first)
    other = turn(store, second)
    session = await other.begin()
    for write in (late.execute, cursor.execute, cursor.connection.execute):
        with pytest.raises((TransactionExpired, sqlite3.ProgrammingError)):
            write("INSERT INTO effects VALUES ('late')")
    for words in ("COMMIT", "ROLLBACK"):  # the writer has ended a transaction on this connection
        with pytest.raises(InvalidState, match="SAVEPOINT"):
            session.execute(words)
    session.execute("INSERT INTO effects VALUES ('second')")
    assert await committed(store, other, second)
    assert kept(tmp_path) == [("second",)]


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "a temporary table": lambda session: session.execute("CREATE TEMP TABLE mine (name TEXT)"),
    "a temporary view": lambda session: session.execute("CREATE TEMP VIEW mine AS SELECT 1"),
    "a pragma": lambda session: session.execute("PRAGMA case_sensitive_like = 1"),
    "a function": lambda session: session.create_function("mine", 0, lambda: 1),
    "a row factory": lambda session: setattr(session, "row_factory", sqlite3.Row),
    "an attached database": lambda session: session.execute("ATTACH ':memory:' AS mine"),
}


@pytest.mark.parametrize("setting", SETTINGS)
async def test_no_setting_of_a_handler_reaches_the_next(store: SqliteStore, setting: str) -> None:
    first, second = await running(store, "first"), await running(store, "second")
    mine = turn(store, first)
    SETTINGS[setting](await mine.begin())
    assert await committed(store, mine, first)
    other = turn(store, second)
    session = await other.begin()
    assert session.execute("SELECT name FROM sqlite_temp_schema").fetchall() == []
    assert session.execute("SELECT 'A' LIKE 'a'").fetchall() == [(1,)]
    assert "mine" not in {row[1] for row in session.execute("PRAGMA database_list")}
    with pytest.raises(sqlite3.OperationalError, match="no such function"):
        session.execute("SELECT mine()")
    await other.rollback()


async def test_foreign_keys_hold(store: SqliteStore) -> None:
    run = await running(store)
    mine = turn(store, run)
    session = await mine.begin()
    session.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
    session.execute("CREATE TABLE children (parent REFERENCES parents)")
    with pytest.raises(sqlite3.IntegrityError):
        session.execute("INSERT INTO children VALUES (1)")
    await mine.rollback()


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n"
FETCHES: dict[str, Callable[[Any], Any]] = {
    "in fetchone": lambda rows: [rows.fetchone(), rows.fetchone()],
    "in fetchmany": lambda rows: rows.fetchmany(10),
    "in fetchall": lambda rows: rows.fetchall(),
    "in a loop": list,
}


def slow_rows() -> Iterator[tuple[str]]:
    for _ in range(2_000):
        time.sleep(0.01)
        yield ("slow",)
    raise AssertionError("nobody ended the statement")


MANY: dict[str, Callable[[Any], Any]] = {
    "in executemany": lambda session: session,
    "in a cursor's executemany": lambda session: session.cursor(),
}


@pytest.mark.parametrize("busy", ["sleeping", "in a statement", *FETCHES, *MANY])
async def test_a_transaction_expires_whatever_the_handler_does(
    store: SqliteStore, tmp_path: Path, busy: str
) -> None:
    run, other = await running(store), await running(store, "other")
    mine = turn(store, run, limit=0.2, blocking=True)
    began = threading.Event()
    met: list[BaseException] = []

    def handler() -> None:
        begin = mine.begin()
        with pytest.raises(StopIteration) as given:
            begin.send(None)
        session = given.value.value
        session.execute("CREATE TABLE effects (name TEXT)")
        began.set()
        try:
            if busy == "sleeping":
                time.sleep(0.5)
                session.execute("INSERT INTO effects VALUES ('late')")
            if busy in MANY:
                MANY[busy](session).executemany("INSERT INTO effects VALUES (?)", slow_rows())
            if busy in FETCHES:
                FETCHES[busy](session.execute(ENDLESS.format("i") + " WHERE i = 1 OR i < 0"))
            session.execute(ENDLESS.format("count(*)"))
        except Exception as error:
            met.append(error)

    work = asyncio.create_task(asyncio.to_thread(handler))
    await asyncio.to_thread(began.wait)
    # Others wait for it as long as it may last, and no longer.
    assert [r.id for r in await store.renew([Held(other.id, other.token)], LEASE)] == ["other"]
    await work
    assert isinstance(met[0], TransactionExpired)
    late = mine.commit(transitions.succeeded(run, await store.now(), None))
    with pytest.raises(TransactionExpired):
        late.send(None)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        assert (
            connection.execute("SELECT name FROM sqlite_schema WHERE name = 'effects'").fetchall()
            == []
        )
    assert (await get_runs(store, ["run"]))["run"].state is State.RUNNING


async def test_a_transaction_that_is_cancelled_while_it_waits_leaves_the_writer_free(
    store: SqliteStore, tmp_path: Path
) -> None:
    first, second = await running(store), await running(store, "second")
    mine, other = turn(store, first), turn(store, second)
    await mine.begin()
    waiting = asyncio.create_task(other.begin())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    await other.rollback()
    await mine.rollback()
    third = turn(store, second)
    session = await third.begin()
    session.execute("CREATE TABLE effects (name TEXT)")
    session.execute("INSERT INTO effects VALUES ('third')")
    assert await committed(store, third, second)
    assert kept(tmp_path) == [("third",)]
    states = {
        run_id: run.state for run_id, run in (await get_runs(store, ["run", "second"])).items()
    }
    assert states == {"run": State.RUNNING, "second": State.SUCCEEDED}
