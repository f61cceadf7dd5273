"""Gathers changes and commits them in batches: the more work ends at once, the cheaper each."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from mainspring.core.transitions import Change
from mainspring.engine.context import EngineContext

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
            return await self._engine.retrying_store.commit(changes)
        except Exception:
            # One change that the store cannot take must not hold up the others.
            return [await self._commit_alone(change) for change in changes]

    async def _commit_alone(self, change: Change) -> bool:
        try:
            [kept] = await self._engine.retrying_store.commit([change])
        except Exception as error:
            log.exception("the store refused to record run %s", change.id)
            self._engine.emit("scheduler.error", error=error)
            return False
        return kept
