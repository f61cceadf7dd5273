"""Cron expressions and recurrence rules in plain English."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from math import prod

from mainspring.core.schedules.cron_syntax import (
    HOUR,
    MINUTE,
    MONTH,
    MONTH_DAY,
    SECOND,
    WEEK_DAY,
    YEAR,
    Field,
    resolve_hash,
    split_cron,
    values_of,
)
from mainspring.core.schedules.rrule_syntax import Freq, Rule

_MOST_TIMES = 6
_BY_UNIT = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": MONTH_DAY}
_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
_ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth"}


# Cron


def cron_in_words(expression: str, key: str = "") -> str:
    """`0 9 * * 1-5` → `At 09:00, Monday through Friday`. The expression must be a valid one."""
    *texts, last, year = split_cron(expression)
    joined = "+" if last.startswith("+") else ""
    fields = (SECOND, MINUTE, HOUR, MONTH_DAY, MONTH, WEEK_DAY)
    second, minute, hour, month_day, month, week_day = (
        resolve_hash(field, text, key)
        for field, text in zip(fields, [*texts, last.removeprefix("+")], strict=True)
    )
    phrases = [
        _time(second, minute, hour),
        _days(month_day, joined + week_day),
        _months(month),
        _years(year),
    ]
    text = ", ".join(phrase for phrase in phrases if phrase)
    return text[0].upper() + text[1:]


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of a field: numbers and ranges (both ends) in order, and those with a step, as its
    length and the text before it. A range may reach over the end of the field."""

    ranges: tuple[tuple[int, int], ...] = ()
    steps: tuple[tuple[int, str], ...] = ()

    @property
    def fixed(self) -> bool:
        """Whether there are numbers and ranges alone."""
        return not self.steps

    @property
    def single(self) -> bool:
        """Whether there are numbers alone."""
        return self.fixed and all(low == high for low, high in self.ranges)

    @classmethod
    def of(cls, numbers: Iterable[int]) -> _Items:
        return cls(tuple((number, number) for number in sorted(numbers)))


def _items(field: Field, text: str) -> _Items | None:
    """None where the items match every value of the field."""
    ranges: list[tuple[int, int]] = []
    steps: list[tuple[int, str]] = []
    matched: set[int] = set()
    for item in dict.fromkeys(text.split(",")):
        values = values_of(field, item)
        matched.update(values)
        body, _, step = item.partition("/")
        uneven = step and (field.high - field.low + 1) % int(step)
        # `*/25` is not "every 25 minutes": it begins again with each hour.
        if len(values) == 1 or (len(values) <= _MOST_TIMES and uneven):
            ranges += [(value, value) for value in values]
        elif int(step or 1) > 1:
            steps.append((int(step), body))
        elif body[0] not in "*?":
            low, _, high = body.partition("-")
            ranges.append((_number(field, low), _number(field, high) if high else field.high))
    if len(matched) == field.high - field.low + (field is not WEEK_DAY):
        return None
    return _Items(tuple(sorted(set(ranges))), tuple(steps))


def _number(field: Field, text: str) -> int:
    return field.names[text] if text.isalpha() else int(text)


def _time(second: str, minute: str, hour: str) -> str:
    seconds, minutes, hours = _items(SECOND, second), _items(MINUTE, minute), _items(HOUR, hour)
    if times := _clock_times(seconds, minutes, hours):
        return "at " + _list(times)
    on_the_minute = seconds == _Items(((0, 0),))
    phrases = []
    if not on_the_minute:
        phrases.append(_pattern(seconds, "second", "at"))
        if minutes is None and seconds is not None and seconds.fixed:
            phrases[-1] += " of every minute"
    if on_the_minute:
        phrases.append(_pattern(minutes, "minute", "at"))
    elif minutes is not None:
        phrases.append(_within(minutes, "minute"))
    if hours is None:
        if minutes is not None and minutes.fixed:
            phrases[-1] += " past every hour" if on_the_minute else " of every hour"
    elif on_the_minute and minutes is not None and minutes.fixed:
        phrases.append(_pattern(hours, "hour", "in"))
    else:
        phrases.append(_within(hours, "hour"))
    return ", ".join(phrases)


