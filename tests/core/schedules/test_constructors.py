"""`parse` and the functions that make schedules: what they accept and what they refuse."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from mainspring.core.schedules import (
    Once,
    Schedule,
    at,
    cron,
    every,
    from_dict,
    parse,
    rrule,
)
from mainspring.errors import InvalidInput, InvalidSchedule

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


# ── what parse takes ──


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("0 9 * * 1-5", cron("0 9 * * 1-5", "Asia/Kolkata")),
        (" @daily ", cron("@daily", "Asia/Kolkata")),
        ("@every 5m", every("5m")),
        ("every 5 minutes", every(minutes=5)),
        ("every hour", every(hours=1)),
        ("5m", every(300)),
        ("1h30m", every(timedelta(minutes=90))),
        ("PT5M", every(300)),
        ("P1D", every("1d")),
        (90, every("90s")),
        (0.5, every("500ms")),
        (timedelta(hours=1), every("1h")),
        ("2027-03-28T09:00:00+02:00", at("2027-03-28T09:00:00+02:00", tz="Asia/Kolkata")),
        ("2027-03-28 09:00", at(datetime(2027, 3, 28, 9), tz="Asia/Kolkata")),
        (datetime(2027, 3, 28, 9), at(datetime(2027, 3, 28, 9), tz="Asia/Kolkata")),
        (NOON, at(NOON)),
        ("RRULE:FREQ=DAILY", rrule("FREQ=DAILY", tz="Asia/Kolkata")),
        ("FREQ=DAILY", rrule("FREQ=DAILY", tz="Asia/Kolkata")),
    ],
)
def test_parse_accepts_every_form_of_a_schedule(spec: object, expected: Schedule) -> None:
    assert parse(spec, timezone="Asia/Kolkata") == expected.in_zone("Asia/Kolkata")


@pytest.mark.parametrize(
    "spec",
    [
        *(None, True, [], {}, object(), b"5m", 0, -1, float("nan"), float("inf"), 1e300),
        *("", "   ", "soon", "300", "-5m", "0s", "* *", "x" * 1000, "\0"),
        *("2027-13-01", "2027-01-01T99:00"),
    ],
)
def test_parse_refuses_what_is_no_schedule(spec: object) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse(spec)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("* * *", "5 fields (minute hour day month weekday)"),
        ("300", 'a text needs a unit: "300s"'),
        ("90 minuts", 'such as "30s"'),
        ("@dayly", "did you mean @daily"),
        ("daily", "did you mean @daily"),
        ("0 9 * * 1-5 Europe/Berlin", 'give timezone="Europe/Berlin"'),
        ("EXRULE:FREQ=DAILY", "EXRULE is not supported"),
        *((text, "write a cron expression") for text in ("tomorrow", "", "\n", "9am", "9:00")),
        ("every day at 9", "write a cron expression"),
    ],
)
def test_a_refusal_says_what_to_write(text: str, words: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        parse(text)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "RDATE:20270119T140000\nRRULE:FREQ=DAILY",
        "EXDATE:20270119T140000\nRRULE:FREQ=DAILY",
        "INTERVAL=2;FREQ=DAILY",
        "byday=MO;freq=WEEKLY",
        "COUNT=3;FREQ=DAILY",
        "UNTIL=20271231;FREQ=DAILY",
        "WKST=SU;FREQ=WEEKLY;INTERVAL=2",
    ],
)
def test_a_rule_may_begin_with_any_of_its_lines_and_parts(text: str) -> None:
    assert parse(text) == rrule(text).in_zone("UTC")


# ── zones ──


@pytest.mark.parametrize(
    "zone",
    [
        *("Mars/Base", "/etc/passwd", "../UTC", "..", ".", "", " ", "a\0b", "é", "x" * 9999),
        *("Europe", "Europe/", "Europe/Berlin\n", "utc/../UTC", "CON", "C:\\zone"),
        *("tzdata.zi", "zone.tab"),
    ],
)
def test_no_odd_zone_gets_through(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="unknown timezone"):
        cron("@daily", zone)


@pytest.mark.parametrize(
    ("zone", "advice"),
    [
        ("localtime", "it depends on the machine: give an IANA name"),
        ("posixrules", "it depends on the machine"),
        ("Factory", "it depends on the machine"),
        ("right/Europe/Berlin", "did you mean Europe/Berlin?"),
        ("posix/Europe/Berlin", "did you mean Europe/Berlin?"),
        ("EUROPE/BERLIN", "did you mean Europe/Berlin?"),
        ("Europe/Berln", "did you mean Europe/Berlin"),
        ("berlin", "did you mean Europe/Berlin"),
        ("Asia/Calcuta", "did you mean Asia/Calcutta?"),  # and none that is less similar
        *(
            (zone, "use a name such as Asia/Kolkata")
            for zone in ("IST", "+05:30", "UTC+1", "-0800")
        ),
        (5, "a timezone is an IANA name such as Europe/Berlin"),
    ],
)
def test_a_wrong_zone_gets_advice(zone: Any, advice: str) -> None:
    with pytest.raises(InvalidSchedule) as refused:
        cron("@daily", zone)
    assert advice in str(refused.value)


def test_a_zone_may_be_a_zone_object() -> None:
    assert cron("@daily", ZoneInfo("Europe/Berlin")) == cron("@daily", "Europe/Berlin")  # type: ignore[arg-type]
    assert parse("@daily", timezone=UTC) == cron("@daily", "UTC")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "same"),
    [("5min", "5m"), ("5 minutes", "5m"), ("1 day", "1d"), ("2 hours 30 secs", "2h30s")],
)
def test_units_may_be_written_out(text: str, same: str) -> None:
    assert parse(text) == parse(same)


# ── moments ──


def test_a_moment_without_a_zone_is_refused() -> None:
    for schedule in (cron("@daily"), every("5m"), at(NOON), rrule("FREQ=DAILY")):
        with pytest.raises(InvalidInput, match="aware"):
            schedule.next(datetime(2026, 1, 1))
        with pytest.raises(InvalidInput, match="aware"):
            schedule.previous(datetime(2026, 1, 1))
        with pytest.raises(InvalidInput, match="aware"):
            schedule.bind("job", datetime(2026, 1, 1))


def test_answers_are_in_utc_whatever_zone_asks() -> None:
    tokyo = NOON.astimezone(ZoneInfo("Asia/Tokyo"))
    odd = NOON.astimezone(timezone(timedelta(hours=-3, minutes=-30)))
    for schedule in (cron("@daily", "Asia/Tokyo"), every("5m"), every("5m", start=NOON)):
        assert schedule.next(tokyo) == schedule.next(odd) == schedule.next(NOON)
        for slot in (schedule.next(tokyo), schedule.previous(tokyo + timedelta(days=2))):
            assert slot is not None
            assert slot.tzinfo is UTC


def test_fractions_of_a_second_count() -> None:
    schedule = cron("* * * * * *")
    tick = timedelta(microseconds=1)
    assert schedule.next(NOON - tick) == NOON
    assert schedule.next(NOON) == NOON + timedelta(seconds=1)
    assert schedule.previous(NOON + tick) == NOON
    assert schedule.previous(NOON) == NOON - timedelta(seconds=1)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
def test_the_ends_of_the_calendar_are_ends(zone: str) -> None:
    first = datetime.min.replace(tzinfo=UTC)
    last = datetime.max.replace(tzinfo=UTC)
    schedules = (
        cron("* * * * *", zone),
        cron("* * * * * *", zone),
        cron("0 0 29 2 *", zone),
        rrule("FREQ=SECONDLY", tz=zone),
        every("5m"),
        every("5m", start="2020-01-01"),
        at(NOON),
    )
    for schedule in schedules:
        assert schedule.next(last) is None
        assert schedule.previous(first) is None
        schedule.next(first)
        schedule.previous(last)
        schedule.next(last.replace(tzinfo=ZoneInfo("America/New_York")))
        schedule.previous(first.replace(tzinfo=ZoneInfo("Asia/Tokyo")))
        assert schedule.next(datetime(9998, 1, 1, tzinfo=UTC)) is None or not isinstance(
            schedule, Once
        )


def test_bounds_are_inclusive() -> None:
    schedule = cron("0 * * * *", start=NOON, end=NOON + timedelta(hours=2))
    slots = schedule.upcoming(9, datetime(2020, 1, 1, tzinfo=UTC))
    assert slots == [NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=2)]
    assert schedule.previous(datetime(2030, 1, 1, tzinfo=UTC)) == slots[-1]
    assert schedule.previous(NOON) is None


def test_a_naive_bound_is_wall_time_of_the_schedule() -> None:
    schedule = cron("0 9 * * *", "Asia/Kolkata", start="2026-06-01T09:00")
    assert schedule.start == datetime(2026, 6, 1, 3, 30, tzinfo=UTC)


# ── intervals ──


def test_an_interval_with_a_start_fires_at_it() -> None:
    schedule = every("90m", start=NOON)
    assert schedule.upcoming(2, NOON - timedelta(days=1)) == [NOON, NOON + timedelta(minutes=90)]
    assert schedule.previous(NOON) is None
    assert schedule.bind("job", NOON - timedelta(hours=1)).next(NOON) == schedule.next(NOON)


def test_an_interval_counts_from_its_anchor() -> None:
    schedule = every("5m").bind("job", NOON)
    assert schedule.next(NOON - timedelta(days=1)) == NOON + timedelta(minutes=5)
    assert schedule.previous(NOON + timedelta(minutes=5)) is None
    assert schedule.previous(NOON + timedelta(minutes=6)) == NOON + timedelta(minutes=5)


def test_intervals_that_cannot_be() -> None:
    for span in (0, "0s", "1ms", timedelta(microseconds=99_999)):
        with pytest.raises(InvalidSchedule, match="the shortest is 100 milliseconds"):
            every(span)
    assert every("100ms").interval == timedelta(milliseconds=100)
    with pytest.raises(InvalidSchedule, match="can never fire"):
        every("2d", end=NOON).bind("job", NOON - timedelta(days=1))


# ── one moment ──


def test_a_single_moment_is_the_only_slot() -> None:
    schedule = at("2027-03-28T02:30", tz="Europe/Berlin")  # skipped by the clocks
    gap_end = datetime(2027, 3, 28, 1, tzinfo=UTC)
    assert schedule.next(NOON) == gap_end
    assert schedule.next(gap_end) is None
    assert schedule.previous(gap_end) is None
    assert schedule.previous(gap_end + timedelta(seconds=1)) == gap_end
    assert at(datetime(2027, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))).timezone == "Asia/Tokyo"


# ── values ──


def test_delay_is_within_the_jitter_and_the_same_everywhere() -> None:
    schedule = cron("* * * * *", jitter="30s").bind("report", NOON)
    delays = [schedule.delay(slot) for slot in schedule.upcoming(200, NOON)]
    assert all(timedelta(0) <= delay <= timedelta(seconds=30) for delay in delays)
    assert len(set(delays)) > 150
    assert delays == [schedule.delay(slot) for slot in schedule.upcoming(200, NOON)]
    assert schedule.delay(NOON) != schedule.bind("other", NOON).delay(NOON)
    assert cron("* * * * *").delay(NOON) == timedelta(0)
    with pytest.raises(InvalidInput, match="jitter"):
        cron("* * * * *", jitter=-1)


# ── the clocks ──


def year(number: int) -> tuple[datetime, datetime]:
    return datetime(number, 1, 1, tzinfo=UTC), datetime(number + 1, 1, 1, tzinfo=UTC)


def test_changes_of_the_clock_are_warned_of() -> None:
    assert cron("30 2 * * *", "Europe/Berlin").warnings(*year(2027)) == [
        "2027-03-28 02:30 does not exist in Europe/Berlin: runs at 03:00",
        "2027-10-31 02:30 happens twice in Europe/Berlin: runs the first time only",
    ]
    assert cron("0 * * * *", "Europe/Berlin").warnings(*year(2027)) == [
        "2027-10-31 02:00 happens twice in Europe/Berlin: runs both times",
    ]
    assert cron("0 12 * * *", "Europe/Berlin").warnings(*year(2027)) == []
    assert cron("30 2 * * *").warnings(*year(2027)) == []
    assert every("5m").warnings(*year(2027)) == []
    assert rrule("FREQ=DAILY", start="2020-01-01T02:30", tz="Europe/Berlin").warnings(*year(2027))
    bounded = cron("30 2 * * *", "Europe/Berlin", end="2027-06-01T00:00")
    assert len(bounded.warnings(*year(2027))) == 1
    for_ever = cron("30 2 * * *", "Europe/Berlin").warnings(NOON, datetime.max.replace(tzinfo=UTC))
    assert len(for_ever) == 20


def test_fields_by_name_are_told_how_to_write_an_expression() -> None:
    fields: dict[str, Any] = {"day_of_week": "mon-fri", "hour": 9}
    with pytest.raises(InvalidSchedule, match=r'not day_of_week, hour by name: .* cron\("30 9'):
        cron(**fields)


@pytest.mark.parametrize("units", [{}, {"minute": 5}, {"interval": "5m", "minutes": 3}])
def test_an_interval_is_one_text_or_units_of_time(units: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchedule, match=r'write every\("5m"\), or .* every\(minutes=5\)'):
        every(**units)


@pytest.mark.parametrize("after", ["start", "end"])
def test_a_jitter_longer_than_the_interval_is_refused(after: Any) -> None:
    assert every("1m", after=after, jitter="1m").jitter == timedelta(minutes=1)
    with pytest.raises(InvalidSchedule, match="jitter 2 minutes is longer than the interval"):
        every("1m", after=after, jitter="2m")


@pytest.mark.parametrize(
    "text", ["5m after end", "5 minutes after the end", "every 5m after the end", "PT5M After End"]
)
def test_a_delay_after_the_end_is_read_from_text(text: str) -> None:
    delay = every("5m", after="end")
    assert parse(text) == delay == from_dict(delay.to_dict())
    assert delay.upcoming(3, NOON) == [NOON + timedelta(minutes=5)]
    assert (delay.previous(NOON), delay.count(NOON, NOON + timedelta(days=1))) == (None, None)


def test_a_delay_counts_from_the_start_or_the_end_and_nothing_else() -> None:
    with pytest.raises(InvalidSchedule, match="not 'finish'"):
        every("5m", after="finish")  # type: ignore[arg-type]
