"""Partitions claim lanes between concurrent clients, so that they rarely compete for the same run.

A client that loses a run to another one claims from a part of the lanes from then on. The parts are
divided among the clients that say, with their hints, that they claim. Without this, four clients
would get two fifths of the runs that they chose, and each would read past what the others took.
The clients need not agree: where two divide the lanes differently, some of their writes fail. A
client that finds nothing in its own lanes claims from all of them.

No run waits much longer because of it. A client never leaves a run to others that has a higher
priority than those in its own lanes. And once a second it claims from all lanes: otherwise the runs
in the part of a client that lacks their handler would wait until all others are done.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence, Set

from bson import ObjectId

from mainspring.stores.mongodb.codec import LANE_PARTS
from mainspring.stores.mongodb.collections import Document

RECENT_SECONDS = 1.0
"""Seconds for which a client counts as one that claims after its last claim or hint."""

LONGEST_PAUSE = 0.1

MOST_OTHERS = 1000
"""How many clients are remembered before those are forgotten that no longer claim."""


class ClaimPartition:
    """`elapsed` gives seconds by a clock that only goes forward."""

    def __init__(self, rng: random.Random, elapsed: Callable[[], float]) -> None:
        self.me = ObjectId()
        self.jobs: Set[str] = frozenset()
        """The jobs that had due runs at the last claim. Mostly they still have."""
        self._rng = rng
        self._elapsed = elapsed
        self._met = 0
        self._came = -RECENT_SECONDS
        self._others: dict[ObjectId, float] = {}
        self._claimed_from_all = elapsed()

    @property
    def claims(self) -> bool:
        """Whether this client has claimed in the last second. Its hints tell this to the others."""
        return self._elapsed() - self._came < RECENT_SECONDS

    @property
    def knows_others(self) -> bool:
        """Whether other clients are known to claim, which take the runs that are left to them."""
        return bool(self._others)

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

    def own_lanes(self, lanes: Sequence[Document]) -> Sequence[Document]:
        """This client's part of the lanes that have due runs. It is all lanes if this client has
        not lost a run to another client lately."""
        if not self._met or self._is_turn_of_all():
            return lanes
        self._forget_others()
        if self._others:
            partition = sorted([self.me, *self._others])
            parts = min(len(partition), LANE_PARTS)
            part = partition.index(self.me) % parts
        else:  # other clients claim, but their hints do not arrive
            parts, part = LANE_PARTS, self._rng.randrange(LANE_PARTS)
        first = min((lane["r"] for lane in lanes if lane["p"] % parts != part), default=0)
        return [lane for lane in lanes if lane["p"] % parts == part and lane["r"] <= first] or lanes

    def _is_turn_of_all(self) -> bool:
        now = self._elapsed()
        if now - self._claimed_from_all < RECENT_SECONDS:
            return False
        self._claimed_from_all = now
        return True

    async def pause(self, tries: int) -> None:
        """Wait before another try, longer each time: the client that came first may need a tenth of
        a second for its transaction, and a busy server needs longer still."""
        await asyncio.sleep(self._rng.uniform(0, min(LONGEST_PAUSE, 0.002 * 2 ** min(tries, 10))))
