"""`TestScheduler`: a program's own scheduler on a memory store and on virtual time, for its tests.

The scheduler that is tested is the program's own object, so that its decorated functions, its hooks
and its `enqueue` calls are the real ones. While the test runs, it has another store, another clock
and a stub for webhooks; afterwards it is as it was. Its engine runs on a `TickLoop` in a thread of
its own, so that async and plain tests use the same one.
"""

from __future__ import annotations

import asyncio
import copy
import difflib
import random
import textwrap
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, Self, TypeVar, Unpack
from zoneinfo import ZoneInfo

from mainspring.core import note_kinds
from mainspring.core.codec import decode
from mainspring.core.context import RunContext
from mainspring.core.durations import duration, humanize
from mainspring.core.handlers import Handler, Registry
from mainspring.core.model import FINISHED, Job, Owner, Run, State
from mainspring.core.options import EnqueueOptions, JobRef, job_id_of
from mainspring.core.plurals import plural
from mainspring.core.policy import Isolation, Span
from mainspring.core.resources import Resources
from mainspring.core.transitions import Change
from mainspring.engine.executors.process_pool import resources_of_process
from mainspring.engine.loop_thread import LoopThread, wait_for_event
from mainspring.errors import InvalidInput, InvalidState, NotStarted, refused
from mainspring.scheduler import Scheduler
from mainspring.scheduler.blocking import BlockingMethod, wait_in_plain_code
from mainspring.scheduler.queries import state_set
from mainspring.stores.memory import MemoryStore, copy_for_caller
from mainspring.stores.protocol import Claim, Claimed, NoteWrite
from mainspring.testing.stubs import WebhookStub
from mainspring.testing.virtual_time import RUN, TickLoop
from mainspring.webhooks.handler import WebhookHandler
from mainspring.webhooks.service import Webhooks

T = TypeVar("T")

START = "2030-01-01T00:00:00Z"

KEPT = timedelta(days=36_500)
"""A test may let years pass and then look at all runs. Jobs with a `retention` or `history` of
their own are pruned as they say."""

LONGEST_WAIT = 366 * 24 * 3600.0
"""Seconds of virtual time that a wait without a limit lets pass."""

PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)
"""Seconds of the loop's time that the engine is given for its own short pauses, one after the
other, until all that is due has run. The clock stands still meanwhile. They begin anew whenever
something was done: what comes after it is due now."""

MOST_ROUNDS = 10_000
"""Pauses in all: a handler that always enqueues another run does not hold up the test for ever."""


