"""Making schedules: the constructors that users call, and `parse` for what they wrote."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal, Never, TypedDict, Unpack

from mainspring.core.durations import duration, warn_of_bare_number
from mainspring.core.schedules import dst
from mainspring.core.schedules.base import Schedule, moment
from mainspring.core.schedules.cron import Cron
from mainspring.core.schedules.cron_syntax import LONGEST, MACROS
from mainspring.core.schedules.interval import FixedDelay, Interval, Once
from mainspring.core.schedules.recurrence import Recurrence
from mainspring.core.schedules.rrule import read_recurrence_text
from mainspring.core.schedules.zones import check_zone, zone_name, zone_named
from mainspring.errors import InputErrors, InvalidInput, InvalidSchedule

_EVERY = re.compile(r"@?every\s+(\S.*)", re.IGNORECASE)
_AFTER_END = re.compile(r"(?:every\s+)?(\S.*?)\s+after\s+(?:the\s+)?end", re.IGNORECASE)
_ZONED = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(\S.*)", re.DOTALL)
_DATE = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}([T ].*)?")
_RULE = re.compile(
    r"\s*(?:(?:RRULE|DTSTART|EXDATE|RDATE|EXRULE|FREQ)\b|(?:INTERVAL|COUNT|UNTIL|WKST|BY[A-Z]+)\s*=)",
    re.IGNORECASE,
)
"""How a recurrence begins: with a line, or with a part of the rule."""

_CRON_FIELD = re.compile(
    r"(?:[0-9*?,/#+()HLW-]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
    r"|SUN|MON|TUE|WED|THU|FRI|SAT)+",
    re.IGNORECASE,
)

Moment = datetime | str | None
Span = str | int | float | timedelta


class Units(TypedDict, total=False):
    """An interval in units of time, as `every(hours=1, minutes=30)` takes it."""

    weeks: float
    days: float
    hours: float
    minutes: float
    seconds: float


def cron(
    expr: str = "",
    tz: str | None = None,
    *,
    start: Moment = None,
    end: Moment = None,
    jitter: Span | None = None,
    **fields: Never,
) -> Schedule:
    """The times that a cron expression matches in a zone: `cron("0 9 * * 1-5", "Asia/Kolkata")`.

    Macros (`@daily`) are expressions too; `@every 5m` gives an interval. A leading
    `CRON_TZ=Zone` names the zone inside the text. Without a zone it takes the job's, then the
    scheduler's, and by itself UTC.
    """
    if fields:
        raise InvalidSchedule(
            f"cron takes one expression, not {', '.join(fields)} by name: write minute, hour, day,"
            ' month and weekday in one text, such as cron("30 9 * * 1-5") for 09:30 on weekdays'
        )
    text = _short(_text(expr, "a cron expression")).strip()
    if zoned := _ZONED.fullmatch(text):
        tz, text = _same_zone(zoned[1], tz), zoned[2]
    if match := _EVERY.fullmatch(text):
        span = match[1] if re.search(r"\d", match[1]) else f"1 {match[1]}"  # every hour
        interval = every(span, start=start, end=end, jitter=jitter)
        return interval if tz is None else interval.in_zone(zone_name(tz))
    zone = _zone_or_utc(tz)
    return Cron(
        expression=text,
        timezone=zone,
        start=_moment(start, zone, "start"),
        end=_moment(end, zone, "end"),
        jitter=_span(jitter),
        floating=_floating(tz, start=start, end=end),
    )


def every(
    interval: Span | None = None,
    *,
    after: Literal["start", "end"] = "start",
    start: Moment = None,
    end: Moment = None,
    jitter: Span | None = None,
    **units: Unpack[Units],
) -> Interval | FixedDelay:
    """One slot each `interval`, from `start` or else from the job's creation: `every("5m")`, or
    `every(minutes=5)`.

    `after="end"`: each slot counts from the end of the run before it, retries included, so that
    there is always that much time between two runs.

    A `start` without an offset is wall time in the job's zone, then the scheduler's; by itself
    in UTC.
    """
    if (interval is None) is not bool(units) or units.keys() - Units.__optional_keys__:
        raise InvalidSchedule(
            'every takes one interval: write every("5m"), or units of time as in every(minutes=5)'
            f" ({', '.join(sorted(Units.__optional_keys__))})",
            part="interval",
        )
    interval = timedelta(**units) if interval is None else interval
    warn_of_bare_number(interval, "interval", timedelta(days=1))
    if after not in ("start", "end"):
        raise InvalidSchedule(
            f'after is "start" (of the slot before, the default) or "end" (of its run), not'
            f" {_shown(after)}",
            part="after",
        )
    kind = FixedDelay if after == "end" else Interval
    return kind(
        interval=_interval(interval),
        start=_moment(start, "UTC", "start"),
        end=_moment(end, "UTC", "end"),
        jitter=_span(jitter),
        floating=_floating(None, start=start, end=end),
    )


def at(when: datetime | str, *, tz: str | None = None, jitter: Span | None = None) -> Once:
    """One moment. Without an offset it is wall time in `tz`, else in the job's zone, then the
    scheduler's; by itself in UTC."""
    own = getattr(getattr(when, "tzinfo", None), "key", None)
    name = tz if tz is not None else own
    zone = _zone_or_utc(name)
    return Once(
        when=moment(when, zone, "when"),
        timezone=zone,
        jitter=_span(jitter),
        floating=_floating(name, when=when),
    )


