"""Others who claim too, and how not to be in each other's way.

All would see the same runs first. Who finds that others were quicker keeps to a part of the lanes
from then on: these are dealt out among the clients that say, with their hints, that they claim. By
chance alone four clients would get two fifths of what they chose, and each would read past what the
others took. Nobody has to agree: where two see the crowd differently some writes are in vain, and
who finds nothing in lanes of his own takes from all.

Nor does it cost a run its turn. What is more urgent than what a client finds in its own lanes, and
what it has been ahead of for a second, it leaves to nobody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence

from bson import ObjectId

from mainspring.stores.mongodb.codec import LANE_PARTS
from mainspring.stores.mongodb.collections import Document

__all__ = ["Crowd"]

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
        self._mark: tuple[int, int] = (-1, 0)  # priority and time of what was taken last, then
        self._marked = -LATELY

    @property
    def claims(self) -> bool:
        """Whether this client has claimed lately: what its hints tell the others."""
        return self._elapsed() - self._came < LATELY

    def heard(self, other: ObjectId) -> None:
        """Another client claims."""
        self._others[other] = self._elapsed()

    def met(self, missed: bool) -> None:
        self._met = 20 if missed else max(0, self._met - 1)

    def came(self) -> None:
        """This client claims."""
        self._came = self._elapsed()

    def deal(self, lanes: Sequence[Document]) -> tuple[list[Document], list[Document]]:
        """Our part of the lanes, which is all of them where we have met nobody lately; the rest."""
        if not self._met:
            return list(lanes), []
        now = self._elapsed()
        self._others = {by: at for by, at in self._others.items() if now - at < LATELY}
        if self._others:
            crowd = sorted([self.me, *self._others])
            parts = min(len(crowd), LANE_PARTS)
            part = crowd.index(self.me) % parts
        else:  # they claim, but we do not hear of it
            parts, part = LANE_PARTS, self._rng.randrange(LANE_PARTS)
        ours: list[Document] = []
        theirs: list[Document] = []
        for lane in lanes:
            (ours if lane["p"] % parts == part else theirs).append(lane)
        return ours, theirs

    def leaves(self, theirs: Document, ours: Document, *, short: bool) -> bool:
        """Whether the first run of the others' lanes may be left to them, where the last of those
        that we found in ours is this one, and they are fewer than we want."""
        if short and not self._others:
            return False  # to whom?
        if theirs["priority"] != ours["priority"]:
            return bool(theirs["priority"] < ours["priority"])
        if self._elapsed() - self._marked < LATELY:
            return True
        if theirs["priority"] == self._mark[0] and theirs["run_at"] < self._mark[1]:
            return False
        self._mark = ours["priority"], ours["run_at"]
        self._marked = self._elapsed()
        return True

    async def pause(self, tries: int) -> None:
        await asyncio.sleep(self._rng.uniform(0, 0.002 * min(tries, 10)))
