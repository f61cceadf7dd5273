"""`ctx.transaction()`: the writer thread runs it, and the handler writes in it.

Between two batches the writer takes the file's lock, begins on a connection for handlers, and waits
until the handler has ended or the time is up. Then it records the completion of the run
through the same connection and commits both. So the handler and the writer never wait for each
other, and other processes wait for the transaction as for any commit.

The handler may use the connection until its transaction ends. After that the connection refuses
every statement: a late statement would start another transaction, without a fence.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from mainspring.core.transitions import Change
from mainspring.errors import InvalidState, TransactionAborted, TransactionExpired
from mainspring.stores.codec import from_us
from mainspring.stores.protocol import Held
from mainspring.stores.sqlite.commit import EncodedChange, commit_changes
from mainspring.stores.sqlite.files import FileIdentity
from mainspring.stores.sqlite.schema import check_version, connect
from mainspring.stores.sqlite.statements import WriteTransaction
from mainspring.stores.sqlite.store_clock import StoreClock

T = TypeVar("T")

_ENDED_BY_BLOCK_ONLY = (
    "the transaction is ended by the end of its block alone; inside it use SAVEPOINT, ROLLBACK TO"
    " and RELEASE"
)
_HELD_RUN = """
SELECT 1 FROM mainspring_runs
WHERE id = ? AND state = 'running' AND token = ? AND NOT cancel_requested
"""


class SqliteTransaction:
    """The handler's side of it: `begin` requests it, `commit` or `rollback` ends it."""

    def __init__(
        self,
        ask: Callable[[SqliteTransaction], None],
        held: Held,
        limit: timedelta,
        *,
        blocking: bool,
    ) -> None:
        self.held = held
        self.limit = limit.total_seconds()
        self.begun: Future[HandlerConnection] = Future()
        self.ending: Future[EncodedChange | None] = Future()
        self.ended: Future[bool] = Future()
        self.ended.set_running_or_notify_cancel()  # a cancelled caller does not undo the commit
        self._ask = ask
        self._asked = False
        self._blocking = blocking

    async def begin(self) -> HandlerConnection:
        self._ask(self)
        self._asked = True
        return await self._answer(self.begun)

    async def commit(self, change: Change) -> bool:
        self.ending.set_result(EncodedChange.of(change))
        return await self._answer(self.ended)

    async def rollback(self) -> None:
        if not self._asked or self.begun.cancel():
            return
        if not self.ending.done():
            self.ending.set_result(None)
        with contextlib.suppress(Exception):
            await self._answer(self.ended)

    def transient(self, error: BaseException) -> bool:
        return False  # no other transaction can conflict with it

    def fail(self, error: BaseException) -> None:
        """Called by the writer: the transaction cannot begin, or it has failed."""
        if not self.begun.done():
            self.begun.set_exception(error)
        self.ended.set_exception(error)

    async def _answer(self, future: Future[T]) -> T:
        return future.result() if self._blocking else await asyncio.wrap_future(future)


class HandlerTransactions:
    """Runs transactions in the writer's thread, under the file's lock. Keeps the connection open
    from one commit to the next: to open one takes five times as long as to use it."""

    def __init__(self, path: Path, clock: StoreClock, identity: FileIdentity) -> None:
        self._path = path
        self._clock = clock
        self._identity = identity
        self._kept: _Connection | None = None

    def run(self, transaction: SqliteTransaction) -> bool:
        """True if it was committed."""
        connection, self._kept = self._kept or _open(self._path), None
        handler_connection = HandlerConnection(connection)
        done = False
        try:
            connection.execute("BEGIN IMMEDIATE")
            self._identity.check()  # a new connection has opened the path anew
            check_version(connection, self._path)
            held = transaction.held
            if connection.execute(_HELD_RUN, (held.id, held.token)).fetchone() is None:
                raise TransactionAborted(
                    "the run is no longer this worker's, or is to be cancelled"
                )
            transaction.begun.set_result(handler_connection)
            completion = _wait_for_end(transaction)
            handler_connection.take_back()
            if completion is None:
                return False
            now = self._clock.follow(connection)
            [done] = commit_changes(WriteTransaction(connection, from_us(now), now), [completion])
            if done:
                connection.commit()
                self._identity.check()
            return done
        except BaseException:
            done = False
            raise
        finally:
            handler_connection.take_back()
            if done and not connection.spent:
                self._kept = connection
            else:
                connection.close()  # this rolls back what was not committed

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()


def _open(path: Path) -> _Connection:
    connection = connect(path, factory=_Connection, check_same_thread=False)
    assert isinstance(connection, _Connection)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.set_authorizer(connection.authorize)
    return connection


