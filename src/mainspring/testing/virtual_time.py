"""Time for tests: a clock that stands still until it is moved, and asyncio on virtual time.

On the virtual loop hours pass in milliseconds, and a seed replays them exactly. The loop never
sleeps: when nothing is ready it jumps to its next timer. What is ready at the same moment runs in
an order drawn from the seed, so many seeds try many interleavings and a failing one can be run
again. There is no I/O and no thread: `run_in_executor` (and with it `asyncio.to_thread`) calls its
function on the loop.

`TickLoop` is the loop of `TestScheduler`: its time stands still until the test lets it pass.
Sockets, threads and calls from other threads work on it as on any other loop: while a thread works,
or a handler waits for something that is not a timer, virtual time does not run ahead of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import selectors
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from mainspring.engine.executors.threads import ThreadExecutor

WEEK = 7 * 24 * 3600.0
_EPOCH = datetime(2030, 1, 1, tzinfo=UTC)


class Deadlock(AssertionError):
    """Everything waits and no timer will ever wake it."""


class SimulationLimit(AssertionError):
    """The simulation went past its bound of virtual time or steps."""


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T],
    seed: int = 0,
    until: float = WEEK,
    steps: int = 10_000_000,
    *,
    make_loop: Callable[..., VirtualLoop] | None = None,
) -> T:
    """Run `main` on a loop of its own, from virtual second 0, and give its result.

    The same seed gives the same interleaving. Tasks still there at the end are cancelled.
    Raises `Deadlock`, or `SimulationLimit` past `until` virtual seconds or `steps` callbacks.
    `make_loop` is for a loop of another kind than `VirtualLoop`.
    """
    loop = (make_loop or VirtualLoop)(seed, until=until, steps=steps)
    coroutine = main() if callable(main) else main
    try:
        asyncio.set_event_loop(loop)
        try:
            return loop.run_until_complete(coroutine)
        finally:
            loop.finish()
    finally:
        asyncio.set_event_loop(None)
        loop.close()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose `time()` jumps from timer to timer, beginning at zero."""

    def __init__(self, seed: int = 0, *, until: float = WEEK, steps: int = 10_000_000) -> None:
        super().__init__()
        self.steps = 0
        self._random = random.Random(seed)
        self._virtual = 0.0
        self._until = until
        self._max_steps = steps
        self._made = 0
        self.set_task_factory(_make_task)

    def time(self) -> float:
        return self._virtual

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call it on the loop, in its turn: a simulation has no threads."""
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_soon(call)
        return future

    def finish(self) -> None:
        """Cancel what is left, oldest first, and let it end; within the same bounds again."""
        self._until, self._max_steps = self._virtual + self._until, self.steps + self._max_steps
        left = sorted(asyncio.all_tasks(self), key=hash)
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.run_until_complete(self.shutdown_asyncgens())

    # The rest is asyncio's own machinery, with the selector left out: BaseEventLoop calls
    # `_run_once` until it is told to stop. `_ready` and `_scheduled` are its queues.

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            self._take_timer(timers)
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            self._jump(timers)
        while timers and timers[0]._when <= self._virtual:
            ready.append(self._take_timer(timers))
        self.steps += len(ready)
        if self.steps > self._max_steps:
            raise SimulationLimit(
                f"more than {self._max_steps:,} steps by virtual second {self._virtual:g};"
                f" still running: {self._names()}"
            )
        batch = list(ready)
        ready.clear()
        if len(batch) > 1:
            self._random.shuffle(batch)
        for handle in batch:
            if not handle._cancelled:
                self._run_handle(handle)

    def _run_handle(self, handle: Any) -> None:
        """One step. A subclass may put it off: that is how a process is stopped or killed."""
        handle._run()

    def _jump(self, timers: list[Any]) -> None:
        if not timers:
            raise Deadlock(
                f"at virtual second {self._virtual:g} nothing is ready and no timer is set;"
                f" waiting: {self._names()}"
            )
        if timers[0]._when > self._until:
            raise SimulationLimit(
                f"more than {self._until:g} virtual seconds; still running: {self._names()}"
            )
        self._virtual = max(self._virtual, timers[0]._when)

    @staticmethod
    def _take_timer(timers: list[Any]) -> Any:
        handle = heapq.heappop(timers)
        handle._scheduled = False
        return handle

    def _names(self) -> str:
        tasks = sorted(asyncio.all_tasks(self), key=hash)
        return ", ".join(f"{t.get_name()} ({_where(t)})" for t in tasks) or "no task"

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are dropped when their turn comes."""

    def _process_events(self, event_list: object) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """The loop never blocks in a selector."""

    def _number(self) -> int:
        self._made += 1
        return self._made


