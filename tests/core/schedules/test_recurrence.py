"""Recurrence rules, beside dateutil where dateutil can answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice

import dateutil.rrule
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mainspring.core.schedules import Recurrence, from_dict, parse, rrule
from mainspring.errors import InvalidSchedule

MONDAY = datetime(2026, 1, 5, 9, 30, 15)


def listed(low: int, high: int, *, signed: bool = False) -> st.SearchStrategy[str]:
    numbers = st.integers(low, high)
    if signed:
        numbers = st.one_of(numbers, numbers.map(lambda n: -n))
    return st.sets(numbers, min_size=1, max_size=3).map(lambda s: ",".join(map(str, sorted(s))))


@st.composite
def rules(draw: st.DrawFn) -> str:
    """Rules of the forms in which dateutil and RFC 5545 agree."""
    freq = draw(
        st.sampled_from(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"])
    )
    parts = [f"FREQ={freq}", f"INTERVAL={draw(st.sampled_from([1, 1, 2, 3, 7, 25]))}"]
    days = st.sets(st.sampled_from(["MO", "TU", "WE", "TH", "FR", "SA", "SU"]), min_size=1)
    chances: list[tuple[str, st.SearchStrategy[str]]] = [
        ("BYMONTH", listed(1, 12)),
        ("BYMONTHDAY", listed(1, 31, signed=True)),
        ("BYDAY", days.map(lambda s: ",".join(sorted(s)))),
        ("BYHOUR", listed(0, 23)),
        ("BYMINUTE", listed(0, 59)),
    ]
    if freq == "YEARLY":
        chances += [("BYYEARDAY", listed(1, 366, signed=True)), ("BYWEEKNO", listed(1, 51))]
    if freq in ("YEARLY", "MONTHLY"):
        chances.append(("BYDAY", st.sampled_from(["1MO", "-1FR", "2TU,-2SU", "5WE"])))
        chances.append(("BYSETPOS", listed(1, 3, signed=True)))
    chosen = draw(st.lists(st.sampled_from(chances), max_size=2, unique_by=lambda c: c[0]))
    parts += [f"{name}={draw(values)}" for name, values in chosen]
    assume(len(parts) > 2 or "BYSETPOS" not in parts[-1])
    return ";".join(parts)


def of_dateutil(text: str, count: int) -> list[datetime]:
    rule = dateutil.rrule.rrulestr(text, dtstart=MONDAY)
    return [slot.replace(tzinfo=UTC) for slot in islice(rule, count)]


@given(rules())
@settings(max_examples=300, deadline=None)
def test_agrees_with_dateutil(text: str) -> None:
    try:
        ours = rrule(text, start=MONDAY).upcoming(12, datetime(2026, 1, 1, tzinfo=UTC))
    except InvalidSchedule:
        assume(False)  # dateutil may take minutes to find that a rule never fires
        raise
    assume(len(ours) == 12)
    assert ours == of_dateutil(text, 12)


@pytest.mark.parametrize("weeks", [{52}, {53}, {1, 52, 53}])
def test_a_last_week_that_reaches_into_january(weeks: set[int]) -> None:
    """Some of which dateutil forgets (2039-01-01); the calendar is the judge."""
    rule = f"FREQ=YEARLY;BYWEEKNO={','.join(map(str, sorted(weeks)))};BYMONTH=1"
    days = (MONDAY + timedelta(days=n) for n in range(30 * 366))
    wanted = [day for day in days if day.month == 1 and day.isocalendar().week in weeks][:12]
    ours = rrule(rule, start=MONDAY).upcoming(12, datetime(2026, 1, 1, tzinfo=UTC))
    assert [slot.replace(tzinfo=None) for slot in ours] == wanted


@given(rules(), st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_a_count_ends_where_dateutil_ends(text: str, count: int) -> None:
    try:
        schedule = rrule(f"{text};COUNT={count}", start=MONDAY)
    except InvalidSchedule:
        assume(False)
        raise
    ours = schedule.upcoming(count + 1, datetime(2026, 1, 1, tzinfo=UTC))
    assume(len(ours) == count)
    assert ours == of_dateutil(text, count)
    assert schedule.next(ours[-1]) is None
    assert schedule.previous(datetime(9999, 1, 1, tzinfo=UTC)) == ours[-1]


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=MINUTELY;INTERVAL=15;COUNT=20000",
        "FREQ=DAILY;BYHOUR=8,12,20;BYMINUTE=0,30;BYDAY=MO,WE,SU;COUNT=3000",
        "FREQ=HOURLY;COUNT=12345",
        "FREQ=WEEKLY;INTERVAL=2;COUNT=10001",
    ],
)
def test_a_large_count_ends_where_dateutil_ends(text: str) -> None:
    schedule = rrule(text, start=MONDAY)
    *_, last = dateutil.rrule.rrulestr(text, dtstart=MONDAY)
    assert schedule.previous(datetime(9999, 12, 31, tzinfo=UTC)) == last.replace(tzinfo=UTC)
    assert schedule.next(last.replace(tzinfo=UTC)) is None
    assert schedule.next(last.replace(tzinfo=UTC) - timedelta(seconds=1)) is not None


def test_a_count_beyond_the_calendar_never_ends() -> None:
    schedule = rrule("FREQ=DAILY;COUNT=999999999", start=MONDAY)
    assert schedule.next(datetime(9000, 1, 1, tzinfo=UTC)) is not None


def test_times_beside_the_rule() -> None:
    text = (
        "DTSTART;TZID=Europe/Berlin:20270104T090000\n"
        "RRULE:FREQ=WEEKLY;COUNT=3\n"
        "EXDATE:20270111T090000,20270301T090000\n"
        "RDATE:20270105T140000,20270118T090000,20270301T090000\n"
        "RDATE;TZID=America/New_York:20270201T030000"
    )
    schedule = parse(text)
    slots = schedule.upcoming(9, datetime(2026, 1, 1, tzinfo=UTC))
    assert [f"{slot:%m-%d %H}" for slot in slots] == [
        "01-04 08",
        "01-05 13",
        "01-18 08",
        "02-01 08",
    ]
    assert [schedule.previous(slot) for slot in slots] == [None, *slots[:-1]]
    assert from_dict(schedule.to_dict()) == schedule
    assert schedule.describe().endswith("3 times, and 4 more times, Europe/Berlin")
    both = dateutil.rrule.rrulestr(text.replace(";TZID=Europe/Berlin", "").rpartition("\n")[0])
    assert len(list(both)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU",  # from a Monday
        "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29",  # from 2026: never a leap year
        "FREQ=HOURLY;INTERVAL=24;BYHOUR=3",
        "FREQ=YEARLY;BYMONTH=1;BYYEARDAY=366",
        "FREQ=DAILY;UNTIL=20200101T000000",
    ],
)
def test_what_never_fires_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidSchedule, match="can never fire"):
        rrule(text, start=MONDAY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FREQ=FORTNIGHTLY", "YEARLY, MONTHLY"),
        ("INTERVAL=2", "FREQ"),
        ("FREQ=DAILY;INTERVAL=0", "from 1"),
        ("FREQ=DAILY;BYHOUR=24", "0 to 23"),
        ("FREQ=DAILY;BYDAY=XX", "MO, TU"),
        ("FREQ=WEEKLY;BYDAY=2MO", "MONTHLY or FREQ=YEARLY"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20300101", "either"),
        ("FREQ=DAILY;INTERVAL=2;BYHOUR=1,2;COUNT=999999", "Use UNTIL"),
        (
            "FREQ=MONTHLY;BYDAY=MO;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15;BYSETPOS=1",
            "at most 500 times of one month",
        ),
        ("FREQ=MONTHLY;BYDAY=MO;BYSETPOS=1;COUNT=10001", "Use UNTIL"),
        ("FREQ=DAILY;FREQ=DAILY", "twice"),
        ("FREQ=DAILY;BYEASTER=1", "parts of a rule"),
        ("FREQ=DAILY;UNTIL=soon", "20270104T090000"),
        ("RRULE:FREQ=DAILY\nRRULE:FREQ=WEEKLY", "one RRULE"),
        ("RRULE:FREQ=DAILY\nEXRULE:FREQ=WEEKLY", "list gaps as EXDATE"),
        ("RRULE:FREQ=DAILY\nRDATE:soon", "20270104T090000"),
        ("DTSTART:18000101T000000\nRRULE:FREQ=DAILY", "1900"),
        ("DTSTART;TZID=Mars/Base:20270101T000000\nRRULE:FREQ=DAILY", "unknown timezone"),
        ("FREQ=DAILY;" + "X" * 5000, "at most"),
    ],
)
def test_errors_say_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(InvalidSchedule, match=message):
        rrule(text)


def test_a_whole_text() -> None:
    text = (
        "DTSTART;TZID=Europe/Berlin:20270104T090000\n"
        "RRULE:FREQ=WEEKLY;BYDAY=MO;UNTIL=20270201T080000Z\n"
        "EXDATE:20270118T090000"
    )
    schedule = parse(text)
    assert isinstance(schedule, Recurrence)
    assert schedule.timezone == "Europe/Berlin"
    assert schedule.to_dict()["dtstart"] == "2027-01-04T09:00:00"
    slots = schedule.upcoming(9, datetime(2026, 1, 1, tzinfo=UTC))
    assert [slot.day for slot in slots] == [4, 11, 25, 1]
    assert all(slot.hour == 8 for slot in slots)
    assert schedule.previous(slots[2]) == slots[1]


def test_fixed_times_and_hours_through_dst() -> None:
    daily = rrule("FREQ=DAILY", start="2027-03-27T02:30", tz="Europe/Berlin")
    spring = datetime(2027, 3, 27, 12, tzinfo=UTC)
    assert daily.upcoming(2, spring) == [
        datetime(2027, 3, 28, 1, 0, tzinfo=UTC),
        datetime(2027, 3, 29, 0, 30, tzinfo=UTC),
    ]
    autumn = datetime(2027, 10, 30, 23, tzinfo=UTC)
    assert daily.upcoming(2, autumn) == [
        datetime(2027, 10, 31, 0, 30, tzinfo=UTC),
        datetime(2027, 11, 1, 1, 30, tzinfo=UTC),
    ]
    hourly = rrule("FREQ=HOURLY", start="2027-03-27T02:30", tz="Europe/Berlin")
    assert [f"{slot:%H:%M}" for slot in hourly.upcoming(3, autumn)] == ["23:30", "00:30", "01:30"]


def test_a_rule_without_a_start_counts_from_its_job() -> None:
    schedule = parse("RRULE:FREQ=DAILY;INTERVAL=2", timezone="Asia/Tokyo")
    created = datetime(2026, 5, 1, 3, 4, 5, 678, tzinfo=UTC)
    bound = schedule.bind("report", created)
    assert bound.upcoming(2, created - timedelta(days=9)) == [
        datetime(2026, 5, 1, 3, 4, 5, tzinfo=UTC),
        datetime(2026, 5, 3, 3, 4, 5, tzinfo=UTC),
    ]
    assert bound.bind("report", created + timedelta(days=9)) == bound


def test_a_rule_of_dateutil_is_given_as_its_text() -> None:
    theirs = dateutil.rrule.rrule(dateutil.rrule.DAILY, dtstart=MONDAY, byhour=(8, 20), count=5)
    slots = parse(str(theirs)).upcoming(9, datetime(2026, 1, 1, tzinfo=UTC))
    assert [slot.replace(tzinfo=None) for slot in slots] == list(theirs)
    with pytest.raises(InvalidSchedule, match="a rule is a text, not 42"):
        rrule(42)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=22",
        "FREQ=WEEKLY;BYDAY=MO,WE;BYSETPOS=-3,3",
        "FREQ=MONTHLY;INTERVAL=7;BYDAY=1MO,2MO;BYSETPOS=3",
    ],
)
def test_a_position_that_no_period_has_is_named(rule: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"can never fire.*its BYSETPOS hardly") as refused:
        rrule(rule)
    assert refused.value.part == "BYSETPOS"


@pytest.mark.parametrize(
    ("lines", "ends"),
    [
        ("RRULE:FREQ=DAILY;COUNT=3\nEXDATE:20270102T090000", True),
        ("RRULE:FREQ=DAILY;UNTIL=20280101", False),
        ("RRULE:FREQ=DAILY\nRDATE:20270102T120000", False),
    ],
)
def test_only_a_count_ends_a_rule_by_count(lines: str, ends: bool) -> None:
    assert rrule(f"DTSTART:20270101T090000\n{lines}").ends_by_count is ends