def rrule(
    rule: str,
    *,
    start: Moment = None,
    tz: str | None = None,
    end: Moment = None,
    jitter: Span | None = None,
) -> Recurrence:
    """An RFC 5545 rule as text: `rrule("FREQ=WEEKLY;BYDAY=MO", start="2027-01-04T09:00")`.

    It counts from its DTSTART, else from `start`, else from the moment it is bound. The zone is
    `tz` or the TZID of its DTSTART; without either it takes the job's, then the scheduler's, and
    by itself UTC.
    """
    text = _text(rule, "a rule")
    parts = read_recurrence_text(text, _zone_or_utc(tz))
    if parts.zoned:
        tz = _same_zone(parts.timezone, tz)
    zone = zone_named(parts.timezone)
    first = _moment(start, parts.timezone, "start")
    dtstart = parts.dtstart
    if dtstart is None and first is not None:
        dtstart = dst.wall_of(first, zone).replace(microsecond=0, fold=0)
    return Recurrence(
        rule=parts.rule,
        dtstart=dtstart,
        exdates=parts.exdates,
        rdates=parts.rdates,
        timezone=parts.timezone,
        start=first,
        end=_moment(end, parts.timezone, "end"),
        jitter=_span(jitter),
        floating=_floating(tz, start=start, end=end),
        source=text if tz is None else None,
    )


def parse(spec: object, *, timezone: str | None = None, default_timezone: str = "UTC") -> Schedule:
    """Whatever a user may write for a schedule, as one.

    A `Schedule`; a cron expression or macro; an interval (`"5m"`, `"PT5M"`, a number of seconds,
    a `timedelta`); a date-time (ISO 8601 text or `datetime`); an RRULE. Where it names no zone
    itself, its wall times are in `timezone`, else in `default_timezone`. Where it names another
    than `timezone`, it is refused. The error of a wrong schedule carries that of a wrong timezone.
    """
    errors = InputErrors()
    with errors:
        schedule = _read(spec)
    if timezone is not None:
        with errors:
            timezone = check_zone(timezone)
    errors.check()
    if timezone is not None:
        return schedule.in_zone(timezone)
    needs_no_zone = isinstance(schedule, Interval | FixedDelay) and not schedule.floating
    if schedule.floating is None or needs_no_zone:
        return schedule
    return schedule.in_zone(default_timezone)


def _read(spec: object) -> Schedule:
    if isinstance(spec, Schedule):
        return spec
    if isinstance(spec, datetime):
        return at(spec)
    if isinstance(spec, timedelta | int | float) and not isinstance(spec, bool):
        return every(spec)
    if isinstance(spec, str):
        return _parse_text(spec)
    raise InvalidSchedule(f"{_shown(spec)} is no schedule: {_FORMS}")


def from_dict(data: Mapping[str, Any]) -> Schedule:
    """The schedule that `to_dict` wrote. Unknown kinds and damaged fields are refused."""
    try:
        common: dict[str, Any] = {
            "timezone": _text(data.get("tz", "UTC"), "a timezone"),
            "start": _moment(data.get("start"), "UTC", "start"),
            "end": _moment(data.get("end"), "UTC", "end"),
            "jitter": _span(data.get("jitter")),
            "key": _text(data.get("key", ""), "a key"),
        }
        match data["kind"]:
            case "cron":
                return Cron(expression=_short(data["expression"]), **common)
            case "interval":
                anchor = _moment(data.get("anchor"), "UTC", "anchor")
                return Interval(interval=_interval(data["interval"]), anchor=anchor, **common)
            case "delay":
                return FixedDelay(interval=_interval(data["interval"]), **common)
            case "once":
                return Once(when=moment(data["when"], "UTC", "when"), **common)
            case "rrule":
                return Recurrence(
                    rule=data["rule"],
                    dtstart=data["dtstart"] and datetime.fromisoformat(data["dtstart"]),
                    exdates=tuple(map(datetime.fromisoformat, data.get("exdates", ()))),
                    rdates=tuple(map(datetime.fromisoformat, data.get("rdates", ()))),
                    **common,
                )
            case kind:
                raise InvalidSchedule(f"unknown kind of schedule {kind!r}", part="kind")
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidSchedule(f"{_shown(data)} is no schedule as to_dict writes it") from error


