"""Forecasts of load: counts, heat map, collisions, clock changes, overruns, suggestions."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring.core import forecast as module
from mainspring.core.forecast import add_overruns, forecast_load
from mainspring.core.model import Job, replace
from mainspring.core.policy import Policy
from mainspring.core.schedules import parse
from mainspring.errors import InvalidInput

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def job(name: str, schedule: str | None, *, zone: str = "UTC", **more: Any) -> Job:
    bound = None if schedule is None else parse(schedule, timezone=zone).bind(name, MONDAY)
    return Job(
        id=name,
        handler=name,
        created_at=MONDAY,
        updated_at=MONDAY,
        schedule=bound,
        enabled=more.pop("enabled", True),
        policy=Policy.make(**more),
    )


def bounded(unbounded: Job, **bounds: Any) -> Job:
    """The job with other bounds, or another jitter, of its schedule."""
    assert unbounded.schedule is not None
    return replace(unbounded, schedule=dataclasses.replace(unbounded.schedule, **bounds))


def test_runs_are_counted_by_hour_and_weekday() -> None:
    jobs = [
        job("nightly", "0 2 * * *"),
        job("sunday", "30 23 * * 0"),
        job("idle", None),
        job("asleep", "@hourly", enabled=False),
    ]
    forecast = forecast_load(jobs, MONDAY, 14)
    assert (forecast.runs, forecast.paused, forecast.unscheduled) == (16, 1, 1)
    assert [row[2] for row in forecast.heat] == [1.0] * 7
    assert (forecast.heat[6][23], forecast.heat[5][23]) == (1.0, 0.0)
    assert [(load.job_id, load.runs, load.shortest_gap) for load in forecast.jobs] == [
        ("nightly", 14, 86400.0),
        ("sunday", 2, 604800.0),
    ]


def test_hours_are_those_of_the_given_zone() -> None:
    forecast = forecast_load([job("nightly", "0 2 * * *")], MONDAY, 7, "Asia/Kolkata")
    assert forecast.heat[0][7] == 1.0
    with pytest.raises(InvalidInput, match="Mars/Base"):
        forecast_load([], MONDAY, 7, "Mars/Base")


@pytest.mark.parametrize("schedule", ["1s", "* * * * * *", "FREQ=SECONDLY", "7s", "*/7 * * * * *"])
def test_frequent_jobs_count_the_same_by_arithmetic(
    monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    jobs = [job("busy", schedule), job("daily", "@daily")]
    start = MONDAY + timedelta(minutes=17, seconds=3)
    walked = forecast_load(jobs, start, 1)
    monkeypatch.setattr(module, "MOST_SLOTS", 1000)
    counted = forecast_load(jobs, start, 1)
    if not schedule.startswith("FREQ"):  # a rule that cannot be counted is walked as far as it may
        assert (counted.runs, counted.heat) == (walked.runs, walked.heat)
        assert counted.jobs == walked.jobs
        assert "1 of the jobs run so often" in counted.notes[0]
    else:
        assert "only its first 1,000 slots" in " ".join(counted.notes)
    assert walked.notes == ()


def test_jobs_that_start_in_the_same_second_collide() -> None:
    midnight = [job(f"j{n}", "0 0 * * *") for n in range(12)]
    others = [job("free", "5 0 * * *"), job("hourly", "@hourly")]
    forecast = forecast_load([*midnight, *others], MONDAY, 7)
    [collision] = forecast.collisions
    assert (collision.time, collision.most, collision.days) == ("00:00:00", 13, 7)
    assert len(collision.jobs) == 13
    [suggestion] = forecast.suggestions
    assert suggestion.most_before == 13
    assert 1 <= suggestion.most_after < 6
    assert suggestion.schedules["j3"] == "H 0 * * *"
    assert suggestion.schedules["hourly"] == "H * * * *"
    changed = [job(name, text) for name, text in suggestion.schedules.items()]
    after = forecast_load(changed, MONDAY, 7)
    assert (
        max((collision.most for collision in after.collisions), default=1)
        <= suggestion.most_after + 1
    )


def test_a_job_for_every_node_is_noted() -> None:
    forecast = forecast_load(
        [job("clean", "@hourly", each_node=True), job("a", "@daily")], MONDAY, 1
    )
    assert forecast.runs == 25
    assert forecast.notes == (
        "clean: a slot runs on every node, and counts once here. It makes one run for each live"
        " worker",
    )


def test_intervals_of_one_anchor_are_advised_to_jitter() -> None:
    forecast = forecast_load([job("a", "1h"), job("b", "2h")], MONDAY, 2)
    [suggestion] = forecast.suggestions
    assert 'jitter="1m"' in suggestion.advice
    assert (suggestion.jobs, suggestion.most_before, suggestion.most_after) == (("a", "b"), 2, 1)


def test_jobs_with_jitter_do_not_collide() -> None:
    jobs = [bounded(job(name, "0 0 * * *"), jitter=timedelta(minutes=5)) for name in "ab"]
    assert forecast_load(jobs, MONDAY, 7).collisions == ()


def test_changes_of_the_clocks_are_listed_with_their_jobs() -> None:
    jobs = [job(name, "30 2 * * *", zone="Europe/Berlin") for name in ("b", "a")]
    forecast = forecast_load([*jobs, job("utc", "30 2 * * *")], MONDAY, 30)
    [change] = forecast.clock_changes
    assert change.effect == "2026-03-29 02:30 does not exist in Europe/Berlin: runs at 03:00"
    assert change.jobs == ("a", "b")
    assert forecast.runs == 90


def test_jobs_that_take_longer_than_their_interval_overrun() -> None:
    jobs = [
        job("slow", "* * * * *"),
        job("queued", "* * * * *", overlap="queue"),
        job("fine", "@hourly"),
    ]
    forecast = add_overruns(
        forecast_load(jobs, MONDAY, 1), jobs, {"slow": 90.0, "queued": 61.0, "fine": 90.0}
    )
    assert [
        (overrun.job_id, overrun.p95_duration, overrun.interval) for overrun in forecast.overruns
    ] == [
        ("slow", 90.0, 60.0),
        ("queued", 61.0, 60.0),
    ]
    assert "skipped" in forecast.overruns[0].effect
    assert "pile up" in forecast.overruns[1].effect


@pytest.mark.parametrize("days", [0, 367, True, "30"])
def test_days_are_bounded(days: Any) -> None:
    with pytest.raises(InvalidInput, match="days is 1 to 366"):
        forecast_load([], MONDAY, days)


def test_forecast_that_would_leave_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidInput, match="too near to the end of the calendar") as caught:
        forecast_load([], datetime(9999, 12, 31, tzinfo=UTC), 30)
    assert caught.value.field == "start"


@pytest.mark.parametrize("days", [7, 30])
def test_a_daily_job_is_one_run_at_whatever_minute_the_forecast_starts(days: int) -> None:
    jobs = [job("daily", "0 9 * * *")]
    for minutes in range(0, 24 * 60, 7):
        start = datetime(2026, 11, 17, 0, 1, 30, tzinfo=UTC) + timedelta(minutes=minutes)
        forecast = forecast_load(jobs, start, days, "Asia/Kolkata")
        assert [row[14] for row in forecast.heat] == [1.0] * 7, start
