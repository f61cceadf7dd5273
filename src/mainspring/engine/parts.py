"""What the moving parts share, handed to each: no part reaches for a global."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.clock import CarriedClock, Clock
from mainspring.engine.patience import Patience
from mainspring.events import Event, Events
from mainspring.handlers import Registry
from mainspring.model import Job, Run, State
from mainspring.settings import Settings
from mainspring.store import JobQuery, Store

__all__ = ["EVENT_OF", "JobBook", "Parts"]

EVENT_OF = {
    State.SUCCEEDED: "run.succeeded",
    State.FAILED: "run.failed",
    State.CANCELLED: "run.cancelled",
    State.SKIPPED: "run.skipped",
}
"""What is told when a run has ended, whoever ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    store: Store
    clock: Clock
    time: CarriedClock
    events: Events
    patience: Patience
    rng: random.Random
    registry: Registry
    jobs: JobBook
    settings: Settings
    resources: Mapping[str, Any]

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

    async def get(self, ids: Iterable[str]) -> list[Run]:
        """The runs of these ids that exist, however long the store takes."""
        wanted = list(ids)
        found = await self.patience.call("get", lambda: self.store.get(wanted))
        return list(found.values())


class JobBook:
    """Job definitions as they were at most a second ago.

    Policies are read from here for every run; what must be exact (limits, overlap, versions)
    is decided inside the store instead.
    """

    FRESH = 1.0

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[float, Job | None]] = {}
        self._followers: tuple[float, list[Job]] | None = None

    async def get(self, ids: Iterable[str], newest: Iterable[str] = ()) -> dict[str, Job | None]:
        """These jobs; those of `newest` are read again, however fresh they are. That one is not
        there is never taken from memory: made since, its first runs would be ended for it."""
        now = self._clock.monotonic()
        wanted = set(ids)
        stale = {
            job_id
            for job_id in wanted
            if job_id not in self._known
            or now - self._known[job_id][0] > self.FRESH
            or self._known[job_id][1] is None
        }
        stale.update(newest)
        if stale:
            page = await self._store.jobs(JobQuery(ids=frozenset(stale), limit=len(stale)))
            found = {job.id: job for job in page.items}
            if len(self._known) > 10_000:
                self._known.clear()
            for job_id in stale:
                self._known[job_id] = (now, found.get(job_id))
        return {job_id: self._known[job_id][1] for job_id in wanted if job_id in self._known}

    async def followers(self) -> list[Job]:
        """The jobs that come after others."""
        now = self._clock.monotonic()
        if self._followers is None or now - self._followers[0] > self.FRESH:
            found: list[Job] = []
            cursor = None
            while True:
                page = await self._store.jobs(JobQuery(follows=True, limit=1000, cursor=cursor))
                found += page.items
                if (cursor := page.cursor) is None:
                    break
            self._followers = (now, found)
        return self._followers[1]

    def forget(self, job_id: str) -> None:
        self._known.pop(job_id, None)
        self._followers = None
