"""Runs one handler: on the program's loop, in a thread, or in a process of its own.

The engine's loop says `begin` and `stop`; when the handler is over, the runner says so there.
Ends are handed over in batches, so that a thousand short handlers cost one wake-up.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from msgspec import Struct

from mainspring.clock import CarriedClock
from mainspring.context import RunContext
from mainspring.engine.processes import ProcessPool, RemoteError, Target
from mainspring.engine.threads import Threads
from mainspring.engine.traces import trace_of
from mainspring.errors import GiveUp, RemoteFailure, Retry
from mainspring.handlers import Handler
from mainspring.model import Job, Progress, Run
from mainspring.policy import Isolation, error_names

__all__ = ["Problem", "Runner", "Stop", "Work"]

log = logging.getLogger("mainspring")

CANCEL_AGAIN_AFTER = 1.0
"""A handler may swallow a cancellation; it is sent again until the handler ends."""


LONGEST_ERROR = 8_000
"""Characters of an error that are kept; its traceback keeps more."""


class Stop(Enum):
    """Why a handler was told to stop."""

    TIMEOUT = "timeout"
    CANCEL = "cancel"
    LOST = "lost"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Problem:
    """An error of a handler, wherever it ran, as the policy and the record need it."""

    error: str
    names: tuple[str, ...]
    traceback: str | None = None
    retry_after: Any = None
    asks_retry: bool = False
    gives_up: bool = False
    exception: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        return cls(
            error=_in_words(error),
            names=error_names(error),
            traceback=trace_of(error, 16_000),
            retry_after=error.after if isinstance(error, Retry) else None,
            asks_retry=isinstance(error, Retry),
            gives_up=isinstance(error, GiveUp),
            exception=error,
        )

    @classmethod
    def remote(cls, error: RemoteError) -> Problem:
        return cls(
            error=error.message,
            names=error.names,
            traceback=error.traceback,
            retry_after=error.retry_after,
            asks_retry=error.kind == "retry",
            gives_up=error.kind == "give_up",
            exception=RemoteFailure(error.message),
        )


class Work(Struct, eq=False):
    """A claimed run on its way through this process. Mutable: it lives for one attempt."""

    run: Run
    job: Job
    handler: Handler
    context: RunContext
    held_since: float
    began_at: datetime | None = None
    result: Any = None
    problem: Problem | None = None
    stop: Stop | None = None
    ended: bool = False
    lingering: bool = False
    """The attempt is over, but its thread is not."""
    told_progress: Progress | None = None
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def isolation(self) -> Isolation:
        asked = self.job.policy.isolation
        if asked is Isolation.AUTO and not self.handler.is_async:
            return Isolation.THREAD
        return asked


class Runner:
    """`over(works)` is called on the engine's loop when attempts end, and `freed(work)` when
    a thread that had outlived its attempt gives its place back."""

    def __init__(
        self,
        *,
        home: asyncio.AbstractEventLoop,
        time: CarriedClock,
        places: int,
        inline: bool,
        over: Callable[[list[Work]], None],
        freed: Callable[[Work], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._home = home
        self._time = time
        self._inline = inline
        self._over = over
        self._freed = freed
        self._threads = Threads()
        self._processes = ProcessPool(size=max(places, 1))
        self._outbox: deque[Work] = deque()
        self._collecting = False

    async def close(self) -> None:
        self._threads.close()
        await self._processes.close()

    def begin(self, works: list[Work]) -> None:
        on_loop = []
        for work in works:
            isolation = work.isolation
            if isolation is Isolation.PROCESS:
                self._begin_in_process(work)
            elif isolation is Isolation.THREAD and not self._inline:
                self._begin_in_thread(work)
            else:
                on_loop.append(work)
        if on_loop:
            self._on_home(self._begin_on_loop, on_loop)

    def stop(self, work: Work, why: Stop) -> None:
        """Ask a handler to end. A thread cannot be stopped: it is told, and waited for."""
        if work.ended or work.stop is not None:
            return
        work.stop = why
        work.context.cancelled = True
        if work.isolation is Isolation.PROCESS:
            if work.task is not None and work.began_at is not None:
                work.task.cancel()
        elif work.isolation is Isolation.THREAD and not self._inline:
            if why is not Stop.CANCEL:
                work.lingering = True
                self._end(work)
        else:
            self._on_home(self._cancel, work)

    def tell(self, hook: Callable[..., Any] | None, *arguments: Any) -> None:
        """Call a hook on the program's loop; whatever it does, the run stands."""
        if hook is not None:
            self._on_home(self._start_hook, hook, arguments)

    # On the program's loop

    def _begin_on_loop(self, works: list[Work]) -> None:
        for work in works:
            work.task = self._home.create_task(self._attempt(work))
            if work.job.policy.timeout is not None:
                seconds = work.job.policy.timeout.total_seconds()
                work.timer = self._home.call_later(seconds, self._expire_on_loop, work)

    async def _attempt(self, work: Work) -> None:
        work.began_at = self._time.now()
        try:
            _unless_stopped(work)
            if work.handler.hooks.on_start is not None:
                await _hook(work.handler.hooks.on_start, (work.context,))
            answer = work.handler.call(work.context, work.run.payload)
            if work.handler.is_async or inspect.isawaitable(answer):
                answer = await answer
            work.result = answer
        except BaseException as error:  # SystemExit too: a handler must not end the program
            work.problem = Problem.of(error)
        if work.timer is not None:
            work.timer.cancel()
        self._hand_over(work)

    def _hand_over(self, work: Work) -> None:
        # Append first, then look at the flag; `_collect` lowers the flag first, then takes:
        # whichever way two threads meet here, nothing stays in the box.
        self._outbox.append(work)
        if not self._collecting:
            self._collecting = True
            if self._home is not self._loop:
                _soon(self._loop, self._collect)
            elif not self._loop.is_closed():  # a coroutine may be closed after its loop
                self._loop.call_soon(self._collect)

    def _expire_on_loop(self, work: Work) -> None:
        if work.stop is None:
            work.stop = Stop.TIMEOUT
            work.context.cancelled = True
            self._cancel(work)

    def _cancel(self, work: Work) -> None:
        if work.task is not None and not work.task.done():
            if work.began_at is not None:
                work.task.cancel()
            if work.timer is not None:
                work.timer.cancel()
            work.timer = self._home.call_later(CANCEL_AGAIN_AFTER, self._cancel, work)

    def _start_hook(self, hook: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        task = self._home.create_task(_hook(hook, arguments))
        _HOOKS.add(task)
        task.add_done_callback(_HOOKS.discard)

    # In a thread

    def _begin_in_thread(self, work: Work) -> None:
        if work.job.policy.timeout is not None:
            seconds = work.job.policy.timeout.total_seconds()
            work.timer = self._loop.call_later(seconds, self.stop, work, Stop.TIMEOUT)
        self._threads.submit(lambda: self._thread_body(work))

    def _thread_body(self, work: Work) -> None:
        work.began_at = self._time.now()
        result, problem = None, None
        try:
            _unless_stopped(work)
            if work.handler.hooks.on_start is not None:
                self._hook_in_thread(work)
            result = work.handler.call(work.context, work.run.payload)
            if inspect.isawaitable(result):  # an async handler that asked for a thread
                result = asyncio.run(_awaited(result))
        except BaseException as error:
            problem = Problem.of(error)
        _soon(self._loop, self._thread_over, work, result, problem)

    def _hook_in_thread(self, work: Work) -> None:
        future = asyncio.run_coroutine_threadsafe(
            _hook(work.handler.hooks.on_start, (work.context,)), self._home
        )
        future.result()

    def _thread_over(self, work: Work, result: Any, problem: Problem | None) -> None:
        if work.ended:  # it was given up before; only its place comes back
            self._freed(work)
            return
        work.result, work.problem = result, problem
        self._end(work)
        self._freed(work)

    # In a process

    def _begin_in_process(self, work: Work) -> None:
        work.task = self._loop.create_task(self._process_body(work))

    async def _process_body(self, work: Work) -> None:
        work.began_at = self._time.now()
        timeout = work.job.policy.timeout
        if timeout is not None:
            work.timer = self._loop.call_later(
                timeout.total_seconds(), self.stop, work, Stop.TIMEOUT
            )
        try:
            _unless_stopped(work)
            self.tell(work.handler.hooks.on_start, work.context)
            reply = await self._processes.run(
                Target.of(work.handler.function),
                work.run,
                context=work.context,
                takes_context=work.handler.takes_context,
                arguments=work.handler.stored_arguments(work.run.payload),
                results=work.context.results,
                memory_limit=work.job.policy.memory_limit,
            )
            work.result = reply.result
            work.problem = Problem.remote(reply.error) if reply.error else None
        except BaseException as error:
            work.problem = Problem.of(error)
        self._end(work)

    # On the engine's loop

    def _collect(self) -> None:
        self._collecting = False
        works = []
        while self._outbox:
            work = self._outbox.popleft()
            work.ended = True
            works.append(work)
        self._over(works)

    def _end(self, work: Work) -> None:
        work.ended = True
        if work.timer is not None:
            work.timer.cancel()
        self._over([work])

    def _on_home(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._home is self._loop:
            call(*arguments)
        else:
            _soon(self._home, call, *arguments)


def _unless_stopped(work: Work) -> None:
    """A task that is cancelled before its first step ends without a word, so it is not: it
    looks itself whether it was stopped by then."""
    if work.stop is not None:
        raise asyncio.CancelledError


_HOOKS: set[asyncio.Task[None]] = set()


async def _hook(hook: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> None:
    try:
        answer = hook(*arguments) if hook is not None else None
        if inspect.isawaitable(answer):
            await answer
    except BaseException as error:  # SystemExit too: a hook must not end the program
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        log.exception("a hook failed; the run is not touched by it")


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _in_words(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}"[:LONGEST_ERROR] if text else type(error).__name__


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *arguments: Any) -> None:
    """Hand a call to a loop in another thread; a loop that is closed has nobody to tell."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        log.debug("a loop was closed before %r could reach it", call)
