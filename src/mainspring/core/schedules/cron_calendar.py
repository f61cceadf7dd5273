"""From a cron expression to the wall times that it matches.

There are only fourteen calendars: a year starts on one of seven weekdays and is leap or not. So
the matching days of a year are worked out once for each of the fourteen.
"""

from __future__ import annotations

from calendar import isleap
from collections.abc import Sequence
from datetime import date
from functools import cache, lru_cache

from mainspring.core.schedules.calendar import NO_DAYS, Days, WallTimes
from mainspring.core.schedules.cron_syntax import DaysOfMonth, DaysOfWeek, Fields, parse_cron

_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


@lru_cache(maxsize=4096)
def wall_times_of(expression: str, key: str) -> CronWallTimes:
    """The wall times of an expression, kept: stores give out the same schedule again and again."""
    return CronWallTimes(parse_cron(expression, key))


class CronWallTimes(WallTimes):
    """The wall times that an expression matches."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields.hours, fields.minutes, fields.seconds)
        self.fields = fields
        self._years = fields.years
        self._calendars: dict[tuple[int, bool], Days] = {}

    def days_of(self, year: int) -> Days:
        calendar = calendar_of(year)
        days = self._calendars.get(calendar)
        if days is None:
            days = self._calendars[calendar] = _matching_days(self.fields, *calendar)
        if self._years is None or not days[0] or any(year in years for years in self._years):
            return days
        return NO_DAYS

    def years_from(self, year: int) -> Sequence[int]:
        if self._years is None:
            return super().years_from(year)
        first = min(years[0] for years in self._years)
        return range(max(first, year), max(years[-1] for years in self._years) + 1)

    def years_to(self, year: int) -> Sequence[int]:
        if self._years is None:
            return super().years_to(year)
        last = max(years[-1] for years in self._years)
        return range(min(last, year), min(years[0] for years in self._years) - 1, -1)


@cache
def calendar_of(year: int) -> tuple[int, bool]:
    """Which of the fourteen calendars a year has: the weekday of 1 January (0 is Sunday), leap."""
    return date(year, 1, 1).isoweekday() % 7, isleap(year)


def _matching_days(fields: Fields, weekday: int, leap: bool) -> Days:
    months = []
    for month in range(1, 13):
        length = _LENGTHS[month] + (leap and month == 2)
        matching = _days_of_month(fields, weekday, length) if fields.months >> month & 1 else 0
        months.append(matching)
        weekday = (weekday + length) % 7
    return (int(any(months)), *months)


def _days_of_month(fields: Fields, first: int, length: int) -> int:
    """The matching days of a month that starts on weekday `first` and has `length` days."""
    by_number = _by_number(fields.month_days, first, length)
    by_weekday = _by_weekday(fields.week_days, first, length)
    both = by_number & by_weekday if fields.both_days else by_number | by_weekday
    return both & ((2 << length) - 2)


def _by_number(days: DaysOfMonth, first: int, length: int) -> int:
    mask = days.days
    for back in days.from_end:
        if back < length:
            mask |= 1 << length - back
    near = [day for day in days.near if day <= length]
    near += [length - back for back in days.near_from_end if back < length]
    for day in near:
        mask |= 1 << _nearest_weekday(day, first, length)
    return mask


def _nearest_weekday(day: int, first: int, length: int) -> int:
    """The day from Monday to Friday nearest to `day` without leaving the month."""
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


def _by_weekday(days: DaysOfWeek, first: int, length: int) -> int:
    mask = 0
    for weekday in range(7):
        if days.days >> weekday & 1:
            for day in range(1 + (weekday - first) % 7, length + 1, 7):
                mask |= 1 << day
    for weekday, n in days.nth:
        mask |= 1 << 1 + (weekday - first) % 7 + 7 * (n - 1)
    for weekday in days.last:
        mask |= 1 << length - (first + length - 1 - weekday) % 7
    return mask
