"""Events of this process and their listeners. An error of a listener is logged and affects no
run."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from mainspring.core.model import Run
from mainspring.errors import InvalidInput

log = logging.getLogger("mainspring")

EVENTS = frozenset(
    {
        "scheduler.started",
        "scheduler.stopped",
        "scheduler.error",
        "worker.started",
        "worker.stopped",
        "worker.memory_limit",
        "job.created",
        "job.updated",
        "job.removed",
        "run.enqueued",
        "run.started",
        "run.progress",
        "run.succeeded",
        "run.failed",
        "run.retrying",
        "run.cancelled",
        "run.skipped",
        "run.rescued",
        "ownership.lost",
        "breaker.opened",
        "breaker.half_open",
        "breaker.closed",
        "leader.elected",
        "leader.lost",
        "schedule.missed",
    }
)


class Event(Struct, frozen=True):
    """Something that happened in this process: its name, its time, and the run, error or data that
    it concerns."""

    name: str
    time: datetime
    job_id: str | None = None
    run: Run | None = None
    error: BaseException | str | None = None
    data: Mapping[str, Any] = {}


Listener = Callable[[Event], Awaitable[None] | None]


class Events:
    """Listeners by event name; `run.*` and `*` listen to many.

    Listeners are called on the program's own loop, which `deliver_on` names; events from
    other threads are handed over to it. Each call has its own copy of the context in which
    `deliver_on` was called, because the context of `emit` may be a handler's.
    """

    def __init__(self) -> None:
        self._listeners: dict[str, list[tuple[Listener, Callable[[], bool]]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context = contextvars.copy_context()
        self._outbox: deque[Event] = deque()
        self._delivering = False
        self._tasks: set[asyncio.Task[None]] = set()

    def on(
        self, name: str, listener: Listener, *, only_if: Callable[[], bool] = lambda: True
    ) -> Callable[[], None]:
        """Add a listener, which is called while `only_if` returns true. The function returned
        removes it."""
        names = [n for n in EVENTS if _matches(name, n)]
        if not names:
            raise InvalidInput(
                f"there is no event {name!r}; known are {', '.join(sorted(EVENTS))},"
                " and patterns such as 'run.*' and '*'"
            )
        added = (listener, only_if)
        for n in names:
            self._listeners.setdefault(n, []).append(added)

        def remove() -> None:
            for n in names:
                if added in self._listeners.get(n, ()):
                    self._listeners[n].remove(added)

        return remove

    def deliver_on(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._context = contextvars.copy_context()
        self._delivering = False

    def wanted(self, name: str) -> bool:
        """Whether there is a listener. Callers check this first, to save making events in vain."""
        return any(only_if() for _, only_if in self._listeners.get(name, ()))

    def emit(self, event: Event) -> None:
        """Pass an event to its listeners, soon. It is dropped if their loop is closed."""
        loop = self._loop
        if not self.wanted(event.name) or loop is None or loop.is_closed():
            return
        if running_loop() is loop:
            loop.call_soon(self._deliver, event)
            return
        # Append first, then read the flag. `_deliver_all` clears the flag first, then takes the
        # events, so none is left behind. A batch of outcomes wakes the loop once instead of once
        # for each (30 µs of CPU a run in `python -m bench webhooks`).
        self._outbox.append(event)
        if not self._delivering:
            self._delivering = True
            try:
                loop.call_soon_threadsafe(self._deliver_all)
            except RuntimeError:  # its thread has closed the loop since `is_closed`
                self._delivering = False
                self._outbox.clear()

    async def drained(self) -> None:
        """Wait for async listeners that are still running. Call it on the listeners' loop."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)

    def _deliver_all(self) -> None:
        self._delivering = False
        while self._outbox:
            self._deliver(self._outbox.popleft())

    def _deliver(self, event: Event) -> None:
        for listener, only_if in list(self._listeners.get(event.name, ())):
            if only_if():
                self._context.copy().run(self._call, listener, event)

    def _call(self, listener: Listener, event: Event) -> None:
        try:
            answer = listener(event)
            if inspect.isawaitable(answer):
                task = asyncio.ensure_future(_guarded(answer, event))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except BaseException:  # SystemExit too: a listener must not end the program
            log.exception("a listener to %s failed", event.name)


async def _guarded(answer: Awaitable[None], event: Event) -> None:
    try:
        await answer
    except BaseException:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # the program ends: no fault of the listener
            raise
        log.exception("a listener to %s failed", event.name)


def _matches(pattern: str, name: str) -> bool:
    return pattern in ("*", name) or (pattern.endswith(".*") and name.startswith(pattern[:-1]))


def running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
