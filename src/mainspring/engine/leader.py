"""The clock's hands: fires due schedules, rescues lapsed runs, frees waiting ones, prunes.

Any node may do any of it at any time, because every write is conditional. The leader does it
at once; the others only after a grace, so that they rarely meet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta

from mainspring.core import transitions
from mainspring.core.model import Page, Run, State, replace
from mainspring.core.policy import Delivery
from mainspring.core.transitions import Change
from mainspring.engine.context import EVENT_OF, EngineContext
from mainspring.engine.live_workers import LiveWorkers
from mainspring.engine.rest import rest
from mainspring.engine.slot_firer import SlotFirer
from mainspring.engine.worker_ids import host_was_restarted
from mainspring.errors import StoreError
from mainspring.stores.protocol import LEADER, RunQuery

__all__ = ["Keeper"]

log = logging.getLogger("mainspring")

TERM = timedelta(seconds=15)
LEADER_SWEEP = 2.0
FOLLOWER_SWEEP = 3.0
"""Seconds between two looks for lapsed runs: a rescue comes within lease + 5 s either way."""

WAITING_SWEEP = 10.0
"""Seconds between two looks at all waiting runs, by the leader. Each process looks for the
followers of the runs that it has ended; this finds what a process left that died in between."""

RETIRE_SECONDS = 2.0
"""How long a stop waits for a firing that is under way."""

PRUNE_EVERY = 60.0
STEP_REST = 0.02
"""Least seconds between two steps of workflows, while there are any."""

HINT_REST = 0.1
"""Least seconds between two looks that hints ask for: they come with every commit anywhere, and
mostly mean something else. The next slot is known, and its look never waits."""

FOLLOWER_REST = 1.0
"""The same for a follower, which fires nothing that is less late than its grace."""

BATCH = 1000


class Keeper:
    """`finished(run_id)` is called for runs that a sweep has ended."""

    def __init__(
        self, engine: EngineContext, finished: Callable[[str], None], live_workers: LiveWorkers
    ) -> None:
        self._engine = engine
        self._finished = finished
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._unblock = asyncio.Event()
        self._ended: dict[str, None] = {}  # runs whose followers are to be looked for, in order
        self._any_waiting = False
        self._term: int | None = None
        self._retired = False
        self._not_firing = asyncio.Event()
        self._not_firing.set()
        self._firer = SlotFirer(engine, finished, self.unblock, lambda: self.leads, live_workers)

    @property
    def leads(self) -> bool:
        return self._term is not None or not self._engine.settings.leader_election

    def wake(self) -> None:
        """A job may have changed, somewhere."""
        self._wake.set()

    def changed(self) -> None:
        """A job has changed, here, or it is up to us now: a slot may be due at once."""
        self._changed.set()
        self._wake.set()

    def unblock(self, run_id: str) -> None:
        """A run has ended: others may be waiting for it."""
        self._ended[run_id] = None
        self._unblock.set()

    async def electing(self) -> None:
        settings = self._engine.settings
        while settings.leader_election and not self._retired:
            before = self._engine.clock.monotonic()
            term = await self._engine.retrying_store.repeat("elect", self._elect)
            # A term that took longer to get than it lasts is over already.
            slow = self._engine.clock.monotonic() - before > TERM.total_seconds() / 2
            self._lead(None if slow else term)
            if self._retired:  # meanwhile: another node is to lead at once
                with self._engine.outages.suppressed("elect"):
                    await self.resign()
            await asyncio.sleep(TERM.total_seconds() / 3)

    async def retire(self) -> None:
        """Fire no more slots and let another node lead: this process takes no more runs.

        Returns once a firing under way has ended; if the store is away, after a few seconds.
        """
        if self._retired:
            return
        self._retired = True
        self._firer.stop()
        self.changed()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RETIRE_SECONDS):
                await self._not_firing.wait()
                with self._engine.outages.suppressed("elect"):
                    await self.resign()

    async def resign(self) -> None:
        if self._term is not None:
            await self._engine.store.elect(LEADER, self._engine.settings.worker_id, timedelta())
            self._lead(None)

    async def firing(self) -> None:
        """Fire slots as they fall due, until this process is about to stop."""
        self._not_firing.clear()
        try:
            await self._firing()
        finally:
            self._not_firing.set()

    async def _firing(self) -> None:
        while not self._retired:
            self._wake.clear()
            self._changed.clear()
            # A try that failed is planned afresh: what was due then may be missed by now.
            seconds = await self._engine.retrying_store.repeat("fire", self._firer.fire_due)
            if self._retired:
                return
            if seconds <= 0:
                await asyncio.sleep(0)  # claims and renewals get their turn between two chunks
            else:
                pause = HINT_REST if self.leads else FOLLOWER_REST
                await rest(self._changed, min(seconds, pause))
                await rest(self._wake, seconds - pause)

    async def sweeping(self) -> None:
        """Rescue, unblock and prune, each in its own rhythm."""
        monotonic = self._engine.clock.monotonic
        rescued_at, pruned_at, swept_at = -FOLLOWER_SWEEP, monotonic(), -WAITING_SWEEP
        while True:
            every = LEADER_SWEEP if self.leads else FOLLOWER_SWEEP
            if monotonic() - rescued_at >= every:
                rescued_at = monotonic()
                with self._engine.outages.suppressed("rescue"):
                    await self._rescue()
            if self.leads and monotonic() - swept_at >= WAITING_SWEEP:
                swept_at = monotonic()
                with self._engine.outages.suppressed("unblock"):
                    await self._unblock_all()
            with self._engine.outages.suppressed("unblock"):
                await self._unblock_followers()
            if self.leads and monotonic() - pruned_at >= PRUNE_EVERY:
                pruned_at = monotonic()
                with self._engine.outages.suppressed("prune"):
                    await self._prune()
            elif not self.leads:
                self._engine.outages.succeeded("prune")  # it is another's to do
            await asyncio.sleep(STEP_REST if self._any_waiting else HINT_REST)
            await rest(self._unblock, rescued_at + every - monotonic())

    # Sweeping

    async def _rescue(self) -> None:
        """Look at every lapsed run: those of an unreadable job stay, and must hide no others."""
        cursor = None
        while True:
            look = RunQuery(lapsed=True, limit=BATCH, cursor=cursor)
            page: Page[Run] = await self._engine.store.find(look)
            if page.items:
                await self._rescue_these(page.items)
            if (cursor := page.cursor) is None:
                return

    async def _rescue_these(self, found: list[Run]) -> None:
        now = await self._engine.store.now()
        jobs = await self._engine.jobs.get({run.job_id for run in found})
        lapsed: dict[str, Run] = {}
        changes = []
        for run in found:
            job = jobs[run.job_id]
            if job is not None and job.unreadable is not None:
                continue  # how often it may start is not known; it waits until the job is readable
            # A removed job's run becomes pending, and is cancelled when it is claimed.
            delivery = job.policy.delivery if job else Delivery.AT_LEAST_ONCE
            lapsed[run.id] = run
            unbegun = transitions.never_began(run, job)
            blameless = host_was_restarted(run.worker, self._engine.settings.worker_id)
            changes.append(
                transitions.rescued(run, now, delivery, unbegun=unbegun, blameless=blameless)
            )
        for run in await self._committed(list(lapsed.values()), changes):
            log.warning("rescued run %s from %s: lapsed lease", run.id, lapsed[run.id].worker)
            self._engine.emit("run.rescued", run)
            if run.finished:
                self._engine.emit(EVENT_OF[run.state], run)

    async def _unblock_all(self) -> None:
        """Look at every waiting run: for what was missed."""
        self._any_waiting = await self._free_found(RunQuery(states=frozenset({State.WAITING})))

    async def _unblock_followers(self) -> None:
        """Look for the runs that wait for those which have ended since the last look."""
        self._unblock.clear()
        ended = list(self._ended)[:BATCH]
        if ended:
            self._any_waiting = await self.free_followers(ended)
            for run_id in ended:
                self._ended.pop(run_id, None)
        if self._ended:
            self._unblock.set()

    async def free_last(self) -> None:
        """Before a process ends: do not leave the followers of its last runs to the next sweep."""
        if self._ended:
            await self.free_followers(self._ended)

    async def free_followers(self, upstream: Iterable[str]) -> bool:
        """Free the runs that wait for these, as far as they may go on; whether there are any."""
        return await self._free_found(RunQuery(upstream=frozenset(upstream)))

    async def _free_found(self, query: RunQuery) -> bool:
        found, cursor = False, None
        while True:
            page: Page[Run] = await self._engine.store.find(
                replace(query, brief=True, limit=BATCH, cursor=cursor)
            )
            found = found or bool(page.items)
            await self._free(page.items)
            if (cursor := page.cursor) is None:
                return found

    async def _free(self, waiting: list[Run]) -> None:
        waiting = [run for run in waiting if run.unreadable is None]
        if not waiting:
            return
        names = {name for run in waiting for name in run.after}
        upstream = await self._engine.store.find(RunQuery(ids=frozenset(names), brief=True))
        known = {run.id: run.state for run in upstream.items}
        now = self._engine.time.now()
        pairs = [(run, transitions.unblocked(run, now, known)) for run in waiting]
        runs = [run for run, change in pairs if change is not None]
        changes = [change for _, change in pairs if change is not None]
        skipped = [
            run.id for run in await self._committed(runs, changes) if run.state is State.SKIPPED
        ]
        if skipped and self._engine.events.wanted("run.skipped"):
            page = await self._engine.store.find(RunQuery(ids=frozenset(skipped)))
            for run in page.items:
                self._engine.emit("run.skipped", run)

    async def _committed(self, runs: list[Run], changes: list[Change]) -> list[Run]:
        """Commit, and give the runs as they are now, of those that were still as seen."""
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
        """Commit the changes; where that fails, each by itself. One run that cannot be written (an
        open transaction has it locked, say) must not hold up the others. Raises where none can."""
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

    async def _prune(self) -> None:
        # Runs that were set aside are looked at again: this version, or a repair, may read them.
        await self._engine.store.find(RunQuery(set_aside=True, limit=BATCH))
        before = await self._engine.store.now() - self._engine.settings.retention
        pruned = BATCH
        while pruned == BATCH:  # in bites, so that other writes get their turn
            pruned = await self._engine.store.prune(before, BATCH)

    # Leading

    def _lead(self, term: int | None) -> None:
        if term is not None and term != self._term:
            self._engine.emit("leader.elected", term=term)
            self.changed()
        elif term is None and self._term is not None:
            self._engine.emit("leader.lost")
        self._term = term

    async def _elect(self) -> int | None:
        return await self._engine.store.elect(LEADER, self._engine.settings.worker_id, TERM)
