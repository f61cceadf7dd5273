"""Rescues the runs of workers that are gone: those with a lapsed lease, and those that wait for a
node that is gone."""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime

from mainspring.core import transitions
from mainspring.core.model import Run, State, is_node_handler, node_handler, node_of
from mainspring.core.policy import Delivery
from mainspring.engine.context import EVENT_OF, EngineContext
from mainspring.engine.leader import Leader
from mainspring.engine.live_workers import find_workers, host_was_restarted
from mainspring.stores.paging import pages
from mainspring.stores.protocol import RunQuery

log = logging.getLogger("mainspring")

BATCH = 1000

LEADER_SWEEP = 2.0
NON_LEADER_SWEEP = 3.0
"""Seconds between two searches for lapsed leases: a rescue comes within lease + 5 s either way.
Where a look at the store is costly, searches are half of `StoreInfo.idle_poll` apart."""

NODE_SWEEP = 30.0
"""Seconds between two searches for runs of nodes that are gone, by the leader. It counts the runs
of the whole store, which is not cheap."""


class Rescuer:
    """Any node may rescue at any time, because every write is conditional. The leader looks a bit
    more often."""

    def __init__(self, engine: EngineContext, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader
        self._missing: set[str] = set()  # workers with due node runs, at the last search

    async def rescue_periodically(self) -> None:
        """Search for lapsed leases, and for runs of nodes that are gone, until the engine stops."""
        monotonic, outages = self._engine.clock.monotonic, self._engine.outages
        idle_poll = self._engine.store.info().idle_poll
        rarest = 0.0 if idle_poll is None else idle_poll.total_seconds() / 2
        nodes_swept_at = monotonic()
        while True:
            with outages.suppressed("rescue"):
                await self.rescue_lapsed()
            if self._leader.leads and monotonic() - nodes_swept_at >= NODE_SWEEP:
                nodes_swept_at = monotonic()
                with outages.suppressed("nodes"):
                    await self.end_runs_of_gone_nodes()
            await asyncio.sleep(
                max(LEADER_SWEEP if self._leader.leads else NON_LEADER_SWEEP, rarest)
            )

    async def rescue_lapsed(self) -> None:
        """Rescue every run whose lease has lapsed. Runs of an unreadable job stay as they are, and
        must not hide the others: so this reads all pages."""
        await self._engine.store.maintain(None, BATCH)
        async for runs in pages(self._engine.store.find, RunQuery(lapsed=True, limit=BATCH)):
            await self._rescue_these(runs)

    async def _rescue_these(self, runs: list[Run]) -> None:
        now = await self._engine.store.now()
        jobs = await self._engine.jobs.get({run.job_id for run in runs})
        seen: dict[str, datetime] = {}
        if any(run.lapses + 1 >= transitions.MAX_LAPSES for run in runs):
            workers = await find_workers(self._engine.store)
            seen = {worker.id: worker.seen_at for worker in workers if worker.seen_at is not None}
            seen[self._engine.settings.worker_id] = now
        lapsed: dict[str, Run] = {}
        changes = []
        for run in runs:
            job = jobs[run.job_id]
            if job is not None and job.unreadable is not None:
                continue  # its delivery is not known: it waits until the job is readable
            # A removed job's run becomes pending, and is cancelled when it is claimed.
            delivery = job.policy.delivery if job else Delivery.AT_LEAST_ONCE
            if node_of(run) is not None:  # no other worker may run it
                delivery = Delivery.AT_MOST_ONCE
            lapsed[run.id] = run
            unbegun = transitions.never_began(run, job)
            blameless = host_was_restarted(run.worker, self._engine.settings.worker_id)
            changes.append(
                transitions.rescued(
                    run, now, delivery, unbegun=unbegun, blameless=blameless, seen=seen
                )
            )
        for run in await self._engine.change_runs(list(lapsed.values()), changes):
            log.warning("rescued run %s from %s: lapsed lease", run.id, lapsed[run.id].worker)
            self._engine.emit("run.rescued", run)
            if run.finished:
                self._engine.emit(EVENT_OF[run.state], run)

    async def end_runs_of_gone_nodes(self) -> None:
        """End due node runs whose worker is gone: nobody else may take them. After an outage of the
        store workers need a while to announce themselves again, so a worker is gone only if two
        searches in a row did not find it."""
        counts = await self._engine.store.counts()
        waited_for = {handler[1:] for handler in counts.due if is_node_handler(handler)}
        alive = {worker.id for worker in await find_workers(self._engine.store)}
        missing = waited_for - alive - {self._engine.settings.worker_id}
        gone, self._missing = missing & self._missing, missing
        if not gone:
            return
        busy = [job_id for job_id, runs in counts.runs.items() if runs.get(State.PENDING)]
        jobs = [job for job in (await self._engine.jobs.get(busy)).values() if job is not None]
        left = sum(counts.due[node_handler(node)].count for node in gone)
        # A job whose `each_node` was switched off may still have such runs. Its backlog is read
        # only if the runs are not those of other jobs.
        for job in sorted(jobs, key=lambda job: not job.policy.each_node):
            if left > 0 and job.unreadable is None:
                left -= await self._end_runs_of_nodes(job.id, gone)

    async def _end_runs_of_nodes(self, job_id: str, nodes: set[str]) -> int:
        """End the pending runs of these nodes, and those that wait, mostly for the run of the slot
        before; return how many were pending."""
        pending = 0
        states = frozenset({State.PENDING, State.WAITING})
        query = RunQuery(job=job_id, states=states, brief=True, limit=BATCH)
        async for page in pages(self._engine.store.find, query):
            runs = [run for run in page if node_of(run) in nodes and run.unreadable is None]
            now = self._engine.time.now()
            changes = [transitions.node_gone(run, now) for run in runs]
            await self._engine.emit_ended(await self._engine.change_runs(runs, changes))
            pending += sum(run.state is State.PENDING for run in runs)
        return pending
