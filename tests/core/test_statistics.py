"""Counters of ended runs: what is counted of an end, and how counts are added up."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.core import transitions
from mainspring.core.clock import EPOCH
from mainspring.core.model import Run, Source, State, replace
from mainspring.core.policy import Delivery
from mainspring.core.statistics import (
    ACCURACY,
    HOUR,
    MINUTE,
    WHOLE_STORE,
    Distribution,
    Ending,
    Period,
    Totals,
    ending_of,
    period_start,
    tally,
)
from mainspring.core.transitions import Failure

NOW = datetime(2026, 11, 16, 12, 34, 56, tzinfo=UTC)
DUE = NOW - timedelta(seconds=10)
RUN = Run(
    id="run",
    job_id="job",
    handler="work",
    created_at=DUE,
    scheduled_at=DUE,
    run_at=DUE,
    source=Source.TRIGGER,
    state=State.RUNNING,
    attempt=1,
    token=1,
    started_at=NOW - timedelta(seconds=3),
    worker="w",
)


def test_a_change_that_ends_a_run_carries_what_is_counted() -> None:
    ending = transitions.failed(RUN, NOW, Failure("boom")).ending
    assert ending == Ending(
        "run", "job", State.FAILED, Source.TRIGGER, NOW, RUN.started_at, 3.0, 7.0, "boom"
    )


def test_a_change_that_ends_no_run_carries_nothing() -> None:
    later = NOW + MINUTE
    for change in (
        transitions.retrying(RUN, NOW, Failure("boom"), later),
        transitions.released(RUN, NOW, began=True),
        transitions.snoozed(RUN, NOW, later),
        transitions.request_cancel(RUN, "asked"),
        transitions.rescued(RUN, NOW, Delivery.AT_LEAST_ONCE),
        transitions.deleted(replace(RUN, state=State.FAILED, finished_at=NOW)),
    ):
        assert change.ending is None


PENDING = replace(RUN, state=State.PENDING, attempt=0, started_at=None)


@pytest.mark.parametrize(
    ("change", "duration", "lateness"),
    [
        (transitions.rescued(RUN, NOW, Delivery.AT_MOST_ONCE), 3.0, 7.0),
        # A retry has moved `run_at`: when the run was due is not known any more.
        (transitions.succeeded(replace(RUN, attempt=2), NOW, None), 3.0, None),
        (transitions.succeeded(replace(RUN, run_at=NOW), NOW - HOUR, None), 0.0, 0.0),
        (transitions.skipped(RUN, NOW, "expired"), None, None),
        (transitions.cancelled(PENDING, NOW, "asked"), None, None),
    ],
    ids=["lost", "retried", "clock set back", "claimed too late", "never claimed"],
)
def test_an_end_has_its_duration_and_lateness_where_they_are_known(
    change: transitions.Change, duration: float | None, lateness: float | None
) -> None:
    ending = change.ending
    assert ending is not None
    assert (ending.duration, ending.lateness) == (duration, lateness)
    assert (ending.started_at is None) is (duration is None)


def test_what_has_not_ended_is_not_counted_when_it_is_added() -> None:
    assert ending_of(replace(RUN, state=State.PENDING)) is None
    assert ending_of(replace(RUN, state=State.SKIPPED, finished_at=NOW)) is not None


def seconds() -> st.SearchStrategy[float]:
    return st.floats(min_value=0.001, max_value=1e7)


@given(st.lists(seconds(), min_size=1, max_size=200), st.floats(min_value=0, max_value=1))
def test_percentiles_are_within_the_accuracy(values: list[float], share: float) -> None:
    median = Distribution.of(values).percentile(share)
    rank = max(-(-len(values) * share // 1), 1)
    true = sorted(values)[int(rank) - 1]
    assert median == pytest.approx(true, rel=ACCURACY * 1.001)


@given(st.lists(st.lists(seconds(), max_size=20), max_size=10))
def test_parts_add_up_to_the_whole(parts: list[list[float]]) -> None:
    whole = Distribution.of([value for part in parts for value in part])
    summed = Distribution()
    for part in parts:
        summed = summed.plus(Distribution.of(part))
    assert (summed.count, summed.max, summed.buckets) == (whole.count, whole.max, whole.buckets)
    assert summed.sum == pytest.approx(whole.sum)


def end(state: State, at: datetime = NOW, job_id: str = "job", n: int = 0) -> Ending:
    return Ending(f"r{n}", job_id, state, Source.ENQUEUE, at, at - MINUTE, 60.0, 0.0)


def test_the_order_of_ends_decides_which_failures_are_consecutive() -> None:
    rng = random.Random(1)
    states = [rng.choice([State.SUCCEEDED, State.FAILED, State.SKIPPED]) for _ in range(300)]
    whole = tally([end(state, n=n) for n, state in enumerate(states)], NOW).totals["job"]
    summed = Totals()
    at = 0
    while at < len(states):
        size = rng.randint(1, 7)
        part = [end(state, n=n) for n, state in enumerate(states[at : at + size], at)]
        summed = summed.plus(tally(part, NOW).totals["job"])
        at += size
    assert summed == whole


def test_each_job_is_counted_by_the_hour_and_all_together_by_the_minute() -> None:
    hour = period_start(NOW, HOUR)
    delta = tally([end(State.SUCCEEDED, hour), end(State.FAILED, hour + MINUTE, "other")], NOW)
    assert set(delta.totals) == {"job", "other", WHOLE_STORE}
    assert set(delta.periods) == {
        ("job", hour),
        ("other", hour),
        (WHOLE_STORE, hour),
        (WHOLE_STORE, hour + MINUTE),
    }


def test_a_run_whose_job_cannot_be_read_is_counted_for_all_jobs_alone() -> None:
    delta = tally([end(State.CANCELLED, job_id="")], NOW)
    assert delta.totals[WHOLE_STORE].ended == {State.CANCELLED: 1}


def test_the_error_of_the_last_run_is_kept_short() -> None:
    ending = transitions.failed(RUN, NOW, Failure("x" * 10_000)).ending
    assert ending is not None
    last = tally([ending], NOW).totals["job"].last
    assert last is not None
    assert last.error == "x" * 500


def test_ends_that_are_added_up_together_count_like_each_alone() -> None:
    """In several minutes and hours, of several jobs, out of order, and at the first moment."""
    rng = random.Random(2)
    moments = [NOW - rng.randint(0, 200) * MINUTE for _ in range(300)] + [EPOCH, EPOCH + MINUTE]
    states = [State.SUCCEEDED, State.FAILED, State.SKIPPED, State.CANCELLED]
    ends = [
        end(rng.choice(states), at, rng.choice(["job", "other", WHOLE_STORE]), n)
        for n, at in enumerate(moments)
    ]
    for now in (NOW, EPOCH + HOUR):  # at first the two oldest are too old for a period
        together = tally(ends, now)
        totals: dict[str, Totals] = {}
        periods: dict[tuple[str, datetime], Period] = {}
        for alone in (tally([ending], now) for ending in ends):
            for job_id, counted in alone.totals.items():
                totals[job_id] = totals.get(job_id, Totals()).plus(counted)
            for key, period in alone.periods.items():
                periods[key] = periods[key].plus(period) if key in periods else period
        assert together.totals == totals
        assert together.periods == periods
