"""Every transition of a run: what it expects, what it writes, and what it leaves alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import (
    LIVE,
    MAX_ATTEMPTS_KEPT,
    Attempt,
    Job,
    Outcome,
    Progress,
    Run,
    State,
    replace,
)
from mainspring.core.policy import Delivery, Policy
from mainspring.core.transitions import AttemptDetails, Change, Failure

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
BEGAN = NOW - timedelta(seconds=9)
LATER = NOW + timedelta(hours=1)
FIRST = Attempt(1, "w0", BEGAN - timedelta(hours=1), BEGAN, Outcome.FAILED, "first")
BOOM = Failure("ValueError: boom", "Traceback…", Outcome.TIMED_OUT)


def pending(**fields: Any) -> Run:
    defaults = {
        "id": "r",
        "job_id": "j",
        "handler": "h",
        "created_at": BEGAN,
        "scheduled_at": BEGAN,
    }
    return Run(**{**defaults, "run_at": BEGAN, **fields})


def running(**fields: Any) -> Run:
    """In its second attempt."""
    defaults = {
        "state": State.RUNNING,
        "attempt": 2,
        "token": 4,
        "failures": 1,
        "worker": "w1",
        "started_at": BEGAN,
        "lease_until": NOW + timedelta(seconds=20),
        "progress": Progress(1, 2),
        "error": "first",
        "attempts": (FIRST,),
    }
    return pending(**{**defaults, **fields})


def applies(change: Change | None, run: Run) -> bool:
    assert change is not None
    assert change.id == run.id
    return all(getattr(run, name) == value for name, value in change.expect.items())


MINE = {"state": State.RUNNING, "token": 4, "cancel_requested": False}


class TestTheHolder:
    """What the worker that holds a run may do with it."""

    def changes(self, run: Run) -> dict[str, Change]:
        return {
            "succeeded": transitions.succeeded(run, NOW, 1),
            "retrying": transitions.retrying(run, NOW, BOOM, LATER),
            "failed": transitions.failed(run, NOW, BOOM),
            "released": transitions.released(run, NOW, began=True),
            "given back": transitions.released(run, NOW, began=False),
            "snoozed": transitions.snoozed(run, NOW, LATER),
            "request_cancel": transitions.request_cancel(run, "why"),
        }

    def test_it_expects_its_own_token_and_no_cancel(self) -> None:
        for name, change in self.changes(running()).items():
            assert change.expect == MINE, name

    @pytest.mark.parametrize("state", [s for s in State if s is not State.RUNNING])
    def test_none_of_it_can_happen_to_a_run_that_is_not_running(self, state: State) -> None:
        run = running(state=state)
        for name, change in self.changes(run).items():
            assert not applies(change, run), name

    def test_a_success_ends_the_run_and_keeps_its_result(self) -> None:
        run = running()
        done = transitions.succeeded(run, NOW, {"n": 1}, AttemptDetails(log=("line",))).after(run)
        assert done == replace(
            run,
            state=State.SUCCEEDED,
            finished_at=NOW,
            lease_until=None,
            result={"n": 1},
            error=None,
            attempts=(
                FIRST,
                Attempt(2, "w1", BEGAN, NOW, Outcome.SUCCEEDED, log=("line",)),
            ),
        )
        assert done.duration == 9

    def test_a_failed_attempt_with_retries_left_makes_the_run_wait(self) -> None:
        run = running()
        assert transitions.retrying(run, NOW, BOOM, LATER, AttemptDetails(log=("l",))).after(
            run
        ) == replace(
            run,
            state=State.PENDING,
            run_at=LATER,
            failures=2,
            lease_until=None,
            worker=None,
            error=BOOM.error,
            attempts=(
                FIRST,
                Attempt(2, "w1", BEGAN, NOW, Outcome.TIMED_OUT, BOOM.error, BOOM.traceback, ("l",)),
            ),
        )

    def test_given_back_before_it_began_burns_nothing(self) -> None:
        run = running()
        back = transitions.released(run, NOW, began=False).after(run)
        assert (back.state, back.attempt, back.attempts) == (State.PENDING, 1, (FIRST,))
        assert back.started_at == FIRST.started_at
        assert back.token == run.token  # what was handed out is never handed out again

    def test_a_first_attempt_given_back_never_started(self) -> None:
        run = running(attempt=1, attempts=())
        back = transitions.released(run, NOW, began=False).after(run)
        assert (back.attempt, back.started_at) == (0, None)

    def test_a_cancel_that_came_first_wins_over_every_outcome(self) -> None:
        seen = running()
        asked = transitions.request_cancel(seen, "why").after(seen)
        for name, change in self.changes(seen).items():
            assert not applies(change, asked), name
        assert applies(transitions.cancelled(seen, NOW, "why"), asked)

    def test_an_end_keeps_how_far_the_worker_had_come(self) -> None:
        """Its last progress may be newer than its last renewal."""
        run = running(progress=Progress(2, 2))
        for change in (transitions.succeeded(run, NOW, 1), transitions.failed(run, NOW, BOOM)):
            stored = replace(run, progress=Progress(1, 2), started_at=None)
            after = change.after(stored)
            assert (after.progress, after.started_at) == (Progress(2, 2), BEGAN)

    def test_the_newest_attempts_are_kept(self) -> None:
        run = running(attempts=(FIRST,) * MAX_ATTEMPTS_KEPT, attempt=57)
        kept = transitions.succeeded(run, NOW, None).after(run).attempts
        assert len(kept) == MAX_ATTEMPTS_KEPT
        assert kept[-1].number == 57


class TestCancelling:
    @pytest.mark.parametrize("state", [State.WAITING, State.PENDING])
    def test_what_nobody_holds_ends_at_once(self, state: State) -> None:
        run = pending(state=state, token=3)
        change = transitions.cancelled(run, NOW, "asked")
        assert change.expect == {"state": state, "token": 3}
        assert change.after(run) == replace(
            run, state=State.CANCELLED, finished_at=NOW, reason="asked"
        )

    def test_a_run_that_was_claimed_meanwhile_is_not_ended(self) -> None:
        seen = pending()
        claimed = replace(seen, state=State.RUNNING, token=1)
        assert not applies(transitions.cancelled(seen, NOW, "asked"), claimed)


class TestSkipping:
    def test_a_run_that_moved_on_is_not_skipped(self) -> None:
        free = transitions.skipped(pending(token=3), NOW, "expired")
        assert free.expect == {"state": State.PENDING, "token": 3}
        assert transitions.skipped(running(), NOW, "expired").expect == MINE

    def test_claimed_too_late_burns_no_attempt(self) -> None:
        run = running(attempt=1, attempts=())
        gone = transitions.skipped(run, NOW, "expired").after(run)
        assert gone.reason == "expired"
        assert (gone.state, gone.attempt, gone.attempts) == (State.SKIPPED, 0, ())
        assert (gone.started_at, gone.lease_until, gone.duration) == (None, None, None)


class TestRescuing:
    def test_the_lease_seen_is_the_guard(self) -> None:
        run = running()
        change = transitions.rescued(run, NOW, Delivery.AT_LEAST_ONCE)
        assert change.expect == {
            "state": State.RUNNING,
            "token": 4,
            "lease_until": run.lease_until,
            "cancel_requested": False,
        }
        assert applies(change, run)
        assert not applies(change, replace(run, lease_until=LATER))

    def test_a_cancel_between_the_look_and_the_rescue_is_not_lost(self) -> None:
        seen = running()
        asked = transitions.request_cancel(seen, "asked").after(seen)
        assert not applies(transitions.rescued(seen, NOW, Delivery.AT_LEAST_ONCE), asked)
        assert applies(transitions.rescued(asked, NOW, Delivery.AT_LEAST_ONCE), asked)

    def test_it_is_pending_again_and_no_failure(self) -> None:
        run = running()
        back = transitions.rescued(run, NOW, Delivery.AT_LEAST_ONCE).after(run)
        assert (back.state, back.run_at, back.attempt) == (State.PENDING, run.run_at, 2)
        assert (back.failures, back.lapses, back.worker) == (1, 1, None)
        why = "the worker w1 died or lost its lease while it held the run"
        assert back.attempts[-1] == Attempt(2, "w1", BEGAN, NOW, Outcome.LOST, why)

    @pytest.mark.parametrize("lapses", range(6))
    def test_the_fourth_lapse_is_poison(self, lapses: int) -> None:
        run = running(lapses=lapses)
        after = transitions.rescued(run, NOW, Delivery.EFFECT_ONCE).after(run)
        if lapses + 1 < 4:
            assert after.state is State.PENDING
        else:
            assert (after.state, after.reason, after.finished_at) == (State.FAILED, "poison", NOW)
            assert after.error is not None
            assert "w1" in after.error

    def test_the_fourth_lapse_is_not_poison_if_a_worker_lives_on_after_one(self) -> None:
        lost = Attempt(2, "w0", BEGAN, BEGAN, Outcome.LOST)
        run = running(lapses=3, attempts=(FIRST, lost))
        for seen, reason in (
            ({}, "poison"),
            ({"w0": BEGAN - timedelta(seconds=1), "w2": NOW}, "poison"),
            ({"w0": BEGAN + timedelta(seconds=1)}, "lapsed"),
        ):
            change = transitions.rescued(run, NOW, Delivery.AT_LEAST_ONCE, seen=seen)
            assert change.set["reason"] == reason
        again = running(lapses=3, attempts=(lost, Attempt(3, "w1", BEGAN, BEGAN, Outcome.LOST)))
        change = transitions.rescued(again, NOW, Delivery.AT_LEAST_ONCE)
        assert change.set["reason"] == "lapsed"  # w1 holds it for the second time

    def test_at_most_once_is_lost(self) -> None:
        run = running()
        after = transitions.rescued(run, NOW, Delivery.AT_MOST_ONCE).after(run)
        assert (after.state, after.reason, after.lapses) == (State.FAILED, "lost", 1)
        assert after.error is not None
        assert "w1" in after.error
        assert after.lease_until is None

    @pytest.mark.parametrize("delivery", list(Delivery))
    def test_what_never_began_is_given_again_as_if_it_had_not_been_claimed(
        self, delivery: Delivery
    ) -> None:
        run = running(lapses=3, began=False)
        after = transitions.rescued(run, NOW, delivery, unbegun=True).after(run)
        assert (after.state, after.lapses, after.attempt) == (State.PENDING, 3, 1)
        assert (after.attempts, after.began) == (run.attempts, None)

    def test_a_begin_recorded_between_the_look_and_the_rescue_is_seen(self) -> None:
        seen = running(began=False)
        begun = transitions.began(seen).after(seen)
        assert not applies(
            transitions.rescued(seen, NOW, Delivery.AT_MOST_ONCE, unbegun=True), begun
        )

    def test_a_lapse_that_something_else_is_to_blame_for_does_not_count(self) -> None:
        run = running(lapses=3)
        after = transitions.rescued(run, NOW, Delivery.AT_LEAST_ONCE, blameless=True).after(run)
        assert (after.state, after.lapses, after.attempt) == (State.PENDING, 3, 2)
        assert after.attempts[-1].outcome is Outcome.LOST
        lost = transitions.rescued(run, NOW, Delivery.AT_MOST_ONCE, blameless=True).after(run)
        assert (lost.state, lost.reason) == (State.FAILED, "lost")

    @pytest.mark.parametrize("delivery", list(Delivery))
    def test_a_cancel_that_was_asked_for_is_carried_out(self, delivery: Delivery) -> None:
        run = running(cancel_requested=True, reason="asked", lapses=3)
        change = transitions.rescued(run, NOW, delivery)
        assert (change.set["state"], change.set["reason"]) == (State.CANCELLED, "asked")


class TestWhetherItBegan:
    EARLY, LONG_AGO = BEGAN - timedelta(seconds=30), BEGAN - timedelta(days=1)

    def job(self, delivery: Delivery, created: datetime, updated: datetime) -> Job:
        policy = Policy(delivery=delivery)
        return Job(id="job", handler="h", created_at=created, updated_at=updated, policy=policy)

    @pytest.mark.parametrize(
        ("began", "known"), [(False, True), (True, False), (None, False)], ids=str
    )
    def test_only_where_a_worker_would_have_recorded_it(
        self, began: bool | None, known: bool
    ) -> None:
        run = running(began=began, created_at=self.EARLY)
        once = self.job(Delivery.AT_MOST_ONCE, self.LONG_AGO, self.LONG_AGO)
        plain = self.job(Delivery.AT_LEAST_ONCE, self.LONG_AGO, self.LONG_AGO)
        assert transitions.never_began(run, once) is known
        assert transitions.never_began(run, plain) is False
        assert transitions.never_began(run, None) is False
        suspect = replace(run, lapses=2)
        assert transitions.never_began(suspect, plain) is known
        assert transitions.never_began(suspect, None) is known

    def test_a_recent_edit_leaves_it_open(self) -> None:
        """The worker may have begun the run as one that may begin any number of times."""
        run = running(began=False, created_at=self.EARLY)
        for updated in (BEGAN - timedelta(seconds=1), NOW):
            once = self.job(Delivery.AT_MOST_ONCE, self.LONG_AGO, updated)
            assert transitions.never_began(run, once) is False
        made_again = self.job(Delivery.AT_MOST_ONCE, BEGAN, BEGAN)
        assert transitions.never_began(run, made_again) is False


class TestReviving:
    @pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
    def test_the_same_run_with_its_failures_forgotten(self, state: State) -> None:
        dead = running(
            state=state,
            failures=3,
            lapses=2,
            finished_at=BEGAN,
            lease_until=None,
            start_by=BEGAN,
            reason="gave up",
            cancel_requested=True,
            result=1,
        )
        change = transitions.revived(dead, NOW)
        assert change.expect == {"state": state, "token": 4}
        again = change.after(dead)
        assert (again.state, again.run_at, again.start_by) == (State.PENDING, NOW, None)
        assert (again.failures, again.lapses, again.finished_at) == (0, 0, None)
        assert (again.error, again.reason, again.result, again.progress) == (None,) * 4
        assert again.cancel_requested is False
        assert (again.attempt, again.token, again.attempts) == (2, 4, (FIRST,))

    @pytest.mark.parametrize(
        ("state", "after_any", "waits_again"),
        [
            (State.RUNNING, False, True),
            (State.FAILED, False, True),  # for its retry
            (State.FAILED, True, False),
            (State.SUCCEEDED, False, False),
            (None, False, False),
        ],
    )
    def test_a_run_waits_again_for_what_may_still_succeed(
        self, state: State | None, after_any: bool, waits_again: bool
    ) -> None:
        dead = pending(state=State.CANCELLED, after=("a",), after_any=after_any)
        awaited = transitions.awaited_again(dead, {"a": state} if state else {})
        assert awaited == (("a",) if waits_again else ())
        again = transitions.revived(dead, NOW, waits_for=awaited).after(dead)
        assert again.state is (State.WAITING if waits_again else State.PENDING)

    def test_a_run_that_waits_again_still_names_what_was_deleted(self) -> None:
        """Otherwise it would start without the result of that run."""
        dead = pending(state=State.FAILED, after=("gone", "b"))
        awaited = transitions.awaited_again(dead, {"b": State.PENDING})
        again = transitions.revived(dead, NOW, waits_for=awaited).after(dead)
        assert again.after == ("gone", "b")
        change = transitions.unblocked(again, NOW, {"b": State.PENDING})
        assert change is not None
        assert change.set["reason"] == "upstream deleted"


UNFINISHED = [({"a": State.SUCCEEDED, "b": state}, None, None) for state in sorted(LIVE)]
SUCCEEDED = {"a": State.SUCCEEDED, "b": State.SUCCEEDED}


class TestUnblocking:
    def test_a_time_of_its_own_is_waited_for(self) -> None:
        run = pending(state=State.WAITING, after=("a",), run_at=LATER)
        change = transitions.unblocked(run, NOW, {"a": State.SUCCEEDED})
        assert change is not None
        assert change.set["run_at"] == LATER

    @pytest.mark.parametrize(
        ("upstream", "state", "reason"),
        [
            *UNFINISHED,
            (SUCCEEDED, State.PENDING, None),
            ({"a": State.RUNNING, "b": State.FAILED}, State.SKIPPED, "upstream failed"),
            ({"a": State.RUNNING, "b": State.CANCELLED}, State.SKIPPED, "upstream failed"),
            ({"a": State.RUNNING, "b": State.SKIPPED}, State.SKIPPED, "upstream failed"),
            ({"a": State.SUCCEEDED}, State.SKIPPED, "upstream deleted"),
            ({"a": State.SUCCEEDED, "b": None}, State.SKIPPED, "upstream deleted"),
            ({"b": State.FAILED}, State.SKIPPED, "upstream failed"),
        ],
    )
    def test_a_run_starts_when_all_before_it_succeeded_and_is_skipped_if_one_cannot(
        self, upstream: dict[str, State | None], state: State | None, reason: str | None
    ) -> None:
        run = pending(state=State.WAITING, after=("a", "b"), token=2)
        change = transitions.unblocked(run, NOW, upstream)
        if state is None:
            assert change is None
            return
        assert change is not None
        assert change.expect == {"state": State.WAITING, "token": 2}
        after = change.after(run)
        assert (after.state, after.reason) == (state, reason)
        assert after.run_at == (NOW if state is State.PENDING else BEGAN)
        assert after.finished_at == (NOW if state is State.SKIPPED else None)

    @pytest.mark.parametrize(
        ("upstream", "state"),
        [
            *((upstream, state) for upstream, state, _ in UNFINISHED),
            ({"a": State.FAILED, "b": State.CANCELLED}, State.PENDING),
            ({"a": State.SKIPPED}, State.PENDING),  # what is gone has ended
        ],
    )
    def test_after_any_end_it_runs(
        self, upstream: dict[str, State | None], state: State | None
    ) -> None:
        """A slot queued behind an earlier one runs however that ended."""
        run = pending(state=State.WAITING, after=("a", "b"), after_any=True)
        change = transitions.unblocked(run, NOW, upstream)
        assert (change.set["state"] if change else None) is state


def test_every_change_has_an_id_of_its_own() -> None:
    changes = [transitions.cancelled(pending(), NOW, "asked") for _ in range(100)]
    assert len({change.change_id for change in changes}) == 100


def test_a_skip_that_was_decided_before_a_cancel_is_refused_after_the_retry() -> None:
    waiting = replace(running(), state=State.WAITING, after=("up",))
    skip = transitions.skipped(waiting, NOW, transitions.UPSTREAM_FAILED)
    cancelled = transitions.cancelled(waiting, NOW, "no").after(waiting)
    again = transitions.revived(cancelled, NOW, waits_for=("up",)).after(cancelled)
    assert again.state is State.WAITING
    assert skip.expect["token"] != again.token
