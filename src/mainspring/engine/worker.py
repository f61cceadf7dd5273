"""Claims runs, gives them places, decides what becomes of them when they end; drains.

A run's way: `claim` → `_admit` → ready → `_begin` → runner → `over` → `judge` → record. What it
holds is renewed by `leases`; what ended is committed and told by `record`. Everything here
happens on the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.context import RunContext
from mainspring.core.model import Run
from mainspring.engine.attempt import Stop, Work
from mainspring.engine.completer import Completer
from mainspring.engine.context import EngineContext
from mainspring.engine.executors.dispatcher import Runner
from mainspring.engine.group_limits import GroupLimits
from mainspring.engine.handler_transaction import Transacting
from mainspring.engine.leases import Leases
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.outcome import LEAST_SNOOZE, Verdict, judge
from mainspring.engine.slots import is_orphan
from mainspring.engine.suspects import Suspects
from mainspring.engine.telemetry import Tracing
from mainspring.stores.protocol import Claim, RunQuery

__all__ = ["Worker"]

log = logging.getLogger("mainspring")

AHEAD_SECONDS = 0.05
"""How much work may wait in this process: what its places do in this time. Long handlers get
nothing ahead of their start; no-ops come in batches that pay for their commit."""

MOST_AHEAD = 1000

POLLS_BETWEEN = 5
"""So many polls bring nothing before the store is asked again what is due next. A run that is
added comes with a hint; should that be lost, a poll's claim finds the run once it is due."""

BUSY_SECONDS = 0.01
"""After runs were found the next claim is mostly soon, and what falls due next not yet a question:
it is asked once it has been quiet for so long."""

UNREADABLE_SNOOZE = timedelta(minutes=1)
"""How long a run waits whose job, or whose upstream run, cannot be read."""

SEARCH_PAUSE, LONGEST_SEARCH_PAUSE = 0.05, 0.5
"""Seconds before the store is asked again for runs of groups that are not busy, where it had none.
It may have to walk past a long backlog of the busy ones, so the pause is also 20 times as long as
the answer took (10,000 runs on SQLite: 10 ms)."""

DRAIN_GRACE = 2.0
"""Seconds for handlers to end once a drain has cancelled them."""