class _Future(asyncio.Future[Any]):
    """Hashed by its number, not by its address: a set of futures has the same order each time."""

    def __init__(self, *, loop: VirtualLoop) -> None:
        self._n = loop._number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._n


class _Task(asyncio.Task[Any]):
    """As `_Future`. Its name is counted in its own loop, so that a replay names it the same."""

    def __init__(self, coro: Any, *, loop: VirtualLoop, **options: Any) -> None:
        self._n = loop._number()
        options["name"] = options.get("name") or f"task-{self._n}"
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._n


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    assert isinstance(loop, VirtualLoop)
    return _Task(coro, loop=loop, **options)


def _where(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    if not stack:
        return "not started"
    return f"{stack[-1].f_code.co_qualname} line {stack[-1].f_lineno}"


class VirtualClock:
    """A clock that reads a loop's virtual time; of the running loop, unless one is given.

    `offset` (seconds) and `rate` make it wrong: a machine an hour ahead is `offset=3600`, one
    that gains a second in a thousand `rate=1.001`. `offset` may be set at any time, which is
    a step of the wall clock; monotonic time knows nothing of it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        *,
        epoch: datetime = _EPOCH,
        offset: float = 0.0,
        rate: float = 1.0,
    ) -> None:
        self.offset = offset
        self.rate = rate
        self._loop = loop
        self._epoch = epoch

    def now(self) -> datetime:
        return self._epoch + timedelta(seconds=self.offset + self.monotonic())

    def monotonic(self) -> float:
        loop = self._loop or asyncio.get_running_loop()
        return loop.time() * self.rate


class FakeClock:
    """A clock that stands still until it is moved.

    Wall time may be set anywhere, back as well, as an operator or NTP would; monotonic time
    follows it forward and never steps back.
    """

    def __init__(self, start: datetime = _EPOCH) -> None:
        self._now = _aware(start)
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, by: float | timedelta) -> datetime:
        """Let seconds (or a timedelta) pass; the new time."""
        span = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if span < timedelta():
            raise ValueError(f"time passes forwards only, not by {by!r}; set() moves the wall back")
        self._now += span
        self._monotonic += span.total_seconds()
        return self._now

    def set(self, to: datetime) -> None:
        """Move the wall clock; monotonic time goes along forward, and stands still otherwise."""
        to = _aware(to)
        self._monotonic += max(0.0, (to - self._now).total_seconds())
        self._now = to

    def step(self, by: float | timedelta) -> datetime:
        """Move the wall clock alone, back or forward, as an operator or NTP does; the new time."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self._now


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"a clock's time has a time zone, unlike {moment!r}")
    return moment.astimezone(UTC)


T = TypeVar("T")

RUN: ContextVar[str | None] = ContextVar("mainspring_test_run", default=None)
"""The id of the run whose async handler this code belongs to."""

GRACE, MOST_GRACE = 0.02, 0.4
"""Real seconds that an async handler has for something that is not a timer (a socket, a queue of
another thread) before virtual time passes to the next timer; and how long nothing may come in all,
before the loop takes it that the handler waits for another run."""

SLICE = 0.05
"""Real seconds between two looks at how long a thread has worked."""


