"""Those who wait for a run to end, and the looks at the store for all of them together.

A hint that something has changed may mean any of the runs waited for. Each of a thousand who wait
would ask for its own, and the engine's claims would stand in line behind them.
"""

from __future__ import annotations

import asyncio
import contextlib

from mainspring.core.model import Run
from mainspring.engine.loop_thread import wait_for_event
from mainspring.errors import RunNotFound, StoreUnavailable
from mainspring.stores.protocol import RunQuery, Store

__all__ = ["RunWaiters"]

POLL = 1.0
"""Seconds after which who waits looks without a hint."""


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
        """Something changed, perhaps in another process: look at the runs waited for."""
        for events in self._waiting.values():
            for event in events:
                event.set()

    async def look(self, run_id: str) -> Run:
        """The run as it is now: asked for with all others that are wanted at this moment, or that
        came while the last answer was on its way."""
        if not isinstance(run_id, str) or not run_id.isascii():  # no id of ours
            raise RunNotFound(run_id)
        if run_id not in self._asked:
            self._asked[run_id] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        found = await asyncio.shield(self._asked[run_id])  # which others may wait for as well
        if found is None:
            raise RunNotFound(run_id)
        return found

    async def wait(self, run_id: str, timeout: float | None) -> Run:
        """The run once it is finished; TimeoutError if that takes longer. A store that is away may
        come back before the time is up."""
        changed = asyncio.Event()
        self._waiting.setdefault(run_id, set()).add(changed)
        try:
            async with asyncio.timeout(timeout):
                while True:
                    changed.clear()
                    with contextlib.suppress(StoreUnavailable):
                        run = await self.look(run_id)
                        if run.finished:
                            return run
                    await wait_for_event(changed, POLL)
        except TimeoutError:
            run = await self.look(run_id)  # a timeout of zero only looks
            if run.finished:
                return run
            raise TimeoutError(f"run {run_id} did not finish within {timeout} s") from None
        finally:
            self._waiting[run_id].discard(changed)
            if not self._waiting[run_id]:
                del self._waiting[run_id]

    async def _ask(self) -> None:
        while self._asked:
            asked, self._asked = self._asked, {}
            try:
                page = await self._store.find(RunQuery(ids=frozenset(asked)))
            except Exception as error:
                for future in asked.values():
                    future.set_exception(error)
                    future.exception()  # who asked may be gone: nobody need hear of it
            except BaseException:
                for future in asked.values():
                    future.cancel()
                raise
            else:
                found = {run.id: run for run in page.items}
                for run_id, future in asked.items():
                    future.set_result(found.get(run_id))
