"""Others who claim the same heads, and how not to be in each other's way.

All see the same runs first. Who finds that others were quicker looks at four times as many from
then on, and takes of them what is his: runs are dealt out by their ids among the clients that say,
with their hints, that they claim. By chance alone four clients would get two fifths of what they
chose. Nobody has to agree: where two see the crowd differently some writes are in vain, and who
finds nothing of his own takes anybody's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from bson import ObjectId

from mainspring.stores.mongodb.database import Document

__all__ = ["Crowd"]

WIDTH = 4
"""So many times as many heads are looked at as are wanted; and so many parts there are at most."""

LATELY = 1.0
"""Seconds for which who claimed, and said so, counts as one of the crowd."""


class Crowd:
    """`elapsed` gives seconds by a clock that only goes forward."""

    def __init__(self, rng: random.Random, elapsed: Callable[[], float]) -> None:
        self.me = ObjectId()
        self.limited: Mapping[str, str] = {}
        """The limited jobs that had runs pending at the last claim, and the keys of their limits.
        Mostly they still have."""
        self._rng = rng
        self._elapsed = elapsed
        self._met = 0
        self._came = -LATELY
        self._others: dict[ObjectId, float] = {}

    @property
    def claims(self) -> bool:
        """Whether this client has claimed lately: what its hints tell the others."""
        return self._elapsed() - self._came < LATELY

    def heard(self, other: ObjectId) -> None:
        """Another client claims."""
        self._others[other] = self._elapsed()

    def width(self, limit: int) -> int:
        self._came = self._elapsed()
        return limit * WIDTH if self._met else limit

    def met(self, missed: bool) -> None:
        self._met = 20 if missed else max(0, self._met - 1)

    def chosen(self, runs: Sequence[Document], limit: int) -> list[Document]:
        """All of the higher priorities; of the lowest that still fits what is this client's."""
        if not runs or (not self._met and len(runs) <= limit):
            return list(runs)
        edge = runs[min(limit, len(runs)) - 1]["priority"]
        above = [run for run in runs if run["priority"] > edge]
        level = [run for run in runs if run["priority"] == edge]
        level = self._mine(level) or level
        wanted = min(limit - len(above), len(level))
        picked = sorted(self._rng.sample(range(len(level)), wanted))
        return [*above, *(level[at] for at in picked)]

    async def pause(self, tries: int) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.002 * min(tries, 10)))

    def _mine(self, runs: Sequence[Document]) -> list[Document]:
        now = self._elapsed()
        self._others = {by: at for by, at in self._others.items() if now - at < LATELY}
        crowd = sorted([self.me, *self._others])
        parts = min(len(crowd), WIDTH)
        part = crowd.index(self.me) % parts
        return [run for run in runs if crc32(run["_id"].encode()) % parts == part]
