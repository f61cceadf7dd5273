"""Finding the wall times of a cron expression by arithmetic on bit masks.

There are only fourteen calendars: a year starts on one of seven weekdays and is leap or not. So
the matching days of a year are worked out once for each of the fourteen, as a mask for each
month, and a search over decades (29 February on a Monday) takes one look-up a year.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from functools import lru_cache

from mainspring.schedules.cron_syntax import DaysOfMonth, DaysOfWeek, Fields, parse_cron

__all__ = ["Search", "search_for"]

_SECOND = timedelta(seconds=1)
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_CYCLE = 400  # years after which the calendar repeats: nothing found in one, nothing ever
_LAST_YEAR = 9999
_NO_DAYS = (0,) * 13
_Triple = tuple[int, int, int]


@lru_cache(maxsize=4096)
def search_for(expression: str, key: str) -> Search:
    """The search of an expression: kept, because schedules are read from stores again and again."""
    return Search(parse_cron(expression, key))


class Search:
    """The wall times that match an expression, nearest first in either direction."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._hours, self._minutes, self._seconds = fields.hours, fields.minutes, fields.seconds
        self._years = fields.years
        self._first = _lowest(fields.hours), _lowest(fields.minutes), _lowest(fields.seconds)
        self._last = _highest(fields.hours), _highest(fields.minutes), _highest(fields.seconds)
        self._calendars: dict[tuple[int, bool], tuple[int, ...]] = {}

    def later(self, wall: datetime) -> datetime | None:
        """The first match strictly later than a naive wall time; None past the year 9999."""
        try:
            wall = wall.replace(microsecond=0, fold=0) + _SECOND
        except OverflowError:
            return None
        year, month, day = wall.year, wall.month, wall.day
        if self._days(year)[month] >> day & 1:
            time = self._time_from(wall.hour, wall.minute, wall.second)
            if time is not None:
                return datetime(year, month, day, *time)
        found = self._day_from(year, month, day + 1)
        return None if found is None else datetime(*found, *self._first)

    def earlier(self, wall: datetime) -> datetime | None:
        """The last match strictly earlier than a naive wall time."""
        try:
            wall = (wall - timedelta.resolution).replace(microsecond=0, fold=0)
        except OverflowError:
            return None
        year, month, day = wall.year, wall.month, wall.day
        if self._days(year)[month] >> day & 1:
            time = self._time_to(wall.hour, wall.minute, wall.second)
            if time is not None:
                return datetime(year, month, day, *time)
        found = self._day_to(year, month, day - 1)
        return None if found is None else datetime(*found, *self._last)

    def _time_from(self, hour: int, minute: int, second: int) -> _Triple | None:
        """The first matching time of day at or after one."""
        if self._hours >> hour & 1:
            if self._minutes >> minute & 1:
                left = self._seconds >> second
                if left:
                    return hour, minute, second + _lowest(left)
            left = self._minutes >> minute + 1
            if left:
                return hour, minute + 1 + _lowest(left), self._first[2]
        left = self._hours >> hour + 1
        return (hour + 1 + _lowest(left), *self._first[1:]) if left else None

    def _time_to(self, hour: int, minute: int, second: int) -> _Triple | None:
        """The last matching time of day at or before one."""
        if self._hours >> hour & 1:
            if self._minutes >> minute & 1:
                left = self._seconds & (2 << second) - 1
                if left:
                    return hour, minute, _highest(left)
            left = self._minutes & (1 << minute) - 1
            if left:
                return hour, _highest(left), self._last[2]
        left = self._hours & (1 << hour) - 1
        return (_highest(left), *self._last[1:]) if left else None

    def _day_from(self, year: int, month: int, day: int) -> _Triple | None:
        """The first matching day at or after one (`day` may lie one past its month)."""
        left = self._days(year)[month] >> day
        if left:
            return year, month, day + _lowest(left)
        for at in self._years_from(year):
            days = self._days(at)
            if days[0]:
                for month_at in range(month + 1 if at == year else 1, 13):
                    if days[month_at]:
                        return at, month_at, _lowest(days[month_at])
        return None

    def _day_to(self, year: int, month: int, day: int) -> _Triple | None:
        """The last matching day at or before one (`day` may be 0)."""
        left = self._days(year)[month] & (2 << day) - 1
        if left:
            return year, month, _highest(left)
        for at in self._years_to(year):
            days = self._days(at)
            if days[0]:
                for month_at in range(month - 1 if at == year else 12, 0, -1):
                    if days[month_at]:
                        return at, month_at, _highest(days[month_at])
        return None

    def _years_from(self, year: int) -> Sequence[int]:
        if self._years is None:
            return range(year, min(year + _CYCLE, _LAST_YEAR) + 1)
        return self._years[bisect_left(self._years, year) :]

    def _years_to(self, year: int) -> Sequence[int]:
        if self._years is None:
            return range(year, max(year - _CYCLE, 1) - 1, -1)
        return self._years[: bisect_right(self._years, year)][::-1]

    def _days(self, year: int) -> tuple[int, ...]:
        """A mask of matching days for each month of the year; at 0, whether there are any."""
        if self._years is not None and not _contains(self._years, year):
            return _NO_DAYS
        calendar = _calendar_of(year)
        days = self._calendars.get(calendar)
        if days is None:
            days = self._calendars[calendar] = _matching_days(self.fields, *calendar)
        return days


@lru_cache(maxsize=None)
def _calendar_of(year: int) -> tuple[int, bool]:
    """Which of the fourteen calendars a year has: the weekday of 1 January (0 is Sunday), leap."""
    return date(year, 1, 1).isoweekday() % 7, isleap(year)


def _matching_days(fields: Fields, weekday: int, leap: bool) -> tuple[int, ...]:
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


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _highest(mask: int) -> int:
    return mask.bit_length() - 1


def _contains(ordered: tuple[int, ...], value: int) -> bool:
    at = bisect_left(ordered, value)
    return at < len(ordered) and ordered[at] == value