class Inspection:
    """What a test reads and asserts, in its async and in its blocking form."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.scheduler: Scheduler = bench.scheduler
        self.webhooks: WebhookStub = bench.webhooks

    @property
    def now(self) -> datetime:
        """The virtual time, in UTC. It stands still between two ticks."""
        return self._bench.clock.now()

    def runs(
        self, job: JobRef | None = None, *, state: State | str | Iterable[State | str] | None = None
    ) -> list[Run]:
        """The runs there are, oldest first: of one job, of one state or of several."""
        states = state_set(state)
        job_id = None if job is None else self._bench.known_job(job)
        return [
            run
            for run in self._bench.store.all_runs()
            if (job_id is None or run.job_id == job_id) and (states is None or run.state in states)
        ]

    def describe(self, job: JobRef | None = None) -> str:
        """What happened, as text: every run with its attempts, and the errors with tracebacks."""
        return self._bench.describe(None if job is None else self._bench.known_job(job))

    def assert_succeeded(self, job: JobRef, *, times: int | None = None) -> list[Run]:
        """Runs of the job succeeded (`times` of them, or at least one) and none failed. Returns
        those that succeeded, oldest first."""
        __tracebackhide__ = True
        failed = self.runs(job, state=State.FAILED)
        return self._expect(job, State.SUCCEEDED, times, unwanted=failed)

    def assert_failed(
        self, job: JobRef, *, times: int | None = None, error: str | None = None
    ) -> list[Run]:
        """Runs of the job failed, after all their retries: `times` of them, or at least one. With
        `error`, that text is in the error of each. Returns them, oldest first."""
        __tracebackhide__ = True
        failed = self._expect(job, State.FAILED, times)
        if any((error or "") not in (run.error or "") for run in failed):
            self._fail(job, f"a run of {job_id_of(job)!r} failed, but not with {error!r}")
        return failed

    def assert_skipped(
        self, job: JobRef, *, times: int | None = None, reason: str | None = None
    ) -> list[Run]:
        """Runs of the job were skipped: `times` of them, or at least one. With `reason`, that text
        is in the reason of each. Returns them, oldest first."""
        __tracebackhide__ = True
        skipped = self._expect(job, State.SKIPPED, times)
        if any((reason or "") not in (run.reason or "") for run in skipped):
            self._fail(job, f"a run of {job_id_of(job)!r} was skipped, but not for {reason!r}")
        return skipped

    def assert_not_run(self, job: JobRef) -> None:
        """No handler of the job has begun."""
        __tracebackhide__ = True
        if any(run.attempt for run in self.runs(job)):
            self._fail(job, f"{job_id_of(job)!r} was not expected to run, but did")

    def _expect(
        self, job: JobRef, state: State, times: int | None, *, unwanted: Sequence[Run] = ()
    ) -> list[Run]:
        __tracebackhide__ = True
        runs = self.runs(job, state=state)
        expected = bool(runs) if times is None else len(runs) == times
        if not expected or unwanted:
            wanted = "at least 1" if times is None else str(times)
            also = f" and {len(unwanted)} failed" if unwanted else ""
            message = f"expected {wanted} {state} of {job_id_of(job)!r}, found {len(runs)}{also}"
            self._fail(job, message)
        return runs

    def _fail(self, job: JobRef, message: str) -> None:
        __tracebackhide__ = True
        raise AssertionError(f"{message}\n{self._bench.describe(job_id_of(job))}")


class TestScheduler(Inspection):
    """Runs a scheduler's jobs on virtual time, in a store that lives in memory.

        async with TestScheduler(app.scheduler, start="2026-03-29T00:00Z") as test:
            await test.tick("9h")
            test.assert_succeeded("daily_report", times=1)

    `scheduler` is the program's own, not started; without one, `test.scheduler` is a new one. Its
    jobs, hooks, listeners, resources and defaults are used, its store is not touched. `resources`
    replace those of the same name. `start` is when the test begins; a time without a zone is in
    the scheduler's zone. A thread that works longer than `thread_timeout`, in real time, fails the
    test.

    Between two ticks time stands still and nothing runs; every method of the scheduler answers.
    """

    __test__ = False  # no class of tests, whatever pytest thinks of its name

    def __init__(
        self,
        scheduler: Scheduler | None = None,
        *,
        start: datetime | str = START,
        resources: Mapping[str, Any] | None = None,
        thread_timeout: Span = "10s",
    ) -> None:
        super().__init__(
            Bench(scheduler or Scheduler("memory://"), start, resources, thread_timeout)
        )

    @cached_property
    def blocking(self) -> BlockingTestScheduler:
        """The same for plain tests: `with TestScheduler(scheduler).blocking as test:`."""
        return BlockingTestScheduler(self)

    async def start(self) -> Self:
        """Take the scheduler over. `async with` calls this, and `stop` at its end."""
        self._bench.open()
        try:
            await self._bench.call(self._bench.start)
        except BaseException:
            self._bench.close()
            raise
        return self

    async def stop(self) -> None:
        """Stop what still runs, and leave the scheduler as it was. What happened stays readable."""
        if self._bench.started:
            await self._bench.call(self._bench.stop)
            self._bench.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def tick(
        self, span: Span | None = None, *, until: datetime | str | None = None
    ) -> list[Run]:
        """Let time pass, and run all that comes due, also at its very end. `tick()` runs what is
        due now. Returns the runs that ended meanwhile, oldest first."""
        return await self._bench.call(lambda: self._bench.tick(span, until))

    async def wait(self, run: Run | str, *, within: Span = "1d") -> Run:
        """Let time pass until the run has ended, and return it. An AssertionError if it has not
        ended within that time."""
        return await self._bench.call(lambda: self._bench.wait(run, within))

    async def run(self, job: JobRef, payload: Any = None, **options: Unpack[EnqueueOptions]) -> Run:
        """Enqueue one run, let time pass until it has ended, and return it."""
        return await self._bench.call(lambda: self._bench.run(job, payload, options))


class BlockingTestScheduler(Inspection):
    """The methods of `TestScheduler` for plain tests: each waits for its result."""

    name = "test"

    def __init__(self, test: TestScheduler) -> None:
        super().__init__(test._bench)
        self.client = test

    def wait_for(self, coroutine: Coroutine[Any, Any, T], called: str, instead: str) -> T:
        return wait_in_plain_code(coroutine, called, instead)

    start = BlockingMethod(TestScheduler.start)
    stop = BlockingMethod(TestScheduler.stop)
    tick = BlockingMethod(TestScheduler.tick)
    wait = BlockingMethod(TestScheduler.wait)
    run = BlockingMethod(TestScheduler.run)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Bench:
    """The scheduler under test, with its loop, its clock and its store."""

    def __init__(
        self,
        scheduler: Scheduler,
        start: datetime | str,
        resources: Mapping[str, Any] | None,
        thread_timeout: Span,
    ) -> None:
        self.scheduler = scheduler
        self._resources = dict(resources or {})
        self._thread_timeout = duration(thread_timeout, what="thread_timeout").total_seconds()
        self.clock = TestClock(_moment(start, scheduler.timezone, "start"))
        self.store = TestStore(self.clock.for_store)
        self.webhooks = WebhookStub(self.clock.now)
        self._thread: LoopThread | None = None
        self._before: dict[str, Any] = {}
        self._news: asyncio.Event
        self._turn: asyncio.Lock
        self._ticking: asyncio.Task[Any] | None = None
        self._too_long = False

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def _loop(self) -> TickLoop:
        if self._thread is None:
            raise NotStarted(
                "the test scheduler is not started (or was stopped): use `async with"
                " TestScheduler(…) as test:`, or in a plain test `with"
                " TestScheduler(…).blocking as test:`"
            )
        loop = self._thread.loop
        assert isinstance(loop, TickLoop)
        return loop

    # Calls from the test

    async def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the scheduler's loop, and wait for it on the test's."""
        if asyncio.get_running_loop() is self._loop:
            raise InvalidState("time is moved by the test, not by a handler, a hook or a listener")
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(make(), self._loop))

    def open(self) -> None:
        """Make the loop and its thread, for `start`."""
        if self._thread is not None or self._before:
            raise InvalidState("the test scheduler was started already: make a new one")
        loop = TickLoop(thread_timeout=self._thread_timeout, stuck=self._stuck)
        self.clock.follow(loop)
        self._thread = LoopThread("mainspring-test", loop)

    def close(self) -> None:
        """End the loop and its thread. The clock stays where it is."""
        if self._thread is not None:
            self._loop.limit = float("inf")  # what is cancelled may need a moment to end
            self._thread.close()
            self._thread = None

    # Start and stop

    async def start(self) -> None:
        if self.scheduler.started:
            raise InvalidState(
                "the scheduler runs already: a test takes one that is not started, so make the"
                " TestScheduler before your program calls start()"
            )
        self._news, self._turn = asyncio.Event(), asyncio.Lock()
        self._take_over()
        try:
            await Scheduler._start(self.scheduler, self._loop)
        except BaseException:
            self._give_back()
            raise
        # The engine's time stands still with the clock, also while its pauses pass on the loop.
        self.scheduler._running().time.follow(self.clock.for_store)
        self.scheduler.on("*", lambda _: self._news.set())
        self._move_time_in_waits()

    def _move_time_in_waits(self) -> None:
        """Let time pass while the test awaits `scheduler.wait`. A handler that waits for another
        run waits as ever: the tick that it runs in moves time."""
        waiters = self.scheduler._running().run_waiters
        wait_for_end = waiters.wait

        async def wait(run_id: str, timeout: float | None) -> Run:
            if RUN.get() is not None or self._turn.locked():
                return await wait_for_end(run_id, timeout)
            run = await self.scheduler.get_run(run_id)
            if not run.finished:
                await self._pass(LONGEST_WAIT if timeout is None else timeout, run_id)
                run = await self.scheduler.get_run(run_id)
            if not run.finished:
                raise TimeoutError(f"run {run_id} has not ended\n{self.describe(run.job_id)}")
            return run

        waiters.wait = wait  # type: ignore[method-assign]

    async def stop(self) -> None:
        self._loop.limit = float("inf")
        try:
            await Scheduler._stop(self.scheduler, graceful=False, seconds=0)
        finally:
            self._give_back()

    def _take_over(self) -> None:
        """Give the scheduler the test's store, clock and webhooks; keep what it had."""
        scheduler = self.scheduler
        self._before = dict(vars(scheduler))
        settings = scheduler._settings
        scheduler._clock = self.clock
        scheduler._store = self.store
        scheduler._url = None
        scheduler._rng = _NoJitter(0)
        scheduler._inline = True
        scheduler._settings = replace(
            settings,
            workers=settings.workers or 10,
            queues=None,
            lease=timedelta(hours=1),
            poll=timedelta(minutes=1),
            retention=KEPT,
            history=None,
            leader_election=False,
            enabled=True,
            memory_limit=None,
        )
        scheduler._resources = {**scheduler._resources, **self._resources}
        scheduler._jobs_in_code = dict(scheduler._jobs_in_code)
        scheduler._late_jobs = {}
        scheduler._refused_late_jobs = {}
        scheduler._events = copy.copy(scheduler._events)
        scheduler._events._listeners = {
            name: list(some) for name, some in scheduler._events._listeners.items()
        }
        scheduler.webhooks = Webhooks(self.store, scheduler.webhooks.settings)
        scheduler.webhooks._client = self.webhooks  # type: ignore[assignment]
        registry = TestRegistry(self)
        for name in scheduler._registry.names():
            registry.add(scheduler._registry.get(name))
        if scheduler.webhooks.available:
            registry.replace(WebhookHandler(scheduler.webhooks, scheduler, self.clock))
        registry.default = scheduler._registry.default
        scheduler._registry = registry
        # A program that starts the scheduler itself, in a lifespan for example, finds it started.
        scheduler._start = _nothing  # type: ignore[method-assign]
        scheduler._stop = _nothing  # type: ignore[method-assign]

    def _give_back(self) -> None:
        attributes = vars(self.scheduler)
        attributes.clear()
        attributes.update(self._before)

    # Time

    async def tick(self, span: Span | None, until: datetime | str | None) -> list[Run]:
        if span is not None and until is not None:
            raise InvalidInput("give tick a span or `until`, not both", field="until", given=until)
        async with self._turn:
            target = self.clock.now()
            if until is not None:
                target = _moment(until, self.scheduler.timezone, "until")
                if target < self.clock.now():
                    raise InvalidInput(
                        f"time passes forwards only: it is {short_time(self.clock.now())}, and"
                        f" until={short_time(target)} is before that",
                        field="until",
                        given=until,
                    )
            elif span is not None:
                target += duration(span, what="span")
            return await self._advance(target)

    async def wait(self, run: Run | str, within: Span) -> Run:
        run_id = run if isinstance(run, str) else run.id
        try:
            return await self.scheduler.wait(run_id, timeout=within)
        except TimeoutError as error:
            raise AssertionError(f"within {humanize(duration(within))} {error}") from None

    async def run(self, job: JobRef, payload: Any, options: EnqueueOptions) -> Run:
        run = await self.scheduler.enqueue(job, payload, **options)
        return await self.wait(run.id, LONGEST_WAIT)

    async def _pass(self, seconds: float, until_ended: str) -> None:
        """Let so much time pass, or less if that run ends before."""
        async with self._turn:
            target = self.clock.now() + timedelta(seconds=seconds)
            await self._advance(target, until_ended=until_ended)

    async def _advance(self, target: datetime, until_ended: str | None = None) -> list[Run]:
        """Let time pass to this moment; or until that run has ended, if it ends before."""
        unfinished = {run.id for run in self.store.all_runs() if not run.finished}
        known = {run.id for run in self.store.all_runs()}
        self._ticking, self._too_long = asyncio.current_task(), False
        self.store.open_for_claims = True
        try:
            await self._settle()
            while self.clock.now() < target and not self._has_ended(until_ended):
                if self.store.has_work(self._handlers):
                    await self._flow(target)
                else:
                    self._leap(min(self.store.next_moment(self._handlers) or target, target))
                    await self._settle()
            await self._settle()
        except asyncio.CancelledError:
            if self._too_long:
                raise AssertionError(self._told_stuck()) from None
            raise
        finally:
            self._ticking = None
            self.store.open_for_claims = False
            self._freeze()
        return [
            run
            for run in self.store.all_runs()
            if run.finished and (run.id in unfinished or run.id not in known)
        ]

    def _has_ended(self, run_id: str | None) -> bool:
        return run_id is not None and self.store.is_finished(run_id)

    @property
    def _handlers(self) -> frozenset[str]:
        assert self.scheduler._engine is not None
        names = self.scheduler._engine.worker.handlers()
        if self.scheduler._registry.default is None:
            return names
        return names | {job.handler for job in self.store.all_jobs() if job.owner is not Owner.CODE}

    def _leap(self, moment: datetime) -> None:
        """Nothing runs and nothing is due before this moment: go there at once."""
        self._loop.leap((moment - self.clock.now()).total_seconds())
        self.clock.set(moment)

    async def _flow(self, target: datetime) -> None:
        """Let time pass from timer to timer while handlers work, until something happens."""
        seconds = (target - self.clock.now()).total_seconds()
        self._news.clear()
        self.clock.run_to(target)
        self._loop.limit = self._loop.time() + seconds
        happened = await wait_for_event(self._news, seconds)
        self.clock.set(self.clock.now() if happened else target)

    async def _settle(self) -> None:
        """Run all that is due at this moment. The clock stands still; the engine's own short
        pauses, for example between two sweeps, pass on the loop."""
        engine = self.scheduler._running()
        engine.worker.wake()
        engine.slot_firer.jobs_changed()
        self._loop.limit = self._loop.time()
        await self._loop.idle()
        idle = 0
        for _ in range(MOST_ROUNDS):
            unsettled = self.store.is_unsettled(self._handlers, self._loop.active)
            if not unsettled or idle == len(PAUSES):
                return
            done = self.store.changes
            self._loop.limit = self._loop.time() + PAUSES[idle]
            await asyncio.sleep(PAUSES[idle])
            await self._loop.idle()
            idle = idle + 1 if self.store.changes == done else 0

    def _freeze(self) -> None:
        self.clock.set(self.clock.now())
        self._loop.limit = self._loop.time()

    def _stuck(self) -> None:
        """Called on the loop: a thread has worked for too long."""
        if self._ticking is not None:
            self._too_long = True
            self._ticking.cancel()

    def _told_stuck(self) -> str:
        return (
            f"a handler that runs in a thread has worked for {self._thread_timeout:g} s of real"
            " time without an end. Virtual time does not pass while a thread works: replace what it"
            " waits for in the test, or give TestScheduler a longer `thread_timeout`\n"
            f"{self.describe(None)}"
        )

    # Reading

    def known_job(self, job: JobRef) -> str:
        """The id of a job that exists, or that has runs."""
        job_id = job_id_of(job)
        known = self.store.job_ids()
        if job_id not in known and not any(r.job_id == job_id for r in self.store.all_runs()):
            near = difflib.get_close_matches(job_id, known, n=1)
            advice = f"did you mean {near[0]!r}? " if near else ""
            listed = ", ".join(known) or "none"
            raise AssertionError(f"there is no job {job_id!r}; {advice}jobs are: {listed}")
        return job_id

    def describe(self, job_id: str | None) -> str:
        runs = [r for r in self.store.all_runs() if job_id is None or r.job_id == job_id]
        jobs = [j for j in self.store.all_jobs() if job_id is None or j.id == job_id]
        return describe_runs(self.clock.now(), jobs, runs)


