"""The engine's own thread and event loop, calls into it from other threads, and a timed wait.

A handler that blocks its loop never stops the renewals, because they are not on that loop.
Inline (tests, simulation) there is no thread: everything is on the caller's loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from mainspring.errors import NotStarted

log = logging.getLogger("mainspring")

T = TypeVar("T")

LONGEST_CLOSE = 10.0
"""Seconds to wait for the end of a loop's thread."""


class LoopThread:
    """An event loop that runs in a thread of its own until it is closed."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_cancel_all())
            self.loop.close()
            self._ended.set_result(None)

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop from another thread, and wait for its answer."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        """Stop the loop; returns when the thread has ended. Not from the thread itself."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=LONGEST_CLOSE)

    async def close_from_loop(self) -> None:
        """The same without blocking the caller's loop. It uses no executor: the program may have
        filled the default one with its own work."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_CLOSE):
                await asyncio.shield(asyncio.wrap_future(self._ended))
                self._thread.join()


@dataclass(slots=True, eq=False)
class _Call:
    coroutine: Coroutine[Any, Any, Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    context: contextvars.Context
    task: asyncio.Task[Any] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def settle(self) -> None:
        """Give the answer to the caller, on its loop."""
        assert self.task is not None
        if self.answer.done():  # the caller was cancelled
            return
        if self.task.cancelled():
            self.answer.set_exception(_stopped())
        elif (error := self.task.exception()) is not None:
            self.answer.set_exception(error)
        else:
            self.answer.set_result(self.task.result())


class EngineLoop:
    """Runs coroutines on the engine's loop for callers on any loop. Calls that come at once go over
    together, and so do their answers: to wake a thread costs more than a call does."""

    def __init__(self, *, inline: bool) -> None:
        self._host = None if inline else LoopThread("mainspring-engine")
        self.loop = self._host.loop if self._host else asyncio.get_running_loop()
        self._calls: deque[_Call] = deque()  # its methods are atomic to other threads
        self._starting = False
        self._ended: dict[asyncio.AbstractEventLoop, list[_Call]] = {}

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = asyncio.get_running_loop()
        if loop is self.loop:
            return await coroutine
        call = _Call(coroutine, loop, loop.create_future(), contextvars.copy_context())
        self._calls.append(call)
        if not self._starting:
            self._starting = True
            try:
                self.loop.call_soon_threadsafe(self._start)
            except RuntimeError:  # the loop was closed just now
                coroutine.close()
                raise _stopped() from None
        try:
            result: T = await call.answer
        except asyncio.CancelledError:
            call_soon(self.loop, call.cancel)
            raise
        return result

    def _start(self) -> None:
        self._starting = False  # before the queue is read: a later call wakes the loop again
        while self._calls:
            call = self._calls.popleft()
            call.task = self.loop.create_task(call.coroutine, context=call.context)
            call.task.add_done_callback(partial(self._end, call))

    def _end(self, call: _Call, task: asyncio.Task[Any]) -> None:
        if call.loop not in self._ended:
            self._ended[call.loop] = []
            self.loop.call_soon(self._answer, call.loop)
        self._ended[call.loop].append(call)

    def _answer(self, loop: asyncio.AbstractEventLoop) -> None:
        call_soon(loop, _settle, self._ended.pop(loop))

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close_from_loop()


def _settle(calls: list[_Call]) -> None:
    for call in calls:
        call.settle()


def run_in_this_thread(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a caller without an event loop, and return its answer. What the coroutine
    does by itself (it checks arguments with the program's own types) so happens in the caller's
    thread, and only what it calls on the engine's loop happens there."""
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except BaseException:  # KeyboardInterrupt too: it leaves the task as it is
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    loop.run_until_complete(task)
            raise
    finally:
        loop.close()


async def call_on(loop: asyncio.AbstractEventLoop, call: Callable[..., T], *arguments: Any) -> T:
    """Call a function on a loop, perhaps of another thread, and wait for its answer."""

    async def answer() -> T:
        return call(*arguments)

    if asyncio.get_running_loop() is loop:
        return await answer()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), loop))


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most so long; return whether it is set.

    A caller clears the event before it reads what the event is about, so it misses no change.
    """
    if seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
    return event.is_set()


def call_soon(
    loop: asyncio.AbstractEventLoop,
    call: Callable[..., Any],
    *arguments: Any,
    context: contextvars.Context | None = None,
) -> None:
    """Call a function on a loop of another thread; do nothing if that loop is closed. Without a
    `context` the function is called in a copy of the caller's."""
    try:
        loop.call_soon_threadsafe(call, *arguments, context=context)
    except RuntimeError:
        log.debug("a loop was closed before %r could reach it", call)


def _stopped() -> NotStarted:
    return NotStarted("the scheduler was stopped before it could answer")


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
