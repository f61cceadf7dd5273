"""Tests of a store whose wall clock is set while it is in use."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring.core import transitions
from mainspring.core.model import State
from mainspring.core.policy import Delivery
from mainspring.stores.election import elect
from mainspring.stores.protocol import Store
from mainspring.testing.conformance.base import Suite

HOUR = timedelta(hours=1)
STEPS = pytest.mark.parametrize("step", [HOUR, -HOUR], ids=["forward", "back"])


class ClockStepTests(Suite):
    """Somebody sets the clock of the machine. For stores that read `self.clock` (`reads_clock`);
    the clock of a server cannot be set from here."""

    async def set_clock(self, store: Store, by: timedelta) -> Store:
        """Move the wall clock; gives another client, which sees the step as well."""
        if not self.reads_clock:
            pytest.skip("the store does not read the suite's clock")
        other = await self.peer(store)
        self.clock.step(by)
        return other

    @STEPS
    async def test_a_lease_keeps_its_length_when_the_clock_is_set(
        self, store: Store, step: timedelta
    ) -> None:
        await self.put(store, concurrency=1)
        await self.running(store)
        await store.add(self.runs("second"))
        other = await self.set_clock(store, step)
        for client in (other, store, other):
            assert await self.lapsed(client) == []
            assert await self.claim_ids(client) == []  # a valid lease uses up the limit
            assert await self.lapsed(client) == []
        run = await self.one(other)
        assert run.lease_until is not None
        assert abs(run.lease_until - await store.now() - self.ticks(30)) < self.ticks(1)
        await self.pass_ticks(29)
        assert await self.lapsed(other) == []
        await self.pass_ticks(2)
        assert await self.lapsed(other) == await self.lapsed(store) == ["run"]
        rescue = transitions.rescued(run, await other.now(), Delivery.AT_LEAST_ONCE)
        assert await other.commit([rescue]) == [True]
        assert len(await self.claim_ids(store)) == 1

    async def test_a_run_whose_key_another_has_taken_is_not_revived_when_the_clock_is_set_back(
        self, store: Store
    ) -> None:
        """Its key has expired, and by the new time it has not."""
        fields = {"state": State.FAILED, "finished_at": self.start, "error": "ValueError: no"}
        await store.add([self.run("a", dedupe_key="k", dedupe_until=self.at(10), **fields)])
        dead = await self.one(store, "a")
        await self.pass_ticks(11)
        assert await self.added(store, "b", dedupe_key="k") == ("b", False)
        other = await self.set_clock(store, self.ticks(-8))
        assert await other.commit([transitions.revived(dead, await other.now())]) == [False]

    @STEPS
    async def test_a_lease_is_renewed_from_the_new_time(
        self, store: Store, step: timedelta
    ) -> None:
        """And a lease that had lapsed only by the old time is not taken from its worker."""
        run = await self.running(store)
        other = await self.set_clock(store, step)
        rescue = transitions.rescued(run, await store.now(), Delivery.AT_LEAST_ONCE)
        assert await store.commit([rescue]) == [False]
        await self.pass_ticks(20)
        assert [renewed.id for renewed in await self.renew(other, run)] == ["run"]
        await self.pass_ticks(29)
        assert await self.lapsed(store) == []
        await self.pass_ticks(2)
        assert await self.lapsed(store) == ["run"]

    @STEPS
    async def test_a_leaders_term_keeps_its_length_when_the_clock_is_set(
        self, store: Store, step: timedelta
    ) -> None:
        first = await elect(store, "lead", "a", self.ticks(10))
        other = await self.set_clock(store, step)
        assert await elect(other, "lead", "b", self.ticks(10)) is None
        await self.pass_ticks(9)
        assert await elect(store, "lead", "b", self.ticks(10)) is None
        await self.pass_ticks(2)
        second = await elect(other, "lead", "b", self.ticks(10))
        assert first is not None
        assert second is not None
        assert second > first

    @STEPS
    async def test_the_wait_of_a_run_keeps_its_length_when_the_clock_is_set(
        self, store: Store, step: timedelta
    ) -> None:
        retry, snooze = [await self.running(store, name) for name in ("retry", "snooze")]
        now = await store.now()
        changes = [
            transitions.retrying(retry, now, transitions.Failure("no"), self.at(10)),
            transitions.snoozed(snooze, now, self.at(10), "not now"),
        ]
        assert await store.commit(changes) == [True, True]
        other = await self.set_clock(store, step)
        assert await self.claim_ids(other) == []
        await self.pass_ticks(9)
        assert await self.claim_ids(store) == []
        await self.pass_ticks(2)
        assert sorted(await self.claim_ids(other)) == ["retry", "snooze"]

    async def test_what_was_decided_before_the_clock_was_set_back_keeps_its_length(
        self, store: Store
    ) -> None:
        """A client decides by the time that it read last; the store's clock is set before the call
        arrives."""
        runs = [await self.running(store, name) for name in ("retry", "snooze", "dead", "released")]
        now = await store.now()
        retry, snooze, dead, released = runs
        failure = transitions.Failure("no")
        assert await store.commit([transitions.failed(dead, now, failure)]) == [True]
        dead = await self.one(store, "dead")
        changes = [
            transitions.retrying(retry, now, failure, now + self.ticks(10)),
            transitions.snoozed(snooze, now, now + self.ticks(10)),
            transitions.revived(dead, now),
            transitions.released(released, now, began=False),
        ]
        times = {"created_at": now, "run_at": now, "scheduled_at": now}
        runs_made = [
            self.run("new", **times),
            self.run("delayed", **{**times, "run_at": now + HOUR}),
        ]
        other = await self.set_clock(store, -HOUR)
        [added, _] = await store.add(runs_made)
        assert added.run == await self.one(store, "new")
        assert await other.commit(changes) == [True] * 4
        assert sorted(await self.claim_ids(store)) == ["dead", "new", "released"]
        await self.pass_ticks(9)
        assert await self.claim_ids(other) == []
        await self.pass_ticks(2)
        assert sorted(await self.claim_ids(store)) == ["retry", "snooze"]

    @STEPS
    async def test_a_due_run_stays_due_when_the_clock_is_set(
        self, store: Store, step: timedelta
    ) -> None:
        await self.running(store, "held")
        await store.add(self.runs("one", "two"))
        await self.pass_ticks(1)
        other = await self.set_clock(store, step)
        assert await self.claim_ids(other, 1) == ["one"]
        assert await self.claim_ids(store) == ["two"]
        await self.pass_ticks(31)
        lapsed = [await self.one(store, run_id) for run_id in await self.lapsed(store)]
        now = await store.now()
        rescues = [transitions.rescued(run, now, Delivery.AT_LEAST_ONCE) for run in lapsed]
        assert await store.commit(rescues) == [True] * 3
        assert sorted(await self.claim_ids(other)) == ["held", "one", "two"]

    async def test_a_run_that_is_scheduled_for_a_wall_time_follows_the_clock(
        self, store: Store
    ) -> None:
        at = self.start + HOUR + self.ticks(5)
        await store.add(self.runs("appointment", run_at=at))
        other = await self.set_clock(store, HOUR)
        assert await self.claim_ids(other) == []
        await self.pass_ticks(6)
        assert await self.claim_ids(store) == ["appointment"]
