"""Hints between clients, by LISTEN on a connection of its own and NOTIFY.

A hint may be lost: polling finds what hints miss. A client sends one at most every few
milliseconds, and not within its transactions: a NOTIFY locks the whole database at the commit.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from contextlib import suppress
from typing import Any

import psycopg

from mainspring.errors import StoreError
from mainspring.stores.notifier import Waiters
from mainspring.stores.postgresql.database import Database

log = logging.getLogger("mainspring")

PAUSE = 0.01
"""Seconds between two hints that one client sends."""
RECOVERY = 1.0


class Notifier:
    """Wakes the waiters of this client at once, and those of other clients by a hint."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._channel = f"mainspring_{db.url.schema}"
        self._me = uuid.uuid4().hex
        self._waiters = Waiters()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._following: asyncio.Task[None] | None = None
        self._resting = False
        self._again = False

    async def wait(self, timeout: float) -> bool:
        if self._db.url.listen_url is not None and self._following is None:
            self._following = self._start(self._follow(self._db.url.listen_url))
        return await self._waiters.wait(timeout)

    def notify(self) -> None:
        self._waiters.wake()
        self._again = True
        if not self._resting:
            self._resting = True
            self._start(self._send())

    async def close(self) -> None:
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()  # again: the driver may swallow one
            await asyncio.wait(left, timeout=0.2)

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self) -> None:
        try:
            while self._again:
                self._again = False
                with suppress(StoreError):
                    await self._db.read(
                        lambda tx: tx.rows("SELECT pg_notify(%s, %s)", [self._channel, self._me])
                    )
                await asyncio.sleep(PAUSE)
        finally:
            self._resting = False

    async def _follow(self, conninfo: str) -> None:
        warned = False
        while True:
            try:
                async with await self._db.connect(conninfo) as connection:
                    await connection.execute(f"LISTEN {self._channel}")
                    self._waiters.wake()  # hints before this one were not heard
                    async for hint in connection.notifies():
                        if hint.payload != self._me:
                            self._waiters.wake()
            except (psycopg.Error, OSError) as error:
                if not warned:
                    log.warning("no hints from other programs, work is found by polling: %s", error)
                warned = True
            self._waiters.wake()  # hints may be missed from now on
            await asyncio.sleep(RECOVERY)
