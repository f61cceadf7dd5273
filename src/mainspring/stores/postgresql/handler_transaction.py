"""`ctx.transaction()`: the handler writes on a connection of its own, which belongs to its loop, or
for plain code to its thread.

    check that the run is held  →  the handler's writes  →  fenced update of the run  →  commit

The run's row is not locked while the handler works, so leases are renewed meanwhile. If another
client has changed the run (a cancel, a rescue), the fenced update finds nothing, and the whole
transaction is rolled back.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.errors import UniqueViolation

from mainspring.core.clock import Clock
from mainspring.core.transitions import Change
from mainspring.errors import TransactionAborted
from mainspring.stores.postgresql.commit import EncodedChange, commit_changes
from mainspring.stores.postgresql.database import (
    BlockingConnection,
    Transaction,
    connection_options,
)
from mainspring.stores.postgresql.errors import REPEATED, is_away, translating
from mainspring.stores.postgresql.url import PostgresUrl
from mainspring.stores.protocol import Held

MOST_IDLE = 10
"""Idle connections that are kept for each loop of handlers, and for threads."""

_HELD_RUN = """
SELECT 1 FROM mainspring.runs
WHERE NOT done AND id = %s AND state = 'running' AND token = %s AND NOT cancel_requested
"""


class HandlerConnections:
    """Connections of handlers' transactions. `take` and `give_back` are called from any thread."""

    def __init__(self, url: PostgresUrl, clock: Clock | None) -> None:
        self.url = url
        self.clock = clock
        self._guard = threading.Lock()
        self._idle: dict[asyncio.AbstractEventLoop | None, list[Any]] = {}
        self._closed = False

    async def take(self, *, blocking: bool) -> Any:
        loop = None if blocking else asyncio.get_running_loop()
        with self._guard:
            idle = self._idle.get(loop, [])
            while idle:
                connection = idle.pop()
                if not connection.closed:
                    return connection
        options = connection_options(self.url)
        if blocking:
            return psycopg.connect(self.url.conninfo, **options)
        return await AsyncConnection.connect(self.url.conninfo, **options)

    def give_back(self, connection: Any, *, blocking: bool) -> None:
        loop = None if blocking else asyncio.get_running_loop()
        is_idle = connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._guard:
            idle = self._idle.setdefault(loop, [])
            if is_idle and len(idle) < MOST_IDLE and not self._closed:
                idle.append(connection)
                return
        connection.pgconn.finish()

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for connections in self._idle.values():
                for connection in connections:
                    connection.pgconn.finish()
            self._idle.clear()


class PostgresTransaction:
    def __init__(
        self,
        connections: HandlerConnections,
        held: Held,
        limit: timedelta,
        *,
        blocking: bool,
        committed: Callable[[], None],
    ) -> None:
        self._connections = connections
        self._held = held
        self._limit = limit.total_seconds()
        self._blocking = blocking
        self._committed = committed
        self._connection: Any = None
        self._block: Any = None

    async def begin(self) -> Any:
        with translating(self._connections.url.location), _aborting():
            await self._enter_on_live_connection()
            try:
                tx = await self._transaction().begin(idle=self._limit)
                if not await tx.rows(_HELD_RUN, [self._held.id, self._held.token]):
                    raise TransactionAborted(
                        "the run is no longer this worker's, or is to be cancelled"
                    )
            except BaseException:
                await self.rollback()
                raise
        return self._connection

    async def commit(self, change: Change) -> bool:
        item = EncodedChange.of(change)
        with translating(self._connections.url.location), _aborting():
            [done] = await commit_changes(await self._transaction().begin(), [item])
            if not done:
                await self.rollback()
                return False
            try:
                await self._exit(None)
            finally:
                self._release()
        self._committed()
        return True

    async def rollback(self) -> None:
        if self._connection is None:
            return
        try:
            with suppress(psycopg.Error, OSError):  # the server rolls it back: the line is gone
                await self._exit(psycopg.Rollback())
        finally:
            self._release()

    def transient(self, error: BaseException) -> bool:
        return (
            isinstance(error, psycopg.Error)
            and (isinstance(error, REPEATED) or is_away(error))
            and not isinstance(error, UniqueViolation)
        )

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._connections.give_back(connection, blocking=self._blocking)

    def _transaction(self) -> Transaction:
        connection = BlockingConnection(self._connection) if self._blocking else self._connection
        return Transaction(connection, self._connections.url.schema, self._connections.clock)

    async def _enter_on_live_connection(self) -> None:
        """Begin. An idle connection may have been cut: then another one is tried."""
        for tries in range(MOST_IDLE + 2):
            connection = await self._connections.take(blocking=self._blocking)
            block = connection.transaction()
            try:
                if self._blocking:
                    block.__enter__()
                else:
                    await block.__aenter__()
            except psycopg.OperationalError:
                connection.pgconn.finish()
                if tries > MOST_IDLE:
                    raise
                continue
            self._connection, self._block = connection, block
            return

    async def _exit(self, error: BaseException | None) -> None:
        block, self._block = self._block, None
        if block is None:
            return
        how = (None if error is None else type(error), error, None)
        if self._blocking:
            block.__exit__(*how)
        else:
            await block.__aexit__(*how)


@contextmanager
def _aborting() -> Iterator[None]:
    """Raise `TransactionAborted` for conflicts, which roll back the whole transaction."""
    try:
        yield
    except REPEATED as error:
        raise TransactionAborted(str(error).splitlines()[0]) from error
