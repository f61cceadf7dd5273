"""Memory stores with one bug each, of kinds that real schedulers have had."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from mainspring.core.model import (
    LIVE,
    Job,
    Page,
    Run,
    State,
    replace,
)
from mainspring.core.policy import Policy
from mainspring.core.transitions import Change
from mainspring.stores.counters import Counters
from mainspring.stores.evaluation import UsedCapacity
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import (
    Added,
    Claim,
    Claimed,
    Fired,
    Firing,
    Held,
    JobWrite,
    NoteWrite,
    Renewed,
    RunQuery,
)


class Unfenced(MemoryStore):
    """Does not look at one of the fields that a change expects."""

    ignored: str

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        loose = []
        for change in changes:
            expect = {k: v for k, v in change.expect.items() if k != self.ignored}
            loose.append(replace(change, expect=expect))
        return await super().commit(loose)


class NoFence(Unfenced):
    """A worker that lost its run completes it all the same."""

    ignored = "token"


class NoLeaseGuard(Unfenced):
    """A rescue takes a run from an owner that has just renewed."""

    ignored = "lease_until"


class CancelUndone(Unfenced):
    """A completion overwrites a cancel that came first."""

    ignored = "cancel_requested"


class RepeatIsLost(MemoryStore):
    """The repeat of a change that was applied is reported as lost."""

    def _commit(self, change: Change, now: datetime) -> bool:
        run = self._runs.get(change.id)
        if run and not all(getattr(run, k) == v for k, v in change.expect.items()):
            return False
        return super()._commit(change, now)


class LapsedCounts(MemoryStore):
    """A crashed worker's run fills the limit for ever."""

    def _used_capacity(self, now: datetime) -> UsedCapacity:
        return super()._used_capacity(datetime.min.replace(tzinfo=now.tzinfo))


class LimitByClaim(MemoryStore):
    """A limit counts what one claim takes, not what is running already."""

    def _used_capacity(self, now: datetime) -> UsedCapacity:
        return super()._used_capacity(datetime.max.replace(tzinfo=now.tzinfo))


class KeyNotShared(MemoryStore):
    """A concurrency key is taken for the job's own limit."""

    async def claim(self, claim: Claim) -> Claimed:
        jobs = self._jobs
        self._jobs = {
            job.id: replace(job, policy=Policy.make(job.policy, concurrency_key=None))
            for job in jobs.values()
        }
        try:
            return await super().claim(claim)
        finally:
            self._jobs = jobs


class RenewsPastTheLimit(MemoryStore):
    """A paused worker renews a lapsed lease whose place another run has taken."""

    def _has_capacity(self, run: Run, now: datetime) -> bool:
        return True


class KeyForEver(MemoryStore):
    """A dedupe key stays taken after its run has ended."""

    def _holder(self, key: str | None, now: datetime, besides: str | None = None) -> Run | None:
        return next((r for r in self._runs.values() if key and r.dedupe_key == key), None)


class KeyEndsWithTheRun(MemoryStore):
    """`dedupe_until` is forgotten."""

    def _holder(self, key: str | None, now: datetime, besides: str | None = None) -> Run | None:
        live = (r for r in self._runs.values() if r.state in LIVE)
        return next((r for r in live if key and r.dedupe_key == key), None)


class RevivedTwice(MemoryStore):
    """A revived run does not ask whether its key was taken since."""

    def _commit(self, change: Change, now: datetime) -> bool:
        run = self._runs.get(change.id)
        if run and change.set.get("state") is State.PENDING and run.finished:
            self._runs[run.id] = replace(run, dedupe_key=None)
            done = super()._commit(change, now)
            self._runs[run.id] = replace(self._runs[run.id], dedupe_key=run.dedupe_key)
            return done
        return super()._commit(change, now)


class AddOverwrites(MemoryStore):
    """Adding again undoes what became of the run."""

    def _add(self, run: Run, now: datetime) -> Added:
        self._runs.pop(run.id, None)
        return super()._add(run, now)


class PruneForgetsKeys(MemoryStore):
    """A key that still holds is pruned with its run."""

    async def maintain(self, before: datetime | None, limit: int) -> int:
        kept = dict(self._runs)
        for run in kept.values():
            self._runs[run.id] = replace(run, dedupe_until=None)
        count = await super().maintain(before, limit)
        self._runs.update({i: kept[i] for i in self._runs})
        return count


