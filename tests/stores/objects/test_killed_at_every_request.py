"""A client is killed before and after every request of its whole life; another one goes on.

Its life: it enqueues, fires, claims and commits, writes snapshots, moves finished runs to segments
and closed periods to the parts of their days, prunes old runs, merges segments and collects
garbage. After the kill another client does what the first one was not told is done. Nothing is
lost, and nothing is done twice. `test_every_request.py` does the same with single calls, and with
other faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from mainspring.core import transitions
from mainspring.core.model import Job, Run, Source, State, replace, slot_run_id
from mainspring.core.policy import Delivery, Overlap
from mainspring.errors import StoreError
from mainspring.stores.objects import ObjectStore, compaction, group_commit, schema
from mainspring.stores.objects.schema import HEAD
from mainspring.stores.protocol import Claim, Firing, JobQuery, JobWrite, RunQuery
from mainspring.testing import VirtualClock, run_virtual
from tests.support.objects.memory_bucket import BucketFault, Effect, MemoryBucket, Objects

LEASE = timedelta(seconds=30)
OLD = timedelta(days=2)
KEPT = timedelta(days=1)
ENQUEUED = [f"new{number}" for number in range(5)]


class Life:
    """What happens in a bucket, and what its clients were told."""

    def __init__(self) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.objects = Objects(self.clock)
        self.slot = self.clock.now()
        self.slot_run = slot_run_id("job", self.slot)
        self.added: set[str] = set()
        """Runs of which a client was told that they are stored."""
        self.claims: Counter[tuple[str, int]] = Counter()
        self.ended: dict[str, int] = {}
        """By run: the token under which a client was told that it has ended."""
        self.requests: list[tuple[str, str]] = []

    def client(self, effect: Effect = "none", at: int = 0) -> ObjectStore:
        """One whose process ends at that request."""
        made = 0

        def plan(kind: str, key: str) -> BucketFault:
            nonlocal made
            made += 1
            if at == 0:
                self.requests += [(kind, one.partition("/")[0]) for one in key.split()]
            return BucketFault(effect) if made == at else BucketFault()

        return ObjectStore(MemoryBucket(self.objects, plan), tail_bytes=1200, most_finished=3)

    async def live(self, store: ObjectStore, worker: str) -> None:
        """All that a client does; what another one has done already is not done again."""
        await store.open()
        job = Job(id="job", handler="work", created_at=self.slot, updated_at=self.slot)
        await store.put_jobs([JobWrite.add(replace(job, next_run_at=self.slot))])
        for number in range(4):
            await self._add(store, self._finished(f"old{number}", self.slot - OLD))
        for run_id in ENQUEUED:
            await self._add(store, self._run(run_id))
        await self._fire(store)
        await self._rescue(store)
        await self._work_off(store, worker)
        for _ in range(2):
            await store.maintain(self.clock.now() - KEPT, 100)
            await asyncio.sleep(2 * 3600)  # what is garbage is old by then
        await store.close()

    async def _add(self, store: ObjectStore, run: Run) -> None:
        if run.id not in self.added:
            await store.add([run])
            self.added.add(run.id)

    def _run(self, run_id: str, **fields: Any) -> Run:
        times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), self.slot)
        return Run(**{"id": run_id, "job_id": "job", "handler": "work", **times, **fields})

    def _finished(self, run_id: str, at: datetime) -> Run:
        return self._run(run_id, state=State.FAILED, finished_at=at, attempt=1)

    async def _fire(self, store: ObjectStore) -> None:
        [job] = (await store.jobs(JobQuery())).items
        if job.next_run_at == self.slot:
            firing = Firing(
                job_id="job",
                version=job.version,
                runs=(self._run(self.slot_run, source=Source.SCHEDULE),),
                overlap=Overlap.ALLOW,
                next_run_at=self.slot + timedelta(days=9),
                last_run_at=self.slot,
            )
            [fired] = await store.fire([firing])
            assert fired.done

    async def _rescue(self, store: ObjectStore) -> None:
        for run in (await store.find(RunQuery(lapsed=True))).items:
            now = await store.now()
            await store.commit([transitions.rescued(run, now, Delivery.AT_LEAST_ONCE)])

    async def _work_off(self, store: ObjectStore, worker: str) -> None:
        wanted = Claim(worker=worker, handlers=frozenset({"work"}), limit=2, lease=LEASE)
        while claimed := (await store.claim(wanted)).runs:
            for run in claimed:
                self.claims[run.id, run.token] += 1
                change = transitions.succeeded(run, await store.now(), run.token)
                assert await store.commit([change]) == [True]
                self.ended[run.id] = run.token

    async def check(self) -> None:
        """Another client finds every run, once, and nothing that is not needed."""
        store = self.client()
        await store.open()
        found = (await store.find(RunQuery(limit=100))).items
        assert sorted(run.id for run in found) == sorted([*ENQUEUED, self.slot_run])
        for run in found:
            assert run.state is State.SUCCEEDED
            assert run.result == run.token
            assert run.token == self.ended.get(run.id, run.token)
        assert [key for key, count in self.claims.items() if count > 1] == []
        counts = await store.counts(self.slot - timedelta(days=5), frozenset({"job"}))
        assert counts.totals["job"].ended == {State.SUCCEEDED: 6, State.FAILED: 4}
        in_periods: Counter[State] = Counter()
        for period in counts.periods["job"]:
            in_periods.update(period.ended)
        assert in_periods == {State.SUCCEEDED: 6, State.FAILED: 4}
        made = store.compaction
        needed = await made._read(made._named_parts)
        await store.close()
        assert self.objects.stored.keys() == needed | {HEAD}


async def killed(effect: Effect, at: int) -> bool:
    """A client is killed at that request, and another one goes on. False if there were fewer."""
    life = Life()
    first = life.client(effect, at)
    with suppress(StoreError):
        await life.live(first, "first")
    assert isinstance(first.bucket, MemoryBucket)
    if not first.bucket.dead:
        await life.check()
        return False
    with suppress(StoreError):
        await first.close()
    await asyncio.sleep(LEASE.total_seconds() + 1)
    await life.live(life.client(), "second")
    await life.check()
    return True


@pytest.fixture(autouse=True)
def small_limits() -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in (
            (compaction, "MOST_PERIODS", 1),
            (compaction, "SMALL_SEGMENTS", 2),
            (schema, "BYTES_BEFORE_SNAPSHOT", 0),
            (group_commit, "LARGE_DELTA", 900),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


@pytest.mark.parametrize("effect", ["killed before", "killed after"])
def test_a_client_killed_at_any_request_loses_nothing_and_does_nothing_twice(
    effect: Effect,
) -> None:
    at = 1
    while run_virtual(lambda at=at: killed(effect, at)):  # type: ignore[misc]
        at += 1
    assert at > 60


def test_the_life_of_a_client_has_all_kinds_of_requests() -> None:
    async def main() -> set[tuple[str, str]]:
        life = Life()
        await life.live(life.client(), "only")
        await life.check()
        return set(life.requests)

    kinds = {"snapshot", "delta", "history", "catalogue", "periods"}
    expected = {("put", kind) for kind in {*kinds, HEAD}} | {("get", HEAD)}
    expected |= {("list", kind) for kind in kinds} | {("delete", "history")}
    assert expected <= run_virtual(main)
