"""Claims runs, begins their attempts as capacity allows, and drains.

The steps of a run: `_claim` → `_admit` → `_begin` → dispatcher → `ended` → `outcome.decide` →
completer. `Leases` renews what this worker holds; the completer commits what has ended. Everything
here happens on the engine's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta

from mainspring.core import transitions
from mainspring.core.context import RunContext
from mainspring.core.model import Job, Run
from mainspring.core.node_runs import node_handler, node_of
from mainspring.core.policy import Isolation
from mainspring.core.upstream_results import UpstreamResults, UpstreamRun, runs_with_results
from mainspring.engine.attempt import LocalAttempt, StopReason
from mainspring.engine.breakers import PUT_OFF_REASON, BreakerNotes
from mainspring.engine.completer import Completer
from mainspring.engine.context import EngineContext
from mainspring.engine.default_handler import DefaultHandler
from mainspring.engine.executors.dispatcher import Dispatcher
from mainspring.engine.group_limits import GroupLimits
from mainspring.engine.handler_transaction import RunTransaction
from mainspring.engine.leases import Leases
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.outcome import LEAST_SNOOZE, Decision, decide
from mainspring.engine.slots import job_was_removed
from mainspring.engine.suspects import Suspects
from mainspring.engine.telemetry import Telemetry
from mainspring.errors import HandlerNotFound
from mainspring.stores.protocol import Claim, RunQuery

__all__ = ["Worker"]

log = logging.getLogger("mainspring")

AHEAD_SECONDS = 0.05
"""Seconds of work that may wait in this process. Runs of long handlers are not claimed ahead; runs
of short ones are claimed in batches, which share a commit."""

MOST_AHEAD = 1000

BUSY_SECONDS = 0.01
"""After a claim that found runs the next one mostly comes soon. Only after so many seconds without
a wake-up the worker asks when the next run is due."""

UNREADABLE_SNOOZE = timedelta(minutes=1)
"""How long a run is snoozed whose job, or whose upstream run, cannot be read."""

SEARCH_PAUSE, LONGEST_SEARCH_PAUSE = 0.05, 0.5
"""Seconds before the next claim for groups that are not busy, after one that found none. The store
may have to skip a long backlog of the busy groups, so the pause is also 20 times as long as the
claim took (10,000 runs on SQLite: 10 ms)."""

NO_THREAD_SNOOZE = timedelta(seconds=5)
"""How long a run is snoozed for whose handler no thread could be started."""

NO_THREAD_REASON = "its worker could not start a thread"

NODE_LACKS_HANDLER = "its node does not have the job's handler"
"""The reason of a node run whose job was given another handler since."""

DRAIN_GRACE = 2.0
"""Seconds that a drain waits for a claim under way, and for handlers that it has cancelled."""


class Worker:
    """`finished(run_id)` is called when the end of a run of this worker is committed."""

    def __init__(self, engine: EngineContext, finished: Callable[[str], None]) -> None:
        self._engine = engine
        self._settings = engine.settings
        self.leases = Leases(engine, lose=self._lose, cancel=self._cancel)
        self.completer = Completer(engine, self.leases, finished)
        self._ready: deque[LocalAttempt] = deque()
        self._groups = GroupLimits(engine.settings.workers, engine.clock.monotonic)
        self._search_at = 0.0  # when to claim again while a group is busy
        # A run may be active twice: its first attempt was lost, and it was claimed again.
        self._active: dict[LocalAttempt, None] = {}
        # Attempts whose begin is being committed; each takes capacity.
        self._recording: dict[LocalAttempt, None] = {}
        self._suspects = Suspects(
            engine.time,
            engine.clock,
            resume_others=self._begin_others,
            give_back=self._give_back_until,
        )
        self._default_handler = DefaultHandler(engine)
        self._capacity_taken = 0
        self._loop_blocked = False  # the program's
        self._stuck: set[LocalAttempt] = set()
        self._wake = asyncio.Event()
        self._claimed_last = asyncio.Event()
        self._draining = False
        self._drain_ends = float("inf")  # by the monotonic clock
        self.memory_limit_reached = False  # the process holds too much memory: it drains
        self._last_claim_was_full = True  # then the store may have more due runs
        self._claimed_at = 0.0
        self._turns: dict[int, str] = {}  # by priority, the job of the run that was claimed last
        self._next_due: datetime | None = None  # by the last claim, which found nothing due
        self._handler_seconds = 1.0
        self._dispatcher: Dispatcher
        self.telemetry: Telemetry | None = None

    @property
    def running(self) -> int:
        return len(self._active) - self._dispatcher.queued

    @property
    def claimed_ahead(self) -> int:
        """How many claimed runs wait for capacity."""
        held = len(self._ready) + len(self._recording) + len(self._suspects.waiting)
        return held + self._dispatcher.queued

    @property
    def stuck(self) -> int:
        """How many handlers outlived their attempt and still take capacity."""
        return len(self._stuck)

    def set_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Use this dispatcher, which calls `began`, `ended` and `handler_ended`."""
        self._dispatcher = dispatcher
        self.completer.call_hook = dispatcher.call_hook

    def wake(self) -> None:
        """Claim soon: a run may be due, or may have changed."""
        self._wake.set()
        self.leases.wake()

    async def claim_repeatedly(self) -> None:
        """Claim whenever there is capacity, until the worker drains."""
        while not self._draining:
            self._wake.clear()
            for attempt in self._groups.surplus():
                self._complete_unbegun(
                    attempt, transitions.released(attempt.run, self._now(), began=False)
                )
            busy = self._groups.busy_jobs()
            pause = self._search_at - self._engine.clock.monotonic() if busy else 0.0
            limit = self._claim_limit() if pause <= 0 else 0
            found = await self._claim(limit, busy) if limit > 0 else 0
            self._last_claim_was_full = limit <= found
            if limit <= 0:
                poll = self._settings.poll.total_seconds()
                await wait_for_event(self._wake, min(poll, pause) if pause > 0 else poll)
            elif busy and not found:
                took = self._engine.clock.monotonic() - self._claimed_at
                pause = min(max(20 * took, SEARCH_PAUSE), LONGEST_SEARCH_PAUSE)
                self._search_at = self._engine.clock.monotonic() + pause
            elif found and not self._last_claim_was_full:
                await wait_for_event(self._wake, BUSY_SECONDS)
            elif not self._last_claim_was_full:
                await self._sleep_until_due()
        unbegun = [*self._groups.waiting, *self._ready, *self._suspects.waiting, *self._recording]
        for attempt in [*unbegun, *self._active]:
            if self._take_back(attempt):
                self._give_back(attempt)
        self._claimed_last.set()

    def limit_drain(self, timeout: float) -> None:
        """Let a drain, also one that is under way, wait for handlers no longer than this."""
        self._drain_ends = min(self._drain_ends, self._engine.clock.monotonic() + timeout)
        self._wake.set()

    async def drain(self) -> None:
        """Stop claiming, give back what has not begun, and wait for the rest (see `limit_drain`);
        then stop it."""
        self._draining = True
        self._wake.set()
        with contextlib.suppress(TimeoutError):  # a claim under way may still bring runs
            async with asyncio.timeout(DRAIN_GRACE):
                await self._claimed_last.wait()
        await self._wait_for_active(lambda: self._drain_ends)
        for attempt in list(self._active):
            self._dispatcher.stop(attempt, self._drain_reason(attempt))
        grace_ends = self._engine.clock.monotonic() + DRAIN_GRACE
        await self._wait_for_active(lambda: grace_ends)
        for attempt in list(self._active):
            log.warning(
                "the handler of job %s does not stop, though it was cancelled; its run %s is given"
                " back",
                attempt.run.job_id,
                attempt.run.id,
            )
            self._dispatcher.give_up(attempt)
        for attempt in self._stuck:
            self._dispatcher.abandon(attempt)

    def _drain_reason(self, attempt: LocalAttempt) -> StopReason:
        """Of the handlers that run when the process is at its memory limit, nobody knows which one
        took the memory: it may be any of those that share it."""
        shares_memory = attempt.isolation is not Isolation.PROCESS and not attempt.handler.built_in
        if self.memory_limit_reached and shares_memory:
            return StopReason.MEMORY
        return StopReason.DRAIN

    async def close(self) -> None:
        self.completer.close()
        await self._dispatcher.close()

    # Claiming

    def _free(self) -> int:
        free = self._settings.workers - self._capacity_taken
        # A blocked loop cannot release what it does not use.
        return free + self._dispatcher.unused_capacity if self._loop_blocked else free

    def _claim_limit(self) -> int:
        """How many runs to claim. Runs are claimed ahead again when half of them have begun: fewer
        and larger claims cost fewer commits."""
        if self._suspects.blocks_others or self.memory_limit_reached:
            return 0
        free, ready = max(self._free(), 0), self.claimed_ahead
        asked = self._settings.workers / self._handler_seconds * AHEAD_SECONDS
        ahead = min(int(asked), MOST_AHEAD)
        return free + ahead - ready if free > ready or ready <= ahead // 2 else 0

    async def _claim(self, limit: int, busy: frozenset[str]) -> int:
        await self._default_handler.search()
        sent = self._claimed_at = self._engine.clock.monotonic()
        claim = self._make_claim(limit, busy)
        claimed = await self._engine.retrying_store.claim(claim)
        runs, self._next_due = claimed.runs, claimed.next_due
        self._turns |= {run.priority: run.job_id for run in runs}
        if runs:
            if (claimed_at := runs[0].started_at) is not None:
                # Else a run that is snoozed for less than our time lags behind the store's is due
                # again at once, and is claimed and snoozed as fast as the store can.
                self._engine.time.advance_to(claimed_at)
            await self._admit(runs, sent)
        return len(runs)

    def _make_claim(self, limit: int, busy: frozenset[str]) -> Claim:
        return Claim(
            worker=self._settings.worker_id,
            handlers=self.handlers(),
            queues=self._settings.queues,
            limit=limit,
            lease=self._settings.lease,
            most=dict.fromkeys(busy, 0),
            turns=dict(self._turns),
        )

    def handlers(self) -> frozenset[str]:
        """The handlers that can begin here: no async ones while the program's loop is blocked."""
        registry = self._engine.registry
        names = registry.names() | self._default_handler.names
        if not self._loop_blocked:
            return names | {node_handler(self._settings.worker_id)}
        found = {name: registry.get_for_run(name) for name in names}
        return frozenset(n for n, one in found.items() if one.built_in or not one.is_async)

    async def _sleep_until_due(self) -> None:
        seconds = self._settings.poll.total_seconds()
        if self._next_due is not None:
            seconds = min(seconds, (self._next_due - self._engine.time.now()).total_seconds())
        await wait_for_event(self._wake, max(seconds, 0.001))

    async def _admit(self, runs: list[Run], sent: float) -> None:
        """Make attempts of claimed runs; complete those that will not run."""
        registry = self._engine.registry
        newest = {
            run.job_id
            for run in runs
            if node_of(run) is not None or registry.get_for_run(run.handler).reads_job
        }
        ids = {run.job_id for run in runs}
        guarded = [job.id for job in self._engine.jobs.last_known(ids) if job.policy.breaker]
        reading = self._engine.jobs.get(ids, newest, store=self._engine.retrying_store)
        notes: BreakerNotes = {}
        if guarded:  # both reads at once: what is admitted later begins later
            breakers = self.completer.breakers
            jobs, notes = await asyncio.gather(reading, breakers.read_notes(guarded))
        else:
            jobs = await reading
        results, blocked, upstream_gone = await self._upstream_results(runs)
        now = self._now()
        late = {run.id for run in runs if run.start_by is not None and now > run.start_by}
        in_time = [run for run in runs if run.id not in late]
        put_off = await self._runs_with_open_breaker(in_time, jobs, notes)
        for run in runs:
            job = jobs[run.job_id]
            if job is None or job_was_removed(
                run, job
            ):  # removed, perhaps replaced by another of its id
                now = self._engine.time.now()
                self.completer.complete_without_attempt(
                    run, transitions.cancelled(run, now, "job removed")
                )
                continue
            if job.unreadable is not None or run.id in blocked:
                # Its policy, or a result that its handler is given, cannot be read.
                now = self._engine.time.now()
                reason = "its job, or a run that it comes after, cannot be read"
                self.completer.complete_without_attempt(
                    run, transitions.snoozed(run, now, now + UNREADABLE_SNOOZE, reason)
                )
                continue
            if run.id in upstream_gone:
                self.completer.complete_without_attempt(
                    run, transitions.skipped(run, self._now(), transitions.UPSTREAM_DELETED)
                )
                continue
            if run.id in late:  # an open breaker does not keep it: later slots may wait for its end
                self.completer.complete_without_attempt(
                    run, transitions.skipped(run, self._now(), transitions.EXPIRED)
                )
                continue
            if run.id in put_off:
                self.completer.complete_without_attempt(
                    run, self._put_off_by_breaker(run, put_off[run.id])
                )
                continue
            try:
                handler = registry.get_for_run(
                    job.handler if node_of(run) is not None else run.handler
                )
            except HandlerNotFound:  # the job has another handler since this node run was made
                self.completer.complete_without_attempt(
                    run, transitions.skipped(run, self._now(), NODE_LACKS_HANDLER)
                )
                continue
            context = RunContext(
                run, self._engine.resources, results.get(run.id), job, self._transact
            )
            attempt = LocalAttempt(run, job, handler, context, sent)
            self.leases.hold(attempt)
            if transitions.is_suspect(run):
                if not self._put_off(attempt):
                    self._suspects.add(attempt)
            elif self._groups.start(attempt):
                self._make_ready(attempt)
            elif not self._groups.wait(attempt):
                self._complete_unbegun(attempt, transitions.released(run, self._now(), began=False))
        self._begin()

    def _make_ready(self, attempt: LocalAttempt) -> None:
        """Let an attempt begin that its group has capacity for. One that is too late, or whose
        breaker is open, is completed instead, and the next one of the group begins."""
        while not self._draining and self._put_off(attempt):
            successor = self._groups.leave(attempt)
            if successor is None:
                return
            attempt = successor
        self._ready.append(attempt)

    def _leave_group(self, attempt: LocalAttempt, seconds: float | None = None) -> None:
        """Let the next attempt of the group begin, after one that has ended or will not begin."""
        if (successor := self._groups.leave(attempt, seconds)) is not None:
            self._make_ready(successor)

    def _complete_unbegun(self, attempt: LocalAttempt, change: transitions.Change) -> None:
        """Complete an attempt that is held and has not begun."""
        self.leases.release(attempt)
        self.completer.complete_without_attempt(attempt.run, change)

    def _now(self) -> datetime:
        return self._engine.time.now()

    def _transact(self, context: RunContext) -> RunTransaction:
        return RunTransaction(self._engine, self.leases.attempt_of(context))

    def _put_off(self, attempt: LocalAttempt) -> bool:
        """Skip a run that is too late; snooze one whose breaker has opened while it waited here.
        Return whether it did."""
        run, breaker = attempt.run, attempt.job.policy.breaker
        if run.start_by is not None and (now := self._now()) > run.start_by:
            self._complete_unbegun(attempt, transitions.skipped(run, now, transitions.EXPIRED))
            return True
        if breaker is None:
            return False
        until = self.completer.breakers.known_wait(run, attempt.job)
        if until is None:
            return False
        self._complete_unbegun(attempt, self._put_off_by_breaker(run, until))
        return True

    async def _runs_with_open_breaker(
        self, runs: list[Run], jobs: dict[str, Job | None], notes: BreakerNotes
    ) -> dict[str, datetime]:
        """Which of the runs their job's circuit breaker does not let start, and until when."""
        guarded = [
            (run, job)
            for run in runs
            if (job := jobs[run.job_id]) is not None
            and job.policy.breaker is not None
            and not job_was_removed(run, job)
        ]
        return await self.completer.breakers.admit(guarded, notes) if guarded else {}

    def _put_off_by_breaker(self, run: Run, until: datetime) -> transitions.Change:
        now = self._now()
        return transitions.snoozed(run, now, max(until, now + LEAST_SNOOZE), PUT_OFF_REASON)

    async def _upstream_results(
        self, runs: list[Run]
    ) -> tuple[dict[str, UpstreamResults], set[str], set[str]]:
        """Return how the upstream runs of each run ended; the runs of which an upstream run cannot
        be read; and those of which one is gone."""
        upstream = {run.id: names for run in runs if (names := runs_with_results(run))}
        if not upstream:
            return {}, set(), set()
        wanted = frozenset(name for names in upstream.values() for name in names)
        page = await self._engine.retrying_store.find(RunQuery(ids=wanted))
        ended = {run.id: run for run in page.items}
        unreadable = {run.id for run in ended.values() if run.unreadable is not None}
        blocked = {run_id for run_id, names in upstream.items() if not unreadable.isdisjoint(names)}
        upstream_gone = {
            run_id for run_id, names in upstream.items() if not ended.keys() >= set(names)
        }
        results = {
            run_id: UpstreamResults(UpstreamRun.of(ended[name]) for name in names)
            for run_id, names in upstream.items()
            if run_id not in upstream_gone
        }
        return results, blocked, upstream_gone

    def _begin(self) -> None:
        """Give ready attempts to the dispatcher, in order, as far as there is capacity."""
        if self._draining:
            return
        idle = not self._active and not self._recording
        if (suspect := self._suspects.next_to_begin(idle=idle)) is not None:
            self._record_begin(suspect)
        if self._suspects.blocks_others:
            return
        batch: list[LocalAttempt] = []
        free = self._free()
        while self._ready:
            attempt = self._ready[0]
            if self._must_wait_for_loop(attempt):
                self._ready.popleft()
                self._leave_group(attempt)
                self._give_back(attempt)
                continue
            if transitions.records_begin(attempt.run, attempt.job):
                if free <= 0:
                    break
                free -= 1
                self._record_begin(self._ready.popleft())
                continue
            if not self._dispatcher.runs_on_loop(attempt):
                if free <= 0:
                    break
                if not self.leases.is_safe(attempt):
                    self._ready.popleft()
                    self._leave_group(attempt)
                    self._give_back(attempt)
                    continue
                free -= 1
            batch.append(self._ready.popleft())
            self._active[attempt] = None
        self._capacity_taken += self._dispatcher.begin(batch, self._free())

    def _record_begin(self, attempt: LocalAttempt) -> None:
        """Commit that the handler of an attempt begins, and begin it then. It takes capacity from
        now on, so that it begins soon after that commit."""
        self._capacity_taken += 1
        self._recording[attempt] = None
        self.completer.record_begin(attempt, lambda kept: self._begin_recorded(attempt, kept))

    def _begin_recorded(self, attempt: LocalAttempt, kept: bool) -> None:
        if attempt not in self._recording:  # it was taken back during the commit
            return
        del self._recording[attempt]
        self._capacity_taken -= 1
        if kept and self.leases.is_safe(attempt) and not self._must_wait_for_loop(attempt):
            self._active[attempt] = None
            self._capacity_taken += self._dispatcher.begin([attempt], self._free(), first=True)
            return
        self._suspects.attempt_ended(attempt)
        self._leave_group(attempt)
        if kept:
            self._give_back(attempt)
        self._begin_others()

    def _begin_others(self) -> None:
        self._begin()
        self._wake_if_more_may_be_due()

    def began(self, attempt: LocalAttempt) -> None:
        """Emit that a handler is about to begin. Called on any thread."""
        self._engine.emit("run.started", attempt.run)

    # A blocked loop

    def loop_blocked(self, where: str) -> None:
        """The program's loop is blocked: give back what has not begun there, for other workers, and
        claim no more for it."""
        self._loop_blocked = True
        given_back = 0
        for attempt in list(self._active):
            if self._must_wait_for_loop(attempt) and self._take_back(attempt):
                self._give_back(attempt)
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
        log.warning("the event loop answers again; runs of async handlers are claimed again")
        self._wake.set()

    def _must_wait_for_loop(self, attempt: LocalAttempt) -> bool:
        return (
            self._loop_blocked
            and self._dispatcher.runs_on_loop(attempt)
            and not attempt.handler.built_in
        )

    def _blocker(self) -> str:
        task = self._dispatcher.current_task()
        for attempt in self._active:
            if task is not None and attempt.task is task:
                return f"the handler of job {attempt.run.job_id} (run {attempt.run.id})"
        return "the program"

    # Ending

    def ended(self, attempts: list[LocalAttempt], released: int) -> None:
        """Decide what becomes of each run whose attempt has ended, and complete it."""
        self._capacity_taken -= released
        now = self._engine.time.now()
        for attempt in attempts:
            try:
                self._end_attempt(attempt, now)
            except Exception as error:  # it must not hold up the others
                log.exception(
                    "the outcome of run %s cannot be decided; the run is rescued when its lease"
                    " lapses",
                    attempt.run.id,
                )
                self._engine.emit("scheduler.error", attempt.run, error)
                self.leases.release(attempt)
        self._update_handler_seconds(attempts)
        self._begin_others()

    def _end_attempt(self, attempt: LocalAttempt, now: datetime) -> None:
        self._active.pop(attempt, None)
        self._leave_group(attempt, _seconds(attempt, now) if attempt.stop_reason is None else None)
        self._suspects.attempt_ended(attempt)
        if attempt.lingering:
            self._add_stuck(attempt)
        decision = None
        if attempt.stop_reason is StopReason.LOST and not attempt.committed:
            self.leases.release(attempt)
        elif attempt.stop_reason is StopReason.LATE:
            self._give_back(attempt)
        elif attempt.stop_reason is StopReason.NO_THREAD:
            self._give_back_until(attempt, now + NO_THREAD_SNOOZE, NO_THREAD_REASON)
        else:
            decision = decide(attempt, now, self._engine.rng)
            self.completer.complete(attempt, decision)
        if self.telemetry is not None:
            self.telemetry.end(attempt, decision)

    def handler_ended(self, attempt: LocalAttempt) -> None:
        """A handler in a thread or process has ended, perhaps after its attempt: its capacity is
        free again."""
        self._capacity_taken -= 1
        self._stuck.discard(attempt)
        self._begin_others()

    def ended_late(self, attempt: LocalAttempt) -> None:
        """A handler on a loop has ended after its attempt."""
        self._stuck.discard(attempt)

    def _wake_if_more_may_be_due(self) -> None:
        """Claim again if the last claim was limited by capacity. If it was not, the store has no
        more due runs; a limit has capacity once an end is committed, and that commit comes with a
        hint."""
        if self._last_claim_was_full or self._draining or self._groups.wants_more:
            self._wake.set()

    def _give_back(self, attempt: LocalAttempt) -> None:
        now = self._engine.time.now()
        self.completer.complete(
            attempt, Decision(transitions.released(attempt.run, now, began=False))
        )

    def _give_back_until(
        self, attempt: LocalAttempt, until: datetime, reason: str | None = None
    ) -> None:
        change = transitions.snoozed(attempt.run, self._now(), until, reason)
        self.completer.complete(attempt, Decision(change))

    def _take_back(self, attempt: LocalAttempt) -> bool:
        """Take an attempt that has not begun out of all queues; return False if it has begun."""
        if self._groups.remove(attempt):
            return True
        if attempt in self._recording:
            del self._recording[attempt]
            self._capacity_taken -= 1
        elif attempt in self._active:
            if not self._dispatcher.take_back(attempt):
                return False
            del self._active[attempt]
        elif attempt in self._ready:
            self._ready.remove(attempt)
        self._suspects.attempt_ended(attempt)
        self._leave_group(attempt)
        return True

    def _cancel(self, attempt: LocalAttempt) -> None:
        if not self._take_back(attempt):
            self._dispatcher.stop(attempt, StopReason.CANCEL)
            return
        now = self._engine.time.now()
        self.completer.complete(
            attempt, Decision(transitions.cancelled(attempt.run, now, attempt.run.reason))
        )
        self._begin()

    def _lose(self, attempt: LocalAttempt) -> None:
        log.warning("lost the lease of run %s; its handler is stopped", attempt.run.id)
        self._engine.emit("ownership.lost", attempt.run)
        if not self._take_back(attempt):
            self._dispatcher.stop(attempt, StopReason.LOST)
        self.leases.release(attempt)
        self._begin()

    async def _wait_for_active(self, ends: Callable[[], float]) -> None:
        """Wait until no attempt is active, or until a moment that may come nearer meanwhile."""
        while self._active and (left := ends() - self._engine.clock.monotonic()) > 0:
            self._wake.clear()
            await wait_for_event(self._wake, max(left, 0.001))

    def _update_handler_seconds(self, attempts: list[LocalAttempt]) -> None:
        """Update the mean duration of handlers, which decides how far ahead to claim. The initial
        value is too long for most handlers, so the mean falls faster than it rises."""
        if not attempts:
            return
        now = self._engine.time.now()
        seconds = sum(_seconds(attempt, now) for attempt in attempts) / len(attempts)
        change = max(seconds, 1e-5) - self._handler_seconds
        self._handler_seconds += change * (0.75 if change < 0 else 0.5)

    def _add_stuck(self, attempt: LocalAttempt) -> None:
        self._stuck.add(attempt)
        if attempt.stop_reason is StopReason.TIMEOUT:
            log.warning(
                "run %s of job %s timed out, but its %s goes on and takes capacity (%d of %d are"
                ' taken so); a handler with isolation="process" can be stopped',
                attempt.run.id,
                attempt.run.job_id,
                "handler" if self._dispatcher.runs_on_loop(attempt) else "thread",
                len(self._stuck),
                self._settings.workers,
            )


def _seconds(attempt: LocalAttempt, now: datetime) -> float:
    if attempt.took is not None:
        return attempt.took
    return (now - attempt.began_at).total_seconds() if attempt.began_at is not None else 0.0
