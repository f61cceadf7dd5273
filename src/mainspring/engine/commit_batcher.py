"""Gathers changes and commits them in batches: the more work ends at once, the cheaper each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mainspring.core.transitions import Change
from mainspring.engine.context import EngineContext
from mainspring.errors import StoreError

__all__ = ["Settler"]

log = logging.getLogger("mainspring")

LARGEST_BATCH = 1000
BUSY_BATCH = 32
GATHER_SECONDS = 0.003
"""When batches are large, a short wait makes them larger: fewer commits for the same work. A
lone outcome never waits."""

Settled = Callable[[bool], None]


class Settler:
    """One commit in flight; whatever comes meanwhile goes with the next.

    `put` returns at once. Its callback hears True once the change is durable, False where the
    run is no longer ours. A commit is repeated until the store answers: repeating is harmless.
    """

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._waiting: list[tuple[Change, Settled]] = []
        self._filled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, change: Change, settled: Settled) -> None:
        self._waiting.append((change, settled))
        self._idle.clear()
        self._filled.set()

    async def run(self) -> None:
        busy = False
        while True:
            await self._filled.wait()
            if busy:
                await asyncio.sleep(GATHER_SECONDS)
            busy = await self._settle_some() >= BUSY_BATCH

    async def flushed(self) -> None:
        """Wait until everything that was put is settled."""
        await self._idle.wait()

    async def _settle_some(self) -> int:
        batch = self._waiting[:LARGEST_BATCH]
        del self._waiting[:LARGEST_BATCH]
        if not self._waiting:
            self._filled.clear()
        done = await self._commit([change for change, _ in batch])
        for (_, settled), kept in zip(batch, done, strict=True):
            settled(kept)
        if not self._waiting:
            self._idle.set()
        return len(batch)

    async def _commit(self, changes: Sequence[Change]) -> list[bool]:
        try:
            return await self._engine.patience.call("commit", lambda: self._attempt(changes))
        except _RefusedError:
            # One change that the store cannot take must not hold up the others.
            return [await self._alone(change) for change in changes]

    async def _attempt(self, changes: Sequence[Change]) -> list[bool]:
        try:
            return await self._engine.store.commit(changes)
        except (StoreError, OSError):
            raise  # no fault of these changes: a right taken away, a full disk
        except Exception as error:
            raise _RefusedError from error

    async def _alone(self, change: Change) -> bool:
        try:
            [kept] = await self._engine.patience.call("commit", lambda: self._attempt([change]))
        except _RefusedError as refusal:
            log.error("the store refused to record run %s", change.id, exc_info=refusal.__cause__)
            self._engine.emit("scheduler.error", error=refusal.__cause__)
            return False
        return kept


class _RefusedError(BaseException):
    """Not an Exception, so that patience does not try it again."""
