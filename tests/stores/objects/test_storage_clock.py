"""The storage's time: carried on between two readings, on machines whose time stood still, and
while it cannot be read."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring.core.clock import BootClock
from mainspring.core.model import State
from mainspring.errors import StoreUnavailable
from mainspring.stores.objects import ObjectStore
from mainspring.stores.objects.obstore_bucket import ObstoreBucket
from mainspring.stores.objects.storage_clock import StorageClock
from mainspring.stores.objects.url import Address
from mainspring.stores.protocol import Claim, Held, JobQuery, RunQuery
from mainspring.testing import FakeClock
from tests.support.objects.memory_bucket import BucketFault, MemoryBucket, Objects
from tests.support.records import a_run

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SUSPENDED = timedelta(hours=1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere time.monotonic counts it already")
async def test_the_time_goes_on_while_the_machine_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = MemoryBucket(
        Objects(FakeClock(NOW)), clock=BootClock(), clock_error=lambda: (0.1, 0.1)
    )
    clock = StorageClock(bucket)
    await clock.read_if_due()
    read = time.clock_gettime
    # A suspended machine counts on this clock alone; time.monotonic stands still.
    monkeypatch.setattr(
        "mainspring.core.clock.time.clock_gettime",
        lambda kind: read(kind) + SUSPENDED.total_seconds() * (kind == time.CLOCK_BOOTTIME),
    )
    bounds = clock.bounds(0)
    assert bounds.earliest >= NOW + SUSPENDED - timedelta(seconds=1)
    assert bounds.earliest <= bounds.latest


def test_a_bucket_of_a_server_carries_its_clock_by_the_time_since_boot() -> None:
    bucket = ObstoreBucket(Address.of("s3://bucket/prefix?endpoint=http://127.0.0.1:1"))
    assert isinstance(bucket.clock, BootClock)


LEASE = timedelta(seconds=60)


@pytest.fixture
def storage() -> FakeClock:
    """The storage's clock."""
    return FakeClock()


@pytest.fixture
def objects(storage: FakeClock) -> Objects:
    return Objects(storage)


async def opened(objects: Objects, clock: FakeClock, plan: Any = None) -> ObjectStore:
    bucket = MemoryBucket(objects, plan, clock=clock, clock_error=lambda: (0.05, 0.05))
    store = ObjectStore(bucket, retry_for=0.0)
    await store.open()
    return store


def claim(limit: int = 1) -> Claim:
    return Claim(worker="w", handlers=frozenset({"work"}), limit=limit, lease=LEASE)


async def add(store: ObjectStore, *ids: str) -> None:
    now = await store.now()
    await store.add([a_run(now, run_id) for run_id in ids])


async def test_a_client_whose_time_stood_still_hands_out_no_lease_that_has_lapsed(
    objects: Objects, storage: FakeClock
) -> None:
    """Its virtual machine was paused for an hour, say. The last write of another client tells."""
    own, others = FakeClock(), FakeClock()
    sleeper, other = await opened(objects, own), await opened(objects, others)
    for clock in (storage, own, others):
        clock.advance(700)
    await add(other, "held", "backlog")
    for clock in (storage, own, others):
        clock.advance(1)
    [held] = (await sleeper.claim(claim())).runs
    for clock in (storage, others):
        clock.advance(3600)
    await add(other, "new")
    await sleeper.renew([Held(held.id, held.token)], LEASE)
    assert (await sleeper.claim(claim(limit=9))).runs
    running = (await other.find(RunQuery(states=frozenset({State.RUNNING})))).items
    assert {"held", "backlog"} <= {run.id for run in running}
    for one in running:
        assert one.lease_until is not None
        assert one.lease_until >= storage.now() + LEASE
    assert (await other.find(RunQuery(lapsed=True))).items == []


async def test_calls_go_on_while_the_clock_cannot_be_read(
    objects: Objects, storage: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    is_away = False

    def plan(kind: str, key: str) -> BucketFault:
        return BucketFault("throttled" if is_away and kind == "head" else "none")

    store = await opened(objects, storage, plan)
    await add(store, "a")
    is_away = True
    for n in range(12):  # hours, in steps that are longer than any pause between two readings
        storage.advance(1200)
        await add(store, f"b{n}")
    assert abs(await store.now() - storage.now()) < timedelta(seconds=4)
    assert caplog.text.count("cannot be read") == 1
    storage.advance(24 * 3600)
    with pytest.raises(StoreUnavailable):
        await add(store, "c")
    is_away = False
    await add(store, "c")
    assert (await store.jobs(JobQuery())).items == []
    assert abs(await store.now() - storage.now()) < timedelta(seconds=1)
