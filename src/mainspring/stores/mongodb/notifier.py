"""Hints between clients: a small capped collection that each follows with a tailable cursor.

A hint is a document that nobody waits for and that may be lost; polling is what guarantees. Change
streams would do on a replica set, but through a router they wait for every shard (seconds).

A hint says whether there is anything new to do, or whether runs have merely ended. The latter means
something to those who wait for a result, or for room under a limit; and all of those would come
running at once, each time, to find one of them served. So it is passed on less often.
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
from mainspring.stores.mongodb.claim_partition import ClaimPartition
from mainspring.stores.mongodb.collections import Database, Document
from mainspring.stores.mongodb.schema import make_wakeups
from mainspring.stores.notifier import Waiters

__all__ = ["Notifier"]

log = logging.getLogger("mainspring")

PAUSE = 0.02
"""Seconds between two hints of one client: more would tell nothing new."""
PAUSE_BETWEEN_ENDS = 0.05
"""Least seconds between two hints of others that runs have ended, and as much again by chance."""
LONGEST_PAUSE_BETWEEN_ENDS = 0.2
"""The same for one who came for room under a limit and found none, again and again: those who
make room mostly take it again, and who looks in between only takes it from them."""
RECOVERY = 1.0
AWAIT_MS = 10_000


class Notifier:
    """Rings here at once, and everywhere else soon."""

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
        """`new`: there may be something to do, and not only runs that have ended."""
        self._waiters.wake()
        self._new = self._new or new
        if self._resting:
            self._again = True
        else:
            self._resting = True
            self._start(self._send())

    def wake_here(self) -> None:
        """Ring here alone."""
        self._waiters.wake()

    def record_claim(self, *, vain: bool) -> None:
        """Somebody came for work, for all we know because of a hint: was it in vain?"""
        self._pause = (
            min(self._pause * 2, LONGEST_PAUSE_BETWEEN_ENDS) if vain else PAUSE_BETWEEN_ENDS
        )

    async def close(self) -> None:
        """The driver may take a cancellation for an error of its own: it is sent until heard."""
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
            unheard = self._db.wakeups.with_options(write_concern=WriteConcern(w=0))
            while True:
                self._again = False
                new, self._new = self._new, False
                with suppress(PyMongoError):
                    hint = {"by": self._partition.me, "new": new, "claims": self._partition.claims}
                    await unheard.insert_one(hint)
                await asyncio.sleep(PAUSE)
                if not self._again:
                    return
        finally:
            self._resting = False

    async def _follow(self) -> None:
        said = False
        while not self._closed:
            try:
                await make_wakeups(self._db)
                await self._follow_once()
            except PyMongoError:
                pass
            except StoreError as error:
                if not said:
                    log.warning("no hints from other programs, work is found by polling: %s", error)
                said = True
            self._waiters.wake()  # what was missed is found by looking
            await asyncio.sleep(RECOVERY)

    async def _follow_once(self) -> None:
        """Pass over what is old, up to a mark of our own, then hear what is new."""
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
                        fresh = fresh or hint.get("mark") == mark

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
