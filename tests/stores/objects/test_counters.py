"""Counts of closed periods move to a part for each day, and are the same there. The memory store,
which keeps all counts in one place, says what is right."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from mainspring.core.model import Job, State
from mainspring.stores.memory import MemoryStore
from mainspring.stores.objects import ObjectStore, compaction, counters
from mainspring.stores.protocol import Counts, JobWrite
from mainspring.testing import FakeClock
from tests.support.objects.memory_bucket import MemoryBucket, Objects
from tests.support.records import a_run

START = datetime(2030, 1, 10, 9, 30, tzinfo=UTC)
JOBS = frozenset({"red", "green"})
LONG_AGO = START - timedelta(days=400)
FOREVER = timedelta(days=400)


class Stores:
    """The object store and the memory store, which are told the same."""

    def __init__(self) -> None:
        self.clock = FakeClock(START)
        self.objects = Objects(self.clock)
        self.store = ObjectStore(MemoryBucket(self.objects))
        self.model = MemoryStore(self.clock)
        self.ended = 0

    async def open(self) -> None:
        for store in (self.store, self.model):
            await store.open()
            await store.put_jobs([JobWrite.put(_job(job_id)) for job_id in sorted(JOBS)])

    async def end(self, job_id: str, ago: timedelta, state: State = State.SUCCEEDED) -> None:
        """A run that ended so long ago is stored now."""
        self.ended += 1
        at = self.clock.now() - ago
        times: Any = {"started_at": at, "finished_at": at}
        run = a_run(at, f"run{self.ended}", job_id=job_id, attempt=1, state=state, **times)
        for store in (self.store, self.model):
            await store.add([run])

    async def fill(self) -> None:
        """Ends of the last fifty hours: in two days that are over, and in this one."""
        for hours in range(50):
            state = State.FAILED if hours % 7 == 0 else State.SUCCEEDED
            await self.end("red", timedelta(hours=hours, minutes=hours % 3), state)
            await self.end("green", timedelta(hours=hours), State.SUCCEEDED)

    async def maintain(self) -> None:
        for store in (self.store, self.model):
            await store.maintain(LONG_AGO, 100)

    async def remove(self, job_id: str) -> None:
        for store in (self.store, self.model):
            await store.put_jobs([JobWrite.drop(job_id)])

    async def check(self) -> Counts:
        """This client and a new one count as the memory store does."""
        new = ObjectStore(MemoryBucket(self.objects))
        await new.open()
        for since in (None, self.clock.now() - timedelta(hours=40), self.clock.now() - FOREVER):
            for jobs in (None, JOBS, frozenset({"green"})):
                right = await self.model.counts(since, jobs)
                assert await self.store.counts(since, jobs) == right
                assert await new.counts(since, jobs) == right
        await new.close()
        return await self.store.counts(self.clock.now() - FOREVER, JOBS)

    @property
    def day_parts(self) -> list[str]:
        return [key for key in self.objects.stored if key.startswith("periods/")]

    @property
    def live_periods(self) -> int:
        closed = counters.closed_days(self.store.group_commit.state, self.clock.now())
        return sum(map(len, closed.values()))


def _job(job_id: str) -> Job:
    return Job(id=job_id, handler="work", created_at=START, updated_at=START)


@pytest.fixture
async def stores() -> Any:
    made = Stores()
    with patch.object(compaction, "FEWEST_PERIODS", 5):
        await made.open()
        await made.fill()
        yield made
        await made.store.close()


async def test_closed_periods_move_to_a_part_for_each_day(stores: Stores) -> None:
    before = await stores.check()
    await stores.maintain()
    assert len(stores.day_parts) == 2
    assert stores.live_periods == 0
    assert await stores.check() == before


async def test_what_is_counted_late_in_a_moved_period_is_added(stores: Stores) -> None:
    await stores.maintain()
    moved = stores.day_parts
    for hours in range(5, 45):
        await stores.end("red", timedelta(hours=hours), State.FAILED)
    before = await stores.check()
    await stores.maintain()
    assert stores.day_parts == moved
    assert await stores.check() == before


async def test_the_counts_of_a_removed_job_are_gone_from_the_parts(stores: Stores) -> None:
    await stores.maintain()
    await stores.remove("red")
    counts = await stores.check()
    assert "red" not in counts.periods
    assert "green" in counts.periods


async def test_days_that_are_over_for_long_are_deleted(stores: Stores) -> None:
    await stores.maintain()
    assert stores.day_parts
    stores.clock.advance(timedelta(days=20))
    await stores.maintain()
    assert stores.day_parts == []
    assert (await stores.check()).periods == {}


async def test_a_period_that_changes_while_it_is_moved_is_not_lost(stores: Stores) -> None:
    """An end is counted after the part is written and before the state names it."""
    bucket = stores.store.bucket
    real = bucket.put
    hits: list[str] = []

    async def put(key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        done = await real(key, data, expected_etag=expected_etag)
        if key.startswith("periods/") and len(hits) < 2:
            hits.append(key)
            other = ObjectStore(MemoryBucket(stores.objects))
            await other.open()
            mine, stores.store = stores.store, other
            await stores.end("red", timedelta(hours=28))
            await stores.end("green", timedelta(hours=40))
            stores.store = mine
            await other.close()
        return done

    with patch.object(bucket, "put", put):
        await stores.maintain()
    assert len(hits) == 2
    await stores.check()
    await stores.maintain()
    assert stores.live_periods == 0
    assert len(stores.day_parts) == 2  # what was written in vain is deleted
    await stores.check()
