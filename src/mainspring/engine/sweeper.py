"""Lets the rescuer and the releaser of followers search the store, each at its own interval.

Any node may do this at any time, because every write is conditional. The leader rescues a bit more
often, and only it looks through all waiting runs.
"""

from __future__ import annotations

import asyncio

from mainspring.engine.context import EngineContext
from mainspring.engine.follower_releaser import RELEASE_INTERVAL, FollowerReleaser
from mainspring.engine.leader import Leader
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.rescuer import Rescuer

LEADER_SWEEP = 2.0
NON_LEADER_SWEEP = 3.0
"""Seconds between two searches for lapsed leases: a rescue comes within lease + 5 s either way.
Where a look at the store is costly, searches are half of `StoreInfo.idle_poll` apart."""

WAITING_SWEEP = 10.0
"""Seconds between two searches through all waiting runs, by the leader. Each process releases the
runs that wait for those which it has ended; this finds what a process left that died in between."""

WORKFLOW_INTERVAL = 0.02
"""Least seconds between two searches for runs to release while any run waits, instead of
`RELEASE_INTERVAL`."""

NODE_SWEEP = 30.0
"""Seconds between two searches for runs of nodes that are gone, by the leader. It counts the runs
of the whole store, which is not cheap."""


class Sweeper:
    def __init__(
        self, engine: EngineContext, leader: Leader, rescuer: Rescuer, releaser: FollowerReleaser
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._rescuer = rescuer
        self._releaser = releaser

    async def sweep_periodically(self) -> None:
        """Rescue and release, each at its own interval, until the engine stops."""
        monotonic = self._engine.clock.monotonic
        rescued_at, swept_at = -NON_LEADER_SWEEP, -WAITING_SWEEP
        nodes_swept_at = monotonic()
        idle_poll = self._engine.store.info().idle_poll
        rarest = 0.0 if idle_poll is None else idle_poll.total_seconds() / 2
        while True:
            every = max(LEADER_SWEEP if self._leader.leads else NON_LEADER_SWEEP, rarest)
            if monotonic() - rescued_at >= every:
                rescued_at = monotonic()
                with self._engine.outages.suppressed("rescue"):
                    await self._rescuer.rescue_lapsed()
            if self._leader.leads and monotonic() - swept_at >= WAITING_SWEEP:
                swept_at = monotonic()
                with self._engine.outages.suppressed("sweep"):
                    await self._releaser.release_all()
            if self._leader.leads and monotonic() - nodes_swept_at >= NODE_SWEEP:
                nodes_swept_at = monotonic()
                with self._engine.outages.suppressed("nodes"):
                    await self._rescuer.end_runs_of_gone_nodes()
            with self._engine.outages.suppressed("unblock"):
                await self._releaser.release_ended()
            await asyncio.sleep(
                WORKFLOW_INTERVAL if self._releaser.any_waiting else RELEASE_INTERVAL
            )
            await wait_for_event(self._releaser.run_has_ended, rescued_at + every - monotonic())
