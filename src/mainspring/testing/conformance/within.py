"""Tests of `add` in a transaction of the caller's own connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from mainspring.core.model import State
from mainspring.errors import InvalidInput, InvalidPayload, RunNotFound
from mainspring.stores.protocol import Store
from mainspring.testing.conformance.base import Suite


class WithinTests(Suite):
    @asynccontextmanager
    async def caller(self, store: Store, effect: str = "row") -> AsyncIterator[Any]:
        """A transaction of the caller, which has written an effect."""
        if store.info().within is None:
            pytest.skip("the store takes part in no transaction of its callers")
        async with self.caller_transaction(store) as session:
            await self.write_effect(session, effect)
            yield session

    async def roll_back(self, store: Store, *ids: str, **fields: Any) -> None:
        with suppress(_Rollback):
            async with self.caller(store, "undone") as session:
                await store.add(self.runs(*ids, **fields), session)
                raise _Rollback

    async def test_what_is_no_connection_is_refused(self, store: Store) -> None:
        if (accepted := store.info().within) is None:
            pytest.skip("the store takes part in no transaction of its callers")
        with pytest.raises(InvalidInput, match="within") as refused:
            await store.add([self.run()], object())
        assert accepted in str(refused.value)
        assert await self.all_ids(store) == []

    async def test_the_run_is_there_when_the_caller_has_committed(self, store: Store) -> None:
        async with self.caller(store) as session:
            [added] = await store.add([self.run(payload={"a": [1]})], session)
            assert (added.run, added.duplicate) == (self.run(payload={"a": [1]}), False)
            assert await self.all_ids(store) == []
            assert await self.claim(store) == []
        assert await self.one(await self.peer(store)) == added.run
        assert await self.effects(store) == ["row"]
        assert await self.claim_ids(store) == ["run"]

    async def test_the_run_goes_with_the_transaction(self, store: Store) -> None:
        await self.roll_back(store, "a", dedupe_key="k")
        assert (await self.all_ids(store), await self.effects(store)) == ([], [])
        async with self.caller(store) as session:
            [added] = await store.add([self.run("b", dedupe_key="k")], session)
            assert added.duplicate is False
        assert (await self.all_ids(store), await self.effects(store)) == (["b"], ["row"])

    @pytest.mark.parametrize("ended", [False, True])
    async def test_a_duplicate_leaves_the_transaction_usable(
        self, store: Store, ended: bool
    ) -> None:
        if ended:
            await self.finished(store, "a", dedupe_key="k", dedupe_until=self.at(1000))
        else:
            await store.add([self.run("a", dedupe_key="k")])
        async with self.caller(store) as session:
            given = [self.run("b", dedupe_key="k"), self.run("c"), self.run("d", dedupe_key="l")]
            given.append(self.run("e", state=State.WAITING, after=("b",)))
            given.append(self.run("f", dedupe_key="l"))
            answers = [(a.run.id, a.duplicate) for a in await store.add(given, session)]
            assert answers == [*[("a", True), ("c", False), ("d", False), ("e", True), ("d", True)]]
            [again] = await store.add([self.run("g", dedupe_key="l")], session)
            assert (again.run.id, again.duplicate, again.run.duplicate) == ("d", True, True)
        assert sorted(await self.all_ids(store)) == ["a", "c", "d"]
        assert await self.effects(store) == ["row"]

    async def test_a_key_that_became_free_is_taken(self, store: Store) -> None:
        await self.finished(store, "a", dedupe_key="k")
        async with self.caller(store) as session:
            [added] = await store.add([self.run("b", dedupe_key="k")], session)
        assert added.duplicate is False
        assert await self.added(store, "c", dedupe_key="k") == ("b", True)

    async def test_a_run_may_follow_one_of_the_same_transaction(self, store: Store) -> None:
        async with self.caller(store) as session:
            await store.add([self.run("a")], session)
            follower = self.run("b", state=State.WAITING, after=("a",))
            await store.add([follower], session)
            with pytest.raises(RunNotFound):
                await store.add([self.run("c", state=State.WAITING, after=("x",))], session)
        assert sorted(await self.all_ids(store)) == ["a", "b"]
        assert await self.all_ids(store, upstream=frozenset({"a"})) == ["b"]
        [run] = await self.claim(store)
        await self.succeed(store, run)

    async def test_what_cannot_be_kept_leaves_the_transaction_usable(self, store: Store) -> None:
        async with self.caller(store) as session:
            with pytest.raises(InvalidPayload):
                await store.add([self.run("a"), self.run("b", payload=object())], session)
            await store.add([self.run("c")], session)
        assert (await self.all_ids(store), await self.effects(store)) == (["c"], ["row"])

    async def test_a_large_batch_is_one_call_within(self, store: Store) -> None:
        ids = [f"r{n:04}" for n in range(1100)]
        await self.roll_back(store, *ids)
        async with self.caller(store) as session:
            assert len(await store.add(self.runs(*ids), session)) == 1100
            assert await store.add([], session) == []
        assert sorted(await self.all_ids(store, limit=1000)) == ids

    async def test_a_finished_run_can_be_added_within(self, store: Store) -> None:
        skipped = self.run(state=State.SKIPPED, finished_at=self.start, reason="none")
        async with self.caller(store) as session:
            await store.add([skipped], session)
        assert await self.one(store) == skipped

    async def test_unusual_text_is_stored_within(self, store: Store) -> None:
        run = self.run(payload={"%s": "%s \0 \x10e $1 ?"}, dedupe_key="% \x10 é", queue="%s'\"")
        async with self.caller(store) as session:
            [added] = await store.add([run], session)
        assert (added.run, await self.one(store)) == (run, run)


class _Rollback(Exception):
    pass
