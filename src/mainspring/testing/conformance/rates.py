"""Tests of rate limits: how many runs may start in a span of time, over all clients."""

from __future__ import annotations

import asyncio
import random
from datetime import datetime, timedelta

import pytest

from mainspring.core import note_kinds, transitions
from mainspring.core.policy import Rate
from mainspring.stores.protocol import Claim, Store
from mainspring.testing.conformance.base import Suite

SPAN = 20
"""The span of the limits here, in ticks. A start makes room for another one SPAN ticks later, or a
tick after that."""


class RateTests(Suite):
    async def limit(
        self, store: Store, job_id: str = "job", count: int = 3, **more: object
    ) -> None:
        await self.put(store, job_id, rate=Rate(count, self.ticks(SPAN)), **more)

    async def next_due(self, store: Store) -> datetime | None:
        handlers = frozenset({"work"})
        claim = Claim(worker="w1", handlers=handlers, limit=100, lease=self.ticks(30))
        claimed = await store.claim(claim)
        assert claimed.runs == []
        return claimed.next_due

    async def test_starts_make_room_one_span_after_they_were_made(self, store: Store) -> None:
        await self.limit(store)
        await store.add(self.runs(*"abcdefgh"))
        assert len(await self.claim_ids(store, 2)) == 2
        await self.pass_ticks(SPAN / 2)
        assert len(await self.claim_ids(store)) == 1
        await self.pass_ticks(SPAN / 2 + 2)
        assert len(await self.claim_ids(store)) == 2

    async def test_a_claim_says_when_the_rate_allows_the_next_start(self, store: Store) -> None:
        await self.limit(store)
        await store.add(self.runs(*"abcd"))
        assert len(await self.claim_ids(store)) == 3
        due = await self.next_due(store)
        assert due is not None
        now = await store.now()
        assert self.at(SPAN) <= due <= now + self.ticks(SPAN + 1.5)
        await self.pass_ticks((due - now) / self.ticks(1) + 0.1)
        assert len(await self.claim_ids(store)) == 1

    async def test_a_run_that_falls_due_before_the_rate_allows_another_is_named_first(
        self, store: Store
    ) -> None:
        await self.limit(store, count=1)
        await self.put(store, "other")
        await store.add(self.runs(*"ab"))
        assert len(await self.claim_ids(store)) == 1
        at = await store.now() + self.ticks(SPAN / 2)
        await store.add(self.runs("c", job_id="other", run_at=at))
        assert await self.next_due(store) == at

    async def test_jobs_with_one_rate_key_share_the_rate(self, store: Store) -> None:
        await self.limit(store, "one", rate_key="shared")
        await self.limit(store, "two", rate_key="shared")
        await self.limit(store, "alone")
        for name in ("one", "two", "alone"):
            await store.add([self.run(f"{name}{n}", job_id=name) for n in range(4)])
        taken = [run.job_id for run in await self.claim(store)]
        assert taken.count("one") + taken.count("two") == 3
        assert taken.count("alone") == 3

    async def test_jobs_with_one_rate_key_and_other_rates_keep_to_their_own(
        self, store: Store
    ) -> None:
        """Each counts all starts of the key."""
        await self.limit(store, "few", count=1, rate_key="shared")
        await self.limit(store, "many", count=3, rate_key="shared")
        await store.add([self.run(f"many{n}", job_id="many") for n in range(4)])
        assert len(await self.claim_ids(store, 2)) == 2
        await store.add([self.run(f"few{n}", job_id="few", priority=9) for n in range(4)])
        assert [run.job_id for run in await self.claim(store)] == ["many"]
        assert await self.claim_ids(store) == []

    async def test_a_retry_is_a_start(self, store: Store) -> None:
        await self.limit(store, count=2)
        run = await self.running(store)
        for runs in (1, 0):
            now = await store.now()
            again = transitions.retrying(run, now, transitions.Failure("no"), now)
            assert await store.commit([again]) == [True]
            taken = await self.claim(store)
            assert len(taken) == runs
            run = taken[0] if taken else run
            if not taken:
                break

    async def test_a_job_at_its_rate_does_not_hold_up_others(self, store: Store) -> None:
        await self.limit(store)
        await self.put(store, "other")
        await store.add([self.run(f"r{n:03}", priority=9) for n in range(200)])
        await store.add(self.runs("x", "y", job_id="other", priority=1))
        assert len(await self.claim_ids(store, 3)) == 3
        assert sorted(await self.claim_ids(store, 2)) == ["x", "y"]

    async def test_concurrency_and_rate_hold_together(self, store: Store) -> None:
        await self.limit(store, concurrency=2)
        await store.add(self.runs(*"abcdef"))
        held = await self.claim(store)
        assert len(held) == 2
        await self.succeed(store, *held)
        assert len(await self.claim_ids(store)) == 1

    async def test_a_damaged_count_stops_no_other_job(self, store: Store) -> None:
        """It is not known how many more may start, so none does until the count expires."""
        await self.limit(store, "limited")
        await store.add([self.run(f"r{n}", job_id="limited") for n in range(6)])
        assert len(await self.claim_ids(store)) == 3
        await self.damage_note(store, note_kinds.RATE, "job:limited")
        await store.add([self.run("free", job_id="other")])
        assert await self.claim_ids(store) == ["free"]
        await self.pass_ticks(2 * SPAN)
        assert len(await self.claim_ids(store)) == 3

    async def test_a_rate_holds_for_runs_that_were_added_before_it(self, store: Store) -> None:
        await self.put(store)
        await store.add(self.runs(*"abcdefgh"))
        await self.limit(store)
        assert len(await self.claim_ids(store)) == 3
        await self.put(store, rate=None)
        assert len(await self.claim_ids(store)) == 5

    async def test_a_lapsed_lease_is_renewed_though_the_rate_is_reached(self, store: Store) -> None:
        await self.limit(store, count=1)
        await store.add([self.run()])
        [run] = await self.claim(store, lease=self.ticks(2))
        await self.pass_ticks(3)
        assert [renewed.id for renewed in await self.renew(store, run)] == ["run"]

    async def test_concurrent_claims_exceed_no_rate(self, store: Store) -> None:
        peer = await self.peer(store)
        await self.limit(store, "one", count=7, rate_key="shared")
        await self.limit(store, "two", count=7, rate_key="shared")
        await store.add([self.run(f"r{n:03}", job_id=("one", "two")[n % 2]) for n in range(60)])
        claims = [
            self.claim_ids(client, 3, worker=f"w{n}") for n in range(5) for client in (store, peer)
        ]
        taken = [run_id for ids in await asyncio.gather(*claims) for run_id in ids]
        taken += await self.claim_ids(store)
        assert len(set(taken)) == len(taken) == 7

    async def test_starts_count_after_maintenance_and_a_restart(self, store: Store) -> None:
        await self.limit(store)
        await store.add(self.runs(*"abcdefgh"))
        assert len(await self.claim_ids(store)) == 3
        await store.maintain(await store.now(), 100)
        assert await self.claim_ids(store) == []
        await store.close()
        await store.open()
        assert await self.claim_ids(store) == []
        assert await self.claim_ids(await self.peer(store)) == []

    @pytest.mark.parametrize("step", [timedelta(hours=1), -timedelta(hours=1)], ids=str)
    async def test_a_rate_keeps_its_span_when_the_clock_is_set(
        self, store: Store, step: timedelta
    ) -> None:
        if not self.reads_clock:
            pytest.skip("the store does not read the suite's clock")
        await self.limit(store)
        await store.add(self.runs(*"abcdefgh"))
        assert len(await self.claim_ids(store)) == 3
        self.clock.step(step)
        assert await self.claim_ids(store) == []
        await self.pass_ticks(SPAN - 1)
        assert await self.claim_ids(store) == []
        await self.pass_ticks(3)
        assert len(await self.claim_ids(store)) == 3

    async def test_no_span_of_time_holds_more_starts_than_the_rate(self, store: Store) -> None:
        """Also none that begins in the middle of another: the limit slides."""
        rng = random.Random("starts")
        await self.limit(store, count=5)
        await store.add([self.run(f"r{n:03}") for n in range(300)])
        starts: list[datetime] = []
        for _ in range(60):
            await self.pass_ticks(rng.choice((0, 0.1, 0.5, 1, 3, 9)))
            taken = await self.claim(store, rng.choice((1, 2, 10)))
            starts += [run.started_at for run in taken if run.started_at is not None]
        for at, first in enumerate(starts):
            within = [start for start in starts[at:] if start < first + self.ticks(SPAN)]
            assert len(within) <= 5
        spans = (starts[-1] - starts[0]) / self.ticks(SPAN + 1)
        assert len(starts) >= 5 * (spans // 2)  # it is used, too
