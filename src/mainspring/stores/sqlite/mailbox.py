"""Hands operations from event loops to a thread, and their results back.

Results go back in batches: one `call_soon_threadsafe` for each loop that has some.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from mainspring.errors import StoreError

CLOSED = "the store is not open: call open() first (and use it before close())"


@dataclass(slots=True, eq=False)
class Operation:
    """Work for a thread, whose caller awaits `future` on `loop`.

    If the caller was cancelled, `undo` is called on the loop with the result.
    """

    run: Callable[..., Any]
    items: list[Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    wakes: bool = False
    undo: Callable[[Any], None] | None = None


class Mailbox:
    """The queue in which event loops put operations for one thread. A closed one refuses them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Operation | None] = queue.SimpleQueue()
        self._guard = threading.Lock()
        self._closed = False

    def put(self, work: Operation) -> None:
        with self._guard:
            if self._closed:
                raise StoreError(CLOSED)
            self._queue.put(work)

    def wake(self) -> None:
        """Make the thread return from `take`."""
        self._queue.put(None)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._queue.put(None)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def finished(self) -> bool:
        return self._closed and self._queue.empty()

    def take(self, most: int, timeout: float | None) -> list[Operation]:
        """Wait for operations, and take those that are queued, up to about `most` items."""
        taken: list[Operation] = []
        size = 0
        with contextlib.suppress(queue.Empty):
            work = self._queue.get(timeout=timeout)
            while True:
                if work is not None and not work.future.cancelled():
                    taken.append(work)
                    size += len(work.items)
                if size >= most:
                    break
                work = self._queue.get_nowait()
        return taken


def deliver(outcomes: Iterable[tuple[Operation, Any, BaseException | None]]) -> None:
    """Give results and errors to the event loops whose callers wait for them."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Operation, Any, BaseException | None]]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome[0].loop, []).append(outcome)
    for loop, batch in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no caller waits
            loop.call_soon_threadsafe(_settle, batch)


def _settle(batch: list[tuple[Operation, Any, BaseException | None]]) -> None:
    for work, result, error in batch:
        if work.future.cancelled():
            if work.undo is not None and error is None:
                work.undo(result)
        elif error is not None:
            work.future.set_exception(error)
        else:
            work.future.set_result(result)
