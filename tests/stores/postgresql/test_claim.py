"""Claims of lanes that this client has taken many runs of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from mainspring.core import transitions
from mainspring.core.model import Run
from mainspring.stores.postgresql.claim import LaneStarts
from mainspring.stores.postgresql.store import PostgresStore
from mainspring.stores.protocol import Claim
from mainspring.testing import FakeClock
from tests.support.postgresql import SharedSchema
from tests.support.records import a_run

CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=100, lease=timedelta(minutes=5))
LOOK = LaneStarts.LOOK / 1e6


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
async def store(schema: SharedSchema, clock: FakeClock) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(f"{schema.url}&pool_size=1", clock)
    await store.open()
    yield store
    await store.close()


async def pass_many(store: PostgresStore, clock: FakeClock, count: int = 3000) -> list[Run]:
    """Take and end runs, so that their lane has a start."""
    now = clock.now() - timedelta(hours=1)
    ended: list[Run] = []
    for first in range(0, count, 500):
        await store.add([a_run(now, f"{clock.now():%H%M%S}-{first + n}") for n in range(500)])
    while runs := (await store.claim(CLAIM)).runs:
        await store.commit([transitions.succeeded(run, clock.now(), None) for run in runs])
        ended += runs
    return ended


async def claimed(store: PostgresStore) -> list[str]:
    return [run.id for run in (await store.claim(CLAIM)).runs]


async def test_a_run_in_front_of_the_start_is_claimed_soon(
    store: PostgresStore, clock: FakeClock
) -> None:
    """And the claim that does not find it says when to look again."""
    assert len(await pass_many(store, clock)) == 3000
    await store.add([a_run(clock.now() - timedelta(hours=2), "early")])
    answer = await store.claim(CLAIM)
    assert answer.runs == []
    assert answer.next_due is not None
    assert answer.next_due - clock.now() <= timedelta(seconds=LOOK)
    clock.advance(LOOK)
    assert await claimed(store) == ["early"]


def test_looks_at_the_whole_that_take_long_are_rare() -> None:
    starts = LaneStarts()
    assert starts.begin(0) == {}
    starts.took("lane", [(n, n) for n in range(LaneStarts.BUSY)])
    quick, slow = 10_000, 500_000
    began = LaneStarts.LOOK
    for took, pause in (
        (quick, LaneStarts.LOOK - quick),
        (slow, LaneStarts.PAUSE * slow),
        (100 * slow, LaneStarts.LONGEST_PAUSE),
    ):
        assert starts.begin(began) == {}
        starts.looked(began + took)
        assert starts.begin(began + took + pause - 1) != {}
        began += took + pause
    assert starts.begin(0) == {}, "the server's clock was set back"


async def test_a_run_of_the_last_second_is_claimed_at_once(
    store: PostgresStore, clock: FakeClock
) -> None:
    await pass_many(store, clock)
    await store.add([a_run(clock.now(), "new")])
    assert await claimed(store) == ["new"]
    await store.add([a_run(clock.now() - timedelta(seconds=0.5), "a little late")])
    assert await claimed(store) == ["a little late"]


async def test_lanes_between_busy_ones_are_found(store: PostgresStore, clock: FakeClock) -> None:
    await pass_many(store, clock)
    now = clock.now()
    await store.add([a_run(now, "before", job_id="a"), a_run(now, "behind", job_id="z")])
    await store.add([a_run(now, "urgent", priority=9), a_run(now, "here")])
    assert await claimed(store) == ["urgent", "before", "here", "behind"]


@pytest.mark.thorough
async def test_claims_do_not_step_over_the_entries_that_a_held_snapshot_keeps(
    schema: SharedSchema, store: PostgresStore, clock: FakeClock
) -> None:
    """The pages that a claim reads, with 10,000 dead entries in front of the first pending run."""
    with psycopg.connect(schema.server) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        await pass_many(store, clock, 10_000)
        now = clock.now()
        await store.add([a_run(now, f"new{n}") for n in range(5)])
        before = await pages_of_lanes(store)
        assert len(await claimed(store)) == 5
        with_start = await pages_of_lanes(store) - before
        clock.advance(LOOK)
        await store.add([a_run(now, f"newer{n}") for n in range(5)])
        before = await pages_of_lanes(store)
        assert len(await claimed(store)) == 5
        without = await pages_of_lanes(store) - before
    assert with_start * 5 < without


async def pages_of_lanes(store: PostgresStore) -> int:
    """How many pages of its indexes the store has read: it has one connection."""
    schema = store._db.url.schema
    await store._db.transact(lambda tx: tx.rows("SELECT pg_stat_force_next_flush()"))
    [[pages]] = await store._db.transact(
        lambda tx: tx.rows(
            "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_all_tables WHERE schemaname = %s"
            " AND relname = 'runs_live'",
            [schema],
        )
    )
    return int(pages)
