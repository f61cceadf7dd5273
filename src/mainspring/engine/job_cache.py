"""A cache of job definitions that are at most a second old.

The worker reads the policy of each claimed run from it, instead of reading the job for every run.
What must be exact (limits, overlap, versions) is decided inside the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mainspring.core.clock import Clock
from mainspring.core.model import Job
from mainspring.engine.store_retry import RetryingStore
from mainspring.engine.workflow import Followers
from mainspring.stores.paging import all_items
from mainspring.stores.protocol import JobQuery, Store


class JobCache:
    MAX_AGE = 1.0
    """Seconds for which a job that was read is used without another read."""

    MAX_ENTRIES = 10_000

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[str, tuple[float, Job]] = {}
        self._followers: tuple[float, Followers] | None = None
        self._edits = 0

    async def get(
        self,
        ids: Iterable[str],
        newest: Iterable[str] = (),
        *,
        store: RetryingStore | None = None,
    ) -> dict[str, Job | None]:
        """Return the job for each id, or None where a read of the store just now found none.

        Jobs of `newest` are always read from the store. The answer consists of what this call has
        read or found in the cache at its start: `forget` may empty the cache during the read, and
        a run must never end as "job removed" because its job was dropped from the cache. With
        `store` the read is repeated until the store answers; without, its error is raised.
        """
        now = self._clock.monotonic()
        answer: dict[str, Job | None] = {}
        stale = set(newest)
        for job_id in set(ids) - stale:
            read_at, job = self._known.get(job_id, (now, None))
            if job is None or now - read_at > self.MAX_AGE:
                stale.add(job_id)
            else:
                answer[job_id] = job
        if stale:
            query = JobQuery(ids=frozenset(stale), limit=len(stale))
            jobs = {job.id: job for job in await self.read(query, store)}
            answer.update((job_id, jobs.get(job_id)) for job_id in stale)
        return answer

    def cached(self, ids: Collection[str]) -> tuple[dict[str, Job], Followers] | None:
        """The jobs and the followers, if all of them are in the cache and can be used without a
        read. May be called from any thread."""
        oldest = self._clock.monotonic() - self.MAX_AGE
        known, followers = [self._known.get(job_id) for job_id in ids], self._followers
        jobs = {entry[1].id: entry[1] for entry in known if entry and entry[0] >= oldest}
        usable = len(jobs) == len(ids) and all(job.unreadable is None for job in jobs.values())
        if not usable or followers is None or followers[0] < oldest:
            return None
        return jobs, followers[1]

    async def read(self, query: JobQuery, store: RetryingStore | None = None) -> list[Job]:
        """Read jobs from the store, and remember them: the worker that claims the runs of a slot
        soon after it was fired reads no job again."""
        now, edits = self._clock.monotonic(), self._edits
        jobs = (await (store or self._store).jobs(query)).items
        if edits == self._edits:  # otherwise an edit came during the read: these may be older
            if len(self._known) > self.MAX_ENTRIES:
                self._known.clear()
            self._known.update((job.id, (now, job)) for job in jobs)
        return jobs

    def last_known(self, ids: Iterable[str]) -> list[Job]:
        """Return those of the jobs that are in the cache, however old: for a first guess."""
        return [self._known[job_id][1] for job_id in ids if job_id in self._known]

    async def followers(self) -> Followers:
        """Return the jobs that run after other jobs, at most `MAX_AGE` seconds old."""
        now = self._clock.monotonic()
        if self._followers is None or now - self._followers[0] > self.MAX_AGE:
            edits = self._edits
            jobs = all_items(self._store.jobs, JobQuery(follows=True, limit=1000))
            followers = Followers([job async for job in jobs if job.unreadable is None])
            if edits != self._edits:
                return followers
            self._followers = (now, followers)
        return self._followers[1]

    def forget(self, job_id: str) -> None:
        """Drop a job that this process has changed: the next `get` reads it from the store."""
        self._edits += 1
        self._known.pop(job_id, None)
        self._followers = None
