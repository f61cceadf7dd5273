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

__all__ = ["Leader"]

SWEEPER = "sweeper"
"""The name of the election among nodes with `enabled=False`."""

TERM = timedelta(seconds=15)


class Leader:
    """`elected()` is called when this node becomes the leader."""

    def __init__(self, engine: EngineContext, elected: Callable[[], None]) -> None:
        self._engine = engine
        self._elected = elected
        # Nodes that fire nothing elect one among themselves, which prunes and sweeps: their leader
        # must not keep the others waiting for slots that it does not fire.
        self._office = LEADER if engine.settings.enabled else SWEEPER
        self._term: int | None = None
        self.retired = False

    @property
    def leads(self) -> bool:
        return self._term is not None or not self._engine.settings.leader_election

    @property
    def fires_first(self) -> bool:
        """Whether this node leads and fires slots."""
        return self.leads and self._engine.settings.enabled

    async def elect_periodically(self) -> None:
        """Stand for election, and renew the term, until this node retires."""
        while self._engine.settings.leader_election and not self.retired:
            before = self._engine.clock.monotonic()
            term = await self._engine.retrying_store.repeat("elect", self._elect)
            # A term that took longer to get than it lasts is over already.
            slow = self._engine.clock.monotonic() - before > TERM.total_seconds() / 2
            self._set_term(None if slow else term)
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

    async def _elect(self) -> int | None:
        return await elect(self._engine.store, self._office, self._engine.settings.worker_id, TERM)

    def _set_term(self, term: int | None) -> None:
        if not self._engine.settings.enabled:
            pass
        elif term is not None and term != self._term:
            self._engine.emit("leader.elected", term=term)
            self._elected()
        elif term is None and self._term is not None:
            self._engine.emit("leader.lost")
        self._term = term
