"""Tests that an unreadable record affects no other record, and that nothing of it is lost."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring.core import transitions
from mainspring.core.model import Attempt, Outcome, Progress, Run, Source, State, replace
from mainspring.core.policy import Delivery, Policy
from mainspring.core.schedules import every
from mainspring.core.transitions import Failure
from mainspring.stores.protocol import Claim, Held, JobQuery, RunQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import drop_job, get_runs, put_job

RUN_PARTS = ("payload", "result", "attempts", "progress", "after", "source")
JOB_PARTS = ("schedule", "policy", "payload", "definition")

_each_run_part = pytest.mark.parametrize("part", RUN_PARTS)
_each_job_part = pytest.mark.parametrize("part", JOB_PARTS)


class UnreadableTests(Suite):
    def _full(self, run_id: str, **fields: object) -> Run:
        """A run with a value in each part that may be damaged."""
        attempt = Attempt(1, "w0", self.start, self.start, Outcome.FAILED, "boom", "trace", ("l",))
        given = {
            "payload": {"n": 1},
            "result": "r",
            "attempt": 1,
            "attempts": (attempt,),
            "progress": Progress(1, 2, "half"),
            "after": ("upstream",),
            **fields,
        }
        return self.run(run_id, **given)

    @pytest.mark.parametrize("part", [part for part in RUN_PARTS if part != "progress"])
    async def test_a_claim_skips_an_unreadable_run(self, store: Store, part: str) -> None:
        await store.add([self._full("bad"), self._full("good")])
        repair = await self.damage_run(store, "bad", part)
        assert await self.claim_ids(store) == ["good"]
        assert await self.claim_ids(store) == []
        bad = await self.one(store, "bad")
        assert bad.unreadable
        assert (bad.state, bad.attempt, bad.worker) == (State.PENDING, 1, None)
        page = await store.find(RunQuery(set_aside=True))
        assert [(run.id, bool(run.unreadable)) for run in page.items] == [("bad", True)]
        await repair()
        await store.maintain(self.start, 100)
        [again] = await self.claim(store)
        whole = self._full("bad")
        assert (again.payload, again.attempts) == (whole.payload, whole.attempts)
        assert (again.attempt, again.after) == (2, whole.after)

    async def test_many_unreadable_runs_do_not_hide_a_readable_one(self, store: Store) -> None:
        bad = [f"bad{n}" for n in range(12)]
        await store.add([self._full(name, priority=9) for name in bad])
        await store.add([self._full("good", priority=1)])
        for name in bad:
            await self.damage_run(store, name, "payload")
        taken: list[str] = []
        for _ in range(6):
            taken += await self.claim_ids(store, limit=3)
        assert taken == ["good"]

    async def test_a_claim_that_meets_unreadable_runs_alone_takes_those_behind_them(
        self, store: Store
    ) -> None:
        """Else it gives no run and no `next_due`, and a worker sleeps though a run is due."""
        await store.add([self._full(name, priority=9) for name in ("bad1", "bad2", "bad3")])
        await store.add([self._full("good", priority=1)])
        for name in ("bad1", "bad2", "bad3"):
            await self.damage_run(store, name, "payload")
        assert await self.claim_ids(store, limit=2) == ["good"]

    async def test_a_claim_that_meets_unreadable_runs_alone_says_when_the_next_is_due(
        self, store: Store
    ) -> None:
        soon = self.at(5)
        await store.add([self._full("bad"), self._full("late", run_at=soon)])
        await self.damage_run(store, "bad", "payload")
        claim = Claim(worker="w1", handlers=frozenset({"work"}), limit=10, lease=self.ticks(30))
        claimed = await store.claim(claim)
        assert (claimed.runs, claimed.next_due) == ([], soon)

    async def test_unreadable_runs_do_not_count_for_a_limit(self, store: Store) -> None:
        await self.put(store, concurrency=1)
        await store.add([self._full("bad", priority=9), self._full("good")])
        await self.damage_run(store, "bad", "payload")
        taken = [*await self.claim_ids(store), *await self.claim_ids(store)]
        assert taken == ["good"]

    @_each_run_part
    async def test_lists_show_an_unreadable_run_with_the_reason(
        self, store: Store, part: str
    ) -> None:
        await store.add([self._full("a"), self._full("bad"), self._full("c")])
        await self.damage_run(store, "bad", part)
        assert sorted(await self.all_ids(store, limit=1)) == ["a", "bad", "c"]
        runs = await get_runs(store, ["a", "bad", "c"])
        assert [bool(runs[i].unreadable) for i in ("a", "bad", "c")] == [False, True, False]
        assert runs["a"] == self._full("a")
        pending = frozenset({State.PENDING})
        assert len((await store.find(RunQuery(states=pending, job="job"))).items) == 3

    @_each_run_part
    async def test_an_unreadable_run_with_a_lapsed_lease_is_rescued(
        self, store: Store, part: str
    ) -> None:
        await store.add([self._full("bad"), self._full("good")])
        await self.claim(store)
        repair = await self.damage_run(store, "bad", part)
        await self.pass_ticks(31)
        lapsed = (await store.find(RunQuery(lapsed=True))).items
        assert sorted(run.id for run in lapsed) == ["bad", "good"]
        now = await store.now()
        changes = [transitions.rescued(run, now, Delivery.AT_LEAST_ONCE) for run in lapsed]
        assert await store.commit(changes) == [True, True]
        assert await self.states(store, "bad", "good") == [State.PENDING] * 2
        await repair()
        assert (await self.one(store, "bad")).attempts[:1] == self._full("bad").attempts

    async def test_a_held_run_that_becomes_unreadable_can_be_renewed_and_ended(
        self, store: Store
    ) -> None:
        await store.add([self._full("bad"), self._full("good")])
        held = await self.claim(store)
        await self.damage_run(store, "bad", "payload")
        kept = await store.renew([Held(run.id, run.token) for run in held], self.ticks(30))
        assert len(kept) == 2
        await self.succeed(store, *held)

    @_each_run_part
    async def test_cancelling_an_unreadable_run_leaves_the_damaged_part(
        self, store: Store, part: str
    ) -> None:
        await store.add([self._full("bad")])
        repair = await self.damage_run(store, "bad", part)
        bad = await self.one(store, "bad")
        now = await store.now()
        assert await store.commit([transitions.cancelled(bad, now, "asked")]) == [True]
        await repair()
        after, whole = await self.one(store, "bad"), self._full("bad")
        assert after.state is State.CANCELLED
        assert getattr(after, part) == getattr(whole, part)

    async def test_an_unreadable_run_still_holds_its_dedupe_key(self, store: Store) -> None:
        await store.add([self._full("bad", dedupe_key="k", after=())])
        await self.damage_run(store, "bad", "payload")
        [added, other] = await store.add([self.run("new", dedupe_key="k"), self.run("other")])
        assert (added.duplicate, added.run.id, other.duplicate) == (True, "bad", False)
        [same] = await store.add([self._full("bad")])
        assert same.run.id == "bad"

    async def test_later_slots_do_not_wait_for_an_unreadable_run(self, store: Store) -> None:
        job = await self.put(store)
        await self.fire(store, job, self.at(0))
        [first] = await self.all_ids(store)
        await self.damage_run(store, first, "payload")
        assert await self.claim(store) == []
        for at, overlap in enumerate(("skip", "queue", "replace"), start=1):
            fired = await self.fire(store, await self.read_job(store), self.at(at), overlap)
            assert [run.state for run in fired.runs] == [State.PENDING]
            await self.pass_ticks(1)
            [held] = await self.claim(store)
            await self.succeed(store, held)

    async def test_a_slot_waits_for_an_unreadable_run_that_is_running(self, store: Store) -> None:
        job = await self.put(store)
        await self.fire(store, job, self.at(0))
        [first] = await self.claim(store)
        await self.damage_run(store, first.id, "payload")
        fired = await self.fire(store, await self.read_job(store), self.at(1))
        assert [run.state for run in fired.runs] == [State.SKIPPED]

    async def test_counts_and_maintain_work_beside_an_unreadable_run(self, store: Store) -> None:
        await store.add([self.run("bad"), self.run("good")])
        for run in await self.claim(store):
            failure = transitions.failed(run, await store.now(), Failure("boom"))
            assert await store.commit([failure]) == [True]
        await self.damage_run(store, "bad", "attempts")
        counts = await store.counts(since=self.start - timedelta(hours=1))
        assert counts.ended == {State.FAILED: 2}
        await self.pass_ticks(60)
        assert await store.maintain(await store.now(), 100) == 2

    async def test_a_run_that_is_set_aside_is_not_counted_as_due(self, store: Store) -> None:
        """Otherwise `mainspring doctor` would report that no worker takes it."""
        await store.add([self._full("bad")])
        await self.damage_run(store, "bad", "payload")
        assert await self.claim_ids(store) == []
        counts = await store.counts()
        assert counts.total(State.PENDING) == 1
        assert counts.due == {}

    async def test_a_run_in_an_unknown_state_is_unreadable(self, store: Store) -> None:
        await store.add([self._full("bad"), self._full("good")])
        await self.damage_run(store, "bad", "state")
        assert await self.claim_ids(store) == ["good"]
        runs = await get_runs(store, ["bad", "good"])
        assert runs["bad"].unreadable
        assert not runs["bad"].finished
        await store.counts(since=self.start)

    @pytest.mark.parametrize("state", [State.PENDING, State.RUNNING, State.WAITING])
    async def test_a_damaged_field_of_a_run_affects_no_other_run(
        self, store: Store, state: State
    ) -> None:
        await self.put(store)
        kept = State.PENDING if state is State.RUNNING else state
        after = ("upstream",) if state is State.WAITING else ()
        bad = self._full("bad", source=Source.SCHEDULE, state=kept, after=after)
        await store.add([bad])
        if state is State.RUNNING:
            assert await self.claim_ids(store) == ["bad"]
        at = 0
        async for way in self.damage_every_field(store, "run", "bad"):
            at += 1
            await self._others_go_on(store, way, at)
            if state is State.PENDING:
                await self._starts_or_is_told_of(store, way)

    async def _starts_or_is_told_of(self, store: Store, way: str) -> None:
        """A due run is claimed or reported as unreadable. One that claims skip and that looks
        readable would wait for ever, and nobody would notice."""
        aside = (await store.find(RunQuery(set_aside=True))).items
        await store.maintain(self.at(-100), 100)
        await self.claim(store)
        bad = await self.one(store, "bad")
        is_told_of = bad.unreadable or any(run.id == "bad" and run.unreadable for run in aside)
        another_handler = bad.handler != "work"
        assert is_told_of or bad.state is not State.PENDING or another_handler, way

    async def _others_go_on(self, store: Store, way: str, at: int) -> None:
        """Every method of the store works beside a damaged record."""
        good, late, waits = f"good{at}", f"late{at}", f"waits{at}"
        now = await store.now()
        soon = now + self.ticks(5)
        waiting = self.run(waits, state=State.WAITING, after=("upstream",), created_at=now)
        later = self.run(late, run_at=soon, created_at=now)
        await store.add([self.run(good, created_at=now), waiting, later])
        claim = Claim(worker="w1", handlers=frozenset({"work"}), limit=100, lease=self.ticks(30))
        held = (await store.claim(claim)).runs
        assert (await store.claim(claim)).next_due == soon, way
        assert (await self.fire(store, await self.read_job(store), self.at(at))).done, way
        assert good in [run.id for run in held], way
        assert all(run.unreadable is None for run in held), way
        both = [Held("bad", 1), *(Held(run.id, run.token) for run in held)]
        assert good in [kept.id for kept in await store.renew(both, self.ticks(30))], way
        counts = await store.counts(since=self.start - timedelta(hours=1))
        assert counts.total(State.WAITING) >= 1, way
        every_state = frozenset(State)
        for query, names in (
            (RunQuery(), {good, late, waits}),
            (RunQuery(brief=True, states=every_state), {good, late, waits}),
            (RunQuery(job="job", tried=True), {good}),
            (RunQuery(upstream=frozenset({"upstream"})), {waits}),
            (RunQuery(set_aside=True), set()),
        ):
            assert names <= {run.id for run in (await store.find(query)).items}, way
        assert await get_runs(store, [good, waits, "bad"]), way
        await self.pass_ticks(31)
        assert good in await self.lapsed(store), way
        for run in held:
            change = transitions.succeeded(run, await store.now(), None)
            assert await store.commit([change]) == [True] or run.id == "bad", way
        gone = await get_runs(store, [late, waits])
        ends = [transitions.cancelled(run, await store.now(), "over") for run in gone.values()]
        assert await store.commit(ends) == [True, True], way

    # -- jobs

    async def test_a_damaged_field_of_a_job_affects_no_other_job(self, store: Store) -> None:
        await self.put(store)
        assert await put_job(store, self.job("bad", tags=("t",), policy=Policy(concurrency=1)))
        assert await put_job(
            store, self.job("other", tags=("t",), description="Other", next_run_at=self.start)
        )
        at = 0
        async for way in self.damage_every_field(store, "job", "bad"):
            at += 1
            await store.add([self.run(f"bad{at}", job_id="bad")])
            for query in (
                JobQuery(),
                JobQuery(tag="t"),
                JobQuery(text="othe"),
                JobQuery(enabled=True, with_total=True),
                JobQuery(queue="default"),
                JobQuery(order="updated_at"),
                JobQuery(order="next_run_at", descending=True),
            ):
                assert "other" in {job.id for job in (await store.jobs(query)).items}, way
            assert (await store.jobs(JobQuery(due=await store.now()))).items, way
            await self._others_go_on(store, way, at)

    @_each_job_part
    async def test_an_unreadable_job_affects_no_other_job(self, store: Store, part: str) -> None:
        for name in ("bad", "good"):
            job = self.job(
                name,
                next_run_at=self.start,
                schedule=every("5m").bind(name, self.start),
                policy=Policy.make(after=("root",), concurrency=3),
                payload={"n": 1},
                tags=("t",),
                description="Both",
            )
            assert await put_job(store, job)
        good = await self.read_job(store, "good")
        repair = await self.damage_job(store, "bad", part)
        for query in (
            JobQuery(),
            JobQuery(due=await store.now()),
            JobQuery(ids=frozenset({"bad", "good"})),
            JobQuery(limit=10, with_total=True, enabled=True),
        ):
            jobs = {job.id: job for job in (await store.jobs(query)).items}
            assert jobs.keys() == {"bad", "good"}
            assert jobs["good"] == good
            assert jobs["bad"].unreadable
            assert jobs["bad"].version == good.version
        for query in (JobQuery(tag="t"), JobQuery(text="both"), JobQuery(follows=True)):
            names = [job.id for job in (await store.jobs(query)).items]
            assert names in (["bad", "good"], ["good"])
        assert (await self.fire(store, good, self.at(0))).done
        assert await put_job(store, replace(good, version=good.version + 1, description="changed"))
        await store.add([self.run("a", job_id="bad"), self.run("b", job_id="good")])
        assert len(await self.claim(store)) == 3
        await repair()
        bad = await self.read_job(store, "bad")
        assert bad.unreadable is None
        assert replace(bad, id="good") == replace(good, schedule=bad.schedule)

    async def test_an_unreadable_job_can_be_removed(self, store: Store) -> None:
        made = await self.put(store, "bad")
        await self.damage_job(store, "bad", "definition")
        assert await drop_job(store, "bad", made.version)
        assert (await store.jobs(JobQuery())).items == []
