"""Every request of a client's whole life, once with each fault: the client is killed before or
after it, its answer is lost, it is done late, the storage refuses it.

Its life: it enqueues, fires, claims, renews and commits, revives and deletes runs, writes jobs and
notes, writes snapshots, moves finished runs to segments and closed periods to the parts of their
days, prunes old runs, merges segments and collects garbage. After a kill another client does what
the first one was not told is done. Nothing is lost, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from mainspring.core import transitions
from mainspring.core.model import Job, Note, Run, Source, State, replace, slot_run_id
from mainspring.core.policy import Delivery
from mainspring.errors import StoreError
from mainspring.stores.objects import ObjectStore, compaction, group_commit, schema
from mainspring.stores.objects.schema import HEAD
from mainspring.stores.protocol import (
    Claim,
    Held,
    JobQuery,
    JobWrite,
    NoteQuery,
    NoteWrite,
    RunQuery,
)
from mainspring.testing import VirtualClock, run_virtual
from tests.support.objects.memory_bucket import BucketFault, Effect, Killed, MemoryBucket, Objects
from tests.support.records import a_firing, a_run

LEASE = timedelta(seconds=30)
OLD = timedelta(days=2)
KEPT = timedelta(days=1)
ENQUEUED = [f"new{number}" for number in range(5)]
TOGETHER = ["first", "last"]
"""Added in one call."""
ENDED = {State.SUCCEEDED: 9, State.FAILED: 6}
LATE = 0.02
EFFECTS: tuple[Effect, ...] = (
    *("killed before", "killed after"),
    *("lost answer", "throttled", "late"),
)


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
        self.changes: dict[str, transitions.Change | None] = {}
        """By run: a change that is sent until a client is told that it is done; then None."""
        self.requests: list[tuple[str, str]] = []
        self.met = False
        """Whether there was a fault."""

    def client(self, effect: Effect = "none", at: int = 0) -> ObjectStore:
        """One that meets the fault at that request."""
        made = 0

        def plan(kind: str, key: str) -> BucketFault:
            nonlocal made
            made += 1
            if at == 0:
                self.requests += [(kind, one.partition("/")[0]) for one in key.split()]
            if made != at:
                return BucketFault()
            self.met = True
            return BucketFault(effect, delay=LATE if effect == "late" else 0)

        return ObjectStore(MemoryBucket(self.objects, plan), tail_bytes=1200, most_finished=3)

    async def live(self, store: ObjectStore, worker: str) -> None:
        """All that a client does; what another one has done already is not done again."""
        await store.open()
        await self._put_jobs(store)
        note = Note(kind="k", name="n", value=1)
        await store.put_notes([NoteWrite(note.kind, note.name, 0, note)])
        for number in range(4):
            await self._add(store, self._finished(f"old{number}", self.slot - OLD))
        for run_id in ENQUEUED:
            await self._add(store, self._run(run_id))
        await self._add(store, *(self._run(run_id, dedupe_key=run_id) for run_id in TOGETHER))
        for run_id in ("revived", "deleted"):
            await self._add(store, self._finished(run_id, self.slot))
        await self._change(store, "revived", lambda run: transitions.revived(run, self.slot))
        await self._change(store, "deleted", transitions.deleted)
        await self._fire(store)
        await self._rescue(store)
        await self._work_off(store, worker)
        for _ in range(2):
            await store.maintain(self.clock.now() - KEPT, 100)
            await asyncio.sleep(2 * 3600)  # what is garbage is old by then
        await store.close()

    async def _put_jobs(self, store: ObjectStore) -> None:
        times: Any = {"created_at": self.slot, "updated_at": self.slot}
        jobs = [Job(id=job_id, handler="work", **times) for job_id in ("job", "dropped")]
        if not self.added:
            await store.put_jobs(
                [JobWrite.add(replace(job, next_run_at=self.slot)) for job in jobs]
            )
        await store.put_jobs([JobWrite.drop("dropped")])

    async def _add(self, store: ObjectStore, *runs: Run) -> None:
        if runs[0].id not in self.added:
            assert not any(added.duplicate for added in await store.add(runs))
            self.added.update(run.id for run in runs)

    async def _change(
        self, store: ObjectStore, run_id: str, make: Callable[[Run], transitions.Change]
    ) -> None:
        if run_id not in self.changes:
            [run] = (await store.find(RunQuery(ids=frozenset({run_id})))).items
            self.changes[run_id] = make(run)
        if (change := self.changes[run_id]) is not None:
            assert await store.commit([change]) == [True]
            self.changes[run_id] = None

    def _run(self, run_id: str, **fields: Any) -> Run:
        return a_run(self.slot, run_id, **fields)

    def _finished(self, run_id: str, at: datetime) -> Run:
        return self._run(run_id, state=State.FAILED, finished_at=at, attempt=1)

    async def _fire(self, store: ObjectStore) -> None:
        [job] = (await store.jobs(JobQuery())).items
        if job.next_run_at == self.slot:
            slot = self._run(self.slot_run, source=Source.SCHEDULE)
            firing = a_firing(job, slot, next_run_at=self.slot + timedelta(days=9))
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
                assert await store.renew([Held(run.id, run.token)], LEASE)
                change = transitions.succeeded(run, await store.now(), run.token)
                assert await store.commit([change]) == [True]
                self.ended[run.id] = run.token

    async def check(self) -> None:
        """Another client finds every run, once, and nothing that is not needed."""
        store = self.client()
        await store.open()
        found = (await store.find(RunQuery(limit=100))).items
        expected = [*ENQUEUED, *TOGETHER, "revived", self.slot_run]
        assert sorted(run.id for run in found) == sorted(expected)
        for run in found:
            assert run.state is State.SUCCEEDED
            assert run.result == run.token
            assert run.token == self.ended.get(run.id, run.token)
        assert [job.id for job in (await store.jobs(JobQuery())).items] == ["job"]
        assert [note.version for note in (await store.notes(NoteQuery())).items] == [1]
        assert [key for key, count in self.claims.items() if count > 1] == []
        counts = await store.counts(self.slot - timedelta(days=5), frozenset({"job"}))
        assert counts.totals["job"].ended == ENDED
        in_periods: Counter[State] = Counter()
        for period in counts.periods["job"]:
            in_periods.update(period.ended)
        assert in_periods == ENDED
        made = store.compaction
        needed = await made._read(made._named_parts)
        await store.close()
        assert self.objects.stored.keys() == needed | {HEAD}


async def met(effect: Effect, at: int) -> bool:
    """A client meets a fault at that request, and another one goes on if it was killed. False if
    there were fewer requests."""
    life = Life()
    first = life.client(effect, at)
    assert isinstance(first.bucket, MemoryBucket)
    with suppress(Killed):
        await life.live(first, "first")
    if first.bucket.dead:
        with suppress(StoreError):
            await first.close()
        await asyncio.sleep(LEASE.total_seconds() + 1)
        second = life.client()
        await second.open()
        together = await second.find(RunQuery(ids=frozenset(TOGETHER)))
        assert len(together.items) in (0, len(TOGETHER))
        await life.live(second, "second")
    await life.check()
    return life.met


@pytest.fixture(autouse=True)
def small_limits() -> Iterator[None]:
    with ExitStack() as stack:
        for module, name, value in (
            (compaction, "FEWEST_PERIODS", 1),
            (compaction, "SMALL_SEGMENTS", 2),
            (schema, "BYTES_BEFORE_SNAPSHOT", 0),
            (group_commit, "LARGE_DELTA", 900),
        ):
            stack.enter_context(patch.object(module, name, value))
        yield


@pytest.mark.parametrize("effect", EFFECTS)
def test_a_fault_at_any_request_loses_nothing_and_does_nothing_twice(effect: Effect) -> None:
    at = 1
    while run_virtual(lambda at=at: met(effect, at)):  # type: ignore[misc]
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
