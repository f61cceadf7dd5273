"""From a recurrence rule to its wall times, without counting from the beginning.

A rule is a set of times on a set of days (bit masks, as for cron), thinned out by its interval:
only each nth year, month, week, day, hour, minute or second ("period") from DTSTART counts. A
search looks for the next time in the masks, and where that lies in a period that does not count
it goes on from the next one that does. So a rule of seconds from 1990 answers at once.

The days of a year are one mask: bit 1 is the first of January. Each part of a rule is a mask of its
own, and the days are what all of them have in common.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import product

from mainspring.core.schedules.calendar import (
    CYCLE,
    Days,
    WallTimes,
    bits,
    mask_of,
    month_lengths,
)
from mainspring.core.schedules.rrule_syntax import (
    Freq,
    Rule,
    parse_rule,
    read_stamp,
    with_implied_days,
)
from mainspring.errors import InvalidSchedule

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
