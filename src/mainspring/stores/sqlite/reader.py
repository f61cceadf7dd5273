"""Runs queries on a thread with its own connection. In WAL mode writers never block it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from mainspring.errors import StoreFileChanged
from mainspring.stores.sqlite.errors import translated
from mainspring.stores.sqlite.file_identity import FileIdentity
from mainspring.stores.sqlite.mailbox import Mailbox, Operation, deliver
from mainspring.stores.sqlite.schema import check_version, connect
from mainspring.stores.sqlite.store_clock import StoreClock

T = TypeVar("T")

NOW = object()


class Reader:
    """Starts its thread with the first read."""

    def __init__(self, path: Path, clock: StoreClock, identity: FileIdentity) -> None:
        self._path = path
        self._clock = clock
        self._identity = identity
        self._mailbox = Mailbox()
        self._started = False
        self._guard = threading.Lock()
        self.ended: Future[None] = Future()

    async def read(self, run: Callable[..., T], *arguments: Any) -> T:
        """Call `run(connection, *arguments)` on the thread, in one snapshot. `NOW` among the
        arguments is replaced by the store's time in microseconds."""
        loop = asyncio.get_running_loop()
        work = Operation(run, list(arguments), loop, loop.create_future())
        self._mailbox.put(work)
        self._start()
        result: T = await work.future
        return result

    def close(self) -> None:
        self._mailbox.close()
        with self._guard:
            if not self._started:
                self._started = True
                self.ended.set_result(None)

    def _start(self) -> None:
        with self._guard:
            if not self._started:
                self._started = True
                name = "mainspring-sqlite-reader"
                threading.Thread(target=self._main, name=name, daemon=True).start()

    def _main(self) -> None:
        connection: sqlite3.Connection | None = None
        while not self._mailbox.finished:
            for work in self._mailbox.take(1, None):
                try:
                    self._identity.check()
                    connection = connection or connect(self._path)
                    result = self._snapshot(connection, work)
                    self._identity.check()
                    deliver([(work, result, None)])
                except StoreFileChanged as error:
                    if connection is not None:
                        connection.close()  # it may have opened the wrong file
                        connection = None
                    deliver([(work, None, error)])
                except BaseException as error:
                    deliver([(work, None, translated(error, self._path))])
        if connection is not None:
            connection.close()
        self.ended.set_result(None)

    def _snapshot(self, connection: sqlite3.Connection, work: Operation) -> Any:
        connection.execute("BEGIN")
        try:
            check_version(connection, self._path)
            now = self._clock.read(connection)
            return work.run(connection, *(now if item is NOW else item for item in work.items))
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