def _clock_times(seconds: _Items | None, minutes: _Items | None, hours: _Items | None) -> list[str]:
    """The times of day, where they are few and fixed; otherwise none."""
    if hours is None or minutes is None or seconds is None:
        return []
    if not (hours.single and minutes.single and seconds.single):
        return []
    fields = (hours, minutes, seconds)
    if prod(len(items.ranges) for items in fields) > _MOST_TIMES:  # before 86,400 times are made
        return []
    times = sorted(product(*([low for low, _ in items.ranges] for items in fields)))
    return [f"{h:02}:{m:02}" + (f":{s:02}" if s else "") for h, m, s in times]


def _pattern(items: _Items | None, unit: str, at: str) -> str:
    """Hours, minutes or seconds: `every 5 minutes, and at minutes 7 and 12`."""
    if items is None:
        return f"every {unit}"
    steps = [f"every {step} {unit}s{_bounds(body, unit, step)}" for step, body in items.steps]
    return _phrases(steps, f"{at} {_numbers(items.ranges, unit)}" if items.ranges else "")


def _within(items: _Items, unit: str) -> str:
    """The hours or minutes in which a shorter pattern repeats: `in every third hour`."""
    steps = [
        f"in every {_nth(step)} {unit}{_bounds(body, unit, step)}" for step, body in items.steps
    ]
    return _phrases(steps, f"in {_numbers(items.ranges, unit)}" if items.ranges else "")


def _bounds(body: str, unit: str, step: int) -> str:
    """Where an item with a step begins and ends: ` from minute 5 through 30`. Nothing where it goes
    on over the end of the field in the same step: `*/15` is every 15 minutes, `*/7` is not every 7
    minutes."""
    field = _BY_UNIT[unit]
    start, _, end = body.partition("-")
    first = field.low if start in ("*", "?") else int(start)
    goes_on = (field.high - field.low + 1) % step == 0 and first - field.low < step
    if not end and not goes_on and field is not MONTH_DAY:  # of days, "of the month" says it
        end = str(field.high)
    if first == field.low and not end:
        return ""
    return f" from {unit} {first}" + (f" through {int(end)}" if end else "")


def _phrases(steps: list[str], numbers: str) -> str:
    found = [*steps, numbers] if numbers else steps
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])}, and {found[-1]}"


def _numbers(ranges: Sequence[tuple[int, int]], unit: str, last: str = "and") -> str:
    """`minute 5`, `minutes 5, 10 and 20 through 30`, `day 5 or 10`."""
    words = _ranges(ranges, last)
    return f"{unit if words.isdigit() or last == 'or' else f'{unit}s'} {words}"


