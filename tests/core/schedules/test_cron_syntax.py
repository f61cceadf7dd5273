"""The syntax of cron expressions: what they mean, and what their errors say."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from mainspring.core.schedules import Interval, cron, parse
from mainspring.core.schedules.cron_syntax import parse_cron
from mainspring.errors import InvalidInput, InvalidSchedule

NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


def days(expr: str, after: datetime = NEW_YEAR, count: int = 4) -> list[str]:
    return [f"{slot:%m-%d}" for slot in cron(expr).upcoming(count, after)]


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("*/15 * * * *", "0,15,30,45 * * * *"),
        ("5/20 * * * *", "5,25,45 * * * *"),
        ("0 22-2 * * *", "0 22,23,0,1,2 * * *"),
        ("0 0 * * FRI-MON", "0 0 * * 5,6,0,1"),
        ("0 0 * * 7", "0 0 * * sun"),
        ("0 0 * * 7-3", "0 0 * * 0-3"),
        ("0 0 * * 7-7", "0 0 * * 0"),
        ("0 0 * * 0-7", "0 0 * * *"),
        ("0 0 * * 5-7/2", "0 0 * * 5,7"),
        ("0 0 1 NOV-FEB *", "0 0 1 11,12,1,2 *"),
        ("0 0 28-L * *", "0 0 28-31 * *"),
        ("0 0 * * L5", "0 0 * * FRIL"),
        ("0 0 * * 5#L", "0 0 * * 5L"),
        ("0 0 * * MON-TUE#2", "0 0 * * 1#2,2#2"),
        ("@weekly", "0 0 * * SUN"),
        ("@Yearly", "0 0 1 1 *"),
        ("  0\t0 * * *\n", "0 0 * * *"),
        ("0 0 0 * * *", "0 0 * * *"),
        ("0 0 0 * * * *", "0 0 * * *"),
        ("? ? ? ? ?", "* * * * *"),
    ],
)
def test_two_ways_to_say_the_same(text: str, other: str) -> None:
    assert cron(text).upcoming(40, NEW_YEAR) == cron(other).upcoming(40, NEW_YEAR)


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("0 0 13 * 5", ["01-02", "01-09", "01-13", "01-16"]),  # either
        ("0 0 13 * +5", ["02-13", "03-13", "11-13", "08-13"]),  # both, on request
        ("0 0 */2 * 1", ["01-05", "01-19", "02-09", "02-23"]),  # both, for a field starts with *
        ("0 0 1-7 * ?", ["01-02", "01-03", "01-04", "01-05"]),
        ("0 0 L-2 * *", ["01-29", "02-26", "03-29", "04-28"]),
        ("0 0 LW * *", ["01-30", "02-27", "03-31", "04-30"]),
        ("0 0 1W * *", ["02-02", "03-02", "04-01", "05-01"]),  # 1 January is past
        ("0 0 31W * *", ["01-30", "03-31", "05-29", "07-31"]),  # short months have none
        ("0 0 * * 1#5", ["03-30", "06-29", "08-31", "11-30"]),
    ],
)
def test_day_fields_choose_these_days(expr: str, expected: list[str]) -> None:
    assert days(expr) == expected


def test_every_is_an_interval() -> None:
    schedule = cron("@every 1h30m", start="2026-01-01T00:00")
    assert isinstance(schedule, Interval)
    assert schedule.upcoming(2, NEW_YEAR)[0] == datetime(2026, 1, 1, 1, 30, tzinfo=UTC)


def test_a_zone_may_stand_in_the_text() -> None:
    assert cron("CRON_TZ=Asia/Tokyo 0 9 * * *") == cron("0 9 * * *", "Asia/Tokyo")
    assert parse("TZ=Asia/Tokyo 0 9 * * *") == cron("0 9 * * *", "Asia/Tokyo")


@pytest.mark.parametrize(
    ("expr", "field", "message"),
    [
        ("60 * * * *", "minute", "minute '60' cannot be used: allowed are 0-59"),
        ("99 * * * * *", "second", "0-59"),
        ("* 24 * * *", "hour", "hour '24'"),
        ("* * 0 * *", "day of month", "1-31"),
        ("* * 32W * *", "day of month", "1-31"),
        ("* * L-31 * *", "day of month", "L-30"),
        ("* * 1-5W * *", "day of month", "15W"),
        ("* * * 13 *", "month", "1-12 or JAN-DEC"),
        ("* * * FOO *", "month", "JAN-DEC"),
        ("* * * * 8", "day of week", "0-7 or SUN-SAT"),
        ("* * * * L", "day of week", "5L is the last Friday"),
        ("* * * * 1#6", "day of week", "5#2"),
        ("0 0 0 1 1 ? 1969", "year", "1970-9999"),
        ("0 0 0 1 1 ? 2030-2020", "year", "do not wrap"),
        ("*/0 * * * *", "minute", "at least 1"),
        ("1,,2 * * * *", "minute", "lists"),
        ("1- * * * *", "minute", "ranges"),
        ("H(9-3) * * * *", "minute", "must rise"),
        ("1.5 * * * *", "minute", "'1.5'"),
        ("٣ * * * *", "minute", "0-59"),
    ],
)
def test_errors_name_the_field_what_was_given_and_what_is_allowed(
    expr: str, field: str, message: str
) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        cron(expr)
    assert (caught.value.field, caught.value.part) == ("schedule", field)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "expr", ["", "* * *", "* * * * * * * *", "@never", "@reboot", "@", "*" * 257]
)
def test_other_texts_are_refused(expr: str) -> None:
    with pytest.raises(InvalidSchedule):
        cron(expr)


@pytest.mark.parametrize(
    "expr",
    [
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "0 0 31W 2 *",
        "0 0 L-29 2 *",
        "0 0 */31 * 1#5",
        "0 0 0 29 2 * 2027",
        "0 0 0 29 2 ? 2023/4",
        "* * * 30 2 ? *",
    ],
)
def test_what_can_never_fire_is_refused(expr: str) -> None:
    with pytest.raises(InvalidSchedule, match="can never fire"):
        cron(expr)


def test_bounds_that_leave_nothing_are_refused() -> None:
    with pytest.raises(InvalidSchedule, match=r"can never fire.*from 2030"):
        cron("0 0 0 1 1 ? 2029", start="2030-01-01T00:00Z")
    with pytest.raises(InvalidSchedule, match=r"can never fire.*until 2026-02-28"):
        cron("0 0 29 2 *", start="2025-01-01T00:00Z", end="2026-02-28T00:00Z")
    with pytest.raises(InvalidSchedule, match="before it starts"):
        cron("* * * * *", start="2026-01-02T00:00Z", end="2026-01-01T00:00Z")


def test_h_is_stable_and_spreads() -> None:
    assert parse_cron("H H * * *", "reports") == parse_cron("H H * * *", "reports")
    assert len({parse_cron("H * * * *", f"job-{n}").minutes for n in range(300)}) > 50
    for n in range(100):
        slots = cron("H(10-20) H/6 H * *").bind(f"job-{n}", NEW_YEAR).upcoming(8, NEW_YEAR)
        assert all(10 <= slot.minute <= 20 and slot.day <= 28 for slot in slots)
        assert [b.hour - a.hour for a, b in pairwise(slots)].count(6) >= 6


def field(*forms: str) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(forms), min_size=1, max_size=3).map(",".join)


FULL_CRONS = st.tuples(
    field("0", "00", "*", "*/5", "7/10", "1-9", "55-5/3", "H", "H/20"),
    field("0", "30", "*", "?/7", "5/10", "1-9/2", "H(0-29)"),
    field("0", "9", "*", "*/1", "22-2", "8-18/2", "H"),
    field("*", "?", "1", "1-7", "L", "L-3", "LW", "L-2W", "15W", "*/3", "5/9", "20-L", "H"),
    field("*", "1", "JAN-MAR", "NOV-FEB", "*/4", "2/5", "H"),
    field("*", "1", "MON-FRI", "SAT-TUE/2", "5L", "L6", "2#3", "MON-FRI#1", "7", "H"),
    field("*", "2027-2099", "1970/2", "2096"),
).map(" ".join)


@given(FULL_CRONS, st.sampled_from(["", "+"]))
@settings(deadline=None)
def test_every_form_is_read_described_and_evaluated(text: str, sign: str) -> None:
    *front, week_day, year = text.split()
    try:
        schedule = cron(" ".join([*front, sign + week_day, year]))
    except InvalidSchedule as error:
        assume("can never fire" not in str(error))  # the 1st and the last Friday: fair enough
        raise
    assert schedule.describe().endswith(", UTC")
    slot = schedule.next(NEW_YEAR)
    if slot is not None:
        before = schedule.previous(slot)
        assert before is None or schedule.next(before) == slot


CRON_LIKE = st.text(alphabet="0123456789*/-,?LW#H()+@ \tMONJAN.", max_size=256)


@given(st.one_of(CRON_LIKE, st.text(max_size=300)))
@settings(deadline=None)
@example("0 0 0 29 2 ? 1972/28")
@example("* * * */31,2/29 * 1#5,2#5 1970/2,1971/2")
@example("0-59/1,0-59/1,0-59/1,0-59/1 0-59,0-59,0-59 * * * * 1970-9999,1970-9999,1970-9999")
@example(",".join(["1970-9999"] * 20) + " * * * * * *")
@example("* * * 30 2 ? " + ",".join(["1970-9999"] * 24))
@example("RRULE:FREQ=SECONDLY;INTERVAL=86399;BYSECOND=1;BYMONTHDAY=31;BYMONTH=2")
@example(
    "RRULE:FREQ=MINUTELY;INTERVAL=86400;BYDAY=TU,WE;BYHOUR=0;BYWEEKNO="
    + ",".join(map(str, range(-53, 0, 2)))
)
@example("RRULE:FREQ=MONTHLY;INTERVAL=401;BYMONTHDAY=-30,-28,-17,-11,9,15;BYSETPOS=13")
@example("RRULE:FREQ=YEARLY;INTERVAL=12;BYSECOND=28;BYSETPOS=34")
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(InvalidInput):
        parse(text)
