"""Cron expressions and recurrence rules in plain English."""

from __future__ import annotations

from datetime import datetime
from itertools import product

from mainspring.core.schedules.cron_syntax import (
    HOUR,
    MINUTE,
    MONTH,
    MONTH_DAY,
    SECOND,
    WEEK_DAY,
    Field,
    resolve_hash,
    split_cron,
    values_of,
)
from mainspring.core.schedules.rrule_syntax import Freq, Rule

__all__ = ["cron_in_words", "rule_in_words"]

_ANY = ("*", "?")
_MOST_TIMES = 6
_MONTHS = [
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
]
_DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
_ORDINALS = {"1": "first", "2": "second", "3": "third", "4": "fourth", "5": "fifth"}


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
        *_days(month_day, joined + week_day),
        "" if month in _ANY else "in " + _list([_named(MONTH, item) for item in month.split(",")]),
        "" if year in _ANY else "in " + _list([_numbers(item, "year") for item in year.split(",")]),
    ]
    text = ", ".join(phrase for phrase in phrases if phrase)
    return text[0].upper() + text[1:]


def _time(second: str, minute: str, hour: str) -> str:
    times = _clock_times(second, minute, hour)
    if times is not None:
        return "at " + _list(times)
    phrases = []
    if second.strip("0"):
        phrases.append(_pattern(second, "second"))
    if minute not in _ANY or not phrases:
        phrases.append(_pattern(minute, "minute"))
    if hour not in _ANY:
        phrases.append(_hours(hour))
    elif minute.replace(",", "").isdigit():
        phrases.append("past every hour")
    return " ".join(phrases) if phrases[-1] == "past every hour" else ", ".join(phrases)


def _clock_times(second: str, minute: str, hour: str) -> list[str] | None:
    """The times of day, where they are few and fixed."""
    lists = [part.split(",") for part in (hour, minute, second)]
    if not all(item.isdigit() for part in lists for item in part):
        return None
    times = sorted({(int(h), int(m), int(s)) for h, m, s in product(*lists)})
    if len(times) > _MOST_TIMES:
        return None
    return [f"{h:02}:{m:02}" + (f":{s:02}" if s else "") for h, m, s in times]


def _pattern(text: str, unit: str) -> str:
    """Minutes or seconds: `every 5 minutes`, `at minute 0 through 30`."""
    if text in _ANY:
        return f"every {unit}"
    if text[0] in "*?" and "," not in text:
        step = int(text.partition("/")[2])
        return f"every {step} {unit}s" if step > 1 else f"every {unit}"
    if "/" in text and "," not in text:
        body, _, every = text.partition("/")
        return f"every {every} {unit}s from {unit} {_numbers(body, unit)}"
    return f"at {unit} " + _list([_numbers(item, unit) for item in text.split(",")])


def _hours(text: str) -> str:
    if text[0] in "*?" and "," not in text:
        step = int(text.partition("/")[2])
        return f"every {step} hours" if step > 1 else "every hour"
    if "/" in text and "," not in text:
        return _numbers(text, "hour")
    return "in hour " + _list([_numbers(item, "hour") for item in text.split(",")])


def _days(month_day: str, week_day: str) -> list[str]:
    joined = week_day.startswith("+") or month_day[0] in "*?" or week_day[0] in "*?"
    by_week = _weekdays(week_day.removeprefix("+"))
    if month_day in _ANY:
        return [by_week]
    by_number = "on " + _list([_month_day(item) for item in month_day.split(",")])
    if not by_week:
        return [by_number]
    return [f"{by_number} if it is {by_week}" if joined else f"{by_number} or on {by_week}"]


def _month_day(item: str) -> str:
    if item == "L":
        return "the last day of the month"
    if item == "LW":
        return "the last weekday of the month"
    if item.startswith("L"):
        back = item.removeprefix("L-").rstrip("W")
        place = f"the day {back} days before the last of the month"
        return f"the weekday nearest to {place}" if item.endswith("W") else place
    if item.endswith("W"):
        return f"the weekday nearest to day {int(item[:-1])} of the month"
    if "/" in item:
        return f"{_numbers(item, 'day')} of the month"
    return f"day {_numbers(item, 'day')} of the month"


