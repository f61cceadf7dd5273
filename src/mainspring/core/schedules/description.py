"""Cron expressions and recurrence rules in plain English.

Words are made from the numbers that a schedule matches, not from its text: `*/15` and `0,15,30,45`
are both "every 15 minutes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from itertools import pairwise, product
from math import prod

from mainspring.core.schedules.calendar import bits
from mainspring.core.schedules.cron_syntax import (
    HOUR,
    MINUTE,
    MONTH,
    MONTH_DAY,
    SECOND,
    WEEK_DAY,
    YEAR,
    DaysOfMonth,
    DaysOfWeek,
    Field,
    Fields,
)
from mainspring.core.schedules.rrule import Freq, Rule, with_implied_days

_MOST_TIMES = 6
_UNITS = {SECOND: "second", MINUTE: "minute", HOUR: "hour", MONTH_DAY: "day"}
_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
_ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}

Numbers = Sequence[int] | None
"""Numbers in order, or None for all of a field."""


# Cron


def cron_in_words(fields: Fields) -> str:
    """`0 9 * * 1-5` → `At 09:00, Monday through Friday`."""
    months = _numbers_of(fields.months, MONTH)
    phrases = [_time(fields), _days(fields), "" if months is None else _months(months)]
    if fields.years is not None:
        phrases.append(f"in {_years(fields.years)}")
    text = ", ".join(phrase for phrase in phrases if phrase)
    return text[0].upper() + text[1:]


def _numbers_of(mask: int, field: Field) -> Numbers:
    numbers = bits(mask)
    return None if len(numbers) == _size(field) else numbers


def _size(field: Field) -> int:
    return field.high - field.low + (field is not WEEK_DAY)


def _time(fields: Fields) -> str:
    seconds = _numbers_of(fields.seconds, SECOND)
    minutes = _numbers_of(fields.minutes, MINUTE)
    hours = _numbers_of(fields.hours, HOUR)
    if times := _clock_times(seconds, minutes, hours):
        return "at " + _list(times)
    on_the_minute = seconds == [0]
    if on_the_minute:
        phrases = [_often(minutes, MINUTE)]
    else:
        phrases = [_often(seconds, SECOND)]
        if minutes is not None:
            phrases.append(_within(minutes, MINUTE))
        elif phrases[0].startswith("at "):
            phrases[0] += " of every minute"
    if hours is not None:
        at_minutes = on_the_minute and phrases[0].startswith("at ")
        phrases.append(_often(hours, HOUR, "in") if at_minutes else _within(hours, HOUR))
    elif minutes is not None and phrases[-1].startswith(("at ", "in minute")):
        phrases[-1] += " past every hour" if on_the_minute else " of every hour"
    return ", ".join(phrases)


def _clock_times(seconds: Numbers, minutes: Numbers, hours: Numbers) -> list[str]:
    """The times of day, where they are few; otherwise none."""
    if hours is None or minutes is None or seconds is None:
        return []
    fields = (hours, minutes, seconds)
    if prod(map(len, fields)) > _MOST_TIMES:  # before 86,400 times are made
        return []
    return [f"{h:02}:{m:02}" + (f":{s:02}" if s else "") for h, m, s in sorted(product(*fields))]


def _often(numbers: Numbers, field: Field, at: str = "at") -> str:
    """`every minute`, `every 5 minutes from minute 2`, `at minutes 7 and 12`."""
    unit = _UNITS[field]
    if numbers is None:
        return f"every {unit}"
    spread = _spread(numbers, field)
    if spread is None:
        return f"{at} {_listed(numbers, unit, field=field)}"
    return f"every {_step(numbers)} {unit}s{spread}"


def _within(numbers: Sequence[int], field: Field) -> str:
    """The hours or minutes in which a shorter pattern repeats: `in every third hour`."""
    spread = _spread(numbers, field)
    if spread is None:
        return f"in {_listed(numbers, _UNITS[field], field=field)}"
    return f"in every {_nth(_step(numbers))} {_UNITS[field]}{spread}"


def _step(numbers: Sequence[int]) -> int:
    """The distance of numbers that follow each other in one distance; otherwise 0."""
    distances = {later - number for number, later in pairwise(numbers)}
    return distances.pop() if len(distances) == 1 else 0


def _spread(numbers: Sequence[int], field: Field) -> str | None:
    """Where numbers of one distance begin and end: ` from minute 5 through 30`. None where they are
    better listed: `*/25` is not "every 25 minutes", because it begins again with each hour."""
    step, first, last = _step(numbers), numbers[0], numbers[-1]
    fits = step > 1 and _size(field) % step == 0 and (len(numbers) > 2 or first == field.low)
    goes_on = fits and first - field.low < step and last + step > field.high
    if step < 2 or (not goes_on and len(numbers) <= _MOST_TIMES):
        return None
    ends = not goes_on and (field is not MONTH_DAY or last + step <= field.high)
    if first == field.low and not ends:
        return ""
    return f" from {_UNITS[field]} {first}" + (f" through {last}" if ends else "")


def _listed(
    numbers: Sequence[int], unit: str, last: str = "and", *, field: Field | None = None
) -> str:
    """`minute 5`, `minutes 5, 10 and 20 through 30`, `day 5 or 10`."""
    words = _list(_names(numbers, str, field), last)
    return f"{unit if words.isdigit() or last == 'or' else f'{unit}s'} {words}"


def _names(
    numbers: Sequence[int], name: Callable[[int], str], field: Field | None = None
) -> list[str]:
    """The numbers by their names. Three or more that follow each other are a range, which may reach
    over the end of the `field`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    if field is not None and len(ranges) > 1 and len(ranges[0]) + len(ranges[-1]) > 2:
        begin, end = ranges[0][0], ranges[-1][-1]
        if begin == field.low and end == field.low + _size(field) - 1:
            ranges[-1] += ranges.pop(0)
    words: list[str] = []
    for numbers in ranges:
        if len(numbers) < 3:
            words += map(name, numbers)
        else:
            words.append(f"{name(numbers[0])} through {name(numbers[-1])}")
    return words


