"""Several clients write to one bucket that fails in every way, on virtual time, from a seed.

Each client adds runs, claims and ends them, and counts in a note by compare-and-set. What it was
told is compared with what the bucket holds in the end.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Note, Run, State
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.objects import ObjectStore
from mainspring.stores.protocol import Claim, Counts, NoteQuery, NoteWrite, RunQuery
from mainspring.testing import VirtualClock, run_virtual
from tests.support.objects.memory_bucket import BucketFault, MemoryBucket, Objects

__all__ = ["Race", "race"]

LEASE = timedelta(seconds=20)
MakeStore = Callable[[MemoryBucket, random.Random], ObjectStore]


def make_store(bucket: MemoryBucket, rng: random.Random) -> ObjectStore:
    """With limits so small that parts are written all the time. Some clients give up soon."""
    retry_for = rng.choice((0.0, 0.1, 10.0))
    return ObjectStore(bucket, rng=rng, tail_bytes=1500, most_finished=4, retry_for=retry_for)


class Race:
    """What the clients were told."""

    def __init__(
        self,
        seed: int,
        *,
        writers: int = 4,
        turns: int = 12,
        faults: float = 0.12,
        make: MakeStore = make_store,
    ) -> None:
        self.rng = random.Random(f"race {seed}")
        self.writers, self.turns, self.faults = writers, turns, faults
        self.make = make
        self.added: set[str] = set()
        self.versions: Counter[int] = Counter()
        self.unknown_writes = 0
        self.claims: dict[tuple[str, int], str] = {}
        self.leases: list[tuple[Run, datetime, str]] = []
        self.ended: set[str] = set()
        self.requests: Counter[str] = Counter()
        self.problems: list[str] = []
        self.final: dict[str, Run] = {}
        self.final_version = 0
        self.counts = Counts()

    async def run(self) -> None:
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.objects = Objects(self.clock)
        clients = [self._client(f"c{n}") for n in range(self.writers)]
        await asyncio.gather(*clients)
        await asyncio.sleep(30)  # what is late is done by then
        try:
            await self._read_final()
        except Exception as error:
            self.problems.append(f"in the end: {error!r}")
            return
        self._check()

    async def _read_final(self) -> None:
        store = ObjectStore(MemoryBucket(self.objects))
        await store.open()
        self.final = {run.id: run for run in (await store.find(RunQuery(limit=10**6))).items}
        notes = (await store.notes(NoteQuery(kind="count"))).items
        self.final_version = notes[0].version if notes else 0
        self.counts = await store.counts()
        await store.close()

    def plan(self, rng: random.Random) -> Callable[[str, str], BucketFault]:
        slow = rng.choice((0.0, 0.02, 0.1))

        def plan(kind: str, key: str) -> BucketFault:
            delay, after = rng.uniform(0, slow), rng.uniform(0, slow)
            drawn = rng.random()
            if drawn > self.faults:
                return BucketFault(delay=delay, delay_after=after)
            effect = rng.choice(("throttled", "lost answer", "late"))
            if effect == "late":
                delay = rng.choice((0.05, 0.5, 5.0))
            return BucketFault(effect, delay, after)  # type: ignore[arg-type]

        return plan

    async def _client(self, name: str) -> None:
        rng = random.Random(self.rng.getrandbits(64))
        bucket = MemoryBucket(self.objects, self.plan(rng), clock_error=lambda: _error(rng))
        store = self.make(bucket, rng)
        while True:
            try:
                await store.open()
                break
            except StoreUnavailable:
                await asyncio.sleep(0.1)
        for turn in range(self.turns):
            steps = [self._add(store, name, turn), self._count(store), self._work(store, name)]
            if rng.random() < 0.2:
                steps.append(self._maintain(store))
            await asyncio.gather(*steps)
            await asyncio.sleep(rng.uniform(0, 0.3))
        try:
            await store.close()
        except StoreError as error:
            self.problems.append(f"close: {error!r}")
        self.requests += bucket.requests

    async def _add(self, store: ObjectStore, name: str, turn: int) -> None:
        now = self.clock.now()
        ids = [f"{name}-{turn}-{n}" for n in range(2)]
        runs = [
            Run(id=i, job_id="job", handler="h", created_at=now, scheduled_at=now, run_at=now)
            for i in ids
        ]
        if (await self._call(store.add(runs))) is not None:
            self.added.update(ids)

    async def _count(self, store: ObjectStore) -> None:
        page = await self._call(store.notes(NoteQuery(kind="count")))
        if page is None:
            return
        version = page.items[0].version if page.items else 0
        note = Note(kind="count", name="n", value=version, version=version)
        done = await self._call(store.put_notes([NoteWrite.put(note)]))
        if done is None:
            self.unknown_writes += 1
        elif done[0] is not None:
            self.versions[done[0]] += 1

    async def _work(self, store: ObjectStore, name: str) -> None:
        claim = Claim(worker=name, handlers=frozenset({"h"}), limit=3, lease=LEASE)
        claimed = await self._call(store.claim(claim))
        for run in claimed.runs if claimed is not None else ():
            key = run.id, run.token
            if key in self.claims:
                self.problems.append(f"{key} was given to {self.claims[key]} and to {name}")
            self.claims[key] = name
            assert run.lease_until is not None
            if run.lease_until < self.clock.now() + LEASE - timedelta(seconds=15):
                self.problems.append(f"the lease of {key} is too short")
            end = transitions.succeeded(run, self.clock.now(), None)
            done = await self._call(store.commit([end]))
            if done == [True]:
                self.ended.add(run.id)
            elif done == [False] and self.clock.now() < run.lease_until:
                self.problems.append(f"{name} lost {key} under a valid lease")

    async def _maintain(self, store: ObjectStore) -> None:
        await self._call(store.maintain(self.clock.now() - timedelta(days=1), 10))

    async def _call(self, call: Any) -> Any:
        """The answer, or None if nobody knows."""
        try:
            return await call
        except StoreUnavailable:
            return None
        except Exception as error:
            self.problems.append(repr(error))
            return None

    def _check(self) -> None:
        lost = self.added - self.final.keys()
        if lost:
            self.problems.append(f"added, and lost: {sorted(lost)}")
        for run_id in self.ended:
            run = self.final.get(run_id)
            if run is None or run.state is not State.SUCCEEDED:
                self.problems.append(f"{run_id} was ended, and is {run and run.state}")
        twice = [version for version, count in self.versions.items() if count > 1]
        if twice:
            self.problems.append(f"several clients wrote the versions {twice}")
        told = sum(self.versions.values())
        if not told <= self.final_version <= told + self.unknown_writes:
            self.problems.append(
                f"the note has version {self.final_version}, after {told} writes"
                f" and {self.unknown_writes} without an answer"
            )
        ended = sum(run.finished for run in self.final.values())
        if self.counts.total(State.SUCCEEDED) != ended:
            counted = self.counts.total(State.SUCCEEDED)
            self.problems.append(f"{ended} runs have ended, and {counted} are counted")


def _error(rng: random.Random) -> tuple[float, float]:
    """The bounds of a clock that is read to the second, over a slow network."""
    return rng.uniform(0, 1), rng.uniform(0, 1)


def race(seed: int, **settings: Any) -> Race:
    made = Race(seed, **settings)
    run_virtual(made.run, seed, until=36_000)
    return made
