"""A loop where async handlers run, as many at once as the engine lends it places: the program's,
and for handlers of Mainspring itself the engine's own.

The engine deals work onto the deck and lends places; a place draws from the deck until it is
empty, and is given back then, or when it is recalled for the other loop's work. So a thousand
short handlers cost one hand-over to the program's loop and one back, not one for every few places:
that was an eighth of a worker's time.

A place is a task. Handlers that end without waiting for anything share it, one after another;
one that waits has the rest of its task to itself. So no handler finds what another left in its
task: a cancellation on its way, a context variable. Mainspring's own leave nothing behind but a
cancellation, and share it also when they wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import os
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from mainspring.core.clock import CarriedClock, Clock
from mainspring.engine.attempt import Problem, Stop, Work
from mainspring.engine.executors.timeouts import Deadlines
from mainspring.engine.fork_guard import end_if_forked
from mainspring.engine.hooks import call_hook
from mainspring.engine.loop_thread import call_soon
from mainspring.engine.results import storable_result
from mainspring.engine.telemetry import Tracing, traced

__all__ = ["Home"]

CANCEL_AGAIN_AFTER = 1.0
"""A handler may swallow a cancellation; it is sent again until the handler ends."""

GIVE_UP_AFTER = 2
"""An attempt whose time is up ends when its handler was cancelled so often and goes on."""

YIELD_AFTER = 0.002
"""Seconds that handlers which never wait may take one after another, before the program's
other tasks have their turn."""


class Home:
    """Made and used on the engine's loop, but for the part that says otherwise.

    `began(work)` is called on the program's loop when a handler is about to begin, and
    `over(works, places)` on the engine's: these attempts have ended, so many places are back.
    `ended_late(work)`: a handler has ended whose attempt was given up before.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        time: CarriedClock,
        *,
        safe: Callable[[Work], bool],
        began: Callable[[Work], None],
        over: Callable[[list[Work], int], None],
        ended_late: Callable[[Work], None],
        tracing: Tracing | None = None,
    ) -> None:
        self.loop = loop
        self._engine_loop = asyncio.get_running_loop()
        self._monotonic = clock.monotonic
        self._time = time
        self._safe = safe
        self._began = began
        self._over = over
        self._ended_late = ended_late
        self._tracing = tracing
        self._deadlines = Deadlines(loop, clock, self._expire)
        self._context = contextvars.copy_context()
        self._pid = os.getpid()
        # Drawn from by the program's loop, added to and taken back from by the engine's: each of
        # a deque's methods is one step to other threads.
        self._deck: deque[Work] = deque()
        self.lent = 0  # places that were lent and are not back, as the engine knows
        self._dealt = 0  # works that were dealt and are not over, as the engine knows
        self._recalled = 0  # of those places, as the engine knows
        self._shut = 0  # places that were lent and stand empty, as the program's loop knows
        self._owed = 0  # places that are to be given back with work on the deck, as that loop knows
        self._outbox: deque[Work | None] = deque()  # None: a place comes back
        self._collecting = False

    @property
    def unbegun(self) -> int:
        return len(self._deck)

    @property
    def dealt(self) -> int:
        """How many works it has, begun or not."""
        return self._dealt

    @property
    def wants(self) -> int:
        """How many places more it has work for."""
        return max(self._dealt - self.lent, 0)

    def deal(self, works: list[Work], *, first: bool = False) -> None:
        """Have these run, on the places that were lent and will be; `first`: before all others."""
        if first:
            self._deck.extendleft(reversed(works))
        else:
            self._deck.extend(works)
        self._dealt += len(works)

    def lend(self, places: int) -> None:
        self.lent += places
        self.call(self._lend, places)

    def recall(self, places: int) -> None:
        """Have so many places back soon, whatever is on the deck."""
        more = min(places, self.lent) - self._recalled
        if more > 0:
            self._recalled += more
            self.call(self._owe, more)

    def take_back(self, work: Work) -> bool:
        """Take a work from the deck; False if it has begun."""
        try:
            self._deck.remove(work)
        except ValueError:
            return False
        self._dealt -= 1
        return True

    def stop(self, work: Work) -> None:
        self.call(self._cancel, work)

    def give_up(self, work: Work) -> None:
        """End an attempt though its handler goes on; its place comes back when that ends."""
        if work.ended:
            return
        work.ended = True
        work.lingering = True
        self._over([work], 0)

    def abandon(self, work: Work) -> None:
        """Have the loop forget a task, so that `asyncio.run` does not wait for it for ever."""
        self.call(self._abandon, work)

    def call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something on the program's loop."""
        if self.loop is self._engine_loop:
            call(*arguments)
        else:
            call_soon(self.loop, call, *arguments)

    def _collect(self) -> None:
        self._collecting = False
        works = []
        places = 0
        while self._outbox:
            work = self._outbox.popleft()
            if work is None:
                places += 1
            elif work.ended:  # it was given up before
                self._dealt -= 1
                self._ended_late(work)
            else:
                work.ended = True
                works.append(work)
        self.lent -= places
        self._recalled = max(self._recalled - places, 0)
        self._dealt -= len(works)
        self._over(works, places)

    # On the program's loop

    def _lend(self, places: int) -> None:
        self._shut += places
        self._open(1)

    def _owe(self, places: int) -> None:
        self._owed += places
        self._open(0)

    def _open(self, places: int) -> None:
        """Open so many of the empty places, as far as there is work for them and they are not
        recalled; where there is none, all that stand empty go back."""
        if self.loop.is_closed():  # a coroutine may be closed after its loop
            return
        while self._owed and self._shut:
            self._owed -= 1
            self._shut -= 1
            self._hand_over(None)
        for _ in range(min(places, self._shut, len(self._deck))):
            self._shut -= 1
            self.loop.create_task(self._draw(), context=self._context.copy())
        if not self._deck:
            while self._shut:
                self._shut -= 1
                self._hand_over(None)

    async def _draw(self) -> None:
        """A place: run what is on the deck until it is empty, or until this task is used up."""
        task = asyncio.current_task(self.loop)
        assert task is not None
        now = self._monotonic()
        turn_ends = now + YIELD_AFTER
        try:
            while self._deck and not self._owed:
                if now > turn_ends:
                    await asyncio.sleep(0)
                    now = self._monotonic()
                    turn_ends = now + YIELD_AFTER
                try:
                    work = self._deck.popleft()
                except IndexError:  # the engine took the last one back
                    break
                await self._attempt(work, task)
                began, now = now, self._monotonic()
                work.took = now - began
                self._hand_over(work)
                if task.cancelling() or not self._left_clean(work):
                    break
                if work.waited:
                    turn_ends = now + YIELD_AFTER
        finally:
            self._shut += 1
            self._open(1)

    def _left_clean(self, work: Work) -> bool:
        if work.handler.built_in:
            return True
        if work.waited or work.problem is not None:
            return False
        return contextvars.copy_context() == self._context

    async def _attempt(self, work: Work, task: asyncio.Task[Any]) -> None:
        if work.stop is None and not self._safe(work):
            work.stop = Stop.LATE
            return
        work.task = task
        work.began_at = self._time.now()
        self._deadlines.watch(work)
        try:
            work.unless_stopped()
            self._began(work)
            with traced(self._tracing, work):
                if work.handler.hooks.on_start is not None:
                    self._give_way(work)
                    await call_hook(work.handler.hooks.on_start, work.context)
                answer = work.handler.call(work.context, work.run.payload)
                if work.handler.is_async:
                    answer = await self._awaited(answer, work)
                elif inspect.isawaitable(answer):
                    self._give_way(work)
                    answer = await answer
            built_in = work.handler.built_in
            work.result = answer if built_in else storable_result(answer, work.context)
        except BaseException as error:  # SystemExit too: a handler must not end the program
            work.problem = Problem.of(error, plain=work.handler.built_in)
        end_if_forked(self._pid, work.problem)
        work.task = None
        self._deadlines.forget(work)
        if work.timer is not None:
            work.timer.cancel()

    @types.coroutine
    def _awaited(self, handler: Coroutine[Any, Any, Any], work: Work) -> Generator[Any, Any, Any]:
        """`await handler`, noticing whether it waits."""
        try:
            future = handler.send(None)
        except StopIteration as end:
            return end.value
        self._give_way(work)
        while True:
            try:
                yield future
            except BaseException as error:
                try:
                    future = handler.throw(error)
                except StopIteration as end:
                    return end.value
            else:
                return (yield from handler)

    def _give_way(self, work: Work) -> None:
        """This task is about to wait, and is this work's alone from now on: the other places
        open."""
        work.waited = True
        self._open(self._shut)

    def _expire(self, work: Work) -> None:
        if work.stop is None:
            work.stop = Stop.TIMEOUT
            work.context.cancelled = True
            self._cancel(work)
        else:  # it was told to stop before, and its time is up
            self._on_engine(self.give_up, work)

    def _cancel(self, work: Work, times: int = 1) -> None:
        """Cancel its task, again and again. The timeout of one that was cancelled by somebody goes
        on: then its attempt ends, whatever its handler does."""
        if work.task is None:
            return
        if work.stop is Stop.TIMEOUT and times > GIVE_UP_AFTER:
            self._on_engine(self.give_up, work)
        work.task.cancel()
        if work.timer is not None:
            work.timer.cancel()
        work.timer = self.loop.call_later(CANCEL_AGAIN_AFTER, self._cancel, work, times + 1)

    def _abandon(self, work: Work) -> None:
        if work.task is not None:
            asyncio.tasks._unregister_task(work.task)
            work.task._log_destroy_pending = False  # type: ignore[attr-defined]
            # Never freed: to free it closes its coroutine, which may swallow that as well.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(work.task))

    def _on_engine(self, call: Callable[..., None], *arguments: Any) -> None:
        if self.loop is not self._engine_loop:
            call_soon(self._engine_loop, call, *arguments)
        elif not self._engine_loop.is_closed():
            self._engine_loop.call_soon(call, *arguments)

    def _hand_over(self, work: Work | None) -> None:
        # Append first, then look at the flag; `_collect` lowers the flag first, then takes:
        # whichever way two threads meet here, nothing stays in the box.
        self._outbox.append(work)
        if not self._collecting:
            self._collecting = True
            self._on_engine(self._collect)