def _days(fields: Fields) -> str:
    by_number, by_week = _month_days(fields.month_days), _week_days(fields.week_days)
    if not (by_number and by_week) and not fields.both_days:
        return ""  # either is enough, and one of them is every day
    on_days = f"on {by_number} of the month"
    if not by_week:
        return on_days if by_number else ""
    if not by_number:
        plain_range = len(by_week) == 1 and " through " in by_week[0]
        return _weekdays("" if plain_range else "on ", by_week, "and")
    between = " if it is " if fields.both_days else " or on "
    return _weekdays(on_days + between, by_week, "or")


def _month_days(days: DaysOfMonth) -> str:
    """The days of the month; empty where they are all."""
    numbers = _numbers_of(days.days, MONTH_DAY)
    if numbers is None:
        return ""
    words = []
    if numbers:
        spread = _spread(numbers, MONTH_DAY)
        often = None if spread is None else f"every {_nth(_step(numbers))} day{spread}"
        words.append(often or _listed(numbers, "day").replace("through 31", "through the last day"))
    words += [_from_end(back) for back in days.from_end]
    words += [f"the weekday nearest to day {day}" for day in days.near]
    words += [
        f"the weekday nearest to {_from_end(back)}" if back else "the last weekday"
        for back in days.near_from_end
    ]
    return _list(words)


def _from_end(back: int) -> str:
    if back < 2:
        return "the day before the last" if back else "the last day"
    return f"the day {back} days before the last"


def _week_days(days: DaysOfWeek) -> list[str]:
    """The days of the week, in words; empty where they are all."""
    numbers = _numbers_of(days.days, WEEK_DAY)
    if numbers is None:
        return []
    words = _names(numbers, _DAYS.__getitem__, WEEK_DAY)
    words += [f"the {_nth(nth)} {_DAYS[day]}" for day, nth in days.nth]
    return words + [f"the last {_DAYS[day]}" for day in days.last]


def _weekdays(before: str, words: list[str], last: str) -> str:
    of_the_month = " of the month" if words[-1].startswith("the ") else ""
    return f"{before}{_list(words, last)}{of_the_month}"


def _months(numbers: Sequence[int]) -> str:
    return "in " + _list(_names(numbers, lambda month: _MONTHS[month - 1], MONTH))


def _years(items: Iterable[Sequence[int]]) -> str:
    words = []
    for years in items:
        step = _step(years[:3])
        if len(years) <= _MOST_TIMES:
            words += _names(years, str)
        elif step == 1:
            words.append(f"{years[0]} through {years[-1]}")
        else:
            through = f" through {years[-1]}" if years[-1] + step <= YEAR.high else ""
            words.append(f"every {_nth(step)} year from {years[0]}{through}")
    return _list(words)


# Recurrence rules


