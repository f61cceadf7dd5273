"""Runs each attempt in the executor that its handler needs.

Async handlers run on the program's loop, sync handlers in threads, handlers with
`isolation="process"` in processes, and built-in handlers (webhooks) on the engine's loop. The
worker calls `begin` and `stop` on the engine's loop; the dispatcher reports there when an attempt
has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mainspring.core.clock import thread_cpu
from mainspring.core.policy import Isolation
from mainspring.engine.attempt import (
    AttemptError,
    LocalAttempt,
    StopReason,
    end_if_forked,
    storable_result,
)
from mainspring.engine.context import EngineContext
from mainspring.engine.executors.loop import Hook, LoopExecutor, call_hook, start_hook
from mainspring.engine.executors.process_pool import ProcessPool, Target
from mainspring.engine.executors.threads import ThreadExecutor
from mainspring.engine.loop_thread import call_soon
from mainspring.engine.telemetry import Telemetry, traced
from mainspring.errors import MemoryExceeded, ProcessDied

log = logging.getLogger("mainspring")


class Dispatcher:
    """Calls `ended(attempts, released)` on the engine's loop when attempts end and capacity is free
    again, and `handler_ended(attempt)` when a thread ends, or a process whose attempt has ended
    before.

    Capacity is counted by the worker. An attempt in a thread or process takes one from its begin.
    Those that run on a loop wait in the loop's queue without taking any; the dispatcher divides
    free capacity between the two loops.
    """

    def __init__(
        self,
        engine: EngineContext,
        user_loop: LoopExecutor,
        builtin_loop: LoopExecutor,
        *,
        inline: bool,
        ended: Callable[[list[LocalAttempt], int], None],
        handler_ended: Callable[[LocalAttempt], None],
        telemetry: Telemetry | None = None,
    ) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # of the program that started the scheduler
        self._user_loop = user_loop
        self._builtin_loop = builtin_loop
        self._granted_last = builtin_loop
        self._inline = inline
        self._ended = ended
        self._handler_ended = handler_ended
        self._telemetry = telemetry
        self._threads = ThreadExecutor()
        # From threads to the engine's loop: attempts with what their handlers gave.
        self._outbox: deque[tuple[LocalAttempt, Any, AttemptError | None]] = deque()
        self._collecting = False
        self._processes = ProcessPool(size=max(engine.settings.workers, 1))

    async def close(self) -> None:
        self._threads.close()
        await self._processes.close()

    @property
    def queued(self) -> int:
        """How many attempts wait in the queues of the loops."""
        return self._user_loop.queued + self._builtin_loop.queued

    @property
    def unused_capacity(self) -> int:
        """Capacity that was granted to the program's loop and that it has no attempt for."""
        return max(self._user_loop.granted - self._user_loop.unended, 0)

    def runs_on_loop(self, attempt: LocalAttempt) -> bool:
        """Whether its handler runs on a loop."""
        return self._inline or attempt.isolation is Isolation.AUTO

    def begin(self, attempts: Sequence[LocalAttempt], free: int, *, first: bool = False) -> int:
        """Begin these attempts with so much free capacity; return how much of it is taken.

        An attempt in a thread or process takes one at once. `first` puts attempts of a loop before
        those that wait in its queue. Raises nothing: an attempt that cannot begin ends soon.
        """
        user_attempts: list[LocalAttempt] = []
        builtin_attempts: list[LocalAttempt] = []
        for attempt in attempts:
            if self.runs_on_loop(attempt):
                (builtin_attempts if attempt.handler.built_in else user_attempts).append(attempt)
            elif attempt.isolation is Isolation.PROCESS:
                self._begin_in_process(attempt)
            else:
                self._begin_in_thread(attempt)
        taken = len(attempts) - len(user_attempts) - len(builtin_attempts)
        self._user_loop.submit(user_attempts, first=first)
        self._builtin_loop.submit(builtin_attempts, first=first)
        return taken + self._grant(max(free - taken, 0))

    def _grant(self, free: int) -> int:
        """Divide free capacity between the two loops; return how much of it they take.

        Both get the same share; what one has no attempts for goes to the other. A loop whose queue
        never empties would keep all it has, so the dispatcher reclaims the other loop's share.
        """
        both = (self._user_loop, self._builtin_loop)
        less, more = sorted(both, key=lambda one: (one.granted, one is self._granted_last))
        half = (less.granted + more.granted + free + 1) // 2
        left = free
        for executor, most in ((less, half - less.granted), (more, free), (less, free)):
            capacity = min(executor.wants, max(most, 0), left)
            if capacity:
                executor.grant(capacity)
                left -= capacity
                self._granted_last = executor
        if less.wants:
            more.reclaim(
                min(less.wants, max((more.granted - less.granted) // 2, less.granted == 0))
            )
        return free - left

    def take_back(self, attempt: LocalAttempt) -> bool:
        """Take an attempt out of its loop's queue; return False if it has begun."""
        return self.runs_on_loop(attempt) and self._executor_of(attempt).take_back(attempt)

    def stop(self, attempt: LocalAttempt, why: StopReason) -> None:
        """Stop a handler. A thread cannot be stopped: it can read `ctx.cancelled`. After a cancel
        its attempt goes on until the thread ends, its timeout is up or its lease is lost."""
        if attempt.ended:
            return
        if attempt.stop_reason is not None:
            in_thread = (
                not self.runs_on_loop(attempt) and attempt.isolation is not Isolation.PROCESS
            )
            if why is StopReason.LOST:  # the run is not this worker's any more
                attempt.stop_reason = why
            if in_thread and why is not StopReason.CANCEL:
                self.give_up(attempt)
            return
        attempt.stop_reason = why
        attempt.context.cancelled = True
        if self.runs_on_loop(attempt):
            self._executor_of(attempt).stop(attempt)
        elif attempt.isolation is Isolation.PROCESS:
            if attempt.task is not None and attempt.began_at is not None:
                attempt.task.cancel()
        elif why is not StopReason.CANCEL:
            self.give_up(attempt)

    def _expire(self, attempt: LocalAttempt) -> None:
        self.stop(attempt, StopReason.TIMEOUT)

    def give_up(self, attempt: LocalAttempt) -> None:
        """End an attempt though its handler goes on: a thread, or a coroutine that swallows every
        cancellation. Its capacity stays taken until the handler ends."""
        if attempt.ended:
            return
        if self.runs_on_loop(attempt):
            self._executor_of(attempt).give_up(attempt)
        else:
            attempt.lingering = True
            self._end(attempt, released=0)

    def abandon(self, attempt: LocalAttempt) -> None:
        """Forget a handler that goes on, so that the program can end."""
        if self.runs_on_loop(attempt):
            self._executor_of(attempt).abandon(attempt)

    def current_task(self) -> asyncio.Task[Any] | None:
        """Return the task that the program's loop runs at the moment, if any."""
        return asyncio.current_task(self._user_loop.loop)

    def call_hook(self, hook: Hook | None, *arguments: Any) -> None:
        """Call a hook on the program's loop. Its errors do not change the run."""
        if hook is not None:
            context = self._context.copy()
            self._user_loop.call(start_hook, self._user_loop.loop, context, hook, *arguments)

    def _executor_of(self, attempt: LocalAttempt) -> LoopExecutor:
        return self._builtin_loop if attempt.handler.built_in else self._user_loop

    # In a thread

    def _begin_in_thread(self, attempt: LocalAttempt) -> None:
        try:
            self._threads.submit(lambda: self._thread_body(attempt))
        except RuntimeError as error:
            log.warning(
                "no thread can be started for run %s of job %s, so it is given back: %s",
                attempt.run.id,
                attempt.run.job_id,
                error,
            )
            attempt.stop_reason = StopReason.NO_THREAD
            # Later: `ended` may begin other attempts, and these are not all begun yet.
            self._report(attempt, None, None)
            return
        attempt.start_timeout(self._loop, self._engine.clock, self._expire)
        self._engine.emit("run.started", attempt.run)

    def _thread_body(self, attempt: LocalAttempt) -> None:
        attempt.began_at = self._engine.time.now()
        result, error = None, None
        pid, cpu = os.getpid(), thread_cpu()
        try:
            attempt.raise_if_stopped()
            if (hook := attempt.handler.hooks.on_start) is not None:
                started = call_hook(hook, attempt.context)
                asyncio.run_coroutine_threadsafe(started, self._user_loop.loop).result()
            with traced(self._telemetry, attempt):
                result = attempt.handler.call(attempt.context, attempt.run.payload)
                if inspect.isawaitable(result):  # an async handler that asked for a thread
                    result = asyncio.run(_await(result))
            result = storable_result(result, attempt.context)
        except BaseException as raised:
            error = AttemptError.of(raised)
        end_if_forked(pid, error)
        attempt.cpu_seconds = thread_cpu() - cpu
        self._report(attempt, result, error)

    def _report(self, attempt: LocalAttempt, result: Any, error: AttemptError | None) -> None:
        # As in `LoopExecutor`: many threads that end wake the engine's loop once.
        self._outbox.append((attempt, result, error))
        if not self._collecting:
            self._collecting = True
            call_soon(self._loop, self._collect, context=self._context)

    def _collect(self) -> None:
        self._collecting = False
        attempts = []
        while self._outbox:
            attempt, result, error = self._outbox.popleft()
            if attempt.ended:  # it was given up before
                self._handler_ended(attempt)
                continue
            attempt.result, attempt.error, attempt.ended = result, error, True
            attempt.stop_timeout()
            attempts.append(attempt)
        self._ended(attempts, len(attempts))

    # In a process

    def _begin_in_process(self, attempt: LocalAttempt) -> None:
        attempt.task = self._loop.create_task(
            self._process_body(attempt), context=self._context.copy()
        )
        self._engine.emit("run.started", attempt.run)

    async def _process_body(self, attempt: LocalAttempt) -> None:
        attempt.began_at = self._engine.time.now()
        attempt.start_timeout(self._loop, self._engine.clock, self._expire)
        try:
            attempt.raise_if_stopped()
            self.call_hook(attempt.handler.hooks.on_start, attempt.context)
            around = attempt.handler.around
            with traced(self._telemetry, attempt):
                reply = await self._processes.run(
                    Target.of(attempt.handler.function),
                    attempt.run,
                    context=attempt.context,
                    takes_context=attempt.handler.takes_context,
                    arguments=attempt.handler.stored_arguments(attempt.run.payload),
                    memory_limit=attempt.job.policy.memory_limit,
                    around=None if around is None else Target.of(around),
                )
            attempt.cpu_seconds, attempt.peak_memory = reply.cpu_seconds, reply.peak_memory
            attempt.result, attempt.error = reply.result, reply.error
        except BaseException as error:
            attempt.error = AttemptError.of(error)
            if isinstance(error, asyncio.CancelledError | ProcessDied | MemoryExceeded):
                # Raised in this process: what is known of the handler's frames is in the notes.
                notes = "\n".join(getattr(error, "__notes__", ())) or None
                attempt.error = dataclasses.replace(attempt.error, traceback=notes)
        if attempt.ended:  # it was given up before
            self._handler_ended(attempt)
        else:
            self._end(attempt, released=1)

    def _end(self, attempt: LocalAttempt, *, released: int) -> None:
        attempt.ended = True
        attempt.stop_timeout()
        self._ended([attempt], released)


async def _await(answer: Awaitable[Any]) -> Any:
    return await answer
