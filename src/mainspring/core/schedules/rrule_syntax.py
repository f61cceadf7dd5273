"""Reading a recurrence rule (RFC 5545): text in, a `Rule` out.

    DTSTART;TZID=Europe/Berlin:20270104T090000
    RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,WE
    EXDATE:20270118T090000
    RDATE:20270119T140000

Times are naive here: wall time in the schedule's zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import IntEnum

from mainspring.core.schedules import dst
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule

LONGEST = 4096
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_DAY = re.compile(rf"([+-]?[0-9]{{1,2}})?({'|'.join(_WEEKDAYS)})")
_STAMP = re.compile(r"([0-9]{8})(?:T([0-9]{6})(Z?))?")
_PROPERTY = re.compile(r"(DTSTART|RRULE|EXDATE|RDATE|EXRULE)((?:;[^:]*)?):(.*)", re.IGNORECASE)


class Freq(IntEnum):
    YEARLY = 0
    MONTHLY = 1
    WEEKLY = 2
    DAILY = 3
    HOURLY = 4
    MINUTELY = 5
    SECONDLY = 6

    @property
    def period(self) -> str:
        """The word for one of its periods: `month`."""
        return ("year", "month", "week", "day", "hour", "minute", "second")[self]


@dataclass(frozen=True, slots=True)
class Rule:
    """The parts of an RRULE as given; empty where they are absent. Weekdays: 0 is Monday."""

    freq: Freq
    interval: int = 1
    count: int | None = None
    until: str | None = None
    week_start: int = 0
    positions: tuple[int, ...] = ()
    months: tuple[int, ...] = ()
    month_days: tuple[int, ...] = ()
    year_days: tuple[int, ...] = ()
    weeks: tuple[int, ...] = ()
    weekdays: tuple[tuple[int, int], ...] = ()  # (which of them: 0 for all, weekday)
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecurrenceText:
    """A whole text taken apart: the rule, and what the lines around it say."""

    rule: str
    timezone: str
    zoned: bool  # whether the text names the zone itself
    dtstart: datetime | None
    exdates: tuple[datetime, ...]
    rdates: tuple[datetime, ...]


# The list parts: the name of the field, the range allowed, and whether it may count from the end.
_LISTS = {
    "BYSETPOS": ("positions", 1, 366, True),
    "BYMONTH": ("months", 1, 12, False),
    "BYMONTHDAY": ("month_days", 1, 31, True),
    "BYYEARDAY": ("year_days", 1, 366, True),
    "BYWEEKNO": ("weeks", 1, 53, True),
    "BYHOUR": ("hours", 0, 23, False),
    "BYMINUTE": ("minutes", 0, 59, False),
    "BYSECOND": ("seconds", 0, 59, False),
}
_PARTS = ("FREQ", "INTERVAL", "COUNT", "UNTIL", "WKST", "BYDAY", *_LISTS)


def read_recurrence_text(text: str, timezone: str) -> RecurrenceText:
    """Take a text of `DTSTART`, `RRULE`, `RDATE` and `EXDATE` lines apart (a bare rule is one)."""
    if len(text) > LONGEST:
        raise InvalidSchedule(f"a recurrence rule has at most {LONGEST} characters")
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    properties: dict[str, list[tuple[str, str]]] = {}
    for line in lines:
        match = _PROPERTY.fullmatch(line)
        name, options, value = match.groups() if match else ("RRULE", "", line)
        properties.setdefault(name.upper(), []).append((options, value.strip()))
    if "EXRULE" in properties:
        raise InvalidSchedule("EXRULE is not supported (RFC 5545 dropped it): list gaps as EXDATE")
    if len(properties.get("RRULE", [])) != 1 or len(properties.get("DTSTART", [])) > 1:
        raise InvalidSchedule("a recurrence has one RRULE line, and at most one DTSTART line")
    dtstart, zoned = None, False
    for options, value in properties.get("DTSTART", []):
        if own := _zone_option(options):
            timezone, zoned = own, True
        dtstart = read_stamp(value, timezone, "DTSTART")
    exdates = _stamps("EXDATE", properties.get("EXDATE", []), timezone)
    rdates = _stamps("RDATE", properties.get("RDATE", []), timezone)
    return RecurrenceText(
        properties["RRULE"][0][1].upper(), timezone, zoned, dtstart, exdates, rdates
    )


def _stamps(name: str, lines: list[tuple[str, str]], timezone: str) -> tuple[datetime, ...]:
    """The times of such lines, as wall times in the schedule's zone. Each line may name its own
    zone."""
    walls = set()
    for options, value in lines:
        zone = _zone_option(options) or timezone
        for text in value.split(","):
            wall = read_stamp(text, zone, name)
            if zone != timezone:
                instant = wall.replace(tzinfo=zone_named(zone)).astimezone(UTC)
                wall = dst.wall_of(instant, zone_named(timezone)).replace(fold=0)
            walls.add(wall)
    return tuple(sorted(walls))


def _zone_option(options: str) -> str | None:
    for option in options.split(";"):
        name, _, value = option.partition("=")
        if name.upper() == "TZID":
            return value
    return None


def read_stamp(text: str, timezone: str, what: str, *, whole_day: bool = False) -> datetime:
    """A time as RRULE writes it (20270104T090000, with Z in UTC), as wall time in the zone."""
    match = _STAMP.fullmatch(text.strip().upper())
    try:
        if match is None:
            raise ValueError
        year, month, day = int(match[1][:4]), int(match[1][4:6]), int(match[1][6:])
        if match[2] is None:
            return datetime(year, month, day, *((23, 59, 59) if whole_day else ()))
        hour, minute, second = int(match[2][:2]), int(match[2][2:4]), int(match[2][4:])
        wall = datetime(year, month, day, hour, minute, second)
    except ValueError:
        raise _refused(what, text, "write 20270104T090000, or with Z at the end for UTC") from None
    if match[3]:
        return dst.wall_of(wall.replace(tzinfo=UTC), zone_named(timezone)).replace(fold=0)
    return wall


def parse_rule(text: str) -> Rule:
    """Read the `FREQ=…;…` part; `InvalidSchedule` names the part at fault."""
    parts: dict[str, str] = {}
    for part in text.rstrip(";").split(";"):
        name, _, value = part.partition("=")
        name = name.strip()
        if name not in _PARTS:
            raise _refused(name, value, f"the parts of a rule are {', '.join(_PARTS)}")
        if name in parts:
            raise _refused(name, value, "it is given twice")
        parts[name] = value.strip()
    if parts.get("FREQ") not in Freq.__members__:
        raise _refused("FREQ", parts.get("FREQ", ""), f"allowed are {', '.join(Freq.__members__)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise _refused("COUNT", parts["COUNT"], "give either COUNT or UNTIL")
    freq = Freq[parts["FREQ"]]
    lists = {
        field: _numbers(name, parts[name], low, high, signed)
        for name, (field, low, high, signed) in _LISTS.items()
        if name in parts
    }
    return Rule(
        freq=freq,
        interval=_positive("INTERVAL", parts.get("INTERVAL", "1")),
        count=_positive("COUNT", parts["COUNT"]) if "COUNT" in parts else None,
        until=parts.get("UNTIL"),
        week_start=_weekday("WKST", parts.get("WKST", "MO"))[1],
        weekdays=_weekdays(parts["BYDAY"], freq) if "BYDAY" in parts else (),
        **lists,
    )


def with_implied_days(rule: Rule, dtstart: datetime | None) -> Rule:
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


def _positive(name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise _refused(name, text, "give a whole number from 1")
    return int(text)


def _numbers(name: str, text: str, low: int, high: int, signed: bool) -> tuple[int, ...]:
    values = set()
    for item in text.split(","):
        sign = "[+-]?" if signed else ""
        if not re.fullmatch(rf"{sign}[0-9]{{1,3}}", item) or not low <= abs(int(item)) <= high:
            also = f" or -{high} to -{low}" if signed else ""
            raise _refused(name, item, f"allowed are {low} to {high}{also}")
        values.add(int(item))
    return tuple(sorted(values))


def _weekdays(text: str, freq: Freq) -> tuple[tuple[int, int], ...]:
    days = {_weekday("BYDAY", item) for item in text.split(",")}
    if freq > Freq.MONTHLY and any(nth for nth, _ in days):
        raise _refused("BYDAY", text, "numbered weekdays need FREQ=MONTHLY or FREQ=YEARLY")
    return tuple(sorted(days))


def _weekday(name: str, item: str) -> tuple[int, int]:
    match = _DAY.fullmatch(item)
    if match is None or (match[1] and (name == "WKST" or not 1 <= abs(int(match[1])) <= 53)):
        raise _refused(
            name, item, f"allowed are {', '.join(_WEEKDAYS)}, numbered as in 2MO or -1FR"
        )
    return int(match[1] or 0), _WEEKDAYS.index(match[2])


def _refused(name: str, given: str, why: str) -> InvalidSchedule:
    return InvalidSchedule(f"{name[:32]} {given[:64]!r} cannot be used: {why}", part=name[:32])
