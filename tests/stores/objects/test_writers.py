"""Writers of one bucket take turns, and those that have left slow nobody down."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import timedelta

import pytest

from mainspring.core.model import Note
from mainspring.errors import StoreUnavailable
from mainspring.stores.objects import ObjectStore
from mainspring.stores.protocol import NoteWrite
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


@pytest.mark.parametrize("clock_error", [None, 0.1])
def test_clients_that_wrote_once_do_not_slow_down_the_others(clock_error: float | None) -> None:
    """Scripts that enqueue one run each come and go. A worker writes as often as without them."""

    async def main() -> tuple[int, int]:
        objects = Objects(VirtualClock(asyncio.get_running_loop()))
        slow = BucketFault(delay=0.015, delay_after=0.015)

        async def opened(seed: int) -> ObjectStore:
            errors = None if clock_error is None else (lambda: (clock_error, clock_error))
            bucket = MemoryBucket(objects, lambda kind, key: slow, clock_error=errors)
            store = ObjectStore(bucket, rng=random.Random(seed))
            await store.open()
            return store

        async def write(store: ObjectStore) -> None:
            await store.put_notes([NoteWrite.put(Note(kind="k", name="n", value=1))])

        worker = await opened(0)

        async def writes_in_ten_seconds() -> int:
            loop, count = asyncio.get_running_loop(), 0
            end = loop.time() + 10
            while loop.time() < end:
                await write(worker)
                count += 1
            return count

        alone = await writes_in_ten_seconds()
        for seed in range(1, 61):
            script = await opened(seed)
            await write(script)
            await script.close()
        beside = await writes_in_ten_seconds()
        await worker.close()
        return alone, beside

    alone, beside = run_virtual(main, 1)
    assert beside >= alone - 2
