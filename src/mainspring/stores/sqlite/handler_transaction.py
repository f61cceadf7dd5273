"""`ctx.transaction()`: the writer thread runs it, and the handler writes in it.

Between two batches the writer takes the file's lock, opens a connection for the handler, begins,
and waits until the handler has ended or the time is up. Then it records the completion of the run
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


def run_handler_transaction(
    transaction: SqliteTransaction, path: Path, clock: StoreClock, identity: FileIdentity
) -> bool:
    """Run it in the writer's thread, under the file's lock. True if it was committed."""
    connection = connect(path, factory=HandlerConnection, check_same_thread=False)
    assert isinstance(connection, HandlerConnection)
    try:
        connection.begin()
        identity.check()  # this connection has opened the path anew
        check_version(connection, path)
        if (
            connection.execute(_HELD_RUN, (transaction.held.id, transaction.held.token)).fetchone()
            is None
        ):
            raise TransactionAborted("the run is no longer this worker's, or is to be cancelled")
        transaction.begun.set_result(connection)
        completion = _wait_for_end(transaction)
        connection.take_back()
        if completion is None:
            return False
        now = clock.follow(connection)
        [done] = commit_changes(WriteTransaction(connection, from_us(now), now), [completion])
        if done:
            connection.execute("COMMIT")
            identity.check()
        return done
    finally:
        connection.end()


def _wait_for_end(transaction: SqliteTransaction) -> EncodedChange | None:
    try:
        return transaction.ending.result(transaction.limit)
    except TimeoutError:
        raise TransactionExpired(f"it lasted longer than {transaction.limit:g} s") from None


class HandlerConnection(sqlite3.Connection):
    """The connection that the handler writes with. The writer's thread opens it, and only the
    writer may end its transaction. `take_back` ends the handler's use of it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._writer = threading.get_ident()
        self._guard = threading.RLock()
        self._over = False
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def begin(self) -> None:
        self.execute("PRAGMA foreign_keys = ON")
        self.execute("BEGIN IMMEDIATE")
        self.set_authorizer(self._authorized)

    def take_back(self) -> None:
        """Interrupt a statement that is being executed, and refuse all further ones."""
        self._over = True
        while not self._guard.acquire(timeout=0.05):
            self.interrupt()
        for cursor in list(self._cursors):
            cursor.close()  # a statement that is half read would block the commit
        self._guard.release()
        self.row_factory, self.text_factory = None, str

    def end(self) -> None:
        """Roll back what was not committed, and close the file."""
        self.take_back()
        try:
            if self.in_transaction:
                self.execute("ROLLBACK")
        finally:
            super().close()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        with self._guard:
            if self._over and threading.get_ident() != self._writer:
                raise self._refusal()
            try:
                yield
            except sqlite3.DatabaseError as error:
                if self._over and threading.get_ident() != self._writer:
                    raise self._refusal() from error
                if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
                    raise InvalidState(_ENDED_BY_BLOCK_ONLY) from error
                raise

    def rows_while_in_use(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Yield the rows of one statement until the time is up. An interrupt stops only SQLite, and
        the handler may spend the time making the rows."""
        for row in rows:
            if self._over and threading.get_ident() != self._writer:
                raise self._refusal()
            yield row

    def _refusal(self) -> Exception:
        return TransactionExpired("the transaction of this connection is over")

    def _authorized(self, action: int, *what: Any) -> int:
        ours = self._over and threading.get_ident() == self._writer
        if action == sqlite3.SQLITE_TRANSACTION and not ours:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def cursor(self, factory: Any = None) -> Any:
        with self.in_use():
            cursor = super().cursor(_Cursor)
        self._cursors.add(cursor)
        return cursor

    # Python's own methods do not call `cursor`.

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
    connection: HandlerConnection

    def execute(self, *arguments: Any) -> Any:
        with self.connection.in_use():
            return super().execute(*arguments)

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Any:
        with self.connection.in_use():
            return super().executemany(statement, self.connection.rows_while_in_use(rows))

    # A fetch executes a part of the statement, and may take as long as `execute`.

    def fetchone(self) -> Any:
        with self.connection.in_use():
            return super().fetchone()

    def fetchmany(self, *arguments: Any, **options: Any) -> Any:
        with self.connection.in_use():
            return super().fetchmany(*arguments, **options)

    def fetchall(self) -> Any:
        with self.connection.in_use():
            return super().fetchall()

    def __next__(self) -> Any:
        with self.connection.in_use():
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
