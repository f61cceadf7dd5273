"""Deletes finished runs that are older, or more, than their job or the scheduler keeps.

Only the leader prunes. A job's own `retention` and `history` win over the scheduler's, also where
they keep more. So the store deletes by itself only what is older than every retention there is, and
the pruner looks at the jobs that keep less, one by one. No store deletes a run that has not
finished, that holds a dedupe key, or that an unfinished run comes after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from mainspring.core import transitions
from mainspring.core.clock import EPOCH
from mainspring.core.model import FINISHED, Job, Run
from mainspring.engine.context import EngineContext
from mainspring.engine.leader import Leader
from mainspring.engine.settings import Settings
from mainspring.stores.paging import all_items, pages
from mainspring.stores.protocol import JobQuery, RunQuery

BATCH = 1000

CHECK_INTERVAL = 2.0
"""Seconds between two looks whether this node leads and whether it is time to prune."""

IDLE_FACTOR = 20
"""A pruning begins at the earliest this many times the length of the last one after it, so pruning
uses at most a twentieth of the leader's time."""

READ_WITHIN = timedelta(seconds=5)
"""For so long a job with `history=0` keeps a run that has finished: whoever waits for it reads it
within about a second."""

LOOKS_PER_RETENTION = 20
"""How often a job is looked at for old runs while its retention passes. On SQLite a look walks the
job's finished runs: so each run is walked past this many times, however long it is kept."""


def retention_of(job: Job, settings: Settings) -> timedelta:
    """How long the finished runs of a job are kept."""
    own = job.policy.retention
    return settings.retention if own is None else own


def history_of(job: Job, settings: Settings) -> int | None:
    """How many finished runs of a job are kept; None: any number."""
    return settings.history if job.policy.history is None else job.policy.history


async def history_begins(engine: EngineContext, job: Job) -> datetime | None:
    """When the oldest of the runs of a job was made that `history` keeps. Earlier ones may have
    been deleted. None: it deletes none yet."""
    left = history_of(job, engine.settings)
    if left is None:
        return None
    if left == 0:
        return await engine.store.now()
    query = RunQuery(job=job.id, states=FINISHED, brief=True, limit=BATCH)
    async for runs in pages(engine.store.find, query, left):
        left -= len(runs)
        if left <= 0:
            return runs[-1].created_at
    return None


class Pruner:
    def __init__(self, engine: EngineContext, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader
        self._began = EPOCH
        self._looked_at: dict[str, float] = {}  # jobs whose old runs were looked for
        self._ended_at: dict[str, tuple[int, int]] = {}  # history and ends of each job, then

    async def prune_periodically(self) -> None:
        """Prune at the interval of the settings, while this node leads, until the engine stops."""
        monotonic = self._engine.clock.monotonic
        every = self._engine.settings.prune_every.total_seconds()
        pruned_at, rest = monotonic(), every
        while True:
            await asyncio.sleep(min(every, CHECK_INTERVAL))
            if not self._leader.leads:
                self._engine.outages.succeeded("prune")  # the leader does it
            elif monotonic() - pruned_at >= rest:
                pruned_at = monotonic()
                with self._engine.outages.suppressed("prune"):
                    await self._prune()
                rest = max(every, IDLE_FACTOR * (monotonic() - pruned_at))

    async def _prune(self) -> None:
        settings = self._engine.settings
        self._began = await self._engine.store.now()
        retentions: dict[str, timedelta] = {}
        histories: dict[str, int] = {}
        longest = settings.retention
        unreadable = False
        async for job in all_items(self._engine.store.jobs, JobQuery(limit=BATCH)):
            if job.unreadable is not None:  # it may keep its runs longer than all others
                unreadable = True
                continue
            retentions[job.id] = retention_of(job, settings)
            longest = max(longest, retentions[job.id])
            if (most := history_of(job, settings)) is not None:
                histories[job.id] = most
        await self._maintain(EPOCH if unreadable else self._before(longest))
        if not unreadable:
            retentions = {name: kept for name, kept in retentions.items() if kept < longest}
        await self._prune_by_age(retentions)
        await self._prune_by_number(histories)

    def _before(self, retention: timedelta) -> datetime:
        return self._began - min(retention, self._began - EPOCH)

    async def _maintain(self, before: datetime) -> None:
        pruned = BATCH
        while pruned == BATCH:  # in steps, so that other writes come between
            pruned = await self._engine.store.maintain(before, BATCH)

    async def _prune_by_age(self, retentions: Mapping[str, timedelta]) -> None:
        """Delete the old runs of these jobs. Each job is looked at when a part of its retention has
        passed since the last look."""
        now = self._engine.clock.monotonic()
        self._looked_at = {name: at for name, at in self._looked_at.items() if name in retentions}
        for job_id, retention in retentions.items():
            looked_at = self._looked_at.get(job_id)
            if (
                looked_at is None
                or now - looked_at >= retention.total_seconds() / LOOKS_PER_RETENTION
            ):
                before = self._before(retention)
                query = RunQuery(job=job_id, states=FINISHED, until=before, brief=True, limit=BATCH)
                async for runs in pages(self._engine.store.find, query):
                    old = [run for run in runs if run.finished_at and run.finished_at < before]
                    await self._delete(old)
                self._looked_at[job_id] = now

    async def _prune_by_number(self, histories: Mapping[str, int]) -> None:
        """Delete all but the newest finished runs of these jobs. Looks only at jobs of which runs
        have ended since the last time (a hundredth of what is kept): their counters say so."""
        self._ended_at = {name: last for name, last in self._ended_at.items() if name in histories}
        jobs = list(histories)
        for start in range(0, len(jobs), BATCH):
            names = jobs[start : start + BATCH]
            totals = (await self._engine.store.counts(jobs=frozenset(names))).totals
            for job_id in totals.keys() & set(names):
                most, ended = histories[job_id], sum(totals[job_id].ended.values())
                last_most, last_ended = self._ended_at.get(job_id, (0, 0))
                is_same = last_most == most and ended - last_ended < max(most // 100, 1)
                if ended > most and not is_same and await self._prune_job(job_id, most):
                    self._ended_at[job_id] = most, ended

    async def _prune_job(self, job_id: str, most: int) -> bool:
        """Delete all but the newest finished runs; return whether all of those are gone."""
        left, all_gone = most, True
        query = RunQuery(job=job_id, states=FINISHED, brief=True, limit=BATCH)
        ended_before = self._before(READ_WITHIN) if most == 0 else self._began
        async for runs in pages(self._engine.store.find, query):
            surplus = runs[left:]
            old = [run for run in surplus if run.finished_at and run.finished_at <= ended_before]
            all_gone = await self._delete(old) and len(old) == len(surplus) and all_gone
            left = max(left - len(runs), 0)
        return all_gone

    async def _delete(self, runs: list[Run]) -> bool:
        """Delete these runs as far as they may be deleted; return whether all are gone."""
        changes = [transitions.deleted(run) for run in runs if run.unreadable is None]
        return all(await self._engine.store.commit(changes)) and len(changes) == len(runs)