class Worker:
    """`finished(run_id)` is called when a run that was held here is over and recorded."""

    def __init__(self, engine: EngineContext, finished: Callable[[str], None]) -> None:
        self._engine = engine
        self._settings = engine.settings
        self.leases = Leases(engine, lose=self._lose, cancel=self._cancel)
        self.completer = Completer(engine, self.leases, finished)
        self._ready: deque[Work] = deque()
        self._groups = GroupLimits(engine.settings.workers, engine.clock.monotonic)
        self._search_at = 0.0  # when to claim again while a group is busy
        self._active: dict[Work, None] = {}  # a run may be here twice: lost, and claimed again
        self._recording: dict[Work, None] = {}  # their begin is being recorded; each has a place
        self._suspects = Suspects(engine.time, go_on=self._go_on, give_back=self._give_back_until)
        self._taken = 0  # places
        self._loop_blocked = False  # the program's
        self._stuck: set[Work] = set()
        self._wake = asyncio.Event()
        self._claimed_last = asyncio.Event()
        self._draining = False
        self._short = True  # of places: the store may have had more for us than we could take
        self._looked = 0.0  # when the store was last asked for runs
        self._due: datetime | None = None  # of what is pending, as the store said it last
        self._due_known = 0  # for how many polls more
        self._handler_seconds = 1.0
        self._runner: Runner
        self.tracing: Tracing | None = None

    @property
    def running(self) -> int:
        return len(self._active) - self._runner.unbegun

    @property
    def ahead(self) -> int:
        """Runs that are held and wait for their place."""
        held = len(self._ready) + len(self._recording) + len(self._suspects.waiting)
        return held + self._runner.unbegun

    @property
    def stuck(self) -> int:
        """Threads that outlived their attempt and still take a place."""
        return len(self._stuck)

    def breaker_state(self, job_id: str) -> str:
        return self.completer.breakers.state(job_id)

    def employ(self, runner: Runner) -> None:
        """Work with this runner, which tells `over` and `freed`."""
        self._runner = runner
        self.completer.call_hook = runner.tell

    def wake(self) -> None:
        """Something may be due, or may have changed."""
        self._due_known = 0
        self._wake.set()
        self.leases.look()

    async def claiming(self) -> None:
        """Claim whenever there is room, until the worker drains."""
        while not self._draining:
            self._wake.clear()
            for work in self._groups.surplus():
                self._settle_unbegun(work, transitions.released(work.run, self._now(), began=False))
            busy = self._groups.busy_jobs()
            pause = self._search_at - self._engine.clock.monotonic() if busy else 0.0
            room = self._room() if pause <= 0 else 0
            found = await self._claim(room, busy) if room > 0 else 0
            self._short = room <= found
            if room <= 0:
                poll = self._settings.poll.total_seconds()
                await wait_for_event(self._wake, min(poll, pause) if pause > 0 else poll)
            elif busy and not found:
                took = self._engine.clock.monotonic() - self._looked
                pause = min(max(20 * took, SEARCH_PAUSE), LONGEST_SEARCH_PAUSE)
                self._search_at = self._engine.clock.monotonic() + pause
            elif not self._short and not (found and await wait_for_event(self._wake, BUSY_SECONDS)):
                await self._sleep_until_due()
        unbegun = [*self._groups.waiting, *self._ready, *self._suspects.waiting, *self._recording]
        for work in [*unbegun, *self._active]:
            if self._taken_back(work):
                self._give_back(work)
        self._claimed_last.set()

    async def drain(self, *, graceful: bool, timeout: float) -> None:
        """Stop claiming, give back what has not begun, wait for the rest, release it at last."""
        self._draining = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):  # a claim under way may still bring runs
            async with asyncio.timeout(DRAIN_GRACE):
                await self._claimed_last.wait()
        if graceful:
            await self._active_over(timeout)
        for work in list(self._active):
            self._runner.stop(work, Stop.DRAIN)
        await self._active_over(DRAIN_GRACE)
        for work in list(self._active):
            log.warning(
                "the handler of job %s does not stop, though it was cancelled; its run %s is given"
                " back",
                work.run.job_id,
                work.run.id,
            )
            self._runner.give_up(work)
        for work in self._stuck:
            self._runner.abandon(work)

    async def close(self) -> None:
        await self._runner.close()

    # Claiming

    def _free(self) -> int:
        free = self._settings.workers - self._taken
        # A blocked loop cannot give back what it does not use.
        return free + self._runner.unused_places if self._loop_blocked else free

    def _room(self) -> int:
        """How many runs to claim. What waits ahead is refilled when half of it is gone: fewer
        and larger claims cost fewer commits."""
        if self._suspects.hold_back:
            return 0
        free, ready = max(self._free(), 0), self.ahead
        asked = self._settings.workers / self._handler_seconds * AHEAD_SECONDS
        ahead = min(int(asked), MOST_AHEAD)
        return free + ahead - ready if free > ready or ready <= ahead // 2 else 0

    async def _claim(self, limit: int, busy: frozenset[str]) -> int:
        sent = self._looked = self._engine.clock.monotonic()
        claim = self._asked(limit, busy)
        runs = await self._engine.retrying_store.claim(claim)
        if runs:
            if (claimed_at := runs[0].started_at) is not None:
                # Else a run that is snoozed for less than our time lags behind the store's is due
                # again at once, and is claimed and snoozed as fast as the store can.
                self._engine.time.advance_to(claimed_at)
            await self._admit(runs, sent)
        return len(runs)

    def _asked(self, limit: int, busy: frozenset[str] = frozenset()) -> Claim:
        return Claim(
            worker=self._settings.worker_id,
            handlers=self._handlers(),
            queues=self._settings.queues,
            limit=limit,
            lease=self._settings.lease,
            excluded_jobs=busy,
        )

    def _handlers(self) -> frozenset[str]:
        """The handlers that can begin here. None on a loop that is blocked."""
        registry = self._engine.registry
        names = registry.names()
        if not self._loop_blocked:
            return names
        found = {name: registry.get(name) for name in names}
        return frozenset(n for n, one in found.items() if one.built_in or not one.is_async)

    async def _sleep_until_due(self) -> None:
        if self._due_known <= 0 or (self._due is not None and self._due <= self._engine.time.now()):
            self._due_known = POLLS_BETWEEN
            self._due = await self._engine.retrying_store.next_due(
                self._asked(1), self._since_looked()
            )
        self._due_known -= 1
        seconds = self._settings.poll.total_seconds()
        if self._due is not None:
            seconds = min(seconds, (self._due - self._engine.time.now()).total_seconds())
        await wait_for_event(self._wake, max(seconds, 0.001))

    def _since_looked(self) -> timedelta:
        """How long ago the last claim was, and a bit: one may be longer on its way than another.
        What fell due meanwhile would else wait for the next poll."""
        return timedelta(seconds=self._engine.clock.monotonic() - self._looked + 0.02)

    async def _admit(self, runs: list[Run], sent: float) -> None:
        """Turn claimed runs into work, or settle at once what will not run."""
        registry = self._engine.registry
        newest = {run.job_id for run in runs if registry.get(run.handler).reads_job}
        jobs = await self._engine.jobs.get(
            {run.job_id for run in runs}, newest, store=self._engine.retrying_store
        )
        results, blocked = await self._upstream_results(runs)
        for run in runs:
            job = jobs[run.job_id]
            if job is None or is_orphan(run, job):  # gone, or another took its id since
                now = self._engine.time.now()
                self.completer.complete_unstarted(
                    run, transitions.cancelled(run, now, "job removed")
                )
                continue
            if job.unreadable is not None or run.id in blocked:
                # Its policy, or what it is given from the runs before it, cannot be read.
                later = self._engine.time.now() + UNREADABLE_SNOOZE
                reason = "its job, or a run that it comes after, cannot be read"
                self.completer.complete_unstarted(run, transitions.snoozed(run, later, reason))
                continue
            handler = registry.get(run.handler)
            context = RunContext(
                run, self._engine.resources, results.get(run.id), job, self._transact
            )
            work = Work(run, job, handler, context, sent)
            self.leases.hold(work)
            if transitions.is_suspect(run):
                if not self._put_off(work):
                    self._suspects.add(work)
            elif self._groups.start(work):
                self._make_ready(work)
            elif not self._groups.wait(work):
                self._settle_unbegun(work, transitions.released(run, self._now(), began=False))
        self._begin()

    def _make_ready(self, work: Work) -> None:
        """Have a work begin that its group has room for, unless it is put off."""
        while not self._draining and self._put_off(work):
            successor = self._groups.leave(work)
            if successor is None:
                return
            work = successor
        self._ready.append(work)

    def _leave_group(self, work: Work, seconds: float | None = None) -> None:
        """A work that counted for its group has ended, or will not begin."""
        if (successor := self._groups.leave(work, seconds)) is not None:
            self._make_ready(successor)

    def _settle_unbegun(self, work: Work, change: transitions.Change) -> None:
        """Record what becomes of a work that is held and has not begun."""
        self.leases.let_go(work)
        self.completer.complete_unstarted(work.run, change)

    def _now(self) -> datetime:
        return self._engine.time.now()

    def _transact(self, context: RunContext) -> Transacting:
        return Transacting(self._engine, self.leases.of(context))

    def _put_off(self, work: Work) -> bool:
        """Settle a run that is too late, or whose breaker is open."""
        run, breaker = work.run, work.job.policy.breaker
        if run.start_by is None and breaker is None:
            return False
        now = self._engine.time.now()
        if run.start_by is not None and now > run.start_by:
            self._settle_unbegun(work, transitions.skipped(run, now, "expired"))
            return True
        if breaker is None:
            return False
        mono = self._engine.clock.monotonic()
        wait, turn = self.completer.breakers.admit(run.job_id, breaker, mono)
        self.completer.emit_breaker(run, turn)
        if wait is None:
            return False
        later = now + max(wait, LEAST_SNOOZE)
        self._settle_unbegun(work, transitions.snoozed(run, later, "its circuit breaker is open"))
        return True

    async def _upstream_results(
        self, runs: list[Run]
    ) -> tuple[dict[str, dict[str, Any]], set[str]]:
        """The results of the runs that each run comes after, by job; and the runs for which one
        of them cannot be read."""
        waited = {upstream for run in runs for upstream in run.after}
        if not waited:
            return {}, set()
        page = await self._engine.retrying_store.find(RunQuery(ids=frozenset(waited)))
        found = {run.id: run for run in page.items}
        results = {
            run.id: {found[u].job_id: found[u].result for u in run.after if u in found}
            for run in runs
        }
        unreadable = {run.id for run in found.values() if run.unreadable is not None}
        return results, {run.id for run in runs if not unreadable.isdisjoint(run.after)}

    def _begin(self) -> None:
        """Give what is ready to the runner, in order, as far as there are places for it."""
        if self._draining:
            return
        idle = not self._active and not self._recording
        if (suspect := self._suspects.next(idle=idle)) is not None:
            self._record_begin(suspect)
        if self._suspects.hold_back:
            return
        batch: list[Work] = []
        free = self._free()
        while self._ready:
            work = self._ready[0]
            if self._must_wait_for_loop(work):
                self._ready.popleft()
                self._leave_group(work)
                self._give_back(work)
                continue
            if transitions.records_begin(work.run, work.job):
                if free <= 0:
                    break
                free -= 1
                self._record_begin(self._ready.popleft())
                continue
            if not self._runner.at_home(work):
                if free <= 0:
                    break
                if not self.leases.safe(work):
                    self._ready.popleft()
                    self._leave_group(work)
                    self._give_back(work)
                    continue
                free -= 1
                self.began(work)
            batch.append(self._ready.popleft())
            self._active[work] = None
        self._taken += self._runner.begin(batch, self._free())

    def _record_begin(self, work: Work) -> None:
        """Begin a handler once it is on record that it begins. It has its place from now on: the
        time between the record and the begin is short."""
        self._taken += 1
        self._recording[work] = None
        self.completer.record_begin(work, lambda kept: self._begin_recorded(work, kept))

    def _begin_recorded(self, work: Work, kept: bool) -> None:
        if work not in self._recording:  # it was taken back meanwhile
            return
        del self._recording[work]
        self._taken -= 1
        if kept and self.leases.safe(work) and not self._must_wait_for_loop(work):
            self._active[work] = None
            if not self._runner.at_home(work):
                self.began(work)
            self._taken += self._runner.begin([work], self._free(), first=True)
            return
        self._suspects.over(work)
        self._leave_group(work)
        if kept:
            self._give_back(work)
        self._go_on()

    def _go_on(self) -> None:
        self._begin()
        self._place_free()

    def began(self, work: Work) -> None:
        """A handler is about to begin. On any thread."""
        self._engine.emit("run.started", work.run)

    # A blocked loop

    def loop_blocked(self, where: str) -> None:
        """The program's loop stands still: what has not begun there goes back to the store, for
        other workers, and no more is claimed for it."""
        self._loop_blocked = True
        given_back = 0
        for work in list(self._active):
            if self._must_wait_for_loop(work) and self._taken_back(work):
                self._give_back(work)
                given_back += 1
        log.warning(
            "%s blocks the event loop, %s: no runs of async handlers are claimed until it goes on,"
            " and %d are given back. Await instead of blocking, or make it a plain function (def)",
            self._blocker(),
            where,
            given_back,
        )
        self._begin()

    def loop_freed(self) -> None:
        self._loop_blocked = False
        log.warning("the event loop goes on")
        self._wake.set()

    def _must_wait_for_loop(self, work: Work) -> bool:
        return self._loop_blocked and self._runner.at_home(work) and not work.handler.built_in

    def _blocker(self) -> str:
        task = self._runner.current_task()
        for work in self._active:
            if task is not None and work.task is task:
                return f"the handler of job {work.run.job_id} (run {work.run.id})"
        return "the program"

    # Ending

    def over(self, works: list[Work], places: int) -> None:
        """Attempts have ended: decide what becomes of each run, and have it recorded."""
        self._taken -= places
        now = self._engine.time.now()
        for work in works:
            self._active.pop(work, None)
            self._leave_group(work, _seconds(work, now) if work.stop is None else None)
            self._suspects.over(work)
            if work.lingering:
                self._note_stuck(work)
            verdict = None
            if work.stop is Stop.LOST and not work.committed:
                self.leases.let_go(work)
                self.completer.breakers.abandon(work.run.job_id)
            elif work.stop is Stop.LATE:
                self._give_back(work)
            else:
                verdict = judge(work, now, self._engine.rng)
                self.completer.complete(work, verdict)
            if self.tracing is not None:
                self.tracing.end(work, verdict)
        self._note_pace(works)
        self._go_on()

    def freed(self, work: Work) -> None:
        """A thread has ended, perhaps after its attempt: its place is free again."""
        self._taken -= 1
        self._stuck.discard(work)
        self._go_on()

    def ended_late(self, work: Work) -> None:
        """A handler on a loop has ended after its attempt."""
        self._stuck.discard(work)

    def _place_free(self) -> None:
        """Claim again, if it was places that we lacked. If not, the store has nothing more for us
        before it says so: room under a limit is there once the end is recorded, which it tells."""
        if self._short or self._draining or self._groups.wants_more:
            self._wake.set()

    def _give_back(self, work: Work) -> None:
        now = self._engine.time.now()
        self.completer.complete(work, Verdict(transitions.released(work.run, now, began=False)))

    def _give_back_until(self, work: Work, until: datetime) -> None:
        self.completer.complete(work, Verdict(transitions.snoozed(work.run, until)))

    def _taken_back(self, work: Work) -> bool:
        """Whether a work had not begun: then it is nowhere any more."""
        if self._groups.remove(work):
            return True
        if work in self._recording:
            del self._recording[work]
            self._taken -= 1
        elif work in self._active:
            if not self._runner.take_back(work):
                return False
            del self._active[work]
        elif work in self._ready:
            self._ready.remove(work)
        self._suspects.over(work)
        self._leave_group(work)
        return True

    def _cancel(self, work: Work) -> None:
        if not self._taken_back(work):
            self._runner.stop(work, Stop.CANCEL)
            return
        now = self._engine.time.now()
        self.completer.complete(
            work, Verdict(transitions.cancelled(work.run, now, work.run.reason))
        )
        self._begin()

    def _lose(self, work: Work) -> None:
        log.warning("lost the lease of run %s; its handler is stopped", work.run.id)
        self._engine.emit("ownership.lost", work.run)
        if not self._taken_back(work):
            self._runner.stop(work, Stop.LOST)
        self.leases.let_go(work)
        self._begin()

    async def _active_over(self, timeout: float) -> None:
        ends = self._engine.clock.monotonic() + timeout
        while self._active and (left := ends - self._engine.clock.monotonic()) > 0:
            self._wake.clear()
            await wait_for_event(self._wake, max(left, 0.001))

    def _note_pace(self, works: list[Work]) -> None:
        """A running mean of what handlers take, which sets how far ahead to claim. It begins with a
        guess that is far too long for most, and so falls faster than it rises."""
        if not works:
            return
        now = self._engine.time.now()
        seconds = sum(_seconds(work, now) for work in works) / len(works)
        change = max(seconds, 1e-5) - self._handler_seconds
        self._handler_seconds += change * (0.75 if change < 0 else 0.5)

    def _note_stuck(self, work: Work) -> None:
        self._stuck.add(work)
        if work.stop is Stop.TIMEOUT:
            log.warning(
                "run %s of job %s timed out but its %s goes on and keeps its place (%d of %d are"
                ' taken so); isolation="process" can be stopped for real',
                work.run.id,
                work.run.job_id,
                "handler" if self._runner.at_home(work) else "thread",
                len(self._stuck),
                self._settings.workers,
            )


def _seconds(work: Work, now: datetime) -> float:
    if work.took is not None:
        return work.took
    return (now - work.began_at).total_seconds() if work.began_at is not None else 0.0