def rule_in_words(rule: Rule, dtstart: datetime | None) -> str:
    """`FREQ=WEEKLY;INTERVAL=2;BYDAY=MO` → `Every 2 weeks, on Monday, at 09:00`."""
    rule, unit = with_implied_days(rule, dtstart), rule.freq.period
    phrases = [f"Every {rule.interval} {unit}s" if rule.interval > 1 else f"Every {unit}"]
    if rule.months:
        phrases.append(_months(rule.months))
    if rule.weeks:
        phrases.append("in " + _counted(rule.weeks, "week", "year"))
    days = _rule_days(rule)
    if days:
        phrases.append(days)
    times = _rule_times(rule, dtstart)
    if times:
        phrases.append(times)
    if rule.positions:
        positions = sorted(rule.positions, key=lambda place: (place < 0, place))
        phrases.append(f"only the {_list([_nth(place) for place in positions])} of these")
    if rule.count is not None:
        phrases.append("once" if rule.count == 1 else f"{rule.count} times")
    if rule.until is not None:
        phrases.append(f"until {_stamp_in_words(rule.until)}")
    return ", ".join(phrases)


def _rule_days(rule: Rule) -> str:
    """The days of a rule. Parts that are given together must all match: the first names the days,
    and the others are conditions."""
    each_day = rule.freq is Freq.DAILY  # "every day, on Monday" is no English
    parts: list[str] = []

    def last_word() -> str:
        return "or" if parts or each_day else "and"

    if rule.month_days:
        parts.append(_counted(rule.month_days, "day", "month", last_word()))
    if rule.year_days:
        parts.append(_counted(rule.year_days, "day", "year", last_word()))
    if rule.weekdays:
        parts.append(_list(_rule_weekdays(rule.weekdays), last_word()))
    phrases = [] if each_day else [f"on {days}" for days in parts[:1]]
    if conditions := parts[len(phrases) :]:
        phrases.append("if it is " + " and it is ".join(conditions))
    return " ".join(phrases)


def _rule_weekdays(weekdays: Iterable[tuple[int, int]]) -> list[str]:
    """Those of every week first, then those that are counted, from the end last."""
    days = sorted(weekdays, key=lambda day: (day[0] < 0, day))
    names = [*_DAYS[1:], _DAYS[0]]  # a rule's week begins with Monday
    words = _names([day for nth, day in days if nth == 0], names.__getitem__)
    return words + [f"the {_nth(nth)} {names[day]}" for nth, day in days if nth]


def _counted(numbers: Iterable[int], unit: str, whole: str, last: str = "and") -> str:
    """`day 5 of the month`, `the first and the last day of the month`."""
    places = sorted(numbers, key=lambda number: (number < 0, number))
    if places[-1] < 0:
        return f"{_list([f'the {_nth(number)}' for number in places], last)} {unit} of the {whole}"
    return f"{_listed(places, unit, last)} of the {whole}"


def _rule_times(rule: Rule, dtstart: datetime | None) -> str:
    start, freq = dtstart or datetime.min, rule.freq
    hours = rule.hours or (None if freq >= Freq.HOURLY else (start.hour,))
    minutes = rule.minutes or (None if freq >= Freq.MINUTELY else (start.minute,))
    seconds = rule.seconds or (None if freq >= Freq.SECONDLY else (start.second,))
    if times := _clock_times(seconds, minutes, hours):
        return "at " + _list(times)
    phrases = []
    if seconds is not None and seconds != (0,):
        phrases.append("at " + _listed(seconds, "second"))
    on_the_hour = freq is Freq.HOURLY and minutes == (0,) and hours is None
    if minutes is not None and not on_the_hour:
        phrases.append(("at " if freq <= Freq.HOURLY else "in ") + _listed(minutes, "minute"))
    if hours is not None:
        phrases.append("in " + _listed(hours, "hour"))
    return ", ".join(phrases)


def _stamp_in_words(stamp: str) -> str:
    """`20271231T235900Z` → `2027-12-31 23:59 UTC`."""
    day, _, time = stamp.partition("T")
    words = f"{day[:4]}-{day[4:6]}-{day[6:8]}"
    if time:
        second = time[4:6]
        words += f" {time[:2]}:{time[2:4]}" + (f":{second}" if second != "00" else "")
    return words + (" UTC" if time.endswith("Z") else "")


# Words


def _nth(number: int) -> str:
    """`first`, `21st`, `last`, `second to last`."""
    if number < 0:
        return "last" if number == -1 else f"{_nth(-number)} to last"
    if number in _ORDINALS:
        return _ORDINALS[number]
    endings = {1: "st", 2: "nd", 3: "rd"}
    return f"{number}{'th' if number % 100 in (11, 12, 13) else endings.get(number % 10, 'th')}"


def _list(words: Sequence[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
