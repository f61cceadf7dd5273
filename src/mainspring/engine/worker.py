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
from mainspring.core.context import RunContext, UpstreamResults, UpstreamRun, runs_with_results
from mainspring.core.handlers import Handler
from mainspring.core.model import Job, Run, node_handler, node_of
from mainspring.core.policy import Isolation
from mainspring.engine.attempt import LocalAttempt, StopReason
from mainspring.engine.completer import Completer
from mainspring.engine.context import EngineContext
from mainspring.engine.executors.dispatcher import Dispatcher
from mainspring.engine.group_limits import GroupLimits
from mainspring.engine.handler_transaction import RunTransaction
from mainspring.engine.jobs_without_worker import DefaultHandler
from mainspring.engine.leases import Leases
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.outcome import Decision, decide
from mainspring.engine.slots import job_was_removed
from mainspring.engine.telemetry import Telemetry
from mainspring.errors import HandlerNotFound
from mainspring.stores.protocol import Claim, RunQuery

log = logging.getLogger("mainspring")

AHEAD_SECONDS = 0.05
"""Seconds of work that may wait in this process: runs of short handlers are claimed in batches,
which share a commit."""

MOST_AHEAD = 1000

SHORT_SECONDS = 0.1
"""Runs of jobs whose handlers take longer than this on average are not claimed ahead."""

MOST_JOBS = 1000
"""Of how many jobs the mean duration is remembered."""

LONGEST_WAIT = 1.0
"""Seconds after which a run that was claimed and has not begun is given back: its worker is busy
with others, and another worker may be idle."""

LONGEST_ALONE = 60.0
"""Seconds that a suspect has the process to itself. A handler of an hour must not stop everything
else for an hour."""

SUSPECT_PATIENCE = timedelta(minutes=5)
"""A suspect that has met no idle worker for this long begins beside others."""

SHORTEST_SUSPECT_SNOOZE, LONGEST_SUSPECT_SNOOZE = timedelta(seconds=0.1), timedelta(seconds=30)
"""A suspect that meets a busy worker is given back for a tenth of the time that it has waited,
within these bounds."""

BUSY_SECONDS = 0.01
"""After a claim that found runs the next one mostly comes soon. Only after so many seconds without
a wake-up the worker asks when the next run is due."""

UNREADABLE_SNOOZE = timedelta(minutes=1)
"""How long a run is snoozed whose job, or whose upstream run, cannot be read."""

SEARCH_PAUSE, LONGEST_SEARCH_PAUSE = 0.05, 0.5
"""Seconds before the next claim for groups that use less than their share, after one that found
nothing. The pause is also 20 times as long as that claim took."""

NO_THREAD_SNOOZE = timedelta(seconds=5)
"""How long a run is snoozed for whose handler no thread could be started."""

NO_THREAD_REASON = "its worker could not start a thread"

NODE_LACKS_HANDLER = "its node does not have the job's handler"
"""The reason of a node run whose job was given another handler since."""

DRAIN_GRACE = 2.0
"""Seconds that a drain waits for a claim under way, and for handlers that it has cancelled."""


