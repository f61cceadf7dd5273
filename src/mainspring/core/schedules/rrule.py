"""Recurrence rules (RFC 5545): read from text, and evaluated without counting from the beginning.

    DTSTART;TZID=Europe/Berlin:20270104T090000
    RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE
    EXDATE:20270118T090000
    RDATE:20270119T140000

Times are naive here: wall time in the schedule's zone.

A rule is a set of times on a set of days (bit masks, as for cron), thinned out by its interval:
only each nth year, month, week, day, hour, minute or second ("period") from DTSTART counts. A
search looks for the next time in the masks, and where that lies in a period that does not count
it goes on from the next one that does. So a rule of seconds from 1990 answers at once.

The days of a year are one mask: bit 1 is the first of January. Each part of a rule is a mask of its
own, and the days are what all of them have in common.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from enum import IntEnum
from functools import lru_cache
from itertools import product

from mainspring.core.schedules import dst
from mainspring.core.schedules.calendar import (
    CYCLE,
    Days,
    WallTimes,
    bits,
    mask_of,
    month_lengths,
)
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule

LONGEST = 4096
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_DAY = re.compile(rf"([+-]?[0-9]{{1,2}})?({'|'.join(_WEEKDAYS)})")
_STAMP = re.compile(r"([0-9]{8})(?:T([0-9]{6})(Z?))?")
_PROPERTY = re.compile(r"(DTSTART|RRULE|EXDATE|RDATE|EXRULE)((?:;[^:]*)?):(.*)", re.IGNORECASE)


class Freq(IntEnum):
    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6

    @property
    def period(self) -> str:
        """The word for one of its periods: `month`."""
        return ("year", "month", "week", "day", "hour", "minute", "second")[self]


@dataclass(frozen=True, slots=True)
class Rule:
    """The parts of an RRULE as given; empty where they are absent. Weekdays: 0 is Monday."""

    freq: Freq
    interval: int = 1
    count: int | None = None
    until: str | None = None
    week_start: int = 0
    positions: tuple[int, ...] = ()
    months: tuple[int, ...] = ()
    month_days: tuple[int, ...] = ()
    year_days: tuple[int, ...] = ()
    weeks: tuple[int, ...] = ()
    weekdays: tuple[tuple[int, int], ...] = ()  # (which of them: 0 for all, weekday)
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecurrenceText:
    """A whole text taken apart: the rule, and what the lines around it say."""

    rule: str
    timezone: str
    zoned: bool  # whether the text names the zone itself
    dtstart: datetime | None
    exdates: tuple[datetime, ...]
    rdates: tuple[datetime, ...]


# The list parts: the name of the field, the range allowed, and whether it may count from the end.
_LISTS = {
    "BYSETPOS": ("positions", 1, 366, True),
    "BYMONTH": ("months", 1, 12, False),
    "BYMONTHDAY": ("month_days", 1, 31, True),
    "BYYEARDAY": ("year_days", 1, 366, True),
    "BYWEEKNO": ("weeks", 1, 53, True),
    "BYHOUR": ("hours", 0, 23, False),
    "BYMINUTE": ("minutes", 0, 59, False),
    "BYSECOND": ("seconds", 0, 59, False),
}
_PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_LISTS)


def read_recurrence_text(text: str, timezone: str) -> RecurrenceText:
    """Take a text of `DTSTART`, `RRULE`, `RDATE` and `EXDATE` lines apart (a bare rule is one)."""
    if len(text) > LONGEST:
        raise InvalidSchedule(f"a recurrence rule has at most {LONGEST} characters")
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    properties: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        match = _PROPERTY.fullmatch(line)
        name, options, value = match.groups() if match else ("RRULE", "", line)
        properties.setdefault(name.upper(), []).append((options, value.strip()))
    if "EXRULE" in properties:
        raise InvalidSchedule("EXRULE is not supported (RFC 5545 dropped it): list gaps as EXDATE")
    if len(properties.get("RRULE", [])) != 1 or len(properties.get("DTSTART", [])) > 1:
        raise InvalidSchedule("a recurrence has one RRULE line, and at most one DTSTART line")
    dtstart, zoned = None, False
    for options, value in properties.get("DTSTART", []):
        if own := _zone_option(options):
            timezone, zoned = own, True
        dtstart = read_stamp(value, timezone, "DTSTART")
    exdates = _stamps("EXDATE", properties.get("EXDATE", []), timezone)
    rdates = _stamps("RDATE", properties.get("RDATE", []), timezone)
    return RecurrenceText(
        properties["RRULE"][0][1].upper(), timezone, zoned, dtstart, exdates, rdates
    )


def _stamps(name: str, lines: list[tuple[str, str]], timezone: str) -> tuple[datetime, ...]:
    """The times of such lines, as wall times in the schedule's zone. Each line may name its own
    zone."""
    walls = set()
    for options, value in lines:
        zone = _zone_option(options) or timezone
        for text in value.split(","):
            wall = read_stamp(text, zone, name)
            if zone != timezone:
                instant = wall.replace(tzinfo=zone_named(zone)).astimezone(UTC)
                wall = dst.wall_of(instant, zone_named(timezone)).replace(fold=0)
            walls.add(wall)
    return tuple(sorted(walls))


def _zone_option(options: str) -> str | None:
    for option in options.split(";"):
        name, _, value = option.partition("=")
        if name.upper() == "TZID":
            return value
    return None


def read_stamp(text: str, timezone: str, what: str, *, whole_day: bool = False) -> datetime:
    """A time as RRULE writes it (20270104T090000, with Z in UTC), as wall time in the zone."""
    match = _STAMP.fullmatch(text.strip().upper())
    try:
        if match is None:
            raise ValueError
        year, month, day = int(match[1][:4]), int(match[1][4:6]), int(match[1][6:])
        if match[2] is None:
            return datetime(year, month, day, *((23, 59, 59) if whole_day else ()))
        hour, minute, second = int(match[2][:2]), int(match[2][2:4]), int(match[2][4:])
        wall = datetime(year, month, day, hour, minute, second)
    except ValueError:
        raise _refused(what, text, "write 20270104T090000, or with Z at the end for UTC") from None
    if match[3]:
        return dst.wall_of(wall.replace(tzinfo=UTC), zone_named(timezone)).replace(fold=0)
    return wall


def parse_rule(text: str) -> Rule:
    """Read the `FREQ=…;…` part; `InvalidSchedule` names the part at fault."""
    parts: dict[str, str] = {}
    for part in text.rstrip(";").split(";"):
        name, _, value = part.partition("=")
        name = name.strip()
        if name not in _PARTS:
            raise _refused(name, value, f"the parts of a rule are {', '.join(_PARTS)}")
        if name in parts:
            raise _refused(name, value, "it is given twice")
        parts[name] = value.strip()
    if parts.get("FREQ") not in Freq.__members__:
        raise _refused("FREQ", parts.get("FREQ", ""), f"allowed are {', '.join(Freq.__members__)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise _refused("COUNT", parts["COUNT"], "give either COUNT or UNTIL")
    freq = Freq[parts["FREQ"]]
    lists = {
        field: _numbers(name, parts[name], low, high, signed)
        for name, (field, low, high, signed) in _LISTS.items()
        if name in parts
    }
    return Rule(
        freq=freq,
        interval=_positive("INTERVAL", parts.get("INTERVAL", "1")),
        count=_positive("COUNT", parts["COUNT"]) if "COUNT" in parts else None,
        until=parts.get("UNTIL"),
        week_start=_weekday("WKST", parts.get("WKST", "MO"))[1],
        weekdays=_weekdays(parts["BYDAY"], freq) if "BYDAY" in parts else (),
        **lists,
    )


def with_implied_days(rule: Rule, dtstart: datetime | None) -> Rule:
    """The rule with the days that it takes from DTSTART."""
    if dtstart is None or rule.weeks or rule.year_days or rule.month_days or rule.weekdays:
        return rule
    if rule.freq is Freq.WEEKLY:
        return replace(rule, weekdays=((0, dtstart.weekday()),))
    if rule.freq is Freq.MONTHLY:
        return replace(rule, month_days=(dtstart.day,))
    if rule.freq is Freq.YEARLY:
        return replace(rule, months=rule.months or (dtstart.month,), month_days=(dtstart.day,))
    return rule


def _positive(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise _refused(name, text, "give a whole number from 1")
    return int(text)


def _numbers(name: str, text: str, low: int, high: int, signed: bool) -> tuple[int, ...]:
    values = set()
    for item in text.split(","):
        sign = "[+-]?" if signed else ""
        if not re.fullmatch(rf"{sign}[0-9]{{1,3}}", item) or not low <= abs(int(item)) <= high:
            also = f" or -{high} to -{low}" if signed else ""
            raise _refused(name, item, f"allowed are {low} to {high}{also}")
        values.add(int(item))
    return tuple(sorted(values))


def _weekdays(text: str, freq: Freq) -> tuple[tuple[int, int], ...]:
    days = {_weekday("BYDAY", item) for item in text.split(",")}
    if freq > Freq.MONTHLY and any(nth for nth, _ in days):
        raise _refused("BYDAY", text, "numbered weekdays need FREQ=MONTHLY or FREQ=YEARLY")
    return tuple(sorted(days))


def _weekday(name: str, item: str) -> tuple[int, int]:
    match = _DAY.fullmatch(item)
    if match is None or (match[1] and (name == "WKST" or not 1 <= abs(int(match[1])) <= 53)):
        raise _refused(
            name, item, f"allowed are {', '.join(_WEEKDAYS)}, numbered as in 2MO or -1FR"
        )
    return int(match[1] or 0), _WEEKDAYS.index(match[2])


def _refused(name: str, given: str, why: str) -> InvalidSchedule:
    return InvalidSchedule(f"{name[:32]} {given[:64]!r} cannot be used: {why}", part=name[:32])


_EACH_SEVENTH = sum(1 << 7 * n for n in range(54))
_WEEK = (1 << 7) - 1


def matching_days(year: int, rule: Rule) -> int:
    """The days of a year; the rule has the days that it takes from DTSTART."""
    lengths = month_lengths(isleap(year))
    size = sum(lengths)
    days = (2 << size) - 2
    if rule.months:
        days &= _of_months(rule.months, lengths)
    if rule.month_days:
        days &= _of_month_days(rule.month_days, lengths)
    if rule.year_days:
        days &= _numbered(rule.year_days, size)
    if rule.weeks:
        days &= _of_weeks(year, rule, size)
    if rule.weekdays:
        in_year = rule.freq is Freq.YEARLY and not rule.months
        spans = [(0, size)] if in_year else _spans(lengths)
        days &= _of_weekdays(year, rule.weekdays, spans, size)
    return days


def _spans(lengths: tuple[int, ...]) -> list[tuple[int, int]]:
    """Each month's days: how many come before them in the year, and how many they are."""
    return [(sum(lengths[:month]), length) for month, length in enumerate(lengths)]


