"""Writers of one bucket take turns, and those that have left slow nobody down."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta

import pytest

from mainspring.errors import StoreUnavailable
from mainspring.stores.objects import ObjectStore
from mainspring.testing import VirtualClock, run_virtual
from tests.support.objects.memory_bucket import BucketFault, MemoryBucket, Objects
from tests.support.records import a_run


class OneWriteASecond(MemoryBucket):
    """Like Google's storage: refuses a write of an object whose last one is not a second ago."""

    async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        await asyncio.sleep(0.03)
        last = self.objects.stored.get(key)
        if last is not None and self.clock.now() - last.modified < timedelta(seconds=1):
            self.requests["refused"] += 1
            raise StoreUnavailable("429: too many changes of one object")
        return await super().put(key, data, expected_etag=expected_etag)


@pytest.mark.parametrize("writers", [1, 2, 4, 16])
def test_writers_take_turns_where_an_object_may_be_written_once_a_second(writers: int) -> None:
    """Each adds one run after the other. None fails, and few writes are refused."""
    written: Counter[int] = Counter()
    refused: list[int] = []

    async def write(number: int, objects: Objects) -> None:
        rng = random.Random(f"{writers} {number}")
        bucket = OneWriteASecond(
            objects,
            lambda kind, key: BucketFault(delay=rng.uniform(0.005, 0.03)),
            clock_error=lambda: (rng.uniform(0, 0.1), rng.uniform(0, 0.1)),
            write_interval=1.0,
        )
        store = ObjectStore(bucket, rng=rng)
        await asyncio.sleep(2 * number)
        await store.open()
        while objects.clock.monotonic() < 200:
            now = await store.now()
            await store.add([a_run(now, f"{number}-{written[number]}")])
            written[number] += 1
        await store.close()
        refused.append(bucket.requests["refused"])

    async def main() -> None:
        objects = Objects(VirtualClock(asyncio.get_running_loop()))
        await asyncio.gather(*(write(number, objects) for number in range(writers)))

    run_virtual(main, writers, until=3600)
    assert len(written) == writers
    assert min(written.values()) >= 100 / writers
    assert sum(refused) <= sum(written.values()) / 2
