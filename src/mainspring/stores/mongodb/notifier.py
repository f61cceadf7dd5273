"""Hints between clients: a small capped collection that each follows with a tailable cursor.

A hint is a document that no writer waits for and that may be lost. Polling finds what hints miss.
Change streams would work on a replica set, but through a router they wait for every shard, which
takes seconds.

A hint says whether there may be a new run to claim, or whether runs have only ended. The second
kind concerns clients that wait for a result, or for capacity under a limit. If it woke them each
time, all would claim at once and only one would get a run. So it wakes them less often.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pymongo
from bson import ObjectId
from pymongo import CursorType, WriteConcern
from pymongo.errors import PyMongoError

from mainspring.errors import StoreError
from mainspring.stores.mongodb.claim import ClaimPartition
from mainspring.stores.mongodb.database import Database, Document
from mainspring.stores.mongodb.schema import make_wakeups
from mainspring.stores.notifier import Waiters

log = logging.getLogger("mainspring")

PAUSE = 0.02
"""Seconds between two hints that one client sends."""
PAUSE_BETWEEN_ENDS = 0.05
"""Least seconds between two times that hints of ended runs wake this client. A random time, at most
as long, is added."""
LONGEST_PAUSE_BETWEEN_ENDS = 0.2
"""The same after claims that took nothing. A worker whose run ends mostly claims the next run of
the same job itself, and another client that claims at that moment competes with it."""
RECOVERY = 1.0
AWAIT_MS = 10_000


class Notifier:
    """Wakes the waiters of this client at once, and those of other clients by a hint."""

    def __init__(self, db: Database, partition: ClaimPartition) -> None:
        self._db = db
        self._partition = partition
        self._waiters = Waiters()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._following: asyncio.Task[None] | None = None
        self._resting = False
        self._again = False
        self._new = False
        self._pause = PAUSE_BETWEEN_ENDS
        self._pausing: asyncio.TimerHandle | None = None
        self._put_off = False
        self._closed = False

    async def wait(self, timeout: float) -> bool:
        if self._following is None or self._following.done():
            self._following = self._start(self._follow())
        return await self._waiters.wait(timeout)

    def notify(self, *, new: bool) -> None:
        """`new`: there may be runs to claim, not only runs that have ended."""
        self._waiters.wake()
        self._new = self._new or new
        if self._resting:
            self._again = True
        else:
            self._resting = True
            self._start(self._send())

    def wake_here(self) -> None:
        """Wake only the waiters of this client."""
        self._waiters.wake()

    def record_claim(self, *, took_nothing: bool) -> None:
        """Wake this client less often after claims that took nothing (`took_nothing`)."""
        self._pause = (
            min(self._pause * 2, LONGEST_PAUSE_BETWEEN_ENDS) if took_nothing else PAUSE_BETWEEN_ENDS
        )

    async def close(self) -> None:
        """Cancel the tasks until they end. The driver may swallow a cancellation."""
        self._closed = True
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.2)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _send(self) -> None:
        try:
            unacknowledged = self._db.wakeups.with_options(write_concern=WriteConcern(w=0))
            while True:
                self._again = False
                new, self._new = self._new, False
                with suppress(PyMongoError):
                    hint = {"by": self._partition.me, "new": new, "claims": self._partition.claims}
                    await unacknowledged.insert_one(hint)
                await asyncio.sleep(PAUSE)
                if not self._again:
                    return
        finally:
            self._resting = False

    async def _follow(self) -> None:
        warned = False
        while not self._closed:
            try:
                await make_wakeups(self._db)
                await self._follow_once()
            except PyMongoError:
                pass
            except StoreError as error:
                if not warned:
                    log.warning("no hints from other programs, work is found by polling: %s", error)
                warned = True
            self._waiters.wake()  # hints may have been missed
            await asyncio.sleep(RECOVERY)

    async def _follow_once(self) -> None:
        """Insert a mark, skip all hints before it, and receive those after it."""
        wakeups = self._db.wakeups
        mark = ObjectId()
        await wakeups.insert_one({"mark": mark})
        fresh = False
        with pymongo.timeout(None):
            cursor = wakeups.find({}, cursor_type=CursorType.TAILABLE_AWAIT)
            cursor = cursor.max_await_time_ms(AWAIT_MS)
            async with cursor:
                while cursor.alive:
                    async for hint in cursor:
                        if fresh and hint.get("by") not in (None, self._partition.me):
                            self._receive(hint)
                        if hint.get("mark") == mark:
                            fresh = True
                            self._waiters.wake()  # hints before this one were skipped

    def _receive(self, hint: Document) -> None:
        if hint.get("claims"):
            self._partition.record_other(hint["by"])
        if hint.get("new", True) or self._pausing is None:
            self._wake()
        else:
            self._put_off = True

    def _wake(self) -> None:
        if self._pausing is not None:
            self._pausing.cancel()
        pause = random.uniform(self._pause, 2 * self._pause)
        self._pausing = asyncio.get_running_loop().call_later(pause, self._pause_over)
        self._put_off = False
        self._waiters.wake()

    def _pause_over(self) -> None:
        self._pausing = None
        if self._put_off:
            self._wake()
