"""Rescues runs with lapsed leases and releases waiting runs.

Any node may do this at any time, because every write is conditional. The leader rescues a bit more
often, and only it looks through all waiting runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from mainspring.core import transitions
from mainspring.core.model import Run, Source, State, replace
from mainspring.core.node_runs import is_node_handler, node_of
from mainspring.core.policy import Delivery
from mainspring.core.transitions import Change
from mainspring.engine.context import EVENT_OF, EngineContext
from mainspring.engine.leader import Leader
from mainspring.engine.live_workers import find_workers
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.revival import complete_retries
from mainspring.engine.worker_ids import host_was_restarted
from mainspring.errors import StoreError
from mainspring.stores.paging import pages
from mainspring.stores.protocol import RunQuery

log = logging.getLogger("mainspring")

LEADER_SWEEP = 2.0
NON_LEADER_SWEEP = 3.0
"""Seconds between two searches for lapsed leases: a rescue comes within lease + 5 s either way.
Where a look at the store is costly, searches are half of `StoreInfo.idle_poll` apart."""

WAITING_SWEEP = 10.0
"""Seconds between two searches through all waiting runs, by the leader. Each process releases the
runs that wait for those which it has ended; this finds what a process left that died in between."""

WORKFLOW_INTERVAL = 0.02
"""Least seconds between two searches for released runs, while any run waits."""

SWEEP_INTERVAL = 0.1
"""The same while none waits."""

NODE_SWEEP = 30.0
"""Seconds between two searches for runs of nodes that are gone, by the leader. It counts the runs
of the whole store, which is not cheap."""

BATCH = 1000


class Sweeper:
    """`finished(run_id)` is called for runs that a sweep has ended."""

    def __init__(
        self, engine: EngineContext, leader: Leader, finished: Callable[[str], None]
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._finished = finished
        self._run_ended = asyncio.Event()
        self._ended: dict[str, None] = {}  # runs whose followers are to be released, in order
        self._any_waiting = False
        self._missing: set[str] = set()  # workers with due node runs, at the last search

    def run_ended(self, run_id: str) -> None:
        """Release the runs that wait for this one, with the next sweep."""
        self._ended[run_id] = None
        self._run_ended.set()

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
                    await self._rescue()
            if self._leader.leads and monotonic() - swept_at >= WAITING_SWEEP:
                swept_at = monotonic()
                with self._engine.outages.suppressed("sweep"):
                    await self._release_all()
            if self._leader.leads and monotonic() - nodes_swept_at >= NODE_SWEEP:
                nodes_swept_at = monotonic()
                with self._engine.outages.suppressed("nodes"):
                    await self._end_runs_of_gone_nodes()
            with self._engine.outages.suppressed("unblock"):
                await self._release_followers()
            await asyncio.sleep(WORKFLOW_INTERVAL if self._any_waiting else SWEEP_INTERVAL)
            await wait_for_event(self._run_ended, rescued_at + every - monotonic())

    async def release_periodically(self) -> None:
        """Release the runs that wait for those which this process has cancelled, until the engine
        stops: for a process without workers, which does not sweep."""
        while True:
            await self._run_ended.wait()
            await self._engine.retrying_store.repeat("unblock", self._release_followers)
            await asyncio.sleep(SWEEP_INTERVAL)

    async def _rescue(self) -> None:
        """Rescue every run whose lease has lapsed. Runs of an unreadable job stay as they are, and
        must not hide the others: so this reads all pages."""
        await self._engine.store.maintain(None, BATCH)
        async for runs in pages(self._engine.store.find, RunQuery(lapsed=True, limit=BATCH)):
            await self._rescue_these(runs)

    async def _rescue_these(self, found: list[Run]) -> None:
        now = await self._engine.store.now()
        jobs = await self._engine.jobs.get({run.job_id for run in found})
        seen: dict[str, datetime] = {}
        if any(run.lapses + 1 >= transitions.MAX_LAPSES for run in found):
            workers = await find_workers(self._engine.store)
            seen = {worker.id: worker.seen_at for worker in workers if worker.seen_at is not None}
            seen[self._engine.settings.worker_id] = now
        lapsed: dict[str, Run] = {}
        changes = []
        for run in found:
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
        for run in await self._change_runs(list(lapsed.values()), changes):
            log.warning("rescued run %s from %s: lapsed lease", run.id, lapsed[run.id].worker)
            self._engine.emit("run.rescued", run)
            if run.finished:
                self._engine.emit(EVENT_OF[run.state], run)

    async def _release_all(self) -> None:
        """Look through all waiting runs for those that a dead process left waiting; first complete
        its retries."""
        await complete_retries(self._engine)
        self._any_waiting = await self._release_found(RunQuery(states=frozenset({State.WAITING})))

    async def _release_followers(self) -> None:
        """Release the runs that wait for those which have ended since the last sweep."""
        self._run_ended.clear()
        ended = list(self._ended)[:BATCH]
        if ended:
            self._any_waiting = await self.release_followers(ended)
            for run_id in ended:
                self._ended.pop(run_id, None)
        if self._ended:
            self._run_ended.set()

    async def release_last(self) -> None:
        """Release the followers of the last runs of a process that stops."""
        while self._ended:
            await self._release_followers()

    async def release_followers(self, upstream: Iterable[str]) -> bool:
        """Release the runs that wait for these and for nothing else; return whether any wait."""
        return await self._release_found(RunQuery(upstream=frozenset(upstream)))

    async def _release_found(self, query: RunQuery) -> bool:
        found = False
        query = replace(query, brief=True, limit=BATCH)
        async for runs in pages(self._engine.store.find, query):
            found = True
            await self._release(runs)
        return found

    async def _release(self, waiting: list[Run]) -> None:
        waiting = [run for run in waiting if run.unreadable is None]
        if not waiting:
            return
        names = {name for run in waiting for name in run.after}
        upstream = await self._read_upstream(names)
        passed_over = {run.id: await self._earlier_slots(run, upstream) for run in waiting}
        known = {run.id: run.state for run in upstream.values()}
        now = self._engine.time.now()
        pairs = [
            (run, transitions.waiting_for_earlier_slot(run, earlier))
            if (earlier := passed_over[run.id])
            else (run, transitions.unblocked(run, now, known))
            for run in waiting
        ]
        runs = [run for run, change in pairs if change is not None]
        changes = [change for _, change in pairs if change is not None]
        await self._emit_ended(await self._change_runs(runs, changes))
        for name in {name for earlier in passed_over.values() for name in earlier}:
            self.run_ended(name)  # it may have ended before the slot waited for it

    async def _read_upstream(self, names: Iterable[str]) -> dict[str, Run]:
        page = await self._engine.store.find(RunQuery(ids=frozenset(names), brief=True))
        return {run.id: run for run in page.items}

    async def _earlier_slots(self, run: Run, upstream: dict[str, Run]) -> tuple[str, ...]:
        """The unfinished slots that a queued slot has to wait for because the one that it waited
        for was cancelled (or skipped) before its turn. What is read here is put into `upstream`."""
        names = run.after if run.source is Source.SCHEDULE else ()
        while True:
            slots = [upstream[name] for name in names if name in upstream]
            if any(not slot.finished for slot in slots):
                return () if names == run.after else names
            passed = [slot for slot in slots if slot.state in (State.CANCELLED, State.SKIPPED)]
            names = tuple(dict.fromkeys(name for slot in passed for name in slot.after))
            if not names:
                return ()
            upstream |= await self._read_upstream(set(names) - upstream.keys())

    async def _end_runs_of_gone_nodes(self) -> None:
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
        jobs = await self._engine.jobs.get(busy)
        for job_id, job in jobs.items():
            if job is not None and job.unreadable is None and job.policy.each_node:
                await self._end_runs_of_nodes(job_id, gone)

    async def _end_runs_of_nodes(self, job_id: str, nodes: set[str]) -> None:
        query = RunQuery(job=job_id, states=frozenset({State.PENDING}), brief=True, limit=BATCH)
        async for page in pages(self._engine.store.find, query):
            runs = [run for run in page if node_of(run) in nodes and run.unreadable is None]
            now = self._engine.time.now()
            changes = [transitions.node_gone(run, now) for run in runs]
            await self._emit_ended(await self._change_runs(runs, changes))

    async def _emit_ended(self, changed: list[Run]) -> None:
        """Emit the end of those runs that have ended. They were read without their payloads."""
        events = self._engine.events
        ended = [run.id for run in changed if run.finished and events.wanted(EVENT_OF[run.state])]
        if ended:
            page = await self._engine.store.find(RunQuery(ids=frozenset(ended)))
            for run in page.items:
                if run.finished:
                    self._engine.emit(EVENT_OF[run.state], run)

    async def _change_runs(self, runs: list[Run], changes: list[Change]) -> list[Run]:
        """Commit the changes; return the runs that have changed by it, as they are now."""
        if not changes:
            return []
        done = await self._commit(changes)
        after = [
            change.after(run) for run, change, kept in zip(runs, changes, done, strict=True) if kept
        ]
        for run in after:
            if run.finished:
                self._finished(run.id)
        return after

    async def _commit(self, changes: list[Change]) -> list[bool]:
        """Commit the changes together, or one by one where that fails: one run that cannot be
        written (an open transaction has locked it, say) must not hold up the others. Raises where
        none can be written."""
        store = self._engine.store
        try:
            return await store.commit(changes)
        except StoreError:
            if len(changes) == 1:
                raise
        answers = await asyncio.gather(
            *(store.commit([change]) for change in changes), return_exceptions=True
        )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failed) == len(changes) or not all(isinstance(e, StoreError) for e in failed):
            raise failed[0]
        done = []
        for change, answer in zip(changes, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("run %s cannot be written for now: %s", change.id, answer)
                answer = [False]
            done += answer
        return done
