"""Tests of the counters of ended runs: each end is counted once, by job, hour and minute."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring.core import transitions
from mainspring.core.model import Run, Source, State, replace
from mainspring.core.statistics import HOUR, MINUTE, PERIODS_KEPT, WHOLE_STORE, Totals, period_start
from mainspring.core.transitions import Change, Failure
from mainspring.stores.protocol import Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import drop_job


class StatisticsTests(Suite):
    async def totals(self, store: Store, job_id: str = "job") -> Totals:
        return (await store.counts(jobs=frozenset({job_id}))).totals.get(job_id, Totals())

    def failing(self, run: Run) -> Change:
        return transitions.failed(run, run.started_at or self.start, Failure("boom"))

    def succeeding(self, run: Run) -> Change:
        return transitions.succeeded(run, run.started_at or self.start, None)

    async def test_no_job_has_counts_before_its_first_end(self, store: Store) -> None:
        await self.running(store)
        counts = await store.counts(self.start, frozenset({"job"}))
        assert (dict(counts.totals), dict(counts.periods)) == ({}, {})
        assert (dict(counts.runs), dict(counts.due)) == ({}, {})

    async def test_ends_are_counted_by_job_and_state(self, store: Store) -> None:
        await store.add([self.run(f"a{n}", job_id="a") for n in range(3)])
        await store.add([self.run("b", job_id="b"), self.run("waits", job_id="b")])
        held = {run.id: run for run in await self.claim(store)}
        changes = [
            self.succeeding(held["a0"]),
            self.failing(held["a1"]),
            self.succeeding(held["a2"]),
            transitions.cancelled(held["b"], self.start, "asked"),
            transitions.released(held["waits"], self.start, began=False),
        ]
        assert all(await store.commit(changes))
        assert (await self.totals(store, "a")).ended == {State.SUCCEEDED: 2, State.FAILED: 1}
        assert (await self.totals(store, "b")).ended == {State.CANCELLED: 1}
        counts = await store.counts()
        ended = [counts.total(s) for s in (State.SUCCEEDED, State.FAILED, State.CANCELLED)]
        assert ended == [2, 1, 1]

    async def test_a_change_that_is_sent_again_is_counted_once(self, store: Store) -> None:
        change = self.failing(await self.running(store))
        for _ in range(3):
            assert await store.commit([change]) == [True]
        assert (await self.totals(store)).ended == {State.FAILED: 1}

    async def test_no_change_is_counted_twice_beside_a_new_one(self, store: Store) -> None:
        await store.add(self.runs("first", "second"))
        held = await self.claim(store)
        first, second = (self.succeeding(run) for run in held)
        assert await store.commit([first]) == [True]
        assert await store.commit([first, second]) == [True, True]
        assert (await self.totals(store)).ended[State.SUCCEEDED] <= 2

    async def test_a_change_that_lost_is_not_counted(self, store: Store) -> None:
        run = await self.running(store)
        assert await store.commit([self.succeeding(run), self.failing(run)]) == [True, False]
        assert (await self.totals(store)).ended == {State.SUCCEEDED: 1}

    async def test_a_revived_run_is_counted_at_each_end(self, store: Store) -> None:
        await store.commit([self.failing(await self.running(store))])
        await store.commit([transitions.revived(await self.one(store), self.start)])
        [again] = await self.claim(store)
        await store.commit([self.succeeding(again)])
        assert (await self.totals(store)).ended == {State.FAILED: 1, State.SUCCEEDED: 1}

    async def test_failures_are_consecutive_until_a_success(self, store: Store) -> None:
        ids = [f"r{n}" for n in range(5)]
        await store.add(self.runs(*ids))
        held = {run.id: run for run in await self.claim(store)}
        for changes, failures in (
            ([self.failing(held["r0"])], 1),
            ([self.failing(held["r1"])], 2),
            ([transitions.cancelled(held["r2"], self.start, None)], 2),
            ([self.succeeding(held["r3"]), self.failing(held["r4"])], 1),
        ):
            assert all(await store.commit(changes))
            assert (await self.totals(store)).consecutive_failures == failures
        assert (await self.totals(store, WHOLE_STORE)).consecutive_failures == 1

    async def test_the_last_run_is_the_one_that_ended_last(self, store: Store) -> None:
        run = await self.running(store, "one", source=Source.TRIGGER)
        ended = self.at(2)
        await store.commit([transitions.failed(run, ended, Failure("no \ud83d\ude00 \0 end"))])
        last = (await self.totals(store)).last
        assert last is not None
        assert (last.id, last.state, last.source) == ("one", State.FAILED, Source.TRIGGER)
        assert (last.started_at, last.finished_at) == (run.started_at, ended)
        assert last.error is not None
        assert last.error.startswith("no ")
        await store.add([self.run("untried")])
        await store.commit([transitions.cancelled(await self.one(store, "untried"), ended, "")])
        assert (await self.totals(store)).last == last

    async def test_slots_that_are_skipped_are_counted(self, store: Store) -> None:
        await self.put(store)
        await self.fire(store, await self.read_job(store), self.at(0))
        fired = await self.fire(store, await self.read_job(store), self.at(1))
        assert [run.state for run in fired.runs] == [State.SKIPPED]
        totals = await self.totals(store)
        assert (totals.ended, totals.last) == ({State.SKIPPED: 1}, None)
        fired = await self.fire(store, await self.read_job(store), self.at(2), "replace")
        assert [run.state for run in fired.replaced] == [State.CANCELLED]
        assert (await self.totals(store)).ended == {State.SKIPPED: 1, State.CANCELLED: 1}

    async def test_a_run_that_is_added_as_it_ended_is_counted_once(self, store: Store) -> None:
        """As a copy adds it."""
        ended = self.run(state=State.SUCCEEDED, attempt=1, finished_at=self.start)
        for _ in range(2):
            await store.add([ended, self.run("pending")])
        assert (await self.totals(store)).ended == {State.SUCCEEDED: 1}

    async def test_a_finished_run_whose_key_is_held_is_not_counted(self, store: Store) -> None:
        """`add` refuses it, so it has not ended here."""
        await store.add([self.run("holder", dedupe_key="k")])
        ended = {"state": State.SUCCEEDED, "started_at": self.start, "finished_at": self.start}
        [added] = await store.add([self.run("refused", dedupe_key="k", **ended)])
        assert added.duplicate
        assert (await store.counts()).total(State.SUCCEEDED) == 0

    async def test_a_slot_whose_run_has_ended_already_is_counted_once(self, store: Store) -> None:
        """A backfill may have run the slot before it fires."""
        await self.put(store)
        job = await self.read_job(store)
        ended = {"state": State.SUCCEEDED, "started_at": self.start, "finished_at": self.start}
        await store.add([replace(self.slot(self.at(0), job.id), **ended)])
        fired = await self.fire(store, job, self.at(0))
        assert fired.done
        assert (await store.counts()).total(State.SUCCEEDED) == 1

    async def test_ends_are_counted_by_hour_and_by_minute(self, store: Store) -> None:
        hour = period_start(self.start, HOUR) - 2 * HOUR
        ends = [hour, hour + 59 * MINUTE, hour + HOUR, hour + HOUR + MINUTE / 2]
        await store.add(
            [self.run(f"r{n}", state=State.SUCCEEDED, finished_at=at) for n, at in enumerate(ends)]
        )
        both = frozenset({"job", WHOLE_STORE})
        counts = await store.counts(hour + 30 * MINUTE, both)
        assert [(p.start, p.ended) for p in counts.periods["job"]] == [
            (hour, {State.SUCCEEDED: 2}),
            (hour + HOUR, {State.SUCCEEDED: 2}),
        ]
        assert [(p.start, p.ended) for p in counts.periods[WHOLE_STORE]] == [
            (hour + 59 * MINUTE, {State.SUCCEEDED: 1}),
            (hour + HOUR, {State.SUCCEEDED: 2}),
        ]
        assert [p.start for p in (await store.counts(hour + HOUR, both)).periods["job"]] == [
            hour + HOUR
        ]
        assert (await store.counts(jobs=both)).periods == {}

    async def test_durations_and_lateness_are_summed_up(self, store: Store) -> None:
        spans = [1.0, 2.0, 3.0, 100.0]
        late = timedelta(seconds=5)
        for n, seconds in enumerate(spans):
            run = await self.running(store, f"r{n}", run_at=self.start - late)
            assert run.started_at is not None
            end = run.started_at + timedelta(seconds=seconds)
            assert await store.commit([transitions.succeeded(run, end, None)]) == [True]
        counts = await store.counts(self.start - HOUR, frozenset({"job"}))
        first, *rest = counts.periods["job"]
        for period in rest:
            first = first.plus(period)
        assert first.duration.count == len(spans)
        assert first.duration.max == max(spans)
        assert first.duration.average == pytest.approx(sum(spans) / len(spans))
        assert first.duration.percentile(0.5) == pytest.approx(2, rel=0.05)
        assert first.lateness.count == len(spans)
        assert first.lateness.max >= late.total_seconds()

    async def test_a_removed_job_loses_its_counts(self, store: Store) -> None:
        await self.put(store)
        await self.finished(store)
        assert await drop_job(store, "job")
        counts = await store.counts(self.start - HOUR, frozenset({"job"}))
        assert (dict(counts.totals), dict(counts.periods)) == ({}, {})
        assert (await store.counts()).total(State.SUCCEEDED) == 1

    async def test_what_runs_of_a_removed_job_add_is_cleaned_up(self, store: Store) -> None:
        await self.put(store)
        run = await self.running(store)
        assert await drop_job(store, "job")
        await store.commit([self.succeeding(run)])
        await self.put(store, "other")
        await self.finished(store, "kept", job_id="other")
        await store.maintain(self.start - HOUR, 10)
        both = await store.counts(jobs=frozenset({"job", "other"}))
        assert set(both.totals) == {"other"}

    async def test_deleting_a_job_that_is_not_there_keeps_counts(self, store: Store) -> None:
        """Those of runs that end after their job was removed; `maintain` deletes them."""
        await self.put(store)
        run = await self.running(store)
        assert await drop_job(store, "job")
        await store.commit([self.succeeding(run)])
        assert not await drop_job(store, "job")
        assert (await self.totals(store)).ended == {State.SUCCEEDED: 1}

    async def test_old_periods_are_deleted_and_totals_stay(self, store: Store) -> None:
        if not self.reads_clock:
            pytest.skip("its clock cannot be moved by days")
        await self.put(store)
        await self.finished(store)
        since = self.start - HOUR
        await self.advance(PERIODS_KEPT.total_seconds())
        await store.maintain(since, 10)
        assert (await store.counts(since, frozenset({"job"}))).periods["job"]
        await self.advance(2 * HOUR.total_seconds())
        await store.maintain(since, 10)
        counts = await store.counts(since, frozenset({"job", WHOLE_STORE}))
        assert dict(counts.periods) == {}
        assert counts.totals["job"].ended == {State.SUCCEEDED: 1}

    async def test_two_clients_count_together(self, store: Store) -> None:
        other = await self.peer(store)
        await store.add(self.runs(*(f"r{n}" for n in range(20))))
        held = await self.claim(store)
        for n, run in enumerate(held):
            assert all(await (other if n % 2 else store).commit([self.succeeding(run)]))
        assert (await self.totals(store)).ended == {State.SUCCEEDED: 20}
        assert (await other.counts()).total(State.SUCCEEDED) == 20