class TestClock:
    """The virtual time. It follows the loop's time, but never past the moment of the tick."""

    __test__ = False

    def __init__(self, start: datetime) -> None:
        self._start = start
        self._base = self._limit = start
        self._base_seconds = 0.0
        self._loop: TickLoop | None = None
        self.for_store = _StoreClock(self)

    def follow(self, loop: TickLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        if self._base == self._limit:
            return self._base
        passed = timedelta(seconds=self.monotonic() - self._base_seconds)
        return min(self._base + passed, self._limit)

    def monotonic(self) -> float:
        return 0.0 if self._loop is None else self._loop.time()

    def set(self, moment: datetime) -> None:
        """Stand still at this moment."""
        self._base = self._limit = moment

    def run_to(self, moment: datetime) -> None:
        """Go on with the loop's time, up to this moment."""
        self._base, self._base_seconds, self._limit = self.now(), self.monotonic(), moment

    def seconds(self) -> float:
        return (self.now() - self._start).total_seconds()


class _StoreClock:
    """The same time for the store. Its monotonic time stands still with the wall, or the store
    would take the difference for a wall clock that somebody has set."""

    def __init__(self, clock: TestClock) -> None:
        self.now = clock.now
        self.monotonic = clock.seconds


class TestStore(MemoryStore):
    """A memory store that hands out runs during ticks alone."""

    __test__ = False
    open_for_claims = False
    changes = 0
    """How many runs were claimed or changed so far."""

    async def claim(self, claim: Claim) -> Claimed:
        claimed = await super().claim(claim) if self.open_for_claims else Claimed([], None)
        self.changes += len(claimed.runs)
        return claimed

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        done = await super().commit(changes)
        self.changes += sum(done)
        return done

    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        """Records no downtimes: time leaps, and a worker that is silent meanwhile was not down."""
        if all(write.kind == note_kinds.UPTIME for write in writes):
            return [None] * len(writes)
        return await super().put_notes(writes)

    async def maintain(self, before: datetime | None, limit: int) -> int:
        """Does nothing: all runs are kept, and a search for old ones would read them all."""
        return 0

    def all_runs(self) -> list[Run]:
        with self._guard:
            return [copy_for_caller(run) for run in self._runs.values()]

    def all_jobs(self) -> list[Job]:
        return list(self._jobs.values())

    def job_ids(self) -> list[str]:
        return sorted(self._jobs)

    def is_finished(self, run_id: str) -> bool:
        run = self._runs.get(run_id)
        return run is None or run.state in FINISHED

    def has_work(self, handlers: frozenset[str]) -> bool:
        """Whether a run is under way, or could begin."""
        now = self._clock.now()
        return any(
            run.state is State.RUNNING or (run.handler in handlers and self._may_begin(run, now))
            for run in self._runs.live.values()
        )

    def is_unsettled(self, handlers: frozenset[str], active: set[str]) -> bool:
        """Whether something is due at this moment that has not been done."""
        now = self._clock.now()
        if any(job.next_run_at is not None and job.next_run_at <= now for job in self.all_jobs()):
            return True
        return any(
            run.id not in active
            if run.state is State.RUNNING
            else run.handler in handlers and self._may_begin(run, now)
            for run in self._runs.live.values()
        )

    def next_moment(self, handlers: frozenset[str]) -> datetime | None:
        """When the next slot or run is due, after now."""
        now = self._clock.now()
        slots = [job.next_run_at for job in self._jobs.values() if job.next_run_at is not None]
        due = [
            run.run_at
            for run in self._runs.live.values()
            if run.state is State.PENDING and run.handler in handlers
        ]
        return min((moment for moment in (*slots, *due) if moment > now), default=None)

    def _may_begin(self, run: Run, now: datetime) -> bool:
        if run.state is State.WAITING:
            return all(self.is_finished(upstream) for upstream in run.after)
        return run.run_at <= now


class _NoJitter(random.Random):
    """Random numbers at the median of their range: a retry comes after its delay exactly."""

    def random(self) -> float:
        return 0.5

    def getrandbits(self, k: int, /) -> int:
        return super().getrandbits(k)


class TestRegistry(Registry):
    """The handlers of the scheduler under test. Async ones run on the loop, sync ones in threads,
    and those with `isolation="process"` as well."""

    __test__ = False

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self._bench = bench

    def add(self, handler: Handler) -> None:
        super().add(handler)
        self.replace(handler)

    def replace(self, handler: Handler) -> None:
        """Use this handler, in place of one of the same name."""
        tested = copy.copy(handler)
        call = handler.call

        def call_tested(context: RunContext[Any], payload: Any) -> Any:
            job = context.job
            if job is not None and job.policy.isolation is Isolation.PROCESS:
                context.resources = _process_resources(context.resources)
            if not handler.is_async and not handler.built_in:
                return self._in_thread(context, lambda: call(context, payload))
            return self._marked(context.run_id, call(context, payload))

        tested.call = call_tested  # type: ignore[method-assign]
        self._handlers[handler.name] = tested

    async def _marked(self, run_id: str, handler: Coroutine[Any, Any, Any]) -> Any:
        RUN.set(run_id)
        loop = self._bench._loop
        loop.handler_begins(run_id)
        try:
            return await handler
        finally:
            loop.handler_ends(run_id)

    async def _in_thread(self, context: RunContext, call: Callable[[], Any]) -> Any:
        RUN.set(context.run_id)
        answer: list[Any] = []
        error = await self._bench._loop.call_in_thread(lambda: answer.append(call()))
        if error is not None:
            raise error
        return answer[0]


def _process_resources(resources: Mapping[str, Any]) -> Resources:
    """The resources as a process of its own would have them: those that are JSON, and those that it
    could open itself."""
    found = resources_of_process(resources)
    values = {name: decode(text) for name, text in found["values"].items()}
    if not isinstance(resources, Resources):
        return Resources(values, found["withheld"])
    factories = {name: resources.factories[name] for name in found["factories"]}
    opened = resources.values_of_program
    values |= {name: opened[name] for name in factories if not factories[name].per_run}
    return Resources(
        values,
        found["withheld"],
        factories=factories,
        on_loop=resources.on_loop,
        loop=resources.loop,
    )


def _moment(given: datetime | str, timezone: str, field: str) -> datetime:
    """The moment in UTC; one without an offset is wall time in this zone."""
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else given
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(timezone))
    except (AttributeError, ValueError):
        rule = "is a datetime or text such as '2026-03-29T00:00Z'"
        raise refused(field, given, rule) from None
    return zoned.astimezone(UTC)


