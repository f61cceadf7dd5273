"""Watches the memory of this process: warns near the limit, and stops claiming at it.

Handlers on loops and in threads share the memory of the process, so a leak in one handler makes the
system kill the process with all handlers. Handlers that run in their own process have their own
limits (`memory_limit` of a job).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mainspring.engine.executors.procfs import resident_memory
from mainspring.errors import InvalidInput

__all__ = ["MemoryWatch", "megabytes", "refuse_low_limit"]

log = logging.getLogger("mainspring")

INTERVAL = 1.0
WARN_AT = 0.8
WARN_AGAIN_BELOW = 0.7
"""Parts of the limit. The warning is logged again after the memory was below the second."""


def refuse_low_limit(limit: int) -> None:
    """Raise InvalidInput if the process holds that much already: it would never work, and a
    command that replaces it would do so for ever."""
    used = resident_memory()
    if used is not None and used >= limit:
        raise InvalidInput(
            f"memory_limit is {limit:,} bytes, and this process holds {used:,} bytes already when"
            " it starts: give it more",
            field="memory_limit",
            given=limit,
        )


class MemoryWatch:
    """`reached(used)` is called once, when the process holds `limit` bytes or more."""

    def __init__(
        self,
        limit: int,
        reached: Callable[[int], Awaitable[None]],
        measure: Callable[[], int | None] = resident_memory,
    ) -> None:
        self._limit = limit
        self._reached = reached
        self._measure = measure
        self._warned = False

    async def watch_periodically(self) -> None:
        while True:
            used = self._measure()
            if used is None:
                log.warning(
                    "memory_limit has no effect: this system does not say how much memory the"
                    " process holds"
                )
                return
            if used >= self._limit:
                await self._reached(used)
                return
            self._warn(used)
            await asyncio.sleep(INTERVAL)

    def _warn(self, used: int) -> None:
        part = used / self._limit
        if part >= WARN_AT and not self._warned:
            self._warned = True
            log.warning(
                "this process holds %s of memory, %d %% of its limit of %s; at the limit it claims"
                " no more runs",
                megabytes(used),
                100 * part,
                megabytes(self._limit),
            )
        elif part < WARN_AGAIN_BELOW:
            self._warned = False


def megabytes(size: int) -> str:
    return f"{size / 10**6:,.0f} MB"