class TickLoop(asyncio.SelectorEventLoop):
    """Time passes from timer to timer, and never past `limit`.

    `stuck()` is called when threads have worked for `thread_timeout` real seconds without an
    answer.
    """

    def __init__(self, *, thread_timeout: float, stuck: Callable[[], None]) -> None:
        self.limit = 0.0
        self.active: set[str] = set()
        """The ids of the runs whose async handlers are under way."""
        self._virtual = 0.0
        self._thread_timeout = thread_timeout
        self._stuck = stuck
        self._threads = ThreadExecutor()
        self._outside = 0  # calls in threads that have not returned
        self._held = 0.0  # real seconds that they have taken so far
        self._grace = MOST_GRACE
        self._idle: list[asyncio.Future[None]] = []
        self._timers: WeakKeyDictionary[asyncio.TimerHandle, str] = WeakKeyDictionary()
        super().__init__(_Selector(self))
        self._clock_resolution = 1e-6  # a timer is due although its sum was rounded

    def time(self) -> float:
        return self._virtual

    def leap(self, seconds: float) -> None:
        """Let so much time pass at once: the timers in between fire late, all together."""
        self._virtual += seconds
        self.limit = max(self.limit, self._virtual)

    async def idle(self) -> None:
        """Wait until nothing is left to do at this moment: all that is there waits for time."""
        future: asyncio.Future[None] = self.create_future()
        self._idle.append(future)
        await future

    def handler_begins(self, run_id: str) -> None:
        self.active.add(run_id)
        self._grace = MOST_GRACE

    def handler_ends(self, run_id: str) -> None:
        self.active.discard(run_id)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        if (run_id := RUN.get()) is not None:
            self._timers[handle] = run_id
        return handle

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._count(future)
        return future

    def call_in_thread(self, call: Callable[[], Any]) -> asyncio.Future[BaseException | None]:
        """Call it in a daemon thread. The future gives the error that it raised, or None."""
        future: asyncio.Future[BaseException | None] = self.create_future()
        self._count(future)

        def run() -> None:
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:
                error = raised
            # Nobody waits for a call that returns after its test: its loop is closed.
            with contextlib.suppress(RuntimeError):
                self.call_soon_threadsafe(_answer, future, error)

        self._threads.submit(run)
        return future

    def close(self) -> None:
        self._threads.close()
        super().close()

    def _count(self, future: asyncio.Future[Any]) -> None:
        self._outside += 1
        self._held = 0.0

        def returned(_: object) -> None:
            self._outside -= 1
            self._held = 0.0

        future.add_done_callback(returned)

    # Called by the selector when no callback is ready

    def rest(self, timeout: float | None, select: Callable[[float | None], Any]) -> Any:
        """Wait really for events, or let virtual time pass to the next timer."""
        if events := select(0):
            self._grace = MOST_GRACE
            return events
        if self._outside:
            return self._wait_for_threads(select)
        if self._grace > 0 and self._waits_for_outside():
            if events := select(GRACE):
                self._grace = MOST_GRACE
                return events
            self._grace -= GRACE
        if self._idle:
            for future in self._idle:
                if not future.done():
                    future.set_result(None)
            self._idle.clear()
            return []
        if timeout is None or self._virtual + timeout > self.limit + 1e-9:
            return select(None)  # time stands still until a call from another thread
        self._virtual += timeout
        return []

    def _wait_for_threads(self, select: Callable[[float | None], Any]) -> Any:
        if events := select(SLICE):
            return events
        self._held += SLICE
        if self._held >= self._thread_timeout:
            self._held = 0.0
            self._stuck()
        return []

    def _waits_for_outside(self) -> bool:
        """Whether an async handler may wait for a socket or another thread."""
        if not self.active:
            return False
        timed = {
            run_id
            for handle, run_id in self._timers.items()
            if not handle.cancelled() and handle.when() > self._virtual
        }
        return not self.active <= timed or self.has_sockets

    @property
    def has_sockets(self) -> bool:
        selector: _Selector = self._selector  # type: ignore[attr-defined]
        return len(selector.get_map()) > 1  # one is the loop's own, for calls from threads


class _Selector(selectors.DefaultSelector):
    """Asks the loop what to do where a real one would sleep until the next timer."""

    def __init__(self, loop: TickLoop) -> None:
        super().__init__()
        self._tick_loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        return self._tick_loop.rest(timeout, super().select)


def _answer(future: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    if not future.done():
        future.set_result(error)