async def _nothing(*_: object, **__: object) -> None:
    """In place of start and stop, while a test has the scheduler."""


MOST_RUNS = 20
"""Runs that are shown; of more, the newest."""


def describe_runs(now: datetime, jobs: Sequence[Job], runs: Sequence[Run]) -> str:
    """The runs, oldest first, and of jobs without runs when they would run."""
    are = "is" if len(runs) == 1 else "are"
    lines = [f"At {short_time(now)} there {are} {plural(len(runs), 'run') if runs else 'no runs'}:"]
    if len(runs) > MOST_RUNS:
        lines.append(f"  … {len(runs) - MOST_RUNS} earlier ones")
    for run in runs[-MOST_RUNS:]:
        lines += _run_lines(run)
    ran = {run.job_id for run in runs}
    lines += [_job_line(job) for job in jobs if job.id not in ran]
    return "\n".join(lines)


def short_time(moment: datetime) -> str:
    """A time in UTC without what is zero at its end."""
    text = moment.strftime("%Y-%m-%d %H:%M:%S")
    more = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{text}{more} UTC"


def _run_lines(run: Run) -> list[str]:
    facts = [f"for {short_time(run.scheduled_at)}"]
    if run.attempt:
        facts.append(plural(run.attempt, "attempt"))
    if not run.finished and run.run_at > run.scheduled_at:
        facts.append(f"due {'again ' if run.attempt else ''}at {short_time(run.run_at)}")
    if run.reason:
        facts.append(run.reason)
    if run.payload is not None:
        facts.append(f"payload {run.payload!r}"[:200])
    lines = [f"  {run.job_id} {run.state}: {', '.join(facts)}"]
    failed = [attempt for attempt in run.attempts if attempt.error]
    if failed and run.state != "succeeded":
        text = failed[-1].traceback or failed[-1].error or ""
        lines.append(textwrap.indent(text.rstrip(), "    "))
    elif run.error:
        lines.append(f"    {run.error}")
    return lines


def _job_line(job: Job) -> str:
    if not job.enabled:
        return f"  {job.id} has no run: it is paused"
    if job.next_run_at is None and job.policy.after:
        return f"  {job.id} has no run: it runs after {', '.join(job.policy.after)}"
    if job.next_run_at is None:
        return f"  {job.id} has no run: it has no schedule, so it runs when it is enqueued"
    return f"  {job.id} has no run: its next slot is at {short_time(job.next_run_at)}"