def _weekdays(text: str) -> str:
    if text in _ANY:
        return ""
    return _list([_weekday(item) for item in text.split(",")])


def _weekday(item: str) -> str:
    if "#" in item:
        day, _, nth = item.partition("#")
        return f"the {_ORDINALS.get(nth, 'last')} {_named(WEEK_DAY, day)} of the month"
    if "L" in item:
        return f"the last {_named(WEEK_DAY, item.strip('L'))} of the month"
    return _named(WEEK_DAY, item)


def _named(field: Field, item: str) -> str:
    """An item of months or weekdays, its numbers as names."""
    names = _MONTHS if field is MONTH else _DAYS
    if "/" in item or item in _ANY:  # so few that they are best spelt out
        return _list([names[number - field.low] for number in values_of(field, item)])
    numbers = (field.names[v] if v.isalpha() else int(v) for v in item.split("-"))
    return " through ".join(names[(number - field.low) % len(names)] for number in numbers)


def _numbers(item: str, unit: str) -> str:
    body, _, step = item.partition("/")
    if body in _ANY:
        return f"every {step} {unit}s" if int(step or 1) > 1 else f"every {unit}"
    words = " through ".join(v.lstrip("0") or "0" for v in body.replace("L", "31").split("-"))
    return f"every {step} {unit}s from {words}" if step else words


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def rule_in_words(rule: Rule, dtstart: datetime | None) -> str:
    """`FREQ=WEEKLY;INTERVAL=2;BYDAY=MO` → `Every 2 weeks, on Monday, at 09:00`."""
    unit = rule.freq.period
    phrases = [f"Every {rule.interval} {unit}s" if rule.interval > 1 else f"Every {unit}"]
    if rule.months:
        phrases.append("in " + _list([_MONTHS[month - 1] for month in rule.months]))
    for values, what in (
        (rule.month_days, "day {} of the month"),
        (rule.year_days, "day {} of the year"),
        (rule.weeks, "week {} of the year"),
    ):
        if values:
            phrases.append("on " + what.format(_list([_from_end(value) for value in values])))
    if rule.weekdays:
        phrases.append("on " + _list([_numbered(nth, day) for nth, day in rule.weekdays]))
    if rule.positions:
        phrases.append(f"only the {_list([_nth(at) for at in rule.positions])} of these")
    times = _rule_times(rule, dtstart)
    if times:
        phrases.append(times)
    if rule.count is not None:
        phrases.append(f"{rule.count} times")
    if rule.until is not None:
        phrases.append(f"until {rule.until}")
    return ", ".join(phrases)


def _rule_times(rule: Rule, dtstart: datetime | None) -> str:
    start = dtstart or datetime.min
    given = (
        (rule.hours, Freq.HOURLY, start.hour),
        (rule.minutes, Freq.MINUTELY, start.minute),
        (rule.seconds, Freq.SECONDLY, start.second),
    )
    lists = [
        ",".join(map(str, values)) or ("*" if rule.freq >= freq else str(default))
        for values, freq, default in given
    ]
    hour, minute, second = lists
    if hour == "*" and minute in "0*" and second in "0*":
        return ""
    return _time(second, minute, hour).removesuffix(" past every hour")


def _numbered(nth: int, day: int) -> str:
    name = _DAYS[(day + 1) % 7]
    if nth == 0:
        return name
    return f"the {_nth(nth)} {name}"


def _nth(number: int) -> str:
    return _ORDINALS.get(str(number), f"{number}th") if number > 0 else _from_end(number)


def _from_end(value: int) -> str:
    if value == -1:
        return "last"
    return str(value) if value > 0 else f"{_nth(-value)} to last"
