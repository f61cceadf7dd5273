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
from collections.abc import Callable, Coroutine
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


class EngineLoop:
    """Runs coroutines on the engine's loop for callers on any loop, or on none."""

    def __init__(self, *, inline: bool) -> None:
        self._host = None if inline else LoopThread("mainspring-engine")
        self.loop = self._host.loop if self._host else asyncio.get_running_loop()

    async def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if asyncio.get_running_loop() is self.loop:
            return await coroutine
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if future.cancelled() and (task is None or not task.cancelling()):
                raise _stopped() from None
            raise

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close_from_loop()


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
