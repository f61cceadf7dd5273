"""What the moving parts share, handed to each: no part reaches for a global."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mainspring.core.clock import CarriedClock, Clock
from mainspring.core.events import Event, Events
from mainspring.core.handlers import Registry
from mainspring.core.model import Job, Run, State
from mainspring.engine.settings import Settings
from mainspring.engine.store_retry import Patience
from mainspring.stores.protocol import JobQuery, Store

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

    async def get(self, ids: Iterable[str], *, brief: bool = False) -> list[Run]:
        """The runs of these ids that exist, however long the store takes."""
        wanted = list(ids)
        found = await self.patience.call("get", lambda: self.store.get(wanted, brief=brief))
        return list(found.values())


class JobBook:
    """Job definitions, as the store had them at most a second ago.

    The engine reads the policy of each run from here. What must be exact (limits, overlap,
    versions) is decided inside the store instead.
    """

    FRESH = 1.0
    MOST_KEPT = 10_000

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[float, Job]] = {}
        self._followers: tuple[float, list[Job]] | None = None
        self._edits = 0

    async def get(self, ids: Iterable[str], newest: Iterable[str] = ()) -> dict[str, Job | None]:
        """One entry for each id: the job, or None if the store was read just now and has none.

        Jobs of `newest` are read again, however fresh they are. The answer is built from what
        this call has read or found fresh: `forget` may empty the memory while the read is on its
        way, and a run must never be ended because its job was merely forgotten here.
        """
        now = self._clock.monotonic()
        answer: dict[str, Job | None] = {}
        stale = set(newest)
        for job_id in set(ids) - stale:
            read_at, job = self._known.get(job_id, (now, None))
            if job is None or now - read_at > self.FRESH:
                stale.add(job_id)
            else:
                answer[job_id] = job
        if stale:
            edits = self._edits
            page = await self._store.jobs(JobQuery(ids=frozenset(stale), limit=len(stale)))
            found = {job.id: job for job in page.items}
            answer.update((job_id, found.get(job_id)) for job_id in stale)
            if edits == self._edits:  # otherwise these may be older than the edit
                self._remember(found.values(), now)
        return answer

    def _remember(self, jobs: Iterable[Job], read_at: float) -> None:
        if len(self._known) > self.MOST_KEPT:
            self._known.clear()
        self._known.update((job.id, (read_at, job)) for job in jobs)

    async def followers(self) -> list[Job]:
        """The jobs that come after others."""
        now = self._clock.monotonic()
        if self._followers is None or now - self._followers[0] > self.FRESH:
            found: list[Job] = []
            cursor = None
            edits = self._edits
            while True:
                page = await self._store.jobs(JobQuery(follows=True, limit=1000, cursor=cursor))
                found += [job for job in page.items if job.unreadable is None]
                if (cursor := page.cursor) is None:
                    break
            if edits != self._edits:
                return found
            self._followers = (now, found)
        return self._followers[1]

    def forget(self, job_id: str) -> None:
        """A job was changed by this process: its next reader goes to the store."""
        self._edits += 1
        self._known.pop(job_id, None)
        self._followers = None
