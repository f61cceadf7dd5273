"""Measures the memory of processes. Watches that of this one: warns near the limit, and tells the
engine to drain at it.

Handlers on loops and in threads share the memory of the process, so a leak in one handler makes the
system kill the process with all handlers. Handlers that run in their own process have their own
limits (`memory_limit` of a job).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Callable
from typing import Final

from mainspring.errors import InvalidInput

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def memory_of_tree(pid: int, limit: int | None = None) -> int | None:
    """Return the bytes that a process and its descendants use, or None if there is no /proc.

    Resident memory is quick to read, but counts memory that forks share once for each of them. So
    a tree that seems to exceed `limit` is measured again by its proportional share.
    """
    if not os.path.isdir("/proc/self/task"):
        return None
    family = _family(pid)
    used = sum(resident_memory(member) or 0 for member in family)
    if limit is not None and used > limit and len(family) > 1:
        used = sum(_proportional(member) for member in family)
    return used


def _family(pid: int) -> list[int]:
    """The process and its descendants: orphans too, since the child adopts them."""
    family = [pid]
    for member in family:  # grows while it is walked
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{member}/task"):
                with open(f"/proc/{member}/task/{thread}/children") as file:
                    family += map(int, file.read().split())
    return family


def resident_memory(pid: int | None = None) -> int | None:
    """Return the bytes of memory that a process holds, by default this one, or None where the
    system does not say."""
    with contextlib.suppress(OSError), open(f"/proc/{pid or 'self'}/statm") as file:
        return int(file.read().split()[1]) * _PAGE
    return None


def _proportional(pid: int) -> int:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return resident_memory(pid) or 0


log = logging.getLogger("mainspring")

INTERVAL = 0.25
WARN_AT = 0.8
WARN_AGAIN_BELOW = 0.7
"""Parts of the limit. The warning is logged again after the memory was below the second."""

STOP_AT = 1.25
"""Part of the limit at which runs are stopped at once: what still grows has no time to end."""


def refuse_low_limit(limit: int) -> None:
    """Raise InvalidInput if the process holds that much already: it would never work, and a
    command that replaces it would do so for ever."""
    used = resident_memory()
    if used is None:
        log.warning(
            "memory_limit has no effect: this system does not say how much memory the process holds"
        )
    elif used >= limit:
        raise InvalidInput(
            f"memory_limit is {limit:,} bytes, and this process holds {used:,} bytes already when"
            " it starts: give it more",
            field="memory_limit",
            given=limit,
        )


class MemoryWatch:
    """`reached(used)` is called once, when the process holds `limit` bytes or more, although the
    garbage was collected. `exceeded()` is called once, when it then holds a quarter more."""

    def __init__(
        self,
        limit: int,
        reached: Callable[[int], None],
        exceeded: Callable[[], None],
        measure: Callable[[], int | None] | None = None,
    ) -> None:
        self._limit = limit
        self._reached = reached
        self._exceeded = exceeded
        self._measure = measure or resident_memory
        self._warned = False

    async def watch_periodically(self) -> None:
        while (used := self._measure_without_garbage()) < self._limit:
            self._warn(used)
            await asyncio.sleep(INTERVAL)
        self._reached(used)
        while (self._measure() or 0) < self._limit * STOP_AT:
            await asyncio.sleep(INTERVAL)
        self._exceeded()

    def _measure_without_garbage(self) -> int:
        """The bytes that the process holds. Near the limit, and at it, the garbage is collected
        first: a process whose collector runs rarely may hold much of it."""
        used = self._measure()
        if used is None:
            return 0
        if used >= self._limit or (used >= self._limit * WARN_AT and not self._warned):
            gc.collect()
            used = self._measure() or 0
        return used

    def _warn(self, used: int) -> None:
        part = used / self._limit
        if part >= WARN_AT and not self._warned:
            self._warned = True
            log.warning(
                "this process holds %s of memory, %d %% of its limit of %s; at the limit it claims"
                " no more runs, and drains",
                megabytes(used),
                100 * part,
                megabytes(self._limit),
            )
        elif part < WARN_AGAIN_BELOW:
            self._warned = False


def megabytes(size: int) -> str:
    return f"{size / 10**6:,.0f} MB"
