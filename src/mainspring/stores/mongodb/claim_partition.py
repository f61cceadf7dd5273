"""Partitions claim lanes between concurrent clients, so that they rarely compete for the same run.

A client that loses a run to another one claims from a part of the lanes from then on. The parts are
divided among the clients that say, with their hints, that they claim. Without this, four clients
would get two fifths of the runs that they chose, and each would read past what the others took.
The clients need not agree: where two divide the lanes differently, some of their writes fail. A
client that finds nothing in its own lanes claims from all of them.

No run waits much longer because of it. A client does not leave a run to others that has a higher
priority than the runs in its own lanes. It leaves a run that was due before them for at most a
second.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence, Set

from bson import ObjectId

from mainspring.stores.mongodb.codec import LANE_PARTS
from mainspring.stores.mongodb.collections import Document

__all__ = ["ClaimPartition"]

RECENT_SECONDS = 1.0
"""Seconds for which a client counts as one that claims after its last claim or hint."""

LONGEST_PAUSE = 0.1

MOST_OTHERS = 1000
"""How many clients are remembered before those are forgotten that no longer claim."""


class ClaimPartition:
    """`elapsed` gives seconds by a clock that only goes forward."""

    def __init__(self, rng: random.Random, elapsed: Callable[[], float]) -> None:
        self.me = ObjectId()
        self.limited: Set[str] = frozenset()
        """The limited jobs that had runs pending at the last claim. Mostly they still have."""
        self._rng = rng
        self._elapsed = elapsed
        self._met = 0
        self._came = -RECENT_SECONDS
        self._others: dict[ObjectId, float] = {}
        self._mark: tuple[int, int] = (-1, 0)  # priority and time of what was taken last, then
        self._marked = -RECENT_SECONDS

    @property
    def claims(self) -> bool:
        """Whether this client has claimed in the last second. Its hints tell this to the others."""
        return self._elapsed() - self._came < RECENT_SECONDS

    def record_other(self, other: ObjectId) -> None:
        """Another client claims."""
        self._others[other] = self._elapsed()
        if len(self._others) > MOST_OTHERS:
            self._forget_others()

    def _forget_others(self) -> None:
        now = self._elapsed()
        self._others = {by: at for by, at in self._others.items() if now - at < RECENT_SECONDS}

    def record_contention(self, missed: bool) -> None:
        self._met = 20 if missed else max(0, self._met - 1)

    def record_claim(self) -> None:
        """This client claims."""
        self._came = self._elapsed()

    def split(self, lanes: Sequence[Document]) -> tuple[list[Document], list[Document]]:
        """This client's part of the lanes, and the rest. Its part is all lanes if it has not lost a
        run to another client lately."""
        if not self._met:
            return list(lanes), []
        self._forget_others()
        if self._others:
            partition = sorted([self.me, *self._others])
            parts = min(len(partition), LANE_PARTS)
            part = partition.index(self.me) % parts
        else:  # other clients claim, but their hints do not arrive
            parts, part = LANE_PARTS, self._rng.randrange(LANE_PARTS)
        ours: list[Document] = []
        theirs: list[Document] = []
        for lane in lanes:
            (ours if lane["p"] % parts == part else theirs).append(lane)
        return ours, theirs

    def may_skip(self, first_other: Document, last_own: Document, *, wants_more: bool) -> bool:
        """Whether the first run of the other lanes may be left to other clients. `last_own`: the
        last run that was found in this client's lanes. `wants_more`: they have fewer runs than
        this client wants."""
        if wants_more and not self._others:
            return False  # no other client is known to claim
        if first_other["priority"] != last_own["priority"]:
            return bool(first_other["priority"] < last_own["priority"])
        if self._elapsed() - self._marked < RECENT_SECONDS:
            return True
        if first_other["priority"] == self._mark[0] and first_other["run_at"] < self._mark[1]:
            return False
        self._mark = last_own["priority"], last_own["run_at"]
        self._marked = self._elapsed()
        return True

    async def pause(self, tries: int) -> None:
        """Wait before another try, longer each time: the client that came first may need a tenth of
        a second for its transaction, and a busy server needs longer still."""
        await asyncio.sleep(self._rng.uniform(0, min(LONGEST_PAUSE, 0.002 * 2 ** min(tries, 10))))
