"""Tests of `open`, `close`, `now` and `add`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from mainspring.core import transitions
from mainspring.core.model import Run, State, replace
from mainspring.errors import InvalidPayload, StoreError
from mainspring.stores.protocol import JobQuery, NoteQuery, RunQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import get_runs


class OpenTests(Suite):
    async def test_a_store_opens_again_after_close_with_what_it_held(self, store: Store) -> None:
        await store.add([self.run()])
        job = await self.put(store)
        await store.close()
        await store.close()
        await store.open()
        assert await self.states(store, "run") == [State.PENDING]
        assert await self.read_job(store) == job

    async def test_two_tasks_may_open_a_store_at_once(self, store: Store) -> None:
        await store.close()
        await asyncio.gather(*(store.open() for _ in range(3)))
        await store.add([self.run()])
        assert await self.states(store, "run") == [State.PENDING]

    async def test_every_call_of_a_closed_store_is_refused(self, store: Store) -> None:
        await store.close()
        if not self.refuses_when_closed:
            pytest.skip("the store keeps answering: several clients share the object")
        calls: list[Callable[[], Awaitable[object]]] = [
            store.now,
            lambda: store.add([]),
            lambda: self.claim(store),
            lambda: store.renew([], self.ticks(1)),
            lambda: store.commit([]),
            lambda: store.find(RunQuery()),
            store.counts,
            lambda: store.maintain(None, 1),
            lambda: store.jobs(JobQuery()),
            lambda: store.put_jobs([]),
            lambda: store.notes(NoteQuery()),
            lambda: store.put_notes([]),
            lambda: store.fire([]),
            lambda: store.wait(0),
        ]
        for call in calls:
            with pytest.raises(StoreError):
                await call()
        assert store.info().kind

    async def test_now_is_in_utc_and_moves(self, store: Store) -> None:
        before = await store.now()
        assert before.utcoffset() == timedelta()
        await self.pass_ticks(1)
        assert await store.now() >= before + self.ticks(1)


class AddTests(Suite):
    async def test_an_empty_list_gives_an_empty_list(self, store: Store) -> None:
        for call in (store.add, store.commit, store.put_jobs, store.put_notes, store.fire):
            assert await call([]) == []
        assert await store.renew([], self.ticks(30)) == []

    async def test_answers_come_in_the_order_of_the_runs(self, store: Store) -> None:
        ids = ["c", "a", "b"]
        assert [added.run.id for added in await store.add(self.runs(*ids))] == ids

    async def test_adding_again_is_harmless(self, store: Store) -> None:
        """A caller whose answer was lost calls again: nothing may be added twice or undone."""
        await store.add([self.run(payload=1)])
        [running] = await self.claim(store)
        [again] = await store.add([self.run(payload=2, priority=9)])
        assert (again.run, again.duplicate) == (running, False)
        assert await self.one(store) == running

    async def test_an_id_that_occurs_twice_in_a_batch_is_added_once(self, store: Store) -> None:
        first, second = await store.add([self.run(payload=1), self.run(payload=2)])
        assert (first.run.payload, second.run.payload) == (1, 1)
        assert await self.all_ids(store) == ["run"]

    @pytest.mark.parametrize("state", [State.WAITING, State.PENDING, State.RUNNING])
    async def test_a_live_run_holds_its_dedupe_key(self, store: Store, state: State) -> None:
        initial = State.PENDING if state is State.RUNNING else state
        await store.add([self.run("a", dedupe_key="k", state=initial, after=("x",))])
        if state is State.RUNNING:
            await self.claim(store)
        [added] = await store.add([self.run("b", dedupe_key="k")])
        assert (added.run.id, added.duplicate, added.run.duplicate) == ("a", True, True)
        assert added.run.state is state
        assert await self.all_ids(store) == ["a"]
        assert await self.added(store, "a", dedupe_key="k") == ("a", False)
        assert (await self.one(store, "a")).duplicate is False

    async def test_a_key_is_free_after_the_run_has_ended(self, store: Store) -> None:
        await self.finished(store, "a", dedupe_key="k")
        for run_id in ("b", "c"):
            run = self.run(run_id, dedupe_key="k")
            [added] = await store.add([run])
            assert (added.run.id, added.duplicate) == (run_id, False)
            assert await store.commit([transitions.cancelled(run, self.start, None)]) == [True]

    async def test_a_key_is_held_until_dedupe_until_after_its_run_has_ended(
        self, store: Store
    ) -> None:
        await self.finished(store, "a", dedupe_key="k", dedupe_until=self.at(20))
        assert await self.added(store, "b", dedupe_key="k") == ("a", True)
        await self.pass_ticks(21)
        assert await self.added(store, "b", dedupe_key="k") == ("b", False)

    async def test_a_live_run_holds_its_key_after_dedupe_until(self, store: Store) -> None:
        """`dedupe_until` makes a run hold its key longer, never shorter."""
        await store.add([self.run("a", dedupe_key="k", dedupe_until=self.at(1))])
        await self.pass_ticks(2)
        assert await self.added(store, "b", dedupe_key="k") == ("a", True)

    async def test_a_key_that_occurs_twice_in_a_batch_is_added_once(self, store: Store) -> None:
        given = [self.run("a", dedupe_key="k"), self.run("b"), self.run("c", dedupe_key="k")]
        answers = [(a.run.id, a.duplicate) for a in await store.add(given)]
        assert answers == [("a", False), ("b", False), ("a", True)]
        assert sorted(await self.all_ids(store)) == ["a", "b"]

    async def test_followers_of_a_refused_run_are_refused_too(self, store: Store) -> None:
        """The workflow of the run that holds the key is stored already."""
        await store.add([self.run("a", dedupe_key="k")])
        b = self.run("b", dedupe_key="k")
        c = self.run("c", state=State.WAITING, after=("b",))
        d = self.run("d", state=State.WAITING, after=("c",))
        e = self.run("e", state=State.WAITING, after=("a",))
        answers = [(added.run.id, added.duplicate) for added in await store.add([b, c, d, e])]
        assert answers == [("a", True), ("c", True), ("d", True), ("e", False)]
        assert sorted(await self.all_ids(store)) == ["a", "e"]

    async def test_a_stored_follower_of_a_refused_run_stays(self, store: Store) -> None:
        await store.add([self.run("a", dedupe_key="k"), self.run("c", payload=1)])
        follower = self.run("c", state=State.WAITING, after=("b",))
        _, again = await store.add([self.run("b", dedupe_key="k"), follower])
        assert (again.duplicate, again.run.payload, again.run.state) == (False, 1, State.PENDING)

    async def test_keys_are_compared_exactly(self, store: Store) -> None:
        keys = ["k", "K", "k ", "", "é", "e\u0301", "\N{SNOWMAN}", "0", "x" * 500]
        for n, key in enumerate(keys):
            [added] = await store.add([self.run(f"r{n}", dedupe_key=key)])
            assert (added.run.dedupe_key, added.duplicate) == (key, False)
        for n, key in enumerate(keys):
            assert await self.added(store, f"again{n}", dedupe_key=key) == (f"r{n}", True)

    async def test_a_batch_with_an_invalid_run_adds_nothing(self, store: Store) -> None:
        bad = self.run("b", payload=object())
        with pytest.raises(InvalidPayload):
            await store.add([self.run("a"), bad, self.run("c")])
        assert await self.all_ids(store) == []

    async def test_a_large_batch_is_one_call(self, store: Store) -> None:
        """More values than a database may allow in one statement."""
        runs = [self.run(f"r{n:04}") for n in range(3000)]
        assert [added.duplicate for added in await store.add(runs)] == [False] * 3000
        assert len(await get_runs(store, [run.id for run in runs])) == 3000
        assert (await store.find(RunQuery(limit=5000))).items[0].id == "r2999"

    async def test_a_finished_run_can_be_added(self, store: Store) -> None:
        """A skipped slot leaves a record that was never pending."""
        skipped = self.run(state=State.SKIPPED, finished_at=self.start, reason="misfire")
        await store.add([skipped])
        assert await self.one(store) == skipped
        assert await self.claim(store) == []

    async def test_a_duplicate_mark_is_never_stored(self, store: Store) -> None:
        run: Run = replace(self.run(), duplicate=True)
        await store.add([run])
        assert (await self.one(store)).duplicate is False
