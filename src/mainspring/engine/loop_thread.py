"""The engine's own thread and event loop, calls into it from other threads, and a timed wait.

A handler that blocks its loop never stops the renewals, because they are not on that loop.
Inline (tests, simulation) there is no thread: everything is on the caller's loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mainspring.errors import NotStarted

__all__ = ["EngineLoop", "LoopThread", "call_soon", "wait_for_event"]

log = logging.getLogger("mainspring")

T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a thread of its own until it is closed."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_cancel_all())
            self.loop.close()

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this loop from another thread, and wait for its answer."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def close(self) -> None:
        """Stop the loop; returns when the thread has ended. Not from the thread itself."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10)


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

    def call_blocking(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
        except concurrent.futures.CancelledError:
            raise _stopped() from None

    async def close(self) -> None:
        if self._host is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._host.close)


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait for the event, at most so long; return whether it is set.

    A caller clears the event before it reads what the event is about, so it misses no change.
    """
    if seconds > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()
    return event.is_set()


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *arguments: Any) -> None:
    """Call a function on a loop of another thread; do nothing if that loop is closed."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        log.debug("a loop was closed before %r could reach it", call)


def _stopped() -> NotStarted:
    return NotStarted("the scheduler was stopped before it could answer")


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