def _of_months(months: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    mask = 0
    for month in months:
        mask |= ((1 << lengths[month - 1]) - 1) << sum(lengths[: month - 1]) + 1
    return mask


def _of_month_days(month_days: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    mask = 0
    for before, length in _spans(lengths):
        mask |= _numbered(month_days, length) << before
    return mask


@lru_cache(maxsize=256)
def _numbered(numbers: tuple[int, ...], size: int) -> int:
    """Days counted from the beginning, or from the end, of something that has so many."""
    mask = 0
    for number in numbers:
        at = number if number > 0 else size + 1 + number
        if 1 <= at <= size:
            mask |= 1 << at
    return mask


def _of_weekdays(
    year: int, weekdays: tuple[tuple[int, int], ...], spans: list[tuple[int, int]], size: int
) -> int:
    new_year = date(year, 1, 1).weekday()
    mask = 0
    for before, length in spans:
        mask |= _weekdays_of_span(weekdays, (new_year + before) % 7, length) << before
    return mask & (2 << size) - 2


@lru_cache(maxsize=256)
def _weekdays_of_span(weekdays: tuple[tuple[int, int], ...], first_day: int, length: int) -> int:
    """Those weekdays of a month or year that begins on the weekday `first_day`."""
    mask = 0
    for nth, weekday in weekdays:
        first = (weekday - first_day) % 7 + 1
        if nth == 0:
            mask |= _EACH_SEVENTH << first
            continue
        last = first + (length - first) // 7 * 7
        at = first + 7 * (nth - 1) if nth > 0 else last + 7 * (nth + 1)
        if 1 <= at <= length:
            mask |= 1 << at
    return mask & (2 << length) - 2


def _of_weeks(year: int, rule: Rule, size: int) -> int:
    """A week belongs to the year that has four or more of its days, so the first and the last
    days of a year may be in a week of its neighbour."""
    wanted = frozenset(rule.weeks)
    new_year, new_years_eve = date(year, 1, 1), date(year, 12, 31)
    start = 1 - (new_year.weekday() - rule.week_start) % 7
    mask = 0
    while start <= size:
        if start < -2:  # its fourth day is last year's
            numbers = _week_numbers(new_year, rule.week_start)
        elif start + 3 > size:
            numbers = _week_numbers(new_years_eve, rule.week_start)
        else:
            number = (start + 2) // 7 + 1
            numbers = number, -((size - start - 3) // 7 + 1)
        if not wanted.isdisjoint(numbers):
            mask |= _WEEK << start if start > 0 else _WEEK >> -start
        start += 7
    return mask & (2 << size) - 2


def _week_numbers(day: date, week_start: int) -> tuple[int, int]:
    """The number of a day's week from the start and from the end of the year it belongs to:
    the year of the week's fourth day."""
    fourth = min(day.toordinal() - (day.weekday() - week_start) % 7 + 3, date.max.toordinal())
    year = date.fromordinal(fourth).year
    number = (fourth - date(year, 1, 1).toordinal()) // 7 + 1
    weeks = number + (date(year, 12, 31).toordinal() - fourth) // 7
    return number, number - weeks - 1


MOST_STEPS = 1_000
"""Steps of search for one answer, about 4 µs each. A search that needs more is an error."""

MOST_STEPS_MADE = 200
"""The same while a rule is made. One that needs more is refused: with
`FREQ=SECONDLY;INTERVAL=907;BYMINUTE=0;BYSECOND=0` each answer, five weeks on, takes 907."""

MOST_STEPS_COUNTED = 4_000
"""Steps to find the last time of a rule with COUNT, where that cannot be computed."""

MOST_IN_PERIOD = 500
"""Times of one period that BYSETPOS may choose from: they are listed."""

_PROBED_DAYS = (1, 30, 400, 4_000, 40_000)
"""Days after DTSTART at which a new rule is tried in both directions: an INTERVAL that nearly
agrees with the rest of the rule answers at once for years, and then not at all."""

_UNITS = {
    Freq.WEEKLY: timedelta(weeks=1),
    Freq.DAILY: timedelta(days=1),
    Freq.HOURLY: timedelta(hours=1),
    Freq.MINUTELY: timedelta(minutes=1),
    Freq.SECONDLY: timedelta(seconds=1),
}
_SECOND = timedelta(seconds=1)


@lru_cache(maxsize=1024)
def rule_wall_times(
    text: str,
    dtstart: datetime,
    timezone: str,
    exdates: tuple[datetime, ...],
    rdates: tuple[datetime, ...],
) -> RuleWallTimes:
    rule = parse_rule(text)
    until = read_stamp(rule.until, timezone, "UNTIL", whole_day=True) if rule.until else None
    extra = sorted(set(rdates) - set(exdates))
    return RuleWallTimes(rule, dtstart, until, frozenset(exdates), extra)


class _SearchLimitReached(Exception):
    """A search took more steps than it may."""


class _Steps:
    """What is left of a search's budget."""

    __slots__ = ("left",)

    def __init__(self, most: int) -> None:
        self.left = most

    def take(self, count: int = 1) -> None:
        self.left -= count
        if self.left < 0:
            raise _SearchLimitReached


class RuleWallTimes:
    """The wall times of a rule from DTSTART on, nearest first in either direction; and `extra`
    ones (RDATE), which no rule names."""

    def __init__(
        self,
        rule: Rule,
        dtstart: datetime,
        until: datetime | None,
        exdates: frozenset[datetime],
        extra: Sequence[datetime],
    ) -> None:
        self.rule = rule
        self._dtstart = dtstart
        self._exdates = exdates
        self._extra = extra
        self._most_steps = MOST_STEPS_MADE
        self._wall_times = _RuleMasks(rule, dtstart)
        self._periods = _Periods(rule, dtstart)
        self._last = until
        if rule.count is not None:
            self._last = self._nth_by_arithmetic() if self._plain else self._nth_by_search()
        self._probe()
        self._most_steps = MOST_STEPS

    def later(self, wall: datetime) -> datetime | None:
        """The first time strictly later. `InvalidSchedule` if that takes too many steps."""
        by_rule = self._search(wall, self._later)
        at = bisect_right(self._extra, wall)
        if at < len(self._extra) and (by_rule is None or self._extra[at] < by_rule):
            return self._extra[at]
        return by_rule

    def earlier(self, wall: datetime) -> datetime | None:
        """The last time strictly earlier. `InvalidSchedule` if that takes too many steps."""
        by_rule = self._search(wall, self._earlier)
        at = bisect_left(self._extra, wall)
        if at > 0 and (by_rule is None or self._extra[at - 1] > by_rule):
            return self._extra[at - 1]
        return by_rule

    def _search(
        self, wall: datetime, step: Callable[[datetime, _Steps], datetime | None]
    ) -> datetime | None:
        """The next time of the rule that is no EXDATE."""
        steps = _Steps(self._most_steps + len(self._exdates))
        try:
            by_rule = step(wall, steps)
            while by_rule is not None and by_rule in self._exdates:
                by_rule = step(by_rule, steps)
        except _SearchLimitReached:
            raise self._too_rare() from None
        return by_rule

    def _probe(self) -> None:
        """Refuse a rule whose answers cannot be found in a few steps."""
        self.later(self._dtstart - timedelta.resolution)
        for days in _PROBED_DAYS:
            try:
                wall = self._dtstart + timedelta(days=days)
            except OverflowError:
                return
            self.later(wall)
            self.earlier(wall)

    def _too_rare(self) -> InvalidSchedule:
        part = "BYSETPOS" if self.rule.positions else "INTERVAL"
        return InvalidSchedule(
            "the rule can never fire, or so rarely that it would take too long to work out: its"
            f" {part} hardly ever agrees with its other parts. Choose another {part}, or fewer BY…"
            " parts",
            part=part,
        )

    @property
    def _plain(self) -> bool:
        """Nothing but a frequency of fixed length: DTSTART, and then every so often."""
        rule = self.rule
        return rule.freq in _UNITS and rule == Rule(
            freq=rule.freq,
            interval=rule.interval,
            count=rule.count,
            until=rule.until,
            week_start=rule.week_start,
        )

    def _nth_by_arithmetic(self) -> datetime | None:
        """The COUNTth time of a plain rule; None if that is past the year 9999."""
        rule = self.rule
        try:
            return self._dtstart + _UNITS[rule.freq] * rule.interval * ((rule.count or 1) - 1)
        except OverflowError:
            return None

    def _nth_by_search(self) -> datetime:
        """The COUNTth time, one by one."""
        wall = self._dtstart - timedelta.resolution
        steps = _Steps(MOST_STEPS_COUNTED)
        try:
            for _ in range(self.rule.count or 0):
                before = steps.left
                following = self._later(wall, steps)
                if before - steps.left > MOST_STEPS_MADE:
                    raise self._too_rare()
                if following is None:
                    break
                wall = following
        except _SearchLimitReached:
            if wall < self._dtstart:  # not even the first time was found
                raise self._too_rare() from None
            raise InvalidSchedule(
                f"COUNT {self.rule.count} is too large: the times of this rule are counted singly."
                " Use UNTIL",
                part="COUNT",
            ) from None
        return wall

    def _later(self, wall: datetime, steps: _Steps) -> datetime | None:
        wall = max(wall, self._dtstart - timedelta.resolution)
        while True:
            candidate = self._wall_times.later(wall)
            if candidate is None or (self._last is not None and candidate > self._last):
                return None
            steps.take(1 + (candidate.year - wall.year) // 8)
            period = self._periods.of(candidate)
            ahead = -period % self.rule.interval
            if ahead == 0:
                if not self.rule.positions:
                    return candidate
                chosen = self._chosen(period, steps)
                if following := [time for time in chosen if time > wall]:
                    in_time = self._last is None or following[0] <= self._last
                    return following[0] if in_time else None
                ahead = self.rule.interval
            start = self._periods.start(period + ahead)
            if start is None:
                return None
            wall = start - timedelta.resolution
        return None

    def _earlier(self, wall: datetime, steps: _Steps) -> datetime | None:
        if self._last is not None and wall > self._last:
            wall = self._last.replace(microsecond=1)  # times are whole seconds
        while True:
            candidate = self._wall_times.earlier(wall)
            if candidate is None or candidate < self._dtstart:
                return None
            steps.take(1 + (wall.year - candidate.year) // 8)
            period = self._periods.of(candidate)
            behind = period % self.rule.interval
            if behind == 0:
                if not self.rule.positions:
                    return candidate
                chosen = self._chosen(period, steps)
                if before := [time for time in chosen if time < wall]:
                    return before[-1] if before[-1] >= self._dtstart else None
                behind = self.rule.interval
            end = self._periods.start(period - behind + 1)
            if end is None:
                return None
            wall = end
        return None

    def _chosen(self, period: int, steps: _Steps) -> list[datetime]:
        """The times of a period that BYSETPOS chooses, in order."""
        start, end = self._periods.start(period), self._periods.start(period + 1)
        if start is None or end is None:
            return []
        times = self._wall_times.between(start, end)
        steps.take(4 + len(times) // 10)  # as much work as so many steps without BYSETPOS
        places = (place - 1 if place > 0 else len(times) + place for place in self.rule.positions)
        return [times[place] for place in sorted(set(places)) if 0 <= place < len(times)]


class _Periods:
    """The years, months, weeks … of a rule, numbered from the one that DTSTART lies in."""

    def __init__(self, rule: Rule, dtstart: datetime) -> None:
        self._freq = rule.freq
        self._base = dtstart.replace(second=0) if rule.freq < Freq.SECONDLY else dtstart
        if rule.freq < Freq.MINUTELY:
            self._base = self._base.replace(minute=0)
        if rule.freq < Freq.HOURLY:
            self._base = self._base.replace(hour=0)
        if rule.freq is Freq.WEEKLY:
            self._base -= timedelta(days=(dtstart.weekday() - rule.week_start) % 7)

    def of(self, wall: datetime) -> int:
        if self._freq is Freq.YEARLY:
            return wall.year - self._base.year
        if self._freq is Freq.MONTHLY:
            return (wall.year - self._base.year) * 12 + wall.month - self._base.month
        return (wall - self._base) // _UNITS[self._freq]

    def start(self, number: int) -> datetime | None:
        """The first moment of a period; None outside the calendar."""
        try:
            if self._freq is Freq.YEARLY:
                return datetime(self._base.year + number, 1, 1)
            if self._freq is Freq.MONTHLY:
                years, month = divmod(self._base.month - 1 + number, 12)
                return datetime(self._base.year + years, month + 1, 1)
            return self._base + _UNITS[self._freq] * number
        except (ValueError, OverflowError):
            return None


class _RuleMasks(WallTimes):
    """A rule's times of day and days, as if its interval were one.

    Parts that are absent come from DTSTART, as RFC 5545 says.
    """

    def __init__(self, rule: Rule, dtstart: datetime) -> None:
        freq = rule.freq
        super().__init__(
            mask_of(rule.hours or _default(freq >= Freq.HOURLY, 24, dtstart.hour)),
            mask_of(rule.minutes or _default(freq >= Freq.MINUTELY, 60, dtstart.minute)),
            mask_of(rule.seconds or _default(freq >= Freq.SECONDLY, 60, dtstart.second)),
        )
        self._rule = with_implied_days(rule, dtstart)
        if freq is not Freq.YEARLY or rule.months:  # counted within months, which have five at most
            in_month = tuple(day for day in self._rule.weekdays if abs(day[0]) <= 5)
            self._rule = replace(self._rule, weekdays=in_month or rule.weekdays[:1])
        self._years: dict[int, Days] = {}
        self._calendars: dict[tuple[int, tuple[bool, bool, bool]], Days] = {}

    def days_of(self, year: int) -> Days:
        days = self._years.get(year % CYCLE)
        if days is None:
            days = self._years[year % CYCLE] = self._like(year)
        return days

    def _like(self, year: int) -> Days:
        """The days of a year, worked out once for all years of the same calendar."""
        # Weeks that reach over New Year depend on the years on either side, too.
        leap = isleap(year - 1), isleap(year), isleap(year + 1)
        calendar = date(year, 1, 1).weekday(), leap
        days = self._calendars.get(calendar)
        if days is None:
            days = self._calendars[calendar] = self._matching(year)
        return days

    def _months_between(self, start: datetime, end: datetime) -> list[tuple[int, int, int]]:
        """Year, month and mask of days for each month that a period `[start, end)` touches."""
        last = end - _SECOND
        months = []
        for year in range(start.year, last.year + 1):
            masks = self.days_of(year)
            first_month = start.month if year == start.year else 1
            last_month = last.month if year == last.year else 12
            for month in range(first_month, last_month + 1):
                days = masks[month]
                if days:
                    months.append((year, month, days))
        if months and months[0][:2] == (start.year, start.month):
            months[0] = (start.year, start.month, months[0][2] & -1 << start.day)
        if months and months[-1][:2] == (last.year, last.month):
            months[-1] = (last.year, last.month, months[-1][2] & (2 << last.day) - 1)
        return months

    def between(self, start: datetime, end: datetime) -> list[datetime]:
        """The times of a period, which has one hour, minute or second where it is so short."""
        span = end - start
        hours = bits(self.hours) if span > timedelta(hours=1) else [start.hour]
        minutes = bits(self.minutes) if span > timedelta(minutes=1) else [start.minute]
        seconds = bits(self.seconds) if span > _SECOND else [start.second]
        months = self._months_between(start, end)
        in_day = len(hours) * len(minutes) * len(seconds)
        if in_day * sum(days.bit_count() for _, _, days in months) > MOST_IN_PERIOD:
            raise InvalidSchedule(
                f"BYSETPOS chooses among at most {MOST_IN_PERIOD} times of one"
                f" {self._rule.freq.period}",
                part="BYSETPOS",
            )
        return [
            datetime(year, month, day, *time)
            for year, month, days in months
            for day in bits(days)
            for time in product(hours, minutes, seconds)
        ]

    def _matching(self, year: int) -> Days:
        matching = matching_days(year, self._rule)
        months, offset = [], 0
        for length in month_lengths(isleap(year)):
            months.append(matching >> offset & (2 << length) - 2)
            offset += length
        return (int(any(months)), *months)


def _default(every: bool, size: int, value: int) -> range:
    return range(size) if every else range(value, value + 1)
