"""An event loop whose time stands still until a test lets it pass.

`asyncio.sleep` and every other timer count virtual seconds, so an hour passes in no time. Sockets,
threads and calls from other threads work as on any other loop: while a thread works, or a handler
waits for something that is not a timer, virtual time does not run ahead of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from mainspring.engine.executors.threads import ThreadExecutor

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
