"""What holds for every schedule, zone and moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mainspring.core.schedules import Schedule, cron, every, from_dict, rrule

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # gaps at midnight
    "Australia/Lord_Howe",  # half an hour
    "Pacific/Chatham",  # at a quarter to
    "Asia/Amman",
    "Africa/Casablanca",  # twice within weeks
    "Africa/Cairo",
    "Asia/Kolkata",
    "Pacific/Apia",  # lost a day in December 2011
]
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Pattern:
    """A cron expression made from sets, so that a test can match it without our parser."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    weekdays: tuple[int, ...]
    follows_clock: bool

    @property
    def text(self) -> str:
        minutes = ",".join(map(str, self.minutes))
        if self.follows_clock:
            minutes += (
                f",{self.minutes[0]}-{self.minutes[0]}"  # a range: nothing added but the mark
            )
        hours = ",".join(map(str, self.hours)) or "*"
        days = ",".join(map(str, self.days)) or "*"
        return f"{minutes} {hours} {days} * {','.join(map(str, self.weekdays)) or '*'}"

    def matches(self, wall: datetime) -> bool:
        by_day = wall.day in self.days
        by_week = wall.isoweekday() % 7 in self.weekdays
        either = (by_day or by_week) if self.days and self.weekdays else True
        if self.days and not self.weekdays:
            either = by_day
        if self.weekdays and not self.days:
            either = by_week
        return (
            either and wall.minute in self.minutes and (not self.hours or wall.hour in self.hours)
        )

    @property
    def repeats(self) -> bool:
        return self.follows_clock or not self.hours