def _wait_for_end(transaction: SqliteTransaction) -> EncodedChange | None:
    try:
        return transaction.ending.result(transaction.limit)
    except TimeoutError:
        raise TransactionExpired(f"it lasted longer than {transaction.limit:g} s") from None


_LEAVES_SETTINGS = (sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH)


class _Connection(sqlite3.Connection):
    """Is `spent` when a handler may have left a setting, a function or a temporary table in it: the
    next handler must not meet those. The authorizer is set once, because SQLite prepares all
    statements again then; it is not asked about a statement that Python has kept prepared. So the
    writer ends a transaction by `commit`, which keeps none, and not by a statement."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._writer = threading.get_ident()
        self.spent = False

    def authorize(self, action: int, *what: Any) -> int:
        if threading.get_ident() == self._writer:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_TRANSACTION:
            return sqlite3.SQLITE_DENY
        if action in _LEAVES_SETTINGS or "temp" in what:
            self.spent = True
        return sqlite3.SQLITE_OK


class HandlerConnection:
    """What one handler writes with: a connection that only the writer may end the transaction of.
    `take_back` ends the handler's use of it."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._guard = threading.RLock()
        self._over = False
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return sqlite3.Connection  # libraries ask for one

    def __getattr__(self, name: str) -> Any:
        """Whatever else a connection has. It may be a way to leave something in it."""
        with self.in_use():
            self._connection.spent = True
            return getattr(self._connection, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        with self.in_use():
            if name not in ("row_factory", "text_factory"):  # `take_back` resets these
                self._connection.spent = True
            setattr(self._connection, name, value)

    def take_back(self) -> None:
        """Interrupt a statement that is being executed, and refuse all further ones."""
        self._over = True
        while not self._guard.acquire(timeout=0.05):
            self._connection.interrupt()
        for cursor in list(self._cursors):
            cursor.close()  # a statement that is half read would block the commit
        self._guard.release()
        self._connection.row_factory, self._connection.text_factory = None, str

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        with self._guard:
            if self._over:
                raise self._refusal()
            try:
                yield
            except sqlite3.DatabaseError as error:
                if self._over:
                    raise self._refusal() from error
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
                    raise InvalidState(_ENDED_BY_BLOCK_ONLY) from error
                raise

    def rows_while_in_use(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows of one statement until the time is up. An interrupt stops only SQLite, and
        the handler may spend the time making the rows."""
        for row in rows:
            if self._over:
                raise self._refusal()
            yield row

    def _refusal(self) -> Exception:
        return TransactionExpired("the transaction of this connection is over")

    def cursor(self, factory: Any = None) -> Any:
        with self.in_use():
            cursor = self._connection.cursor(_Cursor)
        cursor.owner = self
        self._cursors.add(cursor)
        return cursor

    def execute(self, *arguments: Any) -> Any:
        return self.cursor().execute(*arguments)

    def executemany(self, *arguments: Any) -> Any:
        return self.cursor().executemany(*arguments)

    def executescript(self, script: str) -> Any:
        return self.cursor().executescript(script)

    def __enter__(self) -> HandlerConnection:
        return self

    def __exit__(self, *error: Any) -> Any:
        """`with connection:` is a common habit. Here only the outer block ends the transaction."""
        return False

    def commit(self) -> None:
        raise InvalidState(_ENDED_BY_BLOCK_ONLY)

    rollback = close = commit


class _Cursor(sqlite3.Cursor):
    owner: HandlerConnection

    @property
    def connection(self) -> Any:
        return self.owner

    def execute(self, *arguments: Any) -> Any:
        with self.owner.in_use():
            return super().execute(*arguments)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Any:
        with self.owner.in_use():
            return super().executemany(statement, self.owner.rows_while_in_use(rows))

    # A fetch executes a part of the statement, and may take as long as `execute`.

    def fetchone(self) -> Any:
        with self.owner.in_use():
            return super().fetchone()

    def fetchmany(self, *arguments: Any, **options: Any) -> Any:
        with self.owner.in_use():
            return super().fetchmany(*arguments, **options)

    def fetchall(self) -> Any:
        with self.owner.in_use():
            return super().fetchall()

    def __next__(self) -> Any:
        with self.owner.in_use():
            return super().__next__()

    def executescript(self, script: str) -> Any:
        """Execute statement by statement. Python's own method would commit first."""
        rest = ""
        for piece in script.split(";"):
            rest += piece + ";"
            if sqlite3.complete_statement(rest):
                self.execute(rest)
                rest = ""
        if rest.strip(" \t\r\n;"):
            self.execute(rest)
        return self
