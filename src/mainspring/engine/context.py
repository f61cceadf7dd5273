"""`EngineContext`: the store, clocks, settings and caches that every component of one engine uses.

Each component receives it when it is made, so no component needs a global variable.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mainspring.core.clock import CarriedClock, Clock
from mainspring.core.events import Event, Events
from mainspring.core.handlers import Registry
from mainspring.core.model import Run, State
from mainspring.core.transitions import Change
from mainspring.engine.job_cache import JobCache
from mainspring.engine.settings import Settings
from mainspring.engine.store_retry import Outages, RetryingStore
from mainspring.errors import StoreError
from mainspring.stores.paging import read_runs
from mainspring.stores.protocol import Store

log = logging.getLogger("mainspring")

EVENT_OF = {
    State.SUCCEEDED: "run.succeeded",
    State.FAILED: "run.failed",
    State.CANCELLED: "run.cancelled",
    State.SKIPPED: "run.skipped",
}
"""The event that reports the end of a run, by the state it ended in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineContext:
    store: Store
    """Raises what the store raises: for operations that a caller waits for, and for sweeps."""
    retrying_store: RetryingStore
    outages: Outages
    clock: Clock
    time: CarriedClock
    events: Events
    rng: random.Random
    registry: Registry
    jobs: JobCache
    settings: Settings
    resources: Mapping[str, Any]
    on_run_end: list[Callable[[str], None]] = field(default_factory=list)
    """Called with the id of each run whose end this process has committed."""

    def run_ended(self, run_id: str) -> None:
        for call in self.on_run_end:
            call(run_id)

    def emit(
        self,
        name: str,
        run: Run | None = None,
        error: BaseException | str | None = None,
        job_id: str | None = None,
        **data: Any,
    ) -> None:
        if self.events.wanted(name):
            job_id = run.job_id if run else job_id
            self.events.emit(Event(name, self.time.now(), job_id, run, error, data))

    async def emit_ended(self, changed: Iterable[Run]) -> None:
        """Emit the end of those runs that have ended. They were read without their payloads."""
        ended = [
            run.id for run in changed if run.finished and self.events.wanted(EVENT_OF[run.state])
        ]
        if ended:
            for run in (await read_runs(self.store, ended, brief=False)).values():
                if run.finished:
                    self.emit(EVENT_OF[run.state], run)

    async def change_runs(self, runs: list[Run], changes: list[Change]) -> list[Run]:
        """Commit the changes; return the runs that have changed by it, as they are now."""
        if not changes:
            return []
        done = await self._commit(changes)
        changed = [
            change.after(run) for run, change, kept in zip(runs, changes, done, strict=True) if kept
        ]
        for run in changed:
            if run.finished:
                self.run_ended(run.id)
        return changed

    async def _commit(self, changes: list[Change]) -> list[bool]:
        """Commit the changes together, or one by one where that fails: one run that cannot be
        written (an open transaction has locked it, say) must not hold up the others. Raises where
        none can be written."""
        store = self.store
        try:
            return await store.commit(changes)
        except StoreError:
            if len(changes) == 1:
                raise
        answers = await asyncio.gather(
            *(store.commit([change]) for change in changes), return_exceptions=True
        )
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        if len(failed) == len(changes) or not all(isinstance(e, StoreError) for e in failed):
            raise failed[0]
        done = []
        for change, answer in zip(changes, answers, strict=True):
            if isinstance(answer, BaseException):
                log.warning("run %s cannot be written for now: %s", change.id, answer)
                answer = [False]
            done += answer
        return done
