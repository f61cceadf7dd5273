"""No schedule that is accepted can keep a process busy, whoever wrote it.

Work is counted in calls of functions, Python's own and built-in ones: 50,000 of them take about
10 ms, and the count does not depend on how busy the machine is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mainspring.core.schedules import Schedule, parse, rrule
from mainspring.errors import InvalidSchedule

MOST_CALLS = 50_000
NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
YEAR = timedelta(days=366)
T = TypeVar("T")


def bounded(work: Callable[[], T]) -> T:
    """The answer of `work`; it may not make more calls than that."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        answer = work()
    finally:
        sys.setprofile(None)
    assert calls <= MOST_CALLS, f"{calls:,} calls"
    return answer


def check_all(make: Callable[[], Schedule]) -> None:
    """All that is ever asked of a schedule, each within its bound; or a clear refusal."""
    try:
        schedule = bounded(make)
        bound = bounded(lambda: schedule.bind("job", NOW))
    except InvalidSchedule:
        return
    for asked in (schedule, bound):
        bounded(asked.describe)
        bounded(asked.to_dict)
        for moment in (NOW, NOW + timedelta(days=12345, seconds=5)):
            for question in (
                lambda asked=asked, moment=moment: asked.next(moment),
                lambda asked=asked, moment=moment: asked.previous(moment),
                lambda asked=asked, moment=moment: asked.upcoming(10, moment),
                lambda asked=asked, moment=moment: asked.count(moment, moment + YEAR),
                lambda asked=asked, moment=moment: asked.warnings(moment, moment + YEAR),
            ):
                # One that is too rare from here on says so, within the bound.
                with contextlib.suppress(InvalidSchedule):
                    bounded(question)


def numbers(low: int, high: int, *, signed: bool = False) -> st.SearchStrategy[str]:
    values = st.integers(low, high)
    if signed:
        values = st.one_of(values, values.map(lambda value: -value))
    few = st.lists(values, min_size=1, max_size=4)
    many = st.just(list(range(low, high + 1)))
    return st.one_of(few, few, few, many).map(lambda chosen: ",".join(map(str, chosen)))


DAYS = st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU", "SU,SA", "MO,TU,WE,TH,FR"])
NUMBERED = st.tuples(st.integers(-53, 53).filter(bool), DAYS.filter(lambda day: "," not in day))
BY_DAY = st.one_of(DAYS, st.lists(NUMBERED, min_size=1, max_size=300).map(
    lambda days: ",".join(f"{nth}{day}" for nth, day in days)
))  # fmt: skip
INTERVALS = st.one_of(
    st.integers(1, 60),
    st.sampled_from([7, 97, 907, 997, 3599, 3601, 7919, 10_007, 86_399, 86_400, 86_401, 604_799]),
    st.integers(1, 999_999_999),
)
PARTS = {
    "INTERVAL": INTERVALS.map(str),
    "COUNT": st.one_of(st.integers(1, 2000), st.integers(1, 999_999_999)).map(str),
    "BYMONTH": numbers(1, 12),
    "BYMONTHDAY": numbers(1, 31, signed=True),
    "BYYEARDAY": numbers(1, 366, signed=True),
    "BYWEEKNO": numbers(1, 53, signed=True),
    "BYDAY": BY_DAY,
    "BYHOUR": numbers(0, 23),
    "BYMINUTE": numbers(0, 59),
    "BYSECOND": numbers(0, 59),
    "BYSETPOS": numbers(1, 366, signed=True),
    "UNTIL": st.sampled_from(["20270101", "20990101T000000", "99991231T235959Z"]),
}


FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")


@st.composite
def rules(draw: st.DrawFn) -> str:
    freq = draw(st.sampled_from(FREQUENCIES))
    names = draw(st.sets(st.sampled_from(list(PARTS)), max_size=6))
    return ";".join([f"FREQ={freq}", *(f"{name}={draw(PARTS[name])}" for name in sorted(names))])


STARTS = st.sampled_from(
    [None, "1970-01-01T00:00:00", "2024-02-29T23:59:59", "2026-11-16T09:30:00"]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"])


@given(rules(), STARTS, ZONES)
@settings(max_examples=120, deadline=None)
@example("FREQ=SECONDLY;INTERVAL=907;BYMINUTE=0;BYSECOND=0;COUNT=1000", None, "UTC")
@example("FREQ=SECONDLY;INTERVAL=907;BYMINUTE=0;BYSECOND=0;COUNT=10000", None, "UTC")
@example("FREQ=SECONDLY;INTERVAL=86399;BYHOUR=0", "2026-11-16T09:30:00", "UTC")
@example("FREQ=SECONDLY;INTERVAL=86399;BYHOUR=9", "2026-11-16T09:00:00", "UTC")
@example("FREQ=DAILY;INTERVAL=7;BYDAY=TU,WE", "2026-11-16T09:00:00", "UTC")
@example("FREQ=YEARLY;INTERVAL=2;BYMONTH=2;BYMONTHDAY=29", "2025-01-01T00:00:00", "UTC")
@example("FREQ=YEARLY;COUNT=999999999;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO", None, "UTC")
@example("FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", None, "Europe/Berlin")
@example("FREQ=MONTHLY;BYMONTHDAY=31;BYSETPOS=" + ",".join(map(str, range(2, 367))), None, "UTC")
@example(
    "FREQ=YEARLY;BYDAY="
    + ",".join(f"{n}{day}" for n in (*range(-53, 0), *range(1, 54)) for day in ("MO", "TH", "SU"))
    + ";BYYEARDAY=366,-366;BYWEEKNO=53",
    None,
    "Europe/Berlin",
)
def test_every_answer_of_a_rule_takes_at_most_50_000_calls(
    text: str, start: str | None, zone: str
) -> None:
    check_all(lambda: rrule(text, tz=zone, start=start))


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY;INTERVAL=907;BYMINUTE=0;BYSECOND=0;COUNT=1000",
        "FREQ=SECONDLY;INTERVAL=86399;BYHOUR=0",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU,WE",
    ],
)
def test_a_rule_that_cannot_be_bounded_is_refused_with_its_reason(text: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"too long to work out|Use UNTIL"):
        parse(f"DTSTART:20261116T093000\nRRULE:{text}")


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY;INTERVAL=90;BYSECOND=0",
        "FREQ=MINUTELY;INTERVAL=45;BYHOUR=9,10,11,12,13,14,15,16",
        "FREQ=HOURLY;INTERVAL=5;BYHOUR=9",
        "FREQ=DAILY;INTERVAL=2;BYDAY=MO;COUNT=300",
        "FREQ=WEEKLY;INTERVAL=3;BYDAY=MO,FR;BYHOUR=8,18;COUNT=500",
        "FREQ=MONTHLY;INTERVAL=3;BYDAY=-1FR;COUNT=40",
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29",
    ],
)
def test_rules_that_people_write_are_accepted(text: str) -> None:
    assert rrule(text, start="2024-01-01T09:00:00").upcoming(3, NOW)