def _ranges(ranges: Sequence[tuple[int, int]], last: str = "and") -> str:
    found = _merged(ranges)
    return _list(
        [str(low) if low == high else f"{low} through {high}" for low, high in found], last
    )


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Numbers and ranges in order, without those that lie in another. Three or more numbers that
    follow each other are a range, and a range of two is two numbers."""
    found: list[tuple[int, int]] = []
    over_the_end = [(low, high) for low, high in ranges if low > high]
    for low, high in sorted(one for one in ranges if one not in over_the_end):
        if any(low >= start or high <= end for start, end in over_the_end):
            continue
        if found and low <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    spread = [
        [(low, low), (high, high)] if high - low == 1 else [(low, high)] for low, high in found
    ]
    return [one for part in spread for one in part] + over_the_end


def _days(month_day: str, week_day: str) -> str:
    both = week_day.startswith("+") or month_day[0] in "*?" or week_day[0] in "*?"
    by_number, by_week = _month_days(month_day), _week_days(week_day.removeprefix("+"))
    if not (by_number and by_week) and not both:
        return ""  # either is enough, and one of them is every day
    on_days = f"on {by_number} of the month"
    if not by_week:
        return on_days if by_number else ""
    if not by_number:
        plain_range = len(by_week) == 1 and " through " in by_week[0]
        return _weekdays("" if plain_range else "on ", by_week, "and")
    return _weekdays(f"{on_days} if it is " if both else f"{on_days} or on ", by_week, "or")


def _month_days(text: str) -> str:
    """The days of the month; empty where they are all."""
    special, plain = [], []
    for item in dict.fromkeys(text.split(",")):
        if item.startswith("L") or item.endswith("W"):
            special.append(_special_day(item))
        else:
            plain.append(item)
    words = []
    if plain:
        items = _items(MONTH_DAY, ",".join(item.replace("L", "31") for item in plain))
        if items is None:
            return ""
        words += [
            f"every {_nth(step)} day{_bounds(body, 'day', step)}" for step, body in items.steps
        ]
        if items.ranges:
            words.append(_numbers(items.ranges, "day"))
    return _list([*words, *dict.fromkeys(special)]).replace("through 31", "through the last day")


def _special_day(item: str) -> str:
    near = item.endswith("W")
    if not item.startswith("L"):
        return f"the weekday nearest to day {int(item[:-1])}"
    back = int(item.removeprefix("L").removesuffix("W").removeprefix("-") or 0)
    if back == 0:
        return "the last weekday" if near else "the last day"
    day = "the day before the last" if back == 1 else f"the day {back} days before the last"
    return f"the weekday nearest to {day}" if near else day


def _week_days(text: str) -> list[str]:
    """The days of the week, in words; empty where they are all."""
    plain = [item for item in text.split(",") if "#" not in item and "L" not in item]
    words = []
    if plain:
        items = _items(WEEK_DAY, ",".join(plain))
        if items is None:
            return []
        words += _names(WEEK_DAY, ",".join(plain), _DAYS)
    for item in dict.fromkeys(text.split(",")):
        if "#" in item or "L" in item:
            days, _, nth = item.partition("#")
            which = _nth(int(nth)) if nth.isdigit() else "last"
            numbers = _in_order(WEEK_DAY, days.strip("L"))
            words.append(f"the {which} {_list([_DAYS[number] for number in numbers])}")
    return list(dict.fromkeys(words))


def _weekdays(before: str, words: list[str], last: str) -> str:
    of_the_month = " of the month" if words[-1].startswith("the ") else ""
    return f"{before}{_list(words, last)}{of_the_month}"


def _months(text: str) -> str:
    if _items(MONTH, text) is None:
        return ""
    return "in " + _list(_names(MONTH, text, _MONTHS))


def _names(field: Field, text: str, names: Sequence[str]) -> list[str]:
    """Months or weekdays. Those of a step are so few that they are best spelt out."""
    ranges: list[tuple[int, int]] = []
    for item in text.split(","):
        numbers = _in_order(field, item)
        if "/" in item and item.rpartition("/")[2] != "1":
            ranges += [(number, number) for number in numbers]
        else:
            ranges.append((numbers[0], numbers[-1]))
    return _named(ranges, names, field.low)


def _named(ranges: Sequence[tuple[int, int]], names: Sequence[str], low: int) -> list[str]:
    words = []
    for first, last in _merged(ranges):
        name = names[first - low]
        words.append(name if first == last else f"{name} through {names[last - low]}")
    return words


def _in_order(field: Field, item: str) -> list[int]:
    """The values of an item as they follow each other: `FRI-MON` begins with Friday."""
    numbers = values_of(field, item)
    start = item.partition("/")[0].partition("-")[0]
    if start in ("*", "?"):
        return numbers
    first = _number(field, start) % 7 if field is WEEK_DAY else _number(field, start)
    return [n for n in numbers if n >= first] + [n for n in numbers if n < first]


def _years(text: str) -> str:
    if text in ("*", "?") or (items := _items(YEAR, text)) is None:
        return ""
    steps = []
    for step, body in items.steps:
        start, _, end = body.partition("-")
        first = YEAR.low if start in ("*", "?") else int(start)
        through = f" through {end}" if end else ""
        steps.append(f"in every {_nth(step)} year from {first}{through}")
    return _phrases(steps, f"in {_ranges(items.ranges)}" if items.ranges else "")


# Recurrence rules


def rule_in_words(rule: Rule, dtstart: datetime | None) -> str:
    """`FREQ=WEEKLY;INTERVAL=2;BYDAY=MO` → `Every 2 weeks, on Monday, at 09:00`."""
    rule, unit = _with_implied_days(rule, dtstart), rule.freq.period
    phrases = [f"Every {rule.interval} {unit}s" if rule.interval > 1 else f"Every {unit}"]
    if rule.months:
        phrases.append("in " + _list(_named(_Items.of(rule.months).ranges, _MONTHS, MONTH.low)))
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


def _with_implied_days(rule: Rule, dtstart: datetime | None) -> Rule:
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


def _rule_days(rule: Rule) -> str:
    """The days of a rule. Parts that are given together must all match: the first names the days,
    and the others are conditions."""
    each_day = rule.freq is Freq.DAILY  # "every day, on Monday" is no English
    found: list[str] = []

    def last_word() -> str:
        return "or" if found or each_day else "and"

    if rule.month_days:
        found.append(_counted(rule.month_days, "day", "month", last_word()))
    if rule.year_days:
        found.append(_counted(rule.year_days, "day", "year", last_word()))
    if rule.weekdays:
        found.append(_list(_rule_weekdays(rule.weekdays), last_word()))
    phrases = [] if each_day else [f"on {days}" for days in found[:1]]
    if conditions := found[len(phrases) :]:
        phrases.append("if it is " + " and it is ".join(conditions))
    return " ".join(phrases)


def _rule_weekdays(weekdays: Iterable[tuple[int, int]]) -> list[str]:
    """Those of every week first, then those that are counted, from the end last."""
    found = sorted(weekdays, key=lambda one: (one[0] < 0, one))
    names = [*_DAYS[1:], _DAYS[0]]  # a rule's week begins with Monday
    words = _named([(day, day) for nth, day in found if nth == 0], names, 0)
    return words + [f"the {_nth(nth)} {names[day]}" for nth, day in found if nth]


def _counted(numbers: Iterable[int], unit: str, whole: str, last: str = "and") -> str:
    """`day 5 of the month`, `the first and the last day of the month`."""
    found = sorted(numbers, key=lambda number: (number < 0, number))
    if found[-1] < 0:
        return f"{_list([f'the {_nth(number)}' for number in found], last)} {unit} of the {whole}"
    return f"{_numbers(_Items.of(found).ranges, unit, last)} of the {whole}"


def _rule_times(rule: Rule, dtstart: datetime | None) -> str:
    start = dtstart or datetime.min
    hours = _given_or(rule.hours, None if rule.freq >= Freq.HOURLY else start.hour)
    minutes = _given_or(rule.minutes, None if rule.freq >= Freq.MINUTELY else start.minute)
    seconds = _given_or(rule.seconds, None if rule.freq >= Freq.SECONDLY else start.second)
    if times := _clock_times(seconds, minutes, hours):
        return "at " + _list(times)
    phrases = []
    zero = _Items.of([0])
    if seconds is not None and seconds != zero:
        phrases.append("at " + _numbers(seconds.ranges, "second"))
    on_the_hour = rule.freq is Freq.HOURLY and minutes == zero and hours is None
    if minutes is not None and not on_the_hour:
        at = "at" if rule.freq <= Freq.HOURLY else "in"
        phrases.append(f"{at} " + _numbers(minutes.ranges, "minute"))
    if hours is not None:
        phrases.append("in " + _numbers(hours.ranges, "hour"))
    return ", ".join(phrases)


def _given_or(given: tuple[int, ...], default: int | None) -> _Items | None:
    if given:
        return _Items.of(given)
    return None if default is None else _Items.of([default])


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
