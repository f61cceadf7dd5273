"""Runs with large payloads: no request is too large, no call waits for a snapshot, reads write
nothing, and finished runs leave the live state by their bytes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Run
from mainspring.errors import StoreUnavailable
from mainspring.stores.objects import ObjectStore
from mainspring.stores.objects.group_commit import TAIL_ENTRIES
from mainspring.stores.objects.schema import PART_BYTES
from mainspring.stores.protocol import Claim, JobQuery, RunQuery
from mainspring.testing import FakeClock
from tests.support.objects.memory_bucket import BucketFault, MemoryBucket, Objects
from tests.support.records import a_run

KIB = 1024
PAYLOAD = 200 * KIB
CLOCK = FakeClock()


class Link(MemoryBucket):
    """Counts bytes and gets that are under way at once. A put of more than `most` bytes takes
    longer than its timeout allows."""

    def __init__(self, objects: Objects, plan: Any = None, most: int | None = None) -> None:
        super().__init__(objects, plan)
        self.most = most
        self.bytes: Counter[str] = Counter()
        self.getting = 0
        self.most_at_once = 0

    async def get(self, key: str, unless_etag: str | None = None) -> Any:
        self.getting += 1
        self.most_at_once = max(self.most_at_once, self.getting)
        try:
            found = await super().get(key, unless_etag)
        finally:
            self.getting -= 1
        self.bytes["get"] += len(getattr(found, "data", b""))
        return found

    async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        if self.most is not None and len(data) > self.most:
            raise StoreUnavailable(f"put {key}: {len(data)} bytes took too long")
        self.bytes["put"] += len(data)
        return await super().put(key, data, expected_etag=expected_etag)


def large_run(number: int) -> Run:
    """With a payload that zlib cannot make much smaller."""
    payload = random.Random(number).randbytes(PAYLOAD // 2).hex()
    return small_run(f"r{number}", payload=payload)


def small_run(run_id: str, **fields: Any) -> Run:
    return a_run(CLOCK.now(), run_id, **fields)


def claim(limit: int = 1) -> Claim:
    lease = timedelta(seconds=10)
    return Claim(worker="w", handlers=frozenset({"work"}), limit=limit, lease=lease)


async def opened(bucket: MemoryBucket, **options: Any) -> ObjectStore:
    store = ObjectStore(bucket, **{"retry_for": 0.0, **options})  # the clock stands still
    await store.open()
    return store


async def finish(store: ObjectStore) -> None:
    for run in (await store.claim(claim(10))).runs:
        assert await store.commit([transitions.succeeded(run, CLOCK.now(), None)]) == [True]
    await store.finish_compaction()


async def test_a_large_state_is_written_in_parts_of_bounded_size() -> None:
    objects = Objects(CLOCK)
    link = Link(objects, most=PART_BYTES + PAYLOAD)
    store = await opened(link, tail_bytes=50)
    for number in range(0, 40, 10):
        await store.add([large_run(n) for n in range(number, number + 10)])
    await store.add([large_run(n) for n in range(40, 100)])  # a delta of three parts
    await store.group_commit.drain()
    await store.add([small_run("small")])
    await store.close()
    reader = await opened(Link(objects))
    head = reader.group_commit.head
    assert len(head.snapshot) > 2
    assert len((await reader.find(RunQuery(limit=1000, brief=True))).items) == 101
    [last] = (await reader.find(RunQuery(ids=frozenset({"r99"})))).items
    assert last.payload == large_run(99).payload
    named = {*head.parts(), "head"}
    assert set(objects.stored) == named  # nothing is left over


async def test_a_snapshot_that_cannot_be_written_stops_nothing() -> None:
    refused: list[str] = []

    def plan(kind: str, key: str) -> BucketFault:
        if kind == "put" and key.startswith("snapshot/"):
            refused.append(key)
            return BucketFault("throttled")
        return BucketFault()

    objects = Objects(CLOCK)
    store = await opened(MemoryBucket(objects, plan), tail_bytes=1000, retry_for=0)
    for number in range(40):
        await store.add([small_run(f"r{number}")])
    assert (await store.jobs(JobQuery())).items == []
    for _ in range(4):
        await finish(store)
    await store.close()
    assert refused
    assert len(refused) <= 12  # one for each doubling, and not one for each write
    reader = await opened(MemoryBucket(objects), tail_bytes=1000)
    assert all(run.finished for run in (await reader.find(RunQuery(limit=100))).items)
    await reader.add([small_run("more")])
    await reader.close()
    assert [key for key in objects.stored if key.startswith("snapshot/")]


async def test_no_call_waits_for_a_snapshot() -> None:
    uploading, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryBucket):
        async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
            if key.startswith("snapshot/"):
                uploading.set()
                await go_on.wait()
            return await super().put(key, data, expected_etag=expected_etag)

    objects = Objects(CLOCK)
    store = await opened(Slow(objects), tail_bytes=100)
    await store.add([small_run("a")])
    await uploading.wait()
    await store.add([small_run("b")])
    [taken] = (await store.claim(claim())).runs
    assert taken.id == "a"
    go_on.set()
    await store.close()
    reader = await opened(MemoryBucket(objects))
    assert reader.group_commit.head.snapshot_seq > 0
    assert len((await reader.find(RunQuery())).items) == 2


async def test_large_finished_runs_leave_the_live_state_before_there_are_many() -> None:
    objects = Objects(CLOCK)
    link = Link(objects)
    store = await opened(link)
    total = 0
    for number in range(0, 90, 5):
        await store.add([large_run(n) for n in range(number, number + 5)])
        await finish(store)
        total += 5 * PAYLOAD
    assert store.group_commit.state.finished_size < 2 * PART_BYTES
    assert link.bytes["put"] < 3 * total  # a delta and a segment of each, and snapshots
    await store.close()
    loading = Link(objects)
    reader = await opened(loading)
    await reader.jobs(JobQuery())
    assert loading.bytes["get"] < 4 * PART_BYTES + PAYLOAD * TAIL_ENTRIES // 10