class ClaimsTooEarly(MemoryStore):
    """What is due in five seconds is taken now."""

    async def claim(self, claim: Claim) -> Claimed:
        for run in self._runs.values():
            if run.state is State.PENDING:
                self._runs[run.id] = replace(run, run_at=run.run_at - timedelta(seconds=5))
        taken = await super().claim(claim)
        for run in self._runs.values():
            if run.state is State.PENDING:
                self._runs[run.id] = replace(run, run_at=run.run_at + timedelta(seconds=5))
        return taken


class PriorityTurned(MemoryStore):
    """The lowest priority comes first."""

    async def claim(self, claim: Claim) -> Claimed:
        turned = {i: replace(r, priority=9 - r.priority) for i, r in self._runs.items()}
        self._runs.update(turned)
        taken = await super().claim(claim)
        self._runs.update({i: replace(r, priority=9 - r.priority) for i, r in self._runs.items()})
        return replace(taken, runs=[self._runs[run.id] for run in taken.runs])


class TokenStays(MemoryStore):
    """A claim after a release hands the same token out again."""

    async def claim(self, claim: Claim) -> Claimed:
        taken = await super().claim(claim)
        for run in taken.runs:
            self._runs[run.id] = replace(run, token=max(1, run.attempt))
        return replace(taken, runs=[self._runs[run.id] for run in taken.runs])


class RenewsAnyToken(MemoryStore):
    """Whoever held a run once may renew it."""

    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        return await super().renew(
            [replace(h, token=self._runs[h.id].token) for h in held if h.id in self._runs], lease
        )


class RenewForgetsProgress(MemoryStore):
    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        return await super().renew([replace(item, progress=None) for item in held], lease)


class FiresTwice(MemoryStore):
    """A node that read the job before another fired it fires it again."""

    def _fire(self, firing: Firing, now: datetime) -> Fired:
        job = self._jobs.get(firing.job_id)
        return super()._fire(replace(firing, version=job.version) if job else firing, now)


class OverlapSeesTriggered(MemoryStore):
    """Enqueued runs are taken for earlier slots."""

    def _fire(self, firing: Firing, now: datetime) -> Fired:
        source = firing.runs[0].source
        for run in self._runs.values():
            self._runs[run.id] = replace(run, source=source)
        return super()._fire(firing, now)


class LastWriteWins(MemoryStore):
    """A job is replaced without looking at its version."""

    def _put_job(self, write: JobWrite, job: Job | None) -> bool:
        return super()._put_job(replace(write, expected_version=None), job)


class LeaderForLife(MemoryStore):
    def _put_note(self, write: NoteWrite, now: datetime) -> int | None:
        return super()._put_note(
            replace(write, ttl=timedelta(days=999)) if write.ttl else write, now
        )


class LapsedByState(MemoryStore):
    """Every running run is taken for a lapsed one."""

    async def find(self, query: RunQuery) -> Page[Run]:
        if query.lapsed:
            running = frozenset({State.RUNNING})
            query = replace(query, lapsed=False, states=(query.states or running) & running)
        return await super().find(query)


class CountsRepeats(MemoryStore):
    """A change that is sent again is counted again."""

    def _commit(self, change: Change, now: datetime) -> bool:
        if self._last_change.get(change.id) == change.change_id:
            self._counters.count(change.ending, now)
        return super()._commit(change, now)


class CountsWhatLost(MemoryStore):
    """Ends are counted when they are sent, not when they are stored."""

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        for change in changes:
            self._counters.count(change.ending, self._now())
        return await super().commit([replace(change, ending=None) for change in changes])


class CountsOfARemovedJobStay(MemoryStore):
    """A job that is made anew under an id inherits the counts of the one that was removed."""

    def _put_job(self, write: JobWrite, job: Job | None) -> bool:
        counters, self._counters = self._counters, Counters()
        try:
            return super()._put_job(write, job)
        finally:
            self._counters = counters


class ForgetsAFew(MemoryStore):
    """An answer is cut short."""

    def _look_up(self, ids: Iterable[str]) -> list[Run]:
        return super()._look_up(sorted(ids)[:6])


PLANTED: list[type[MemoryStore]] = [
    bug
    for bug in list(vars().values())
    if isinstance(bug, type) and issubclass(bug, MemoryStore) and bug not in (MemoryStore, Unfenced)
]
"""All classes of this module: a bug that was planted cannot be forgotten in a list."""
