"""Tests of `commit`: fences, repeated changes, rescues, and revived runs with dedupe keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Outcome, Run, State, replace
from mainspring.core.policy import Delivery
from mainspring.core.transitions import AttemptDetails, Change, Failure
from mainspring.stores.protocol import RunQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import get_runs


class CommitTests(Suite):
    async def test_every_outcome_is_stored_as_its_change_says(self, store: Store) -> None:
        failure = Failure("ValueError: no", "Traceback…", Outcome.TIMED_OUT)
        later, details = self.at(50), AttemptDetails(log=("a", "b"))
        changes: list[Callable[[Run], Change]] = [
            lambda r: transitions.succeeded(r, self.at(1), [1, None], details),
            lambda r: transitions.retrying(r, self.at(1), failure, later, details),
            lambda r: transitions.failed(r, self.at(1), failure, reason="gave up"),
            lambda r: transitions.request_cancel(r, "asked"),
            lambda r: transitions.cancelled(r, self.at(1), "stopped"),
            lambda r: transitions.skipped(r, self.at(1), "expired"),
            lambda r: transitions.released(r, self.at(1), began=True),
            lambda r: transitions.released(r, self.at(1), began=False),
            lambda r: transitions.snoozed(r, self.at(1), later),
            lambda r: transitions.rescued(r, self.at(1), Delivery.AT_LEAST_ONCE),
            lambda r: transitions.rescued(r, self.at(1), Delivery.AT_MOST_ONCE),
        ]
        await store.add([self.run(f"r{n:02}", payload={"n": n}) for n in range(len(changes))])
        held = sorted(await self.claim(store), key=lambda run: run.id)
        made = [change(run) for change, run in zip(changes, held, strict=True)]
        assert await store.commit(made) == [True] * len(made)
        for run, change in zip(held, made, strict=True):
            assert await self.one(store, run.id) == change.after(run)

    async def test_a_retry_is_due_at_its_time_and_not_before(self, store: Store) -> None:
        run = await self.running(store)
        await store.commit([transitions.retrying(run, self.start, Failure("boom"), self.at(40))])
        assert await self.claim(store) == []
        await self.pass_ticks(40)
        [again] = await self.claim(store)
        assert (again.attempt, again.failures, again.error) == (2, 1, "boom")

    async def test_a_change_with_another_token_is_refused(self, store: Store) -> None:
        """A worker whose run was rescued comes back. It must not complete the new attempt."""
        old = await self.running(store)
        await store.commit([transitions.rescued(old, self.start, Delivery.AT_LEAST_ONCE)])
        [new] = await self.claim(store, worker="w2")
        late = [
            transitions.succeeded(old, self.start, "stale"),
            transitions.failed(old, self.start, Failure("stale")),
            transitions.retrying(old, self.start, Failure("stale"), self.at(9)),
            transitions.cancelled(old, self.start, "stale"),
            transitions.released(old, self.start, began=True),
            transitions.request_cancel(old, "stale"),
        ]
        assert await store.commit(late) == [False] * len(late)
        assert await self.one(store) == new

    async def test_a_change_that_expects_another_state_is_refused(self, store: Store) -> None:
        run = await self.running(store)
        await store.commit([transitions.succeeded(run, self.start, 1)])
        done = await self.one(store)
        late = [
            transitions.failed(run, self.at(1), Failure("late")),
            transitions.cancelled(run, self.at(1), "late"),
            transitions.succeeded(run, self.at(1), 2),
            transitions.request_cancel(run, "late"),
        ]
        assert await store.commit(late) == [False] * len(late)
        assert await self.one(store) == done

    async def test_a_completion_after_a_cancel_is_refused(self, store: Store) -> None:
        run = await self.running(store)
        await store.commit([transitions.request_cancel(run, "asked")])
        late = [
            transitions.succeeded(run, self.start, 1),
            transitions.retrying(run, self.start, Failure("boom"), self.at(9)),
            transitions.skipped(run, self.start, "expired"),
            *(transitions.rescued(run, self.start, delivery) for delivery in Delivery),
        ]
        assert await store.commit(late) == [False] * len(late)
        [asked] = await self.renew(store, run)
        assert await store.commit([transitions.cancelled(run, self.start, asked.reason)]) == [True]
        assert await self.states(store, "run") == [State.CANCELLED]

    async def test_a_pending_run_is_cancelled_unless_it_was_claimed(self, store: Store) -> None:
        pending = self.run("a")
        await store.add([pending, self.run("b")])
        assert await store.commit([transitions.cancelled(pending, self.start, "x")]) == [True]
        waiting = await self.one(store, "b")
        await self.claim(store)
        assert await store.commit([transitions.cancelled(waiting, self.start, "x")]) == [False]
        assert await self.states(store, "a", "b") == [State.CANCELLED, State.RUNNING]

    async def test_a_change_of_an_unknown_run_is_refused(self, store: Store) -> None:
        stranger = self.run("nowhere", state=State.RUNNING)
        assert await store.commit([transitions.succeeded(stranger, self.start, 1)]) == [False]
        assert await get_runs(store, ["nowhere"]) == {}

    async def test_a_change_is_refused_when_any_expectation_fails(self, store: Store) -> None:
        run = await self.running(store)
        right: dict[str, Any] = {
            "state": State.RUNNING,
            "token": run.token,
            "lease_until": run.lease_until,
            "cancel_requested": False,
            "began": False,
        }
        wrong: dict[str, Any] = {
            "state": State.PENDING,
            "token": run.token + 1,
            "lease_until": self.at(12345),
            "cancel_requested": True,
            "began": True,
        }
        for name, value in wrong.items():
            change = Change(run.id, {**right, name: value}, {"reason": "changed"})
            assert await store.commit([change]) == [False], name
        assert await store.commit([Change(run.id, right, {"reason": "changed"})]) == [True]
        assert await self.one(store) == replace(run, reason="changed")

    async def test_a_change_may_expect_that_there_is_no_lease(self, store: Store) -> None:
        await store.add([self.run()])
        change = Change("run", {"lease_until": None, "token": 0}, {"reason": "seen"})
        assert await store.commit([change]) == [True]

    async def test_repeating_any_outcome_is_true_and_harmless(self, store: Store) -> None:
        """A caller whose answer was lost sends the same change again."""
        failure, details = Failure("boom", "trace"), AttemptDetails(log=("log",))
        results: list[Any] = [None, 5, {"a": [1, {"b": None}]}, (1, (2, 3)), "☃\x00"]
        makers: list[Callable[[Run], Change]] = [
            *(
                partial(transitions.succeeded, now=self.start, result=result, details=details)
                for result in results
            ),
            lambda r: transitions.failed(r, self.start, failure),
            lambda r: transitions.retrying(r, self.start, failure, self.at(999)),
            lambda r: transitions.request_cancel(r, "asked"),
            lambda r: transitions.cancelled(r, self.start, None),
            lambda r: transitions.released(r, self.start, began=False),
            lambda r: transitions.snoozed(r, self.start, self.at(999)),
            lambda r: transitions.rescued(r, self.start, Delivery.AT_LEAST_ONCE),
        ]
        for n, make in enumerate(makers):
            run = await self.running(store, f"r{n}", handler=f"h{n}")
            change = make(run)
            assert await store.commit([change]) == [True]
            stands = await self.one(store, run.id)
            assert await store.commit([change]) == [True], change
            assert await store.commit([change, change]) == [True, True], change
            assert await self.one(store, run.id) == stands

    async def test_a_repeat_after_a_claim_is_true_and_changes_nothing(self, store: Store) -> None:
        first = await self.running(store)
        back = transitions.retrying(first, self.start, Failure("boom"), self.start)
        assert await store.commit([back]) == [True]
        [second] = await self.claim(store)
        await self.renew(store, second)
        kept = await self.one(store)
        assert await store.commit([back]) == [True]
        assert await self.one(store) == kept

    async def test_a_repeat_after_another_change_is_false(self, store: Store) -> None:
        first = await self.running(store)
        back = transitions.retrying(first, self.start, Failure("boom"), self.start)
        assert await store.commit([back]) == [True]
        [second] = await self.claim(store)
        assert await store.commit([transitions.succeeded(second, self.start, None)]) == [True]
        kept = await self.one(store)
        assert await store.commit([back]) == [False]
        assert await self.one(store) == kept

    async def test_an_equal_change_of_another_client_is_not_taken_for_a_repeat(
        self, store: Store
    ) -> None:
        run = await self.running(store)
        mine, theirs = (transitions.succeeded(run, self.start, 5) for _ in range(2))
        assert await store.commit([mine]) == [True]
        assert await store.commit([theirs]) == [False]
        assert await store.commit([mine]) == [True]

    async def test_a_deletion_is_fenced_and_repeated_harmlessly(self, store: Store) -> None:
        run = await self.running(store)
        assert await store.commit([transitions.deleted(run)]) == [False]
        await store.commit([transitions.failed(run, self.start, Failure("boom"))])
        dead = await self.one(store)
        await store.commit([transitions.revived(dead, self.start)])
        [again] = await self.claim(store)
        await store.commit([transitions.failed(again, self.start, Failure("boom"))])
        assert await store.commit([transitions.deleted(dead)]) == [False]
        delete = transitions.deleted(await self.one(store))
        assert await store.commit([delete, delete]) == [True, True]
        assert await store.commit([delete]) == [True]
        assert await self.states(store, "run") == [None]

    async def test_each_change_of_a_batch_is_applied_by_itself(self, store: Store) -> None:
        await store.add(self.runs("a", "b", "c"))
        a, b, c = sorted(await self.claim(store), key=lambda run: run.id)
        await store.commit([transitions.rescued(b, self.start, Delivery.AT_LEAST_ONCE)])
        changes = [transitions.succeeded(run, self.start, run.id) for run in (a, b, c)]
        assert await store.commit(changes) == [True, False, True]
        done = [State.SUCCEEDED, State.PENDING, State.SUCCEEDED]
        assert await self.states(store, "a", "b", "c") == done

    async def test_changes_of_one_run_apply_in_order(self, store: Store) -> None:
        run = await self.running(store)
        changes = [
            transitions.request_cancel(run, "asked"),
            transitions.succeeded(run, self.start, 1),
            transitions.cancelled(run, self.start, "asked"),
        ]
        assert await store.commit(changes) == [True, False, True]

    async def test_a_thousand_changes_in_one_call(self, store: Store) -> None:
        await store.add([self.run(f"r{n}") for n in range(1000)])
        held = await self.claim(store, 1000)
        changes = [transitions.succeeded(run, self.start, {"id": run.id}) for run in held]
        assert await store.commit(changes) == [True] * 1000
        assert (await self.one(store, "r777")).result == {"id": "r777"}


class RescueTests(Suite):
    async def test_a_run_with_a_lapsed_lease_is_found_and_rescued(self, store: Store) -> None:
        run = await self.running(store)
        assert await self.lapsed(store) == []
        await self.pass_ticks(31)
        assert await self.lapsed(store) == ["run"]
        now = await store.now()
        assert await store.commit([transitions.rescued(run, now, Delivery.AT_LEAST_ONCE)]) == [True]
        assert await self.lapsed(store) == []
        [again] = await self.claim(store, worker="w2")
        assert (again.attempt, again.failures, again.lapses) == (2, 0, 1)

    async def test_a_rescue_is_refused_after_the_worker_renewed(self, store: Store) -> None:
        seen = await self.running(store)
        await self.pass_ticks(31)
        assert len(await self.renew(store, seen)) == 1
        kept = await self.one(store)
        rescue = transitions.rescued(seen, await store.now(), Delivery.AT_LEAST_ONCE)
        assert await store.commit([rescue]) == [False]
        assert await self.one(store) == kept

    async def test_a_worker_may_complete_a_run_whose_lease_lapsed_unnoticed(
        self, store: Store
    ) -> None:
        run = await self.running(store)
        await self.pass_ticks(31)
        now = await store.now()
        rescue = transitions.rescued(run, now, Delivery.AT_LEAST_ONCE)
        assert await store.commit([transitions.succeeded(run, now, "late")]) == [True]
        assert await store.commit([rescue]) == [False]
        assert (await self.one(store)).result == "late"


class ReviveTests(Suite):
    async def failed(self, store: Store, run_id: str = "run", **fields: Any) -> Any:
        run = await self.running(store, run_id, **fields)
        assert await store.commit([transitions.failed(run, self.start, Failure("boom"))]) == [True]
        return await self.one(store, run_id)

    async def test_a_revived_run_is_tried_again_under_its_id(self, store: Store) -> None:
        dead = await self.failed(store, payload={"a": 1})
        revive = transitions.revived(dead, await store.now())
        assert await store.commit([revive]) == [True]
        [again] = await self.claim(store)
        assert (again.id, again.attempt, again.token, again.failures) == ("run", 2, 2, 0)
        assert (again.error, again.finished_at, again.payload) == (None, None, {"a": 1})

    async def test_a_revival_is_repeated_harmlessly(self, store: Store) -> None:
        revive = transitions.revived(await self.failed(store, dedupe_key="k"), self.start)
        assert await store.commit([revive, revive]) == [True, True]
        assert await self.added(store, "b", dedupe_key="k") == ("run", True)
        assert await store.commit([revive]) == [True]

    async def test_a_run_is_not_revived_while_a_live_run_holds_its_key(self, store: Store) -> None:
        dead = await self.failed(store, "a", dedupe_key="k")
        await store.add([self.run("b", dedupe_key="k")])
        assert await store.commit([transitions.revived(dead, self.start)]) == [False]
        assert await self.one(store, "a") == dead

    async def test_a_run_is_not_revived_while_a_finished_run_holds_its_key(
        self, store: Store
    ) -> None:
        dead = await self.failed(store, "a", dedupe_key="k")
        await self.finished(store, "b", dedupe_key="k", dedupe_until=self.at(20))
        assert await store.commit([transitions.revived(dead, self.start)]) == [False]
        await self.pass_ticks(21)
        assert await store.commit([transitions.revived(dead, await store.now())]) == [True]

    async def test_a_run_that_holds_its_own_key_is_revived(self, store: Store) -> None:
        dead = await self.failed(store, "a", dedupe_key="k", dedupe_until=self.at(10**6))
        assert await store.commit([transitions.revived(dead, self.start)]) == [True]

    async def test_only_one_of_two_runs_with_one_key_is_revived(self, store: Store) -> None:
        first = await self.failed(store, "a", dedupe_key="k")
        second = await self.failed(store, "b", dedupe_key="k")
        changes = [transitions.revived(first, self.start), transitions.revived(second, self.start)]
        assert await store.commit(changes) == [True, False]
        assert await self.states(store, "a", "b") == [State.PENDING, State.FAILED]

    async def test_a_skip_that_was_decided_before_a_retry_is_refused(self, store: Store) -> None:
        """The retry makes the token of a waiting run grow; the run waits on, and is claimed."""
        after = self.run("late", state=State.WAITING, after=("r1",))
        await store.add([self.run("r1"), after])
        assert await store.commit([transitions.waiting_again(after)]) == [True]
        skip = transitions.skipped(after, self.at(1), transitions.UPSTREAM_FAILED)
        assert await store.commit([skip, transitions.waiting_again(after)]) == [False, False]
        [waiting] = (await store.find(RunQuery(upstream=frozenset({"r1"})))).items
        assert (waiting.id, waiting.state, waiting.token) == ("late", State.WAITING, 1)
        freed = transitions.unblocked(waiting, self.at(1), {"r1": State.SUCCEEDED})
        assert freed is not None
        assert await store.commit([freed]) == [True]
        await self.pass_ticks(1)
        assert sorted(await self.claim_ids(store)) == ["late", "r1"]

    async def test_a_run_that_is_live_again_is_not_revived(self, store: Store) -> None:
        dead = await self.failed(store)
        await store.commit([transitions.revived(dead, self.start)])
        [again] = await self.claim(store)
        assert await store.commit([transitions.revived(dead, self.at(1))]) == [False]
        assert await self.one(store) == again
