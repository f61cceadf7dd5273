"""Reading a cron expression: text in, sets of numbers out.

Five fields (minute, hour, day of month, month, day of week), six (seconds first) or seven (the
year last). Sets are bit masks: bit `n` says that the value `n` matches.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mainspring.core.schedules.base import stable_hash
from mainspring.core.schedules.calendar import mask_of
from mainspring.errors import InvalidSchedule

LONGEST = 256
MACROS = {
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
    "@MONTHLY": "0 0 1 * *",
    "@WEEKLY": "0 0 * * 0",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@HOURLY": "0 * * * *",
    "@EVERY_MINUTE": "* * * * *",
    "@EVERY_SECOND": "* * * * * *",
}


@dataclass(frozen=True, slots=True)
class DaysOfMonth:
    """Days by number, by distance from the month's end, and as the weekday nearest to either."""

    days: int
    from_end: tuple[int, ...] = ()
    near: tuple[int, ...] = ()
    near_from_end: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DaysOfWeek:
    """Weekdays (0 is Sunday), `(weekday, n)` for the nth of a month, and the last of a month."""

    days: int
    nth: tuple[tuple[int, int], ...] = ()
    last: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Fields:
    """An expression as sets. `both_days`: a day must match day of month *and* day of week.

    `follows_clock`: the time of day is a pattern (`*`, a range or a step), not fixed times.
    """

    seconds: int
    minutes: int
    hours: int
    month_days: DaysOfMonth
    months: int
    week_days: DaysOfWeek
    years: tuple[Sequence[int], ...] | None
    both_days: bool
    follows_clock: bool


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One field: its range, its names, what else it takes, and how far `H` reaches in it."""

    name: str
    low: int
    high: int
    names: Mapping[str, int] = field(default_factory=dict)
    extra: str = ""
    hash_high: int | None = None

    @property
    def allowed(self) -> str:
        names = list(self.names)
        return f"{self.low}-{self.high}" + (f" or {names[0]}-{names[-1]}" if names else "")


_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
SECOND = Field("second", 0, 59)
MINUTE = Field("minute", 0, 59)
HOUR = Field("hour", 0, 23)
# H keeps to the days that every month has.
MONTH_DAY = Field("day of month", 1, 31, extra=", L, L-3, LW, 15W", hash_high=28)
MONTH = Field("month", 1, 12, {name: n for n, name in enumerate(_MONTHS, 1)})
WEEK_DAY = Field(
    "day of week",
    0,
    7,
    {name: n for n, name in enumerate(_DAYS)},
    extra=", 5L (the last Friday), 5#2 (the second)",
    hash_high=6,
)
YEAR = Field("year", 1970, 9999)

_VALUE = r"[0-9]{1,4}|[A-Z]{3}"
_STEP = r"(?:/(?P<step>[0-9]{1,4}))?"
_ZONE = re.compile(r"[A-Z_]{3,}/[A-Z_/+-]{3,}")
"""A time zone behind an expression, such as EUROPE/BERLIN; MON/2 is none."""
_ITEM = re.compile(
    rf"(?:(?P<star>[*?])|(?P<hash>H)(?:\((?P<from>{_VALUE})-(?P<to>{_VALUE})\))?"
    rf"|(?P<low>{_VALUE})(?:-(?P<high>{_VALUE}))?){_STEP}"
)
_FROM_END = re.compile(r"L(?:-(?P<back>[0-9]{1,2}))?(?P<near>W)?")
_NEAR = re.compile(r"(?P<day>[0-9]{1,2})W")
_TO_END = re.compile(rf"(?P<low>[0-9]{{1,2}})-L{_STEP}")
_IN_MONTH = re.compile(
    rf"(?P<item>(?:{_VALUE})(?:-(?:{_VALUE}))?)(?:#(?P<nth>[1-5L])|L)|L(?P<last>{_VALUE})"
)


def parse_cron(expression: str, key: str = "") -> Fields:
    """Read an expression, `H` resolved for `key`.

    Raises `InvalidSchedule` that names the field, what was given and what is allowed.
    """
    second, minute, hour, month_day, month, week_day, year = split_cron(expression)
    joined = week_day.startswith("+")  # "+MON": and-ed with the day of month on request
    return Fields(
        seconds=mask_of(_plain(SECOND, second, key)),
        minutes=mask_of(_plain(MINUTE, minute, key)),
        hours=mask_of(_plain(HOUR, hour, key)),
        month_days=_month_days(month_day, key),
        months=mask_of(_plain(MONTH, month, key)),
        week_days=_week_days(week_day.removeprefix("+"), key),
        years=_years(year, key),
        both_days=joined or month_day[0] in "*?" or week_day[0] in "*?",
        follows_clock=any(sign in second + minute + hour for sign in "*?/")
        or any(_is_range(item) for part in (second, minute, hour) for item in part.split(",")),
    )


def split_cron(expression: str) -> list[str]:
    """The seven fields as upper-case texts, macros spelt out, the optional ones filled in."""
    if len(expression) > LONGEST:
        raise InvalidSchedule(
            f"a cron expression has at most {LONGEST} characters, this one {len(expression)}"
        )
    text = expression.strip().upper()
    parts = (_macro(text) if text.startswith("@") else text).split()
    if not 5 <= len(parts) <= 7:
        raise InvalidSchedule(
            f"a cron expression has 5 fields (minute hour day month weekday), 6 (seconds first)"
            f" or 7 (seconds first, year last); {expression!r} has {len(parts)}"
        )
    if _ZONE.fullmatch(parts[-1]):
        zone = expression.split()[-1]
        raise InvalidSchedule(
            f"{expression!r} ends with {zone}, which looks like a time zone: leave it out and give"
            f' timezone="{zone}", or write "CRON_TZ={zone} …"',
            part="timezone",
        )
    if len(parts) == 5:
        parts.insert(0, "0")
    return parts if len(parts) == 7 else [*parts, "*"]


def _macro(text: str) -> str:
    if text in MACROS:
        return MACROS[text]
    if text == "@REBOOT":
        raise InvalidSchedule("@reboot is no time: use the option run_on_start of a job")
    names = [name.lower() for name in MACROS]
    near = difflib.get_close_matches(text.lower(), names, n=1)
    advice = f"did you mean {near[0]}? Known" if near else "known"
    raise InvalidSchedule(
        f"unknown macro {text.lower()!r}: {advice} are {', '.join(names)} and @every 5m"
    )


def _is_range(item: str) -> bool:
    return "-" in item and not item.startswith("H")  # H(0-29) is one fixed value


def _plain(field: Field, text: str, key: str) -> set[int]:
    """A field of numbers, ranges, steps and `H` alone."""
    values: set[int] = set()
    for item in set(text.split(",")):
        values.update(_item(field, item, key))
    return values


def _item(field: Field, item: str, key: str) -> Sequence[int]:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise _refused(field, item)
    step = int(match["step"] or 1)
    if step == 0:
        raise _refused(field, item, "a step must be at least 1")
    if match["star"]:
        return range(field.low, field.high + (field is not WEEK_DAY), step)
    if match["hash"]:
        return _hashed(field, item, match, key)
    low = _number(field, match["low"], item)
    if match["high"]:
        return _span(field, low, _number(field, match["high"], item), step, item)
    if match["step"]:
        return _span(field, low, field.high - (field is WEEK_DAY), step, item)
    return (low % 7,) if field is WEEK_DAY else (low,)


def _number(field: Field, text: str, item: str) -> int:
    value = field.names.get(text, -1) if text.isalpha() else int(text)
    if not field.low <= value <= field.high:
        raise _refused(field, item)
    return value


def _span(field: Field, low: int, high: int, step: int, item: str) -> Sequence[int]:
    """From `low` to `high`, round the end where `high` is the smaller (22-2, FRI-MON)."""
    if field is WEEK_DAY:
        if low == 7:
            low, high = 0, high % 7
        return [n % 7 for n in range(low, high + 1 if high >= low else high + 8, step)]
    if low <= high:
        return range(low, high + 1, step)
    if field is YEAR:
        raise _refused(field, item, "years do not wrap around")
    size = field.high - field.low + 1
    return [(n - field.low) % size + field.low for n in range(low, high + size + 1, step)]


def _hashed(field: Field, item: str, match: re.Match[str], key: str) -> Sequence[int]:
    """`H`: a value that the key picks."""
    low, high = field.low, field.hash_high or field.high
    if match["from"]:
        low, high = _number(field, match["from"], item), _number(field, match["to"], item)
        if high < low:
            raise _refused(field, item, "the range of H must rise")
    chosen = stable_hash(f"{key}\0{field.name}")
    if match["step"]:
        step = int(match["step"])
        first = low + chosen % min(step, high - low + 1)
        values: Sequence[int] = range(first, high + 1, step)
    else:
        values = (low + chosen % (high - low + 1),)
    return [n % 7 for n in values] if field is WEEK_DAY else values


def _month_days(text: str, key: str) -> DaysOfMonth:
    days: set[int] = set()
    from_end: set[int] = set()
    near: set[int] = set()
    near_from_end: set[int] = set()
    for item in text.split(","):
        if match := _FROM_END.fullmatch(item):
            back = int(match["back"] or 0)
            if back > 30:
                raise _refused(MONTH_DAY, item, "L-0 to L-30 are allowed")
            (near_from_end if match["near"] else from_end).add(back)
        elif match := _NEAR.fullmatch(item):
            near.add(_number(MONTH_DAY, match["day"], item))
        elif match := _TO_END.fullmatch(item):
            days.update(_item(MONTH_DAY, item.replace("L", "31"), key))
        else:
            days.update(_item(MONTH_DAY, item, key))
    return DaysOfMonth(mask_of(days), *(tuple(sorted(s)) for s in (from_end, near, near_from_end)))


def _week_days(text: str, key: str) -> DaysOfWeek:
    days: set[int] = set()
    nth: set[tuple[int, int]] = set()
    last: set[int] = set()
    for item in text.split(","):
        if item == "L":
            raise _refused(WEEK_DAY, item, "L needs a weekday here: 5L is the last Friday")
        match = _IN_MONTH.fullmatch(item)
        if match is None:
            days.update(_item(WEEK_DAY, item, key))
            continue
        chosen = _item(WEEK_DAY, match["item"] or match["last"], key)
        if match["nth"] and match["nth"] != "L":
            nth.update((day, int(match["nth"])) for day in chosen)
        else:
            last.update(chosen)
    return DaysOfWeek(mask_of(days), tuple(sorted(nth)), tuple(sorted(last)))


def _years(text: str, key: str) -> tuple[Sequence[int], ...] | None:
    """The years item by item, for a list of single years would be long; None for all."""
    if text in ("*", "?"):
        return None
    if "H" in text:
        raise _refused(YEAR, text, "H is not for years")
    return tuple(_item(YEAR, item, key) for item in sorted(set(text.split(","))))


def _refused(field: Field, item: str, why: str | None = None) -> InvalidSchedule:
    forms = "lists (1,5), ranges (1-5), steps (*/5) and H"
    reason = why or f"allowed are {field.allowed}{field.extra}, and {forms} of these"
    return InvalidSchedule(f"{field.name} {item!r} cannot be used: {reason}", part=field.name)