_FORMS = (
    'write a cron expression ("0 9 * * 1-5"), a macro ("@daily"), an interval ("5m", "every 5'
    ' minutes", "5m after end"), a date-time ("2027-03-28T09:00:00+02:00") or a rule'
    ' ("RRULE:FREQ=DAILY")'
)


# Numbers, each with a unit or none: 90 minuts, 1h30x. Not 9am, 9:00 or 9 daily.
# Possessive, so that no text takes long.
_MEANT_AS_INTERVAL = re.compile(r"(?:[-+]?[\d.,]++\s*+(?!am\b|pm\b)[^\W\d]*+\s*+)++", re.IGNORECASE)


def _parse_text(text: str) -> Schedule:
    if _RULE.match(text):
        return rrule(text)
    stripped = _short(text).strip()
    if stripped.startswith("@") or _ZONED.fullmatch(stripped):
        return cron(stripped)
    if delay := _AFTER_END.fullmatch(stripped):
        return every(_interval(delay[1]), after="end")
    if _EVERY.fullmatch(stripped):
        try:
            return cron(stripped)
        except InvalidSchedule:  # every monday
            raise InvalidSchedule(f"{_shown(text)} is no schedule: {_FORMS}") from None
    if _DATE.fullmatch(stripped):
        return at(stripped)
    if len(stripped.split()) >= 5 or stripped[:1] in ("*", "?"):
        return cron(stripped)
    try:
        span = duration(stripped, what="interval")
    except InvalidInput as error:
        if _looks_like_cron(stripped):
            return cron(stripped)
        if _MEANT_AS_INTERVAL.fullmatch(stripped):
            raise InvalidSchedule(f"{_shown(text)} is no schedule: {error}") from None
        macro = f"@{stripped.lower()}"
        if macro.upper() in MACROS:
            raise InvalidSchedule(f"{_shown(text)} is no schedule: did you mean {macro}?") from None
        raise InvalidSchedule(f"{_shown(text)} is no schedule: {_FORMS}") from None
    return every(span)


def _looks_like_cron(text: str) -> bool:
    """Whether somebody meant a cron expression, though its number of fields is wrong."""
    fields = text.split()
    cron_fields = all(map(_CRON_FIELD.fullmatch, fields))
    return cron_fields and (len(fields) > 2 or (len(fields) == 2 and "*" in text))


def _interval(value: Span) -> timedelta:
    try:
        return duration(value, what="interval")
    except InvalidSchedule:
        raise
    except InvalidInput as error:
        raise InvalidSchedule(str(error), part="interval") from None


def _span(value: Span | None) -> timedelta | None:
    return None if value is None else duration(value, what="jitter")


def _zone_or_utc(tz: str | None) -> str:
    return "UTC" if tz is None else zone_name(tz)


def _same_zone(named: str, tz: str | None) -> str:
    """The zone that the text names; another one given beside it is refused."""
    if tz is not None and zone_named(zone_name(tz)) is not zone_named(named):
        raise InvalidSchedule(
            f"the text names the zone {named}, and {tz} was given as well: leave out one of them",
            field="timezone",
        )
    return named


def _floating(tz: str | None, **moments: Moment) -> frozenset[str] | None:
    """Which of the moments have no offset, where no zone was given; None where one was."""
    if tz is not None:
        return None
    return frozenset(name for name, value in moments.items() if _is_naive(value))


def _is_naive(value: Moment) -> bool:
    if isinstance(value, str):
        with suppress(ValueError):  # the error is raised where the moment is read
            value = datetime.fromisoformat(value.strip())
    return isinstance(value, datetime) and value.utcoffset() is None


def _moment(value: Moment, timezone: str, what: str) -> datetime | None:
    return None if value is None else moment(value, timezone, what)


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidSchedule(f"{what} is a text, not {_shown(value)}")
    return value


def _short(text: str) -> str:
    if len(text) > LONGEST:
        raise InvalidSchedule(f"a schedule has at most {LONGEST} characters, not {len(text)}")
    return text


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
