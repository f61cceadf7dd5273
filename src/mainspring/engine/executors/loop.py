"""Runs async handlers on an event loop: the program's, or the engine's for built-in handlers. Also
calls hooks there, and notices when the program's loop is blocked.

The engine submits attempts to a queue and grants capacity. For each granted unit the executor runs
a task that takes attempts from the queue until it is empty, or until the dispatcher reclaims the
unit for the other loop. So a thousand short handlers cost one hand-over to the program's loop and
one back, not one for every few handlers: those hand-overs took an eighth of a worker's CPU time.

Handlers that never suspend run one after another in the same task. After a handler that suspended,
its task ends and the executor starts another one for the queue. So no handler sees what another one
left in its task: a pending cancellation, a context variable. Built-in handlers leave nothing but a
cancellation, so they share a task even if they suspend.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import inspect
import logging
import os
import sys
import traceback
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from mainspring.engine.attempt import (
    AttemptError,
    LocalAttempt,
    StopReason,
    end_if_forked,
    storable_result,
)
from mainspring.engine.context import EngineContext
from mainspring.engine.loop_thread import call_soon
from mainspring.engine.telemetry import Telemetry, traced

log = logging.getLogger("mainspring")

CANCEL_AGAIN_AFTER = 1.0
"""Seconds between two cancellations. A handler may swallow one, so they go on until it ends."""

GIVE_UP_AFTER = 2
"""After its timeout an attempt ends when its handler was cancelled so often and still goes on."""

YIELD_AFTER = 0.002
"""Seconds that handlers which never wait may run one after another, before other tasks of the
program run."""

BLOCKED_AFTER = 1.0
"""Seconds without an answer after which a loop counts as blocked."""

CHECK_INTERVAL = 0.25

_LIBRARY = os.path.dirname(os.__file__)

Hook = Callable[..., Any]

_STARTED: set[asyncio.Task[None]] = set()  # a loop keeps its tasks by weak references alone


class LoopExecutor:
    """Made and used on the engine's loop, except for the part that says otherwise.

    `can_begin(attempt)` says whether it may still begin: its lease may have lapsed while it waited.
    `ran(attempt)` is called on the program's loop when a handler has ended, before the next one
    begins. `ended(attempts, released)` is called on the engine's loop: these attempts have ended,
    and so much capacity is free again.
    `ended_late(attempt)`: a handler has ended whose attempt was given up before.
    """

    def __init__(
        self,
        engine: EngineContext,
        loop: asyncio.AbstractEventLoop,
        *,
        thread_cpu: Callable[[], float] | None = None,
        can_begin: Callable[[LocalAttempt], bool],
        ran: Callable[[LocalAttempt], None],
        ended: Callable[[list[LocalAttempt], int], None],
        ended_late: Callable[[LocalAttempt], None],
        telemetry: Telemetry | None = None,
    ) -> None:
        self.loop = loop
        self._engine_loop = asyncio.get_running_loop()
        self._engine = engine
        self._monotonic = engine.clock.monotonic
        self._thread_cpu = thread_cpu
        self._can_begin = can_begin
        self._ran = ran
        self._ended = ended
        self._ended_late = ended_late
        self._telemetry = telemetry
        self._context = contextvars.copy_context()
        self._pid = os.getpid()
        # The engine's loop adds to the queue and takes back from it, the program's loop takes from
        # it. Each method of a deque is atomic to other threads.
        self._queue: deque[LocalAttempt] = deque()
        # Counted on the engine's loop:
        self.granted = 0  # capacity that was granted and not released
        self.unended = 0  # attempts that were submitted and have not ended
        self._reclaimed = 0  # of the granted capacity, what is to be released
        # Counted on the program's loop:
        self._cpu_read: float | None = None  # when a handler ended, and nothing has waited since
        self._unused = 0  # granted capacity without a task
        self._to_release = 0  # capacity to release though the queue has attempts
        # From the program's loop to the engine's. None: one unit of capacity is released.
        self._outbox: deque[LocalAttempt | None] = deque()
        self._collecting = False

    @property
    def queued(self) -> int:
        """How many attempts wait in the queue."""
        return len(self._queue)

    @property
    def wants(self) -> int:
        """How much more capacity it has attempts for."""
        return max(self.unended - self.granted, 0)

    def submit(self, attempts: list[LocalAttempt], *, first: bool = False) -> None:
        """Queue attempts; `first` puts them before all others."""
        if first:
            self._queue.extendleft(reversed(attempts))
        else:
            self._queue.extend(attempts)
        self.unended += len(attempts)

    def grant(self, capacity: int) -> None:
        """Let so many more attempts run at once."""
        self.granted += capacity
        self.call(self._use, capacity)

    def reclaim(self, capacity: int) -> None:
        """Release so much capacity soon, also while attempts are queued."""
        more = min(capacity, self.granted) - self._reclaimed
        if more > 0:
            self._reclaimed += more
            self.call(self._release, more)

    def take_back(self, attempt: LocalAttempt) -> bool:
        """Take an attempt out of the queue; return False if it has begun."""
        try:
            self._queue.remove(attempt)
        except ValueError:
            return False
        self.unended -= 1
        return True

    def stop(self, attempt: LocalAttempt) -> None:
        self.call(self._cancel, attempt)

    def give_up(self, attempt: LocalAttempt) -> None:
        """End an attempt though its handler goes on; its capacity is released when that ends."""
        if attempt.ended:
            return
        attempt.ended = True
        attempt.lingering = True
        self._ended([attempt], 0)

    def abandon(self, attempt: LocalAttempt) -> None:
        """Make the loop forget a task, so that `asyncio.run` does not wait for it forever."""
        self.call(self._abandon, attempt)

    def call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the program's loop."""
        if self.loop is self._engine_loop:
            call(*arguments)
        else:
            call_soon(self.loop, call, *arguments)

    def _collect(self) -> None:
        self._collecting = False
        attempts = []
        released = 0
        while self._outbox:
            attempt = self._outbox.popleft()
            if attempt is None:
                released += 1
            elif attempt.ended:  # it was given up before
                self.unended -= 1
                self._ended_late(attempt)
            else:
                attempt.ended = True
                attempts.append(attempt)
        self.granted -= released
        self._reclaimed = max(self._reclaimed - released, 0)
        self.unended -= len(attempts)
        self._ended(attempts, released)

    # On the program's loop

    def _use(self, capacity: int) -> None:
        self._unused += capacity
        self._start_tasks(1)

    def _release(self, capacity: int) -> None:
        self._to_release += capacity
        self._start_tasks(0)

    def _start_tasks(self, most: int) -> None:
        """Start up to `most` tasks for queued attempts. Release the unused capacity that is to be
        released, and all of it where no attempt is queued."""
        if self.loop.is_closed():  # a coroutine may be closed after its loop
            return
        while self._to_release and self._unused:
            self._to_release -= 1
            self._unused -= 1
            self._report(None)
        for _ in range(min(most, self._unused, len(self._queue))):
            self._unused -= 1
            self.loop.create_task(self._run_queued(), context=self._context.copy())
        if not self._queue:
            while self._unused:
                self._unused -= 1
                self._report(None)

    async def _run_queued(self) -> None:
        """Run queued attempts until there is none, or until this task cannot be shared further."""
        task = asyncio.current_task(self.loop)
        assert task is not None
        now = self._monotonic()
        yield_at = now + YIELD_AFTER
        try:
            while self._queue and not self._to_release:
                if now > yield_at:
                    self._cpu_read = None
                    await asyncio.sleep(0)
                    now = self._monotonic()
                    yield_at = now + YIELD_AFTER
                try:
                    attempt = self._queue.popleft()
                except IndexError:  # the engine took the last one back
                    break
                await self._run(attempt, task)
                began, now = now, self._monotonic()
                attempt.took = now - began
                self._ran(attempt)
                self._report(attempt)
                if task.cancelling() or not self._left_task_clean(attempt):
                    break
                if attempt.waited:
                    yield_at = now + YIELD_AFTER
        finally:
            self._cpu_read = None
            self._unused += 1
            self._start_tasks(1)

    def _left_task_clean(self, attempt: LocalAttempt) -> bool:
        if attempt.handler.built_in:
            return True
        if attempt.waited or attempt.error is not None:
            return False
        return contextvars.copy_context() == self._context

    async def _run(self, attempt: LocalAttempt, task: asyncio.Task[Any]) -> None:
        if attempt.stop_reason is None and not self._can_begin(attempt):
            attempt.stop_reason = StopReason.LATE
            return
        attempt.task = task
        attempt.began_at = self._engine.time.now()
        attempt.start_timeout(self.loop, self._engine.clock, self._expire)
        try:
            attempt.raise_if_stopped()
            self._engine.emit("run.started", attempt.run)
            with traced(self._telemetry, attempt):
                if attempt.handler.hooks.on_start is not None:
                    self._keep_task(attempt)
                    await call_hook(attempt.handler.hooks.on_start, attempt.context)
                answer = attempt.handler.call(attempt.context, attempt.run.payload)
                if attempt.handler.is_async:
                    answer = await self._await(answer, attempt)
                elif inspect.isawaitable(answer):
                    self._keep_task(attempt)
                    answer = await answer
            built_in = attempt.handler.built_in
            attempt.result = answer if built_in else storable_result(answer, attempt.context)
        except BaseException as raised:  # SystemExit too: a handler must not end the program
            if self.loop.is_closed():  # a coroutine may be closed after its loop
                raise
            attempt.error = AttemptError.of(raised, plain=attempt.handler.built_in)
        end_if_forked(self._pid, attempt.error)
        attempt.task = None
        may_expire = attempt.timeout_timer is not None and attempt.stop_reason is None
        if may_expire and self._monotonic() > attempt.times_out_at:
            attempt.stop_reason = StopReason.TIMEOUT  # a blocked loop could not call `_expire`
        attempt.stop_timeout()
        if attempt.timer is not None:
            attempt.timer.cancel()

    @types.coroutine
    def _await(
        self, handler: Coroutine[Any, Any, Any], attempt: LocalAttempt
    ) -> Generator[Any, Any, Any]:
        """`await handler`; note whether it waits, and how much CPU time it uses."""
        thread_cpu = None if attempt.handler.built_in else self._thread_cpu
        step: Callable[[Any], Any] = handler.send
        sent: Any = None
        while True:
            if thread_cpu is not None:
                # A reading takes 1.7 µs: that of the handler before this one serves again.
                began = self._cpu_read or thread_cpu()
            try:
                future = step(sent)
            except StopIteration as end:
                return end.value
            finally:
                if thread_cpu is not None:
                    self._cpu_read = thread_cpu()
                    attempt.cpu_seconds = (attempt.cpu_seconds or 0.0) + self._cpu_read - began
            self._cpu_read = None
            if not attempt.waited:
                self._keep_task(attempt)
            try:
                sent = yield future
                step = handler.send
            except BaseException as error:
                step, sent = handler.throw, error

    def _keep_task(self, attempt: LocalAttempt) -> None:
        """Keep this task for this attempt, which is about to wait; start tasks for the others."""
        attempt.waited = True
        self._cpu_read = None
        self._start_tasks(self._unused)

    def _expire(self, attempt: LocalAttempt) -> None:
        if attempt.stop_reason is None:
            attempt.stop_reason = StopReason.TIMEOUT
            attempt.context.cancelled = True
            self._cancel(attempt)
        else:  # it was stopped before its timeout, and goes on
            self._on_engine(self.give_up, attempt)

    def _cancel(self, attempt: LocalAttempt, times: int = 1) -> None:
        """Cancel the task of an attempt until it ends. The timeout of an attempt that somebody
        cancelled still counts: then the attempt ends, whatever its handler does."""
        if attempt.task is None:
            return
        if attempt.stop_reason is StopReason.TIMEOUT and times > GIVE_UP_AFTER:
            self._on_engine(self.give_up, attempt)
        attempt.task.cancel()
        if attempt.timer is not None:
            attempt.timer.cancel()
        attempt.timer = self.loop.call_later(CANCEL_AGAIN_AFTER, self._cancel, attempt, times + 1)

    def _abandon(self, attempt: LocalAttempt) -> None:
        if attempt.task is not None:
            asyncio.tasks._unregister_task(attempt.task)
            attempt.task._log_destroy_pending = False  # type: ignore[attr-defined]
            # Never freed: freeing it closes its coroutine, which may swallow that as well.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(attempt.task))

    def _on_engine(self, call: Callable[..., None], *arguments: Any) -> None:
        if self.loop is not self._engine_loop:
            call_soon(self._engine_loop, call, *arguments, context=self._context)
        elif not self._engine_loop.is_closed():
            self._engine_loop.call_soon(call, *arguments, context=self._context)

    def _report(self, attempt: LocalAttempt | None) -> None:
        # Append first, then read the flag; `_collect` clears the flag first, then takes. So nothing
        # stays in the outbox, whichever order two threads come in.
        self._outbox.append(attempt)
        if not self._collecting:
            self._collecting = True
            self._on_engine(self._collect)