def subset(low: int, high: int, most: int, least: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    values = st.sets(st.integers(low, high), min_size=least, max_size=most)
    return values.map(lambda chosen: tuple(sorted(chosen)))


patterns = st.builds(
    Pattern, subset(0, 59, 3, 1), subset(0, 23, 4), subset(1, 28, 3), subset(0, 6, 2), st.booleans()
)
zones = st.sampled_from(ZONES)
moments = st.datetimes(datetime(2008, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


@st.composite
def near_jumps(draw: st.DrawFn) -> tuple[str, datetime]:
    """A zone, and a moment within a day and a half before one of its changes of the clock."""
    zone = draw(zones)
    year = draw(st.integers(2008, 2030))
    info = ZoneInfo(zone)
    days = [datetime(year, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(366)]
    offsets = [day.astimezone(info).utcoffset() for day in days]
    jumps = [day for day, old, new in zip(days, offsets, offsets[1:], strict=False) if old != new]
    assume(jumps)
    day = draw(st.sampled_from(jumps))
    return zone, day - draw(st.timedeltas(timedelta(0), timedelta(hours=30)))


def expected_slots(pattern: Pattern, zone: str, start: datetime, minutes: int) -> list[datetime]:
    """The policy, minute by minute of real time, without any cleverness."""
    info = ZoneInfo(zone)
    moment = start.replace(second=0, microsecond=0)
    before = moment.astimezone(info).replace(tzinfo=None)
    slots = []
    for _ in range(minutes):
        moment += MINUTE
        local = moment.astimezone(info)
        wall = local.replace(tzinfo=None, fold=0)
        skipped = []
        missing = before.replace(fold=0) + MINUTE
        while missing < wall:
            skipped.append(missing)
            missing += MINUTE
        named = pattern.matches(wall) and (local.fold == 0 or pattern.repeats)
        if named or any(pattern.matches(gone) for gone in skipped):
            slots.append(moment)
        before = wall
    return slots


def schedules() -> st.SearchStrategy[Schedule]:
    crons = st.builds(lambda pattern, zone: cron(pattern.text, zone), patterns, zones)
    sparse = st.sampled_from(
        ["0 0 29 2 *", "0 0 31 * *", "0 12 L-3 * *", "30 2 * * 7L", "0 0 LW * *"]
    )
    sparse_crons = st.builds(cron, sparse, zones)
    seconds = st.sampled_from(["*/7 * * * * *", "30 */5 * * * *", "10-20 0 2 * * *"])
    every_so_often = st.timedeltas(timedelta(milliseconds=100), timedelta(days=400)).map(
        lambda span: every(span, start=datetime(2010, 5, 5, tzinfo=UTC))
    )
    rules = st.builds(
        lambda text, zone: rrule(text, tz=zone, start="2009-06-15T02:30:00"),
        st.sampled_from(
            [
                "FREQ=DAILY",
                "FREQ=HOURLY;INTERVAL=3",
                "FREQ=WEEKLY;INTERVAL=2;BYDAY=SU,WE",
                "FREQ=MONTHLY;BYDAY=-1SU",
                "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=1,-1;BYHOUR=1,2,3",
                "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29",
                "FREQ=MINUTELY;INTERVAL=90;BYDAY=SU",
                "FREQ=YEARLY;BYWEEKNO=1,53",
            ]
        ),
        zones,
    )
    return st.one_of(crons, sparse_crons, st.builds(cron, seconds, zones), every_so_often, rules)


@given(patterns, near_jumps())
@settings(max_examples=150, deadline=None)
def test_cron_agrees_with_a_scan_of_real_time(
    pattern: Pattern, where: tuple[str, datetime]
) -> None:
    zone, start = where
    schedule = cron(pattern.text, zone)
    hours = 54
    expected = expected_slots(pattern, zone, start, hours * 60)
    end = start.replace(second=0, microsecond=0) + timedelta(hours=hours)
    slots, moment = [], start.replace(second=0, microsecond=0)
    while (slot := schedule.next(moment)) is not None and slot <= end:
        slots.append(slot)
        moment = slot
    assert slots == expected
    back, moment = [], end + timedelta(microseconds=1)
    while (slot := schedule.previous(moment)) is not None and slot > start.replace(
        second=0, microsecond=0
    ):
        back.append(slot)
        moment = slot
    assert back[::-1] == expected


@given(schedules(), st.one_of(moments, near_jumps().map(lambda pair: pair[1])))
@settings(max_examples=300, deadline=None)
def test_next_is_later_and_previous_is_its_inverse(schedule: Schedule, after: datetime) -> None:
    slot = schedule.next(after)
    assume(slot is not None)
    assert slot is not None
    assert slot > after
    assert slot.tzinfo is UTC
    following = schedule.next(slot)
    assert following is None or following > slot
    if following is not None:
        assert schedule.previous(following) == slot
    before = schedule.previous(slot)
    assert before is None or (before <= after and schedule.next(before) == slot)
    # Nothing lies between `after` and its slot, however finely one asks.
    assert schedule.next(after + (slot - after) / 2) == slot
    assert schedule.next(slot - timedelta(microseconds=1)) == slot


@given(
    schedules(),
    st.one_of(moments, near_jumps().map(lambda pair: pair[1])),
    st.timedeltas(timedelta(0), timedelta(days=2)),
)
@settings(max_examples=300, deadline=None)
def test_slots_are_counted_as_if_one_by_one(
    schedule: Schedule, after: datetime, span: timedelta
) -> None:
    until = after + span
    slots: list[datetime] = []
    while (slot := schedule.next(slots[-1] if slots else after)) is not None and slot <= until:
        slots.append(slot)
        if len(slots) == 500:
            until = slot
            break
    counted = schedule.count(after, until)
    assert counted in (None, len(slots))
    assert counted is not None or schedule.kind == "rrule"


@given(patterns, near_jumps(), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_cron_slots_are_counted_through_changes_of_the_clock(
    pattern: Pattern, where: tuple[str, datetime], days: int
) -> None:
    zone, start = where
    schedule, until = cron(pattern.text, zone), start + timedelta(days=days)
    count, moment = 0, start
    while (slot := schedule.next(moment)) is not None and slot <= until:
        count, moment = count + 1, slot
    assert schedule.count(start, until) == count


def test_a_long_outage_is_counted_by_arithmetic() -> None:
    start, month = datetime(2026, 3, 1, tzinfo=UTC), timedelta(days=31)
    assert cron("* * * * *").count(start, start + month) == 31 * 24 * 60
    assert cron("* * * * *", "Europe/Berlin").count(start, start + month) == 31 * 24 * 60
    assert cron("30 2 * * *", "Europe/Berlin").count(start, start + month) == 31
    assert every("1s", start=start).count(start, start + month) == 31 * 24 * 60 * 60


@given(schedules(), st.text(max_size=20), moments)
@settings(deadline=None)
def test_a_schedule_survives_json(schedule: Schedule, key: str, anchor: datetime) -> None:
    for original in (schedule, schedule.bind(key, anchor)):
        back = from_dict(json.loads(json.dumps(original.to_dict())))
        assert back == original
        assert hash(back) == hash(original)
        assert back.next(anchor) == original.next(anchor)


@given(near_jumps(), st.integers(0, 23), st.integers(0, 59))
@settings(deadline=None)
def test_a_fixed_time_runs_once_a_day(where: tuple[str, datetime], hour: int, minute: int) -> None:
    zone, start = where
    assume(zone != "Pacific/Apia")  # its lost day runs at the next day's first instant
    slots = cron(f"{minute} {hour} * * *", zone).upcoming(4, start)
    days = [slot.astimezone(ZoneInfo(zone)).date() for slot in slots]
    assert days == [days[0] + timedelta(days=n) for n in range(4)]


@given(near_jumps())
@settings(deadline=None)
def test_an_hourly_job_runs_each_real_hour(where: tuple[str, datetime]) -> None:
    zone, start = where
    assume(zone not in ("Australia/Lord_Howe",))  # its clocks jump by half an hour
    slots = cron("0 * * * *", zone).upcoming(50, start)
    gaps = {b - a for a, b in pairwise(slots)} - {timedelta(hours=1)}
    if zone == "Pacific/Chatham":  # its clocks jump at a quarter to: a lost hour runs there
        gaps -= {timedelta(minutes=45), timedelta(minutes=15)}
    assert gaps == set()
