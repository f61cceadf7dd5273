"""Elects the leader: the node that fires slots first, and that prunes.

Correctness never depends on the leader. Every write is conditional, so two nodes that both lead
only do some work twice: no run or slot is doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from mainspring.engine.context import EngineContext
from mainspring.stores.election import LEADER, elect

SWEEPER = "sweeper"
"""The name of the election among nodes with `enabled=False`."""

TERM = timedelta(seconds=15)

SAFE_PART = 0.9
"""The part of a term for which a node leads without a renewal: its clock may be slower than the
store's."""


class Leader:
    """`elected()` is called when this node becomes the leader."""

    def __init__(self, engine: EngineContext, elected: Callable[[], None]) -> None:
        self._engine = engine
        self._elected = elected
        # Nodes that fire nothing elect one among themselves, which prunes and sweeps: their leader
        # must not keep the others waiting for slots that it does not fire.
        self._office = LEADER if engine.settings.enabled else SWEEPER
        self._term: int | None = None
        self._term_ends = 0.0  # by the monotonic clock of this process
        self._timer: asyncio.TimerHandle | None = None
        self.retired = False

    @property
    def leads(self) -> bool:
        if self._engine.settings.workers == 0:  # it fires nothing, and does not sweep
            return False
        if self.retired:  # its term may have ended though the answer was lost
            return False
        if not self._engine.settings.leader_election:
            return True
        return self._term is not None and self._engine.clock.monotonic() < self._term_ends

    @property
    def fires_first(self) -> bool:
        """Whether this node leads and fires slots."""
        return self.leads and self._engine.settings.enabled

    async def elect_periodically(self) -> None:
        """Stand for election, and renew the term, until this node retires."""
        while self._engine.settings.leader_election and not self.retired:
            term, asked_at = await self._engine.retrying_store.repeat("elect", self._elect)
            ends = asked_at + TERM.total_seconds() * SAFE_PART
            # A term that took longer to get than it lasts is over already.
            self._set_term(None if self._engine.clock.monotonic() >= ends else term, ends)
            if self.retired:  # during the election: another node is to lead at once
                with self._engine.outages.suppressed("elect"):
                    await self.resign()
            await asyncio.sleep(TERM.total_seconds() / 3)

    def retire(self) -> None:
        """Stand for no further election."""
        self.retired = True

    async def resign(self) -> None:
        """End the term of this node, if it leads, so that another one can lead at once."""
        if self._term is not None:
            await elect(
                self._engine.store, self._office, self._engine.settings.worker_id, timedelta()
            )
            self._set_term(None)

    def close(self) -> None:
        """Forget the term: the engine has stopped."""
        if self._timer is not None:
            self._timer.cancel()

    async def _elect(self) -> tuple[int | None, float]:
        """The term, if this node has it, and when it was asked for: it begins after that."""
        asked_at = self._engine.clock.monotonic()
        holder = self._engine.settings.worker_id
        return await elect(self._engine.store, self._office, holder, TERM), asked_at

    def _set_term(self, term: int | None, ends: float = 0.0) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._term_ends = ends
        if term is not None:
            left = max(ends - self._engine.clock.monotonic(), 0.001)
            self._timer = asyncio.get_running_loop().call_later(left, self._end_term)
        if not self._engine.settings.enabled:
            pass
        elif term is not None and term != self._term:
            self._engine.emit("leader.elected", term=term)
            self._elected()
        elif term is None and self._term is not None:
            self._engine.emit("leader.lost")
        self._term = term

    def _end_term(self) -> None:
        """The term is over and was not renewed: the store does not answer, and another node may
        lead by now."""
        if self._engine.clock.monotonic() < self._term_ends:  # the timer came too early
            self._set_term(self._term, self._term_ends)
        else:
            self._set_term(None)
