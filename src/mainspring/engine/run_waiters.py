"""Lets callers wait for the end of runs, and reads those runs from the store in one query.

A hint that something has changed may be about any of these runs. If each of a thousand waiting
callers read its own run, the engine's claims would wait behind a thousand reads.
"""

from __future__ import annotations

import asyncio

from mainspring.core.model import Run
from mainspring.engine.loop_thread import wait_for_event
from mainspring.engine.store_retry import reason_of
from mainspring.errors import RunNotFound, StoreUnavailable
from mainspring.stores.protocol import RunQuery, Store

POLL = 1.0
"""Seconds between two reads without a hint."""

LAST_READ = 1.0
"""Seconds that the last read may take, after the time is up."""


class RunWaiters:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._asked: dict[str, asyncio.Future[Run | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    def finished(self, run_id: str) -> None:
        for event in self._waiting.get(run_id, ()):
            event.set()

    def wake(self) -> None:
        """Read the runs again: another process may have changed one."""
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def read(self, run_id: str) -> Run:
        """Return the run as it is now. One query reads all runs that are wanted at this moment, or
        that were asked for during the last query."""
        if not isinstance(run_id, str) or not run_id.isascii():  # no id that Mainspring makes
            raise RunNotFound(run_id)
        if run_id not in self._asked:
            self._asked[run_id] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        run = await asyncio.shield(self._asked[run_id])  # others may wait for the same one
        if run is None:
            raise RunNotFound(run_id)
        return run

    async def wait(self, run_id: str, timeout: float | None) -> Run:
        """Return the run once it has ended; raise TimeoutError if that takes longer. Wait on while
        the store is away: it may come back in time."""
        changed = asyncio.Event()
        last_error: Exception | None = None
        self._waiting.setdefault(run_id, set()).add(changed)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    changed.clear()
                    try:
                        run = await self.read(run_id)
                    except (StoreUnavailable, TimeoutError) as error:
                        last_error = error
                    else:
                        last_error = None
                        if run.finished:
                            return run
                    await wait_for_event(changed, POLL)
        except TimeoutError:
            return await self._read_last(run_id, timeout, last_error)
        finally:
            self._waiting[run_id].discard(changed)
            if not self._waiting[run_id]:
                del self._waiting[run_id]

    async def _read_last(
        self, run_id: str, timeout: float | None, last_error: Exception | None
    ) -> Run:
        """Return the run if it has ended by now; raise TimeoutError otherwise, or if the store does
        not answer soon. So a timeout of zero reads the run once."""
        try:
            async with asyncio.timeout(LAST_READ):
                run = await self.read(run_id)
        except (StoreUnavailable, TimeoutError) as error:
            cause = last_error or error
            raise TimeoutError(
                f"run {run_id} was not seen to finish within {timeout} s: the store does not"
                f" answer ({reason_of(cause)})"
            ) from cause
        if run.finished:
            return run
        raise TimeoutError(f"run {run_id} did not finish within {timeout} s")

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                page = await self._store.find(RunQuery(ids=frozenset(asked)))
            except Exception as error:
                for future in asked.values():
                    future.set_exception(error)
                    future.exception()  # read, or asyncio logs it where the caller is gone
            except BaseException:
                for future in asked.values():
                    future.cancel()
                raise
            else:
                runs = {run.id: run for run in page.items}
                for run_id, future in asked.items():
                    future.set_result(runs.get(run_id))
