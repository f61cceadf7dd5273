"""Hands operations from event loops to threads, and their results back; runs the readers.

Results go back in batches: one `call_soon_threadsafe` for each loop that has some. A reader has its
own thread and connection. In WAL mode writers never block it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mainspring.errors import StoreError, StoreFileChanged
from mainspring.stores.sqlite.errors import translated
from mainspring.stores.sqlite.files import FileIdentity
from mainspring.stores.sqlite.hint_watch import HintWatch
from mainspring.stores.sqlite.schema import check_version, connect
from mainspring.stores.sqlite.store_clock import StoreClock

T = TypeVar("T")

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
        self._watched: HintWatch | None = None
        """Where the thread waits for hints too. It does not see the queue meanwhile."""

    def put(self, work: Operation) -> None:
        with self._guard:
            if self._closed:
                raise StoreError(CLOSED)
            self._put(work)

    def wake(self) -> None:
        """Make the thread return from `take`."""
        with self._guard:
            self._put(None)

    def close(self) -> None:
        with self._guard:
            self._closed = True
            self._put(None)

    def _put(self, work: Operation | None) -> None:
        self._queue.put(work)
        if self._watched is not None:
            self._watched.interrupt()

    def watch(self, watch: HintWatch, timeout: float) -> None:
        """Wait for a hint or an operation."""
        with self._guard:
            self._watched = watch if self._queue.empty() else None
        if self._watched is not None:
            watch.wait(timeout)
            with self._guard:
                self._watched = None

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


# -- hints ----------------------------------------------------------------------------------


class Notifier:
    """Wakes the callers of `wait`, on any number of event loops."""

    def __init__(self, on_waiter: Callable[[], None]) -> None:
        self._on_waiter = on_waiter
        self._guard = threading.Lock()
        self._waiters: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}

    @property
    def awaited(self) -> bool:
        return bool(self._waiters)

    async def wait(self, timeout: float) -> bool:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._guard:
            first = not self._waiters
            self._waiters.setdefault(loop, set()).add(waiter)
        if first:
            self._on_waiter()
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except TimeoutError:
            return False
        finally:
            self._forget(loop, waiter)
        return True

    def notify(self) -> None:
        """Wake all callers of `wait`. May be called from any thread."""
        with self._guard:
            loops = list(self._waiters)
        for loop in loops:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            waiters = list(self._waiters.get(loop, ()))
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _forget(self, loop: asyncio.AbstractEventLoop, waiter: asyncio.Future[None]) -> None:
        with self._guard:
            waiters = self._waiters.get(loop, set())
            waiters.discard(waiter)
            if not waiters:
                self._waiters.pop(loop, None)


# -- readers --------------------------------------------------------------------------------

NOW = object()


class Reader:
    """Starts its thread with the first read."""

    def __init__(self, path: Path, clock: StoreClock, identity: FileIdentity) -> None:
        self._path = path
        self._clock = clock
        self._identity = identity
        self._mailbox = Mailbox()
        self._started = False
        self._guard = threading.Lock()
        self.ended: Future[None] = Future()

    async def read(self, run: Callable[..., T], *arguments: Any) -> T:
        """Call `run(connection, *arguments)` on the thread, in one snapshot. `NOW` among the
        arguments is replaced by the store's time in microseconds."""
        loop = asyncio.get_running_loop()
        work = Operation(run, list(arguments), loop, loop.create_future())
        self._mailbox.put(work)
        self._start()
        result: T = await work.future
        return result

    def close(self) -> None:
        self._mailbox.close()
        with self._guard:
            if not self._started:
                self._started = True
                self.ended.set_result(None)

    def _start(self) -> None:
        with self._guard:
            if not self._started:
                self._started = True
                name = "mainspring-sqlite-reader"
                threading.Thread(target=self._main, name=name, daemon=True).start()

    def _main(self) -> None:
        connection: sqlite3.Connection | None = None
        while not self._mailbox.finished:
            for work in self._mailbox.take(1, None):
                try:
                    self._identity.check()
                    connection = connection or connect(self._path)
                    result = self._snapshot(connection, work)
                    self._identity.check()
                    deliver([(work, result, None)])
                except StoreFileChanged as error:
                    if connection is not None:
                        connection.close()  # it may have opened the wrong file
                        connection = None
                    deliver([(work, None, error)])
                except BaseException as error:
                    deliver([(work, None, translated(error, self._path))])
        if connection is not None:
            connection.close()
        self.ended.set_result(None)

    def _snapshot(self, connection: sqlite3.Connection, work: Operation) -> Any:
        connection.execute("BEGIN")
        try:
            check_version(connection, self._path)
            now = self._clock.read(connection)
            return work.run(connection, *(now if item is NOW else item for item in work.items))
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
