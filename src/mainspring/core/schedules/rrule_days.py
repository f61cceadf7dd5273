"""Which days of a year a recurrence rule names, as one mask: bit 1 is the first of January.

Each part of a rule is a mask of its own, and the days are what all of them have in common. A year
costs some dozens of operations on whole masks, whatever the rule lists.
"""

from __future__ import annotations

from calendar import isleap
from datetime import date
from functools import lru_cache

from mainspring.core.schedules.rrule_syntax import Freq, Rule

_LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LEAP_LENGTHS = (31, 29, *_LENGTHS[2:])
_EACH_SEVENTH = sum(1 << 7 * n for n in range(54))
_WEEK = (1 << 7) - 1


def month_lengths(year: int) -> tuple[int, ...]:
    return _LEAP_LENGTHS if isleap(year) else _LENGTHS


def matching_days(
    year: int,
    rule: Rule,
    *,
    months: tuple[int, ...],
    month_days: tuple[int, ...],
    weekdays: tuple[tuple[int, int], ...],
) -> int:
    """The days of a year; months, days of months and weekdays with DTSTART's put in."""
    lengths = month_lengths(year)
    size = sum(lengths)
    days = (2 << size) - 2
    if months:
        days &= _of_months(months, lengths)
    if month_days:
        days &= _of_month_days(month_days, lengths)
    if rule.year_days:
        days &= _numbered(rule.year_days, size)
    if rule.weeks:
        days &= _of_weeks(year, rule, size)
    if weekdays:
        in_year = rule.freq is Freq.YEARLY and not rule.months
        spans = [(0, size)] if in_year else _spans(lengths)
        days &= _of_weekdays(year, weekdays, spans, size)
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