class Worker:
    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        self._settings = engine.settings
        self.leases = Leases(engine, lose=self._lose, cancel=self._cancel)
        self.completer = Completer(engine, self.leases)
        self._ready: deque[LocalAttempt] = deque()
        self._groups = GroupLimits(engine.settings.workers, engine.clock.monotonic)
        self._search_at = 0.0  # when to claim for others again while a group is large
        # A run may be active twice: its first attempt was lost, and it was claimed again.
        self._active: dict[LocalAttempt, None] = {}
        # Attempts whose begin is being committed; each takes capacity.
        self._recording: dict[LocalAttempt, None] = {}
        self._default_handler = DefaultHandler(engine)
        # A suspect that has this process to itself, and until when, by the monotonic clock.
        self._alone: LocalAttempt | None = None
        self._alone_since = 0.0
        self._next_alone_at = 0.0  # the others have the process for as long as the last suspect
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
        self._ended_at = 0.0
        self._short_seconds = 1.0  # the mean duration of handlers of short jobs
        self._job_seconds: dict[str, float] = {}
        self._dispatcher: Dispatcher
        self.telemetry: Telemetry | None = None

    @property
    def running(self) -> int:
        return len(self._active) - self._dispatcher.queued

    @property
    def claimed_ahead(self) -> int:
        """How many claimed runs wait for capacity."""
        return len(self._ready) + len(self._recording) + self._dispatcher.queued

    @property
    def stuck(self) -> int:
        """How many handlers outlived their attempt and still take capacity."""
        return len(self._stuck)

    def set_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Use this dispatcher, which calls `ended` and `handler_ended`."""
        self._dispatcher = dispatcher
        self.completer.call_hook = dispatcher.call_hook

    def wake(self) -> None:
        """Claim soon: a run may be due, or may have changed."""
        self._wake.set()
        self.leases.wake()

    async def claim_repeatedly(self) -> None:
        """Claim whenever there is capacity, until the worker drains."""
        await self.completer.breakers.read_open()
        while not self._draining:
            self._wake.clear()
            self._give_back_waiting()
            await self.completer.breakers.look_again()
            limit = sum(self._limits())
            claimed = await self._claim_for_groups()
            self._last_claim_was_full = limit <= claimed
            if limit <= 0:
                await wait_for_event(self._wake, self._longest_sleep())
            elif claimed and not self._last_claim_was_full:
                await wait_for_event(self._wake, BUSY_SECONDS)
            elif not self._last_claim_was_full:
                await self._sleep_until_due()
        for attempt in [*self._ready, *self._recording, *self._active]:
            if self._take_back(attempt):
                self._give_back(attempt)
        self._claimed_last.set()

    def limit_drain(self, timeout: float) -> None:
        """Let a drain, also one that is under way, wait for handlers no longer than this."""
        self._drain_ends = min(self._drain_ends, self._monotonic() + timeout)
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
        grace_ends = self._monotonic() + DRAIN_GRACE
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

    def _limits(self) -> tuple[int, int]:
        """How many runs to claim for free capacity, and how many ahead of it. Runs are claimed
        ahead again when half of them have begun: fewer and larger claims cost fewer commits."""
        if self._runs_alone() or self.memory_limit_reached:
            return 0, 0
        free, held = max(self._free(), 0), self.claimed_ahead
        seconds = self._short_seconds
        if not free:  # where nothing ends, handlers take at least so long
            seconds = max(seconds, self._monotonic() - self._ended_at)
        ahead = min(int(self._settings.workers / seconds * AHEAD_SECONDS), MOST_AHEAD)
        if held < free:
            return free - held, ahead
        waiting = held - free
        return 0, ahead - waiting if waiting <= ahead // 2 else 0

    async def _claim_for_groups(self) -> int:
        """Claim runs; return how many. Groups that use their share already come after all others,
        for which the worker searches every now and then."""
        full = self._groups.full_jobs()
        large = self._groups.large_jobs() - full
        claimed = 0
        if large and self._search_at <= self._monotonic():
            claimed = await self._claim(full | large)
            if not claimed:
                took = self._monotonic() - self._claimed_at
                pause = min(max(20 * took, SEARCH_PAUSE), LONGEST_SEARCH_PAUSE)
                self._search_at = self._monotonic() + pause
        return claimed + await self._claim(full)

    async def _claim(self, excluded: set[str]) -> int:
        free, ahead = self._limits()
        if free + ahead <= 0:
            return 0
        await self._default_handler.search()
        sent = self._claimed_at = self._monotonic()
        claim = self._make_claim(free, ahead, excluded)
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

    def _make_claim(self, free: int, ahead: int, excluded: set[str]) -> Claim:
        long = (job_id for job_id, took in self._job_seconds.items() if took > SHORT_SECONDS)
        most = dict.fromkeys(long, free) if ahead else {}
        most |= self.completer.breakers.most_runs() | dict.fromkeys(excluded, 0)
        # While a backlog of short runs goes on there is no free capacity, and runs of jobs with a
        # limit begin soon all the same. Otherwise they would wait for the end of that backlog.
        goes_on = self._monotonic() - self._ended_at < 2 * AHEAD_SECONDS
        limited = max(free, self._settings.workers - self._count_long()) if goes_on else free
        return Claim(
            worker=self._settings.worker_id,
            handlers=self.handlers(),
            queues=self._settings.queues,
            limit=free + ahead,
            ahead=max(free + ahead - limited, 0),
            lease=self._settings.lease,
            most=most,
            turns=dict(self._turns),
        )

    def _count_long(self) -> int:
        """How much capacity is taken, or will be, by handlers that are not known to be short: a run
        that waits for it would be given back, and if its job has a rate, that start is lost."""
        held = (*self._ready, *self._recording, *self._active)
        seconds = (self._job_seconds.get(attempt.run.job_id) for attempt in held)
        return len(self._stuck) + sum(took is None or took > SHORT_SECONDS for took in seconds)

    def handlers(self) -> frozenset[str]:
        """The handlers that can begin here: no async ones while the program's loop is blocked."""
        registry = self._engine.registry
        names = registry.names() | self._default_handler.names
        if not self._loop_blocked:
            return names | {node_handler(self._settings.worker_id)}
        handlers = {name: registry.get_for_run(name) for name in names}
        return frozenset(n for n, h in handlers.items() if h.built_in or not h.is_async)

    def _longest_sleep(self) -> float:
        """After how many seconds to look at the store, and at what waits here, at the latest."""
        seconds = self._settings.poll.total_seconds()
        if (look := self.completer.breakers.seconds_to_look()) is not None:
            seconds = min(seconds, look)
        if self._runs_alone():
            seconds = min(seconds, self._alone_since + LONGEST_ALONE - self._monotonic())
        if self.claimed_ahead:
            seconds = min(seconds, LONGEST_WAIT / 4)
        return max(seconds, 0.001)

    async def _sleep_until_due(self) -> None:
        seconds = self._longest_sleep()
        if self._next_due is not None:
            seconds = min(seconds, (self._next_due - self._engine.time.now()).total_seconds())
        await wait_for_event(self._wake, max(seconds, 0.001))

    async def _admit(self, runs: list[Run], sent: float) -> None:
        """Make attempts of claimed runs; complete those that will not run."""
        get_handler = self._engine.registry.get_for_run
        newest = {
            run.job_id
            for run in runs
            if node_of(run) is not None or get_handler(run.handler).reads_job
        }
        ids = {run.job_id for run in runs}
        jobs = await self._engine.jobs.get(ids, newest, store=self._engine.retrying_store)
        results, blocked, upstream_gone = await self._upstream_results(runs)
        now = self._now()
        late = {run.id for run in runs if run.start_by is not None and now > run.start_by}
        in_time = [run for run in runs if run.id not in late]
        refused = await self._refused_by_breaker(in_time, jobs)
        suspects: list[LocalAttempt] = []
        transact = self._transact  # one bound method for all of them
        # A start that counts for a rate begins before the others: it is lost if it is given back.
        for run in sorted(runs, key=lambda run: not _has_rate(jobs[run.job_id])):
            job = jobs[run.job_id]
            if job is None or job_was_removed(run, job):  # perhaps replaced by another of its id
                change = transitions.cancelled(run, now, transitions.JOB_REMOVED)
            elif job.unreadable is not None or run.id in blocked:
                # Its policy, or a result that its handler is given, cannot be read.
                reason = "its job, or a run that it comes after, cannot be read"
                change = transitions.snoozed(run, now, now + UNREADABLE_SNOOZE, reason)
            elif run.id in upstream_gone:
                change = transitions.skipped(run, now, transitions.UPSTREAM_DELETED)
            elif (
                run.id in late
            ):  # an open breaker does not keep it: later slots may wait for its end
                change = transitions.skipped(run, now, transitions.EXPIRED)
            elif run.id in refused:
                change = transitions.released(run, now, began=False)
            elif (handler := self._find_handler(run, job)) is None:
                change = transitions.skipped(run, now, NODE_LACKS_HANDLER)
            else:
                context = RunContext(
                    run, self._engine.resources, results.get(run.id), job, transact
                )
                attempt = LocalAttempt(run, job, handler, context, sent, self._monotonic())
                self.leases.hold(attempt)
                if transitions.is_suspect(run) and self._has_waited(run) < SUSPECT_PATIENCE:
                    suspects.append(attempt)
                else:
                    self._make_ready(attempt)
                continue
            self.completer.complete_without_attempt(run, change)
        self._begin()
        for suspect in suspects:
            self._begin_alone(suspect)

    def _find_handler(self, run: Run, job: Job) -> Handler | None:
        """None: the job has another handler since this node run was made."""
        name = job.handler if node_of(run) is not None else run.handler
        try:
            return self._engine.registry.get_for_run(name)
        except HandlerNotFound:
            return None

    def _make_ready(self, attempt: LocalAttempt) -> None:
        """Let an attempt begin that is in time, and that its group lets begin."""
        run = attempt.run
        if run.start_by is not None and (now := self._now()) > run.start_by:
            self._complete_unbegun(attempt, transitions.skipped(run, now, transitions.EXPIRED))
        elif not self._groups.start(attempt):
            self._complete_unbegun(attempt, transitions.released(run, self._now(), began=False))
        else:
            self._ready.append(attempt)

    def _begin_alone(self, attempt: LocalAttempt) -> None:
        """Begin a suspect if nothing else is held here. Otherwise give it back for a while."""
        run, now = attempt.run, self._now()
        left = timedelta(seconds=self._next_alone_at - self._monotonic())
        busy = self._active or self._recording or self._ready
        if busy or left > timedelta() or not self.can_begin(attempt):
            snooze = max(self._has_waited(run) / 10, left, SHORTEST_SUSPECT_SNOOZE)
            snooze = min(snooze, LONGEST_SUSPECT_SNOOZE)
            self._complete_unbegun(attempt, transitions.snoozed(run, now, now + snooze))
            return
        log.warning(
            "run %s of job %s was held by %d workers that died; it runs alone now, to find out"
            " whether it kills its worker",
            run.id,
            run.job_id,
            run.lapses,
        )
        self._alone, self._alone_since = attempt, self._monotonic()
        self._record_begin(attempt)

    def _has_waited(self, run: Run) -> timedelta:
        """How long a suspect has waited for an idle worker, about."""
        return self._now() - (run.attempts[-1].finished_at if run.attempts else run.scheduled_at)

    def _runs_alone(self) -> bool:
        """Whether a suspect has this process to itself: nothing else is claimed meanwhile."""
        return self._alone is not None and self._monotonic() < self._alone_since + LONGEST_ALONE

    def can_begin(self, attempt: LocalAttempt) -> bool:
        """Whether an attempt may still begin that has waited here: its lease cannot have lapsed,
        its breaker has not opened since it was claimed, and if its job has a rate, it has not
        waited for long: else such runs might start in a burst. Called on any thread."""
        rated = attempt.job.policy.rate is not None
        if rated and self._monotonic() - attempt.admitted_at > LONGEST_WAIT:
            return False
        return self.leases.is_safe(attempt) and self.completer.breakers.may_begin(attempt)

    def _complete_unbegun(self, attempt: LocalAttempt, change: transitions.Change) -> None:
        """Complete an attempt that is held and has not begun."""
        self.leases.release(attempt)
        self.completer.complete_without_attempt(attempt.run, change)

    def _now(self) -> datetime:
        return self._engine.time.now()

    def _monotonic(self) -> float:
        return self._engine.clock.monotonic()

    def _transact(self, context: RunContext) -> RunTransaction:
        return RunTransaction(self._engine, self.leases.attempt_of(context))

    async def _refused_by_breaker(self, runs: list[Run], jobs: dict[str, Job | None]) -> set[str]:
        """Which of the runs their job's circuit breaker does not let start."""
        breakers = self.completer.breakers
        breakers.forget(i for i, job in jobs.items() if job is None or job.policy.breaker is None)
        guarded = [
            (run, job)
            for run in runs
            if (job := jobs[run.job_id]) is not None
            and job.policy.breaker is not None
            and not job_was_removed(run, job)
        ]
        return await breakers.refused(guarded) if guarded else set()

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
        batch: list[LocalAttempt] = []
        free = self._free()
        while self._ready:
            attempt = self._ready[0]
            if self._must_wait_for_loop(attempt):
                self._take_back(attempt)
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
                if not self.can_begin(attempt):
                    self._take_back(attempt)
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
        if kept and self.can_begin(attempt) and not self._must_wait_for_loop(attempt):
            self._active[attempt] = None
            self._capacity_taken += self._dispatcher.begin([attempt], self._free(), first=True)
            return
        self._leave(attempt)
        if kept:
            self._give_back(attempt)
        self._begin_others()

    def _begin_others(self) -> None:
        self._begin()
        self._wake_if_more_may_be_due()

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
        self._ended_at = self._monotonic()
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
                self._drop(attempt)
        self._update_durations(attempts)
        self._begin_others()

    def _end_attempt(self, attempt: LocalAttempt, now: datetime) -> None:
        self._active.pop(attempt, None)
        has_run = attempt.stop_reason in (None, StopReason.TIMEOUT)
        self._leave(attempt, _seconds(attempt, now) if has_run else None)
        if not self._dispatcher.runs_on_loop(attempt):
            self.completer.breakers.handler_ended(attempt)
        if attempt.lingering:
            self._add_stuck(attempt)
        decision = None
        if attempt.stop_reason is StopReason.LOST and not attempt.committed:
            self._drop(attempt)
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

    def _give_back_waiting(self) -> None:
        """Give back the attempts that were claimed a while ago and have not begun."""
        before = self._monotonic() - LONGEST_WAIT
        waiting = [*self._ready, *self._active] if self.claimed_ahead else []
        for attempt in waiting:
            has_begun = attempt.began_at is not None
            if not has_begun and attempt.admitted_at < before and self._take_back(attempt):
                self._give_back(attempt)

    def _leave(self, attempt: LocalAttempt, seconds: float | None = None) -> None:
        """An attempt has ended (its handler took this long), or will not begin."""
        self._groups.leave(attempt, seconds)
        if attempt is self._alone:
            self._alone, now = None, self._monotonic()
            self._next_alone_at = now + min(now - self._alone_since, LONGEST_ALONE)
            self._wake.set()

    def _drop(self, attempt: LocalAttempt) -> None:
        """Nothing is written about an attempt: its run is not this worker's any more."""
        self.leases.release(attempt)
        self.completer.breakers.settle(attempt)

    def _give_back(self, attempt: LocalAttempt) -> None:
        """Release the run of an attempt that has left, for other workers."""
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
        if attempt in self._recording:
            del self._recording[attempt]
            self._capacity_taken -= 1
        elif attempt in self._active:
            if not self._dispatcher.take_back(attempt):
                return False
            del self._active[attempt]
        elif attempt in self._ready:
            self._ready.remove(attempt)
        self._leave(attempt)
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
        while self._active and (left := ends() - self._monotonic()) > 0:
            self._wake.clear()
            await wait_for_event(self._wake, max(left, 0.001))

    def _update_durations(self, attempts: list[LocalAttempt]) -> None:
        """Update the mean durations, which decide what is claimed ahead, and how much. The initial
        value is too long for most handlers, so the mean of short ones falls faster than it
        rises."""
        now, short = self._engine.time.now(), []
        for attempt in attempts:
            job_id, took = attempt.run.job_id, _seconds(attempt, now)
            before = self._job_seconds.pop(job_id, took)
            mean = self._job_seconds[job_id] = before + (took - before) * 0.5
            if mean <= SHORT_SECONDS:
                short.append(took)
        while len(self._job_seconds) > MOST_JOBS:
            del self._job_seconds[next(iter(self._job_seconds))]
        if short:
            change = max(sum(short) / len(short), 1e-5) - self._short_seconds
            self._short_seconds += change * (0.75 if change < 0 else 0.5)

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


def _has_rate(job: Job | None) -> bool:
    return job is not None and job.policy.rate is not None


def _seconds(attempt: LocalAttempt, now: datetime) -> float:
    if attempt.took is not None:
        return attempt.took
    return (now - attempt.began_at).total_seconds() if attempt.began_at is not None else 0.0
