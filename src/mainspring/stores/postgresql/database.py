"""Connections, transactions that are repeated on conflicts, and the server's time.

Nothing here needs more of a connection than one transaction, so the store works behind a pooler in
transaction mode: no session settings, no session locks.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from datetime import datetime
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection, IsolationLevel
from psycopg.errors import LockNotAvailable
from psycopg.rows import TupleRow, tuple_row
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from mainspring.core.clock import Clock, from_us, to_us
from mainspring.errors import StoreUnavailable
from mainspring.stores.postgresql.errors import CONFLICTS, NO_PREPARED_STATEMENTS, translating
from mainspring.stores.postgresql.url import PostgresUrl

T = TypeVar("T")
Connection = AsyncConnection[TupleRow]

CONNECT_SECONDS = 10
MOST_TRIES = 10
"""How often a transaction is sent that conflicts with others."""

CALL_SECONDS = 20
"""Without a response for so long, a connection is given up: the server is frozen, or the network
loses what is sent. The server ends a transaction whose client is silent for that long."""

LOCK_SECONDS = 2
"""A transaction that waits for a lock for so long is rolled back and sent again: a caller's open
transaction may have the lock, and the connection is free for renewals and claims meanwhile."""

_NOW = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_BEGIN = f"""{_NOW}, set_config('idle_in_transaction_session_timeout', %s, true),
set_config('lock_timeout', %s, true)"""


class Transaction:
    """A transaction under way: statements with the name of the schema filled in, and its time."""

    def __init__(self, connection: Any, schema: str, clock: Clock | None) -> None:
        self.connection = connection
        self._schema = schema
        self._clock = clock
        self.now = 0

    async def begin(self, *, idle: float | None = None, lock: float = 0) -> Transaction:
        """With `idle`, the server rolls back after so many seconds without a statement: a client
        that is frozen would hold its locks. With `lock`, it ends a longer wait for a lock."""
        if idle is None:
            self.now = await self.current_time()
            return self
        [[now, *_]] = await self.rows(_BEGIN, [f"{idle * 1000:.0f}", f"{lock * 1000:.0f}"])
        self.now = now if self._clock is None else to_us(self._clock.now())
        return self

    async def current_time(self) -> int:
        """The server's time now: `now` is that of the begin, before locks were waited for."""
        if self._clock is not None:
            return to_us(self._clock.now())
        [[now]] = await self.rows(_NOW)
        return int(now)

    @property
    def time(self) -> datetime:
        return from_us(self.now)

    async def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows = await (await self._execute(sql, parameters)).fetchall()
        return [_unescaped(row) if _has_escape(row) else row for row in rows]

    async def changed(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Execute a statement; return how many rows it changed."""
        return int((await self._execute(sql, parameters)).rowcount)

    async def _execute(self, sql: str, parameters: Sequence[Any]) -> Any:
        named: Any = sql.replace("mainspring.", f'"{self._schema}".')
        return await self.connection.execute(named, list(map(_escaped, parameters)), binary=True)


class Rows:
    """What a statement gave, as an async cursor gives it."""

    def __init__(self, rows: list[tuple[Any, ...]], rowcount: int = -1) -> None:
        self._rows = rows
        self.rowcount = rowcount

    @classmethod
    def of(cls, cursor: Any) -> Rows:
        return cls(cursor.fetchall() if cursor.description else [], cursor.rowcount)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows


class BlockingConnection:
    """A connection of plain code with a method that can be awaited, and never suspends. Its cursors
    are of its own choice: a caller may have chosen others, or another form of rows."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: list[Any], *, binary: bool) -> Any:
        cursor = psycopg.Cursor(self._connection, row_factory=tuple_row)
        return Rows.of(cursor.execute(sql, parameters, binary=binary))


# PostgreSQL keeps no NUL in a text. An error message may have one, so it is written in two
# characters, and so is the first of these. JSON has neither: it escapes control characters itself.

_ESCAPE = "\x10"


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        if "\0" in value or _ESCAPE in value:
            return value.replace(_ESCAPE, _ESCAPE + "e").replace("\0", _ESCAPE + "0")
    elif isinstance(value, list):
        return list(map(_escaped, value)) if any(map(_needs_escape, value)) else value
    return value


def _needs_escape(value: Any) -> bool:
    return type(value) is str and ("\0" in value or _ESCAPE in value)


def _has_escape(row: tuple[Any, ...]) -> bool:
    return any(type(value) is str and _ESCAPE in value for value in row)


def _unescaped(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        value.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "e", _ESCAPE)
        if isinstance(value, str)
        else value
        for value in row
    )


def connection_options(url: PostgresUrl) -> dict[str, Any]:
    return {
        "autocommit": True,
        "prepare_threshold": 5 if url.prepare else None,
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "mainspring",
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "tcp_user_timeout": 15_000,
    }


