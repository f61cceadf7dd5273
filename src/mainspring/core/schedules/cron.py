"""Cron expressions as schedules.

There are only fourteen calendars: a year starts on one of seven weekdays and is leap or not. So
the matching days of a year are worked out once for each of the fourteen.
"""

from __future__ import annotations

from calendar import isleap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cache, lru_cache
from typing import Any, ClassVar

from mainspring.core.schedules import dst
from mainspring.core.schedules.base import WallClockSchedule
from mainspring.core.schedules.calendar import NO_DAYS, Days, WallTimes, month_lengths
from mainspring.core.schedules.cron_syntax import DaysOfMonth, DaysOfWeek, Fields, parse_cron
from mainspring.core.schedules.description import cron_in_words
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule


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
    for month, length in enumerate(month_lengths(leap), 1):
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


_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron(WallClockSchedule):
    """The times that a cron expression matches on the wall clock of `timezone`.

    An expression that cannot be read, an unknown zone, and one that can never fire within its
    bounds are `InvalidSchedule` when made.
    """

    kind: ClassVar[str] = "cron"

    expression: str
    _wall_times: CronWallTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        zone_named(self.timezone)
        object.__setattr__(self, "_wall_times", wall_times_of(self.expression, self.key))
        self._check()
        if self.next(_EARLIEST) is None:
            raise InvalidSchedule(f"{self.expression!r} can never fire: {self._why_never()}")

    def describe(self) -> str:
        return f"{cron_in_words(self.fields)}, {self.timezone}"

    @property
    def fields(self) -> Fields:
        """The expression as sets of numbers, with `H` as it is for the job."""
        return self._wall_times.fields

    @property
    def follows_clock(self) -> bool:
        return self.fields.follows_clock

    def _count(self, after: datetime, until: datetime) -> int | None:
        if until - after > dst.TEN_YEARS:
            return None
        zone = zone_named(self.timezone)
        return dst.count_instants(
            after, until, zone, self._wall_times.count, repeats=self.follows_clock
        )

    def _own_dict(self) -> dict[str, Any]:
        return {"expression": self.expression}

    def _why_never(self) -> str:
        bounded = self.start is not None or self.end is not None
        if bounded and self._wall_times.later(datetime.min) is not None:
            return f"no time of it lies {self._bounds_text()}"
        if self.fields.years is not None:
            return "no day of its years matches its day and month fields"
        return "no month of it has such a day"
