"""Wall times as bit masks: a set of times on a set of days, searched by arithmetic.

Bit `n` of a mask says that hour, minute, second or day `n` matches. A year is thirteen masks of
days: one for each month, and at 0 whether the year has any day at all, so that a search over
decades (29 February on a Monday) takes one look-up a year.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

Days = tuple[int, ...]
NO_DAYS: Days = (0,) * 13
_SECOND = timedelta(seconds=1)
CYCLE = 400  # years after which the calendar repeats: nothing found in one, nothing ever
_LAST_YEAR = 9999
_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_Triple = tuple[int, int, int]


class WallTimes(ABC):
    """All wall times with these hours, minutes and seconds on the days that `days_of` gives."""

    def __init__(self, hours: int, minutes: int, seconds: int) -> None:
        self.hours, self.minutes, self.seconds = hours, minutes, seconds
        self._first = _lowest(hours), _lowest(minutes), _lowest(seconds)
        self._last = _highest(hours), _highest(minutes), _highest(seconds)

    @abstractmethod
    def days_of(self, year: int) -> Days:
        """The masks of a year: see the module's text."""

    def years_from(self, year: int) -> Sequence[int]:
        """The years worth a look at or after one."""
        return range(year, min(year + CYCLE, _LAST_YEAR) + 1)

    def years_to(self, year: int) -> Sequence[int]:
        """The years worth a look at or before one, newest first."""
        return range(year, max(year - CYCLE, 1) - 1, -1)

    def later(self, wall: datetime) -> datetime | None:
        """The first match strictly later than a naive wall time; None past the year 9999."""
        try:
            wall = wall.replace(microsecond=0, fold=0) + _SECOND
        except OverflowError:
            return None
        year, month, day = wall.year, wall.month, wall.day
        if self.days_of(year)[month] >> day & 1:
            time = self._time_from(wall.hour, wall.minute, wall.second)
            if time is not None:
                return datetime(year, month, day, *time)
        next_day = self._day_from(year, month, day + 1)
        return None if next_day is None else datetime(*next_day, *self._first)

    def earlier(self, wall: datetime) -> datetime | None:
        """The last match strictly earlier than a naive wall time."""
        try:
            wall = (wall - timedelta.resolution).replace(microsecond=0, fold=0)
        except OverflowError:
            return None
        year, month, day = wall.year, wall.month, wall.day
        if self.days_of(year)[month] >> day & 1:
            time = self._time_to(wall.hour, wall.minute, wall.second)
            if time is not None:
                return datetime(year, month, day, *time)
        last_day = self._day_to(year, month, day - 1)
        return None if last_day is None else datetime(*last_day, *self._last)

    def count(self, after: datetime, until: datetime) -> int:
        """How many matches lie in `(after, until]`, by whole months and then by masks."""
        if until <= after:
            return 0
        origin = after.year
        return self._count_to(until, origin) - self._count_to(after, origin)

    def _count_to(self, wall: datetime, origin: int) -> int:
        """How many matches there are from the first of January of `origin` to a wall time."""
        days = 0
        for year in range(origin, wall.year + 1):
            masks = self.days_of(year)
            months = masks[1:] if year < wall.year else masks[1 : wall.month]
            days += sum(month.bit_count() for month in months)
        month = self.days_of(wall.year)[wall.month]
        days += (month & (1 << wall.day) - 1).bit_count()
        in_minute = self.seconds.bit_count()
        in_hour = self.minutes.bit_count() * in_minute
        matches = days * self.hours.bit_count() * in_hour
        if month >> wall.day & 1:
            matches += (self.hours & (1 << wall.hour) - 1).bit_count() * in_hour
            if self.hours >> wall.hour & 1:
                matches += (self.minutes & (1 << wall.minute) - 1).bit_count() * in_minute
                if self.minutes >> wall.minute & 1:
                    matches += (self.seconds & (2 << wall.second) - 1).bit_count()
        return matches

    def _time_from(self, hour: int, minute: int, second: int) -> _Triple | None:
        """The first matching time of day at or after one."""
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1:
                left = self.seconds >> second
                if left:
                    return hour, minute, second + _lowest(left)
            left = self.minutes >> minute + 1
            if left:
                return hour, minute + 1 + _lowest(left), self._first[2]
        left = self.hours >> hour + 1
        return (hour + 1 + _lowest(left), *self._first[1:]) if left else None

    def _time_to(self, hour: int, minute: int, second: int) -> _Triple | None:
        """The last matching time of day at or before one."""
        if self.hours >> hour & 1:
            if self.minutes >> minute & 1:
                left = self.seconds & (2 << second) - 1
                if left:
                    return hour, minute, _highest(left)
            left = self.minutes & (1 << minute) - 1
            if left:
                return hour, _highest(left), self._last[2]
        left = self.hours & (1 << hour) - 1
        return (_highest(left), *self._last[1:]) if left else None

    def _day_from(self, year: int, month: int, day: int) -> _Triple | None:
        """The first matching day at or after one (`day` may lie one past its month)."""
        left = self.days_of(year)[month] >> day
        if left:
            return year, month, day + _lowest(left)
        for at in self.years_from(year):
            days = self.days_of(at)
            if days[0]:
                for month_at in range(month + 1 if at == year else 1, 13):
                    if days[month_at]:
                        return at, month_at, _lowest(days[month_at])
        return None

    def _day_to(self, year: int, month: int, day: int) -> _Triple | None:
        """The last matching day at or before one (`day` may be 0)."""
        left = self.days_of(year)[month] & (2 << day) - 1
        if left:
            return year, month, _highest(left)
        for at in self.years_to(year):
            days = self.days_of(at)
            if days[0]:
                for month_at in range(month - 1 if at == year else 12, 0, -1):
                    if days[month_at]:
                        return at, month_at, _highest(days[month_at])
        return None


def month_lengths(leap: bool) -> tuple[int, ...]:
    return (31, 29, *_LENGTHS[2:]) if leap else _LENGTHS


def mask_of(values: Iterable[int]) -> int:
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask


def bits(mask: int) -> list[int]:
    """The values of a mask, in order."""
    return [n for n in range(mask.bit_length()) if mask >> n & 1]


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1


def _highest(mask: int) -> int:
    return mask.bit_length() - 1