async def _read_committed(connection: Connection) -> None:
    """Each statement sees what was committed before it: limits are counted after a lock."""
    await connection.set_isolation_level(IsolationLevel.READ_COMMITTED)


@asynccontextmanager
async def _cut_after(connection: Connection, seconds: float, location: str) -> AsyncIterator[None]:
    """Close the connection under the driver if the block takes longer, which then raises. (If it
    was cancelled, it would ask the server first, which does not respond either.)"""
    is_late = False

    def cut() -> None:
        nonlocal is_late
        is_late = True
        with suppress(psycopg.Error, OSError):
            same = socket.socket(fileno=os.dup(connection.fileno()))
            same.shutdown(socket.SHUT_RDWR)
            same.close()

    timer = asyncio.get_running_loop().call_later(seconds, cut)
    try:
        yield
    except psycopg.OperationalError as error:
        if is_late:
            raise StoreUnavailable(f"{location} does not respond within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()


class Database:
    """`clock` takes the place of the server's, in tests."""

    def __init__(self, url: PostgresUrl, clock: Clock | None = None) -> None:
        self.url = url
        self._clock = clock
        self._options = connection_options(url)
        self._calls = 0
        self._idle = asyncio.Event()
        self._keyed_adds = asyncio.Semaphore(max(1, url.pool_size // 2))
        self._pool = AsyncConnectionPool[Connection](
            url.conninfo,
            kwargs=self._options,
            configure=_read_committed,
            min_size=1,
            max_size=url.pool_size,
            timeout=CONNECT_SECONDS,
            open=False,
        )

    async def open(self) -> None:
        """Connect once by hand first: the pool would try for long, and say less of what fails."""
        with translating(self.url.location):
            connection = await self.connect()
            await connection.close()
            await self._pool.open()

    async def connect(self, conninfo: str | None = None) -> Connection:
        """A connection of its own, outside of the pool."""
        return await AsyncConnection.connect(conninfo or self.url.conninfo, **self._options)

    async def close(self) -> None:
        """Let the calls that were accepted end first."""
        if self._calls:
            self._idle.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(CONNECT_SECONDS):
                    await self._idle.wait()
        await self._pool.close()

    async def transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        *,
        limit: float | None = None,
        is_keyed: bool = False,
    ) -> T:
        """Do the work in a transaction, again where it conflicts with another one, and where the
        connection turns out to be dead before anything was sent. Each try ends after `limit` (or
        `CALL_SECONDS`), and after `LOCK_SECONDS` at a lock, unless it has no limit. Keyed adds may
        wait for a caller's transaction that has taken the key: they use half of the connections."""
        limit = CALL_SECONDS if limit is None else limit
        return await self._counted(self._transact(work, limit, alone=False, is_keyed=is_keyed))

    async def _counted(self, call: Awaitable[T]) -> T:
        """`close` waits for the calls that were accepted."""
        self._calls += 1
        try:
            return await call
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()

    async def _transact(
        self,
        work: Callable[[Transaction], Awaitable[T]],
        limit: float,
        *,
        alone: bool,
        is_keyed: bool = False,
    ) -> T:
        lock = LOCK_SECONDS if math.isfinite(limit) else 0
        with translating(self.url.location):
            for tries in range(1, MOST_TRIES + 1):
                begun = False
                try:
                    async with (
                        self._keyed_adds if is_keyed else nullcontext(),
                        self._pool.connection() as connection,
                        _cut_after(connection, limit, self.url.location),
                        nullcontext() if alone else connection.transaction(),
                    ):
                        tx = Transaction(connection, self.url.schema, self._clock)
                        await tx.begin(idle=None if alone else CALL_SECONDS, lock=lock)
                        begun = True
                        return await work(tx)
                except CONFLICTS as error:
                    if tries == MOST_TRIES:
                        raise
                    pause = 0.5 if isinstance(error, LockNotAvailable) else 0.01 * tries
                    await asyncio.sleep(random.uniform(0, pause))
                except NO_PREPARED_STATEMENTS:
                    if not self.url.prepare or tries == MOST_TRIES:
                        raise
                    await self._stop_preparing()
                except psycopg.OperationalError as error:
                    waited = isinstance(error, (PoolTimeout, PoolClosed, TooManyRequests))
                    if begun or waited or tries == MOST_TRIES:
                        raise
                    await self._pool.check()  # the server was restarted: none of them may live
            raise AssertionError

    async def read(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """The same for one statement, or several that need no common snapshot: each is a
        transaction of its own, which saves two round trips."""
        return await self._counted(self._transact(work, CALL_SECONDS, alone=True))

    async def now(self) -> int:
        async def read_time(tx: Transaction) -> int:
            return tx.now

        return await self.read(read_time)

    async def _stop_preparing(self) -> None:
        """A pooler between us and the server knows no prepared statements."""
        self.url = self.url._replace(prepare=False)
        self._options["prepare_threshold"] = None
        with suppress(psycopg.Error):
            await self._pool.drain()
