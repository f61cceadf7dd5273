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
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from mainspring.core import transitions
from mainspring.core.model import Job, Note, State, replace
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
from tests.support.client_life import KEPT, LEASE, OLD, TOGETHER, ClientLife
from tests.support.objects.memory_bucket import BucketFault, Effect, Killed, MemoryBucket, Objects

ENQUEUED = [f"new{number}" for number in range(5)]
ENDED = {State.SUCCEEDED: 9, State.FAILED: 6}
LATE = 0.02
EFFECTS: tuple[Effect, ...] = (
    *("killed before", "killed after"),
    *("lost answer", "throttled", "late"),
)


class Life(ClientLife):
    """What happens in a bucket, and what its clients were told."""

    def __init__(self) -> None:
        super().__init__(VirtualClock(asyncio.get_running_loop()))
        self.objects = Objects(self.clock)
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
            await self.add(store, self.finished(f"old{number}", self.slot - OLD))
        for run_id in ENQUEUED:
            await self.add(store, self.run(run_id))
        await self.add_together(store)
        await self.revive_and_delete(store)
        await self.fire(store)
        await self.rescue(store)
        await self._work_off(store, worker)
        for _ in range(2):
            await store.maintain(self.clock.now() - KEPT, 100)
            await asyncio.sleep(2 * 3600)  # what is garbage is old by then
        await store.close()

    async def _put_jobs(self, store: ObjectStore) -> None:
        times: Any = {"created_at": self.slot, "updated_at": self.slot}
        jobs = [Job(id=job_id, handler="work", **times) for job_id in ("job", "dropped")]
        if not self.told:
            await store.put_jobs(
                [JobWrite.add(replace(job, next_run_at=self.slot)) for job in jobs]
            )
        await store.put_jobs([JobWrite.drop("dropped")])

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
        await self.check_runs(store, [*ENQUEUED, *TOGETHER, "revived", self.slot_run])
        assert [job.id for job in (await store.jobs(JobQuery())).items] == ["job"]
        assert [note.version for note in (await store.notes(NoteQuery())).items] == [1]
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
