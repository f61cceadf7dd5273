"""The storage's time, carried on between two readings."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.core.clock import BootClock
from mainspring.stores.objects.obstore_bucket import ObstoreBucket
from mainspring.stores.objects.storage_clock import StorageClock
from mainspring.stores.objects.url import Address
from mainspring.testing import FakeClock
from tests.support.objects.memory_bucket import MemoryBucket, Objects

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


@pytest.mark.skipif(sys.platform != "linux", reason="the name of the clock is Linux's")
def test_the_boot_clock_counts_since_boot() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    counted = BootClock().monotonic()
    assert before <= counted <= time.clock_gettime(time.CLOCK_BOOTTIME)