class LoopWatch:
    """Used on the engine's loop. `blocked(where)` is called when the program's loop does not
    answer, with the line of code that it is at, `freed()` when it answers again. A loop without
    attempts is not checked."""

    def __init__(
        self, executor: LoopExecutor, *, blocked: Callable[[str], None], freed: Callable[[], None]
    ) -> None:
        self._executor = executor
        self._blocked = blocked
        self._freed = freed

    async def watch_periodically(self) -> None:
        engine = asyncio.get_running_loop()
        if self._executor.loop is engine:  # inline: this task would be blocked as well
            return
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            if not self._executor.unended:
                continue
            answered = asyncio.Event()
            call_soon(self._executor.loop, call_soon, engine, answered.set)
            try:
                async with asyncio.timeout(BLOCKED_AFTER):
                    await answered.wait()
            except TimeoutError:
                self._blocked(self._where())
                await answered.wait()
                self._freed()

    def _where(self) -> str:
        """Return the line of code that the loop's thread is at."""
        thread = getattr(self._executor.loop, "_thread_id", None)
        frame = sys._current_frames().get(thread) if thread is not None else None
        if frame is None:
            return "at an unknown line"
        lines = traceback.extract_stack(frame)
        own = [line for line in lines if not line.filename.startswith(_LIBRARY)]
        line = (own or lines)[-1]
        return f"at {line.filename}:{line.lineno}"


async def call_hook(hook: Hook, *arguments: Any) -> None:
    """Call a hook. Its first argument is the context of the run."""
    try:
        answer = hook(*arguments)
        if inspect.isawaitable(answer):
            await answer
    except BaseException as error:  # SystemExit too: a hook must not end the program
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        context = arguments[0]
        log.exception(
            "job %s: its hook %s failed; the run is not affected (run %s)",
            context.job_id,
            getattr(hook, "__name__", hook),
            context.run_id,
        )


def start_hook(
    loop: asyncio.AbstractEventLoop, context: contextvars.Context, hook: Hook, *arguments: Any
) -> None:
    """Start a hook on that loop and in that context, without waiting for it."""
    task = loop.create_task(call_hook(hook, *arguments), context=context)
    _STARTED.add(task)
    task.add_done_callback(_STARTED.discard)
