"""Tests of `transaction`: a handler's effects and its run's completion are stored as one."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from mainspring.core import transitions
from mainspring.core.model import Run, State
from mainspring.core.policy import Delivery
from mainspring.errors import InvalidPayload, TransactionAborted
from mainspring.stores.protocol import Held, Store, Transaction
from mainspring.testing.conformance.base import Suite

T = TypeVar("T")

LIMIT = timedelta(seconds=20)


class TransactionTests(Suite):
    def transaction(self, store: Store, run: Run, *, blocking: bool = False) -> Transaction:
        if (why := store.info().no_transactions) is not None:
            pytest.skip(why)
        return store.transaction(Held(run.id, run.token), LIMIT, blocking=blocking)

    async def begun(self, store: Store, run: Run, effect: str) -> Transaction:
        """A transaction that has written an effect."""
        transaction = self.transaction(store, run)
        await self.write_effect(await transaction.begin(), effect)
        return transaction

    async def completion(self, store: Store, run: Run, result: Any = None) -> transitions.Change:
        return transitions.succeeded(run, await store.now(), result)

    async def test_a_commit_stores_the_effect_and_the_completion(self, store: Store) -> None:
        run = await self.running(store)
        transaction = await self.begun(store, run, "sent")
        assert await self.states(store, "run") == [State.RUNNING]
        change = await self.completion(store, run, {"n": 1})
        assert await transaction.commit(change) is True
        done = await self.one(await self.peer(store))
        assert (done.state, done.result) == (State.SUCCEEDED, {"n": 1})
        assert await self.effects(store) == ["sent"]
        assert await store.commit([change]) == [True]  # it stands: a repeat is harmless

    async def test_a_rollback_leaves_no_effect(self, store: Store) -> None:
        run = await self.running(store)
        transaction = await self.begun(store, run, "sent")
        await transaction.rollback()
        await transaction.rollback()
        assert await self.one(store) == run
        assert await self.effects(store) == []
        assert await store.commit([await self.completion(store, run)]) == [True]

    async def test_a_rollback_before_begin_does_nothing(self, store: Store) -> None:
        run = await self.running(store)
        await self.transaction(store, run).rollback()
        assert await self.one(store) == run

    async def test_a_run_may_have_another_transaction_after_a_rollback(self, store: Store) -> None:
        run = await self.running(store)
        await (await self.begun(store, run, "first")).rollback()
        second = await self.begun(store, run, "second")
        assert await second.commit(await self.completion(store, run))
        assert await self.effects(store) == ["second"]

    async def test_a_result_that_cannot_be_stored_is_refused(self, store: Store) -> None:
        run = await self.running(store)
        transaction = await self.begun(store, run, "sent")
        with pytest.raises(InvalidPayload):
            await transaction.commit(await self.completion(store, run, {1, 2}))
        await transaction.rollback()
        assert await self.one(store) == run
        assert await self.effects(store) == []

    @pytest.mark.parametrize("why", ["rescued", "claimed again", "finished", "cancelled", "gone"])
    async def test_a_transaction_does_not_begin_for_a_run_that_is_not_held(
        self, store: Store, why: str
    ) -> None:
        run = await self.running(store)
        now = await store.now()
        await self.take_away(store, run, why)
        transaction = self.transaction(store, run)
        with pytest.raises(TransactionAborted):
            await transaction.begin()
        await transaction.rollback()
        assert await self.effects(store) == []
        assert await store.commit([transitions.succeeded(run, now, "stale")]) == [False]

    async def take_away(self, store: Store, run: Run, why: str) -> None:
        now = await store.now()
        if why == "cancelled":
            assert await store.commit([transitions.request_cancel(run, "asked")]) == [True]
        elif why in ("finished", "gone"):
            assert await store.commit(
                [transitions.failed(run, now, transitions.Failure("no"))]
            ) == [True]
        else:
            back = transitions.rescued(run, now, Delivery.EFFECT_ONCE)
            assert await store.commit([back]) == [True]
        if why == "gone":
            await self.pass_ticks(1)
            assert await store.maintain(await store.now(), 10) == 1
        if why == "claimed again":
            assert len(await self.claim(store, worker="w2")) == 1

    @pytest.mark.parametrize("why", ["rescued", "cancelled", "finished"])
    async def test_either_the_transaction_or_a_rival_change_wins(
        self, store: Store, why: str
    ) -> None:
        """Another client changes the run during the transaction. One wins, the other is refused."""
        peer = await self.peer(store)
        run = await self.running(store)
        transaction = await self.begun(store, run, "sent")
        rival = asyncio.create_task(self.rival(peer, run, why))
        await asyncio.sleep(0.2)
        committed = await self.committed(transaction, await self.completion(store, run))
        [taken] = await rival
        assert committed is not taken
        assert await self.effects(store) == ["sent"] * committed
        state = (await self.one(store)).state
        assert (state is State.SUCCEEDED) == committed

    async def rival(self, store: Store, run: Run, why: str) -> list[bool]:
        now = await store.now()
        change = {
            "rescued": transitions.rescued(run, now, Delivery.EFFECT_ONCE),
            "cancelled": transitions.request_cancel(run, "asked"),
            "finished": transitions.failed(run, now, transitions.Failure("no")),
        }[why]
        return await store.commit([change])

    async def committed(self, transaction: Transaction, change: transitions.Change) -> bool:
        try:
            return await transaction.commit(change)
        except TransactionAborted:
            return False
        finally:
            await transaction.rollback()

    async def test_concurrent_transactions_all_commit(self, store: Store) -> None:
        peer = await self.peer(store)
        await store.add(self.runs(*"abcdefgh"))

        async def one(client: Store, run: Run) -> None:
            for tries in range(100):
                try:
                    transaction = await self.begun(client, run, run.id)
                except TransactionAborted:
                    continue
                if await self.committed(transaction, await self.completion(client, run)):
                    return
                await asyncio.sleep(0.005 * tries)
            raise AssertionError(f"{run.id} never came through")

        held = await self.claim(store)
        await asyncio.gather(*(one((store, peer)[n % 2], run) for n, run in enumerate(held)))
        assert await self.effects(store) == list("abcdefgh")

    async def test_the_store_answers_during_and_after_a_transaction(self, store: Store) -> None:
        """Other writes may wait for the transaction, but not long after its end. Reads never do."""
        run, other = await self.running(store), await self.running(store, "other")
        transaction = await self.begun(store, run, "sent")
        renewal = asyncio.create_task(self.renew(store, other, lease=60))
        assert await self.states(store, "run", "other") == [State.RUNNING, State.RUNNING]
        assert await transaction.commit(await self.completion(store, run))
        [renewed] = await renewal
        assert renewed.id == "other"

    async def test_a_blocking_transaction_works_in_plain_code(self, store: Store) -> None:
        run, other = await self.running(store), await self.running(store, "other")
        done = await self.completion(store, run)

        def handler() -> bool:
            transaction = self.transaction(store, run, blocking=True)
            self.write_effect_blocking(_driven(transaction.begin()), "sent")
            return _driven(transaction.commit(done))

        def undone() -> None:
            transaction = self.transaction(store, other, blocking=True)
            self.write_effect_blocking(_driven(transaction.begin()), "undone")
            _driven(transaction.rollback())

        self.transaction(store, run)  # skips where there are none
        assert await asyncio.to_thread(handler) is True
        await asyncio.to_thread(undone)
        assert await self.states(store, "run", "other") == [State.SUCCEEDED, State.RUNNING]
        assert await self.effects(store) == ["sent"]


def _driven(work: Coroutine[Any, Any, T]) -> T:
    """A blocking transaction's coroutines never suspend."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("it suspended")
