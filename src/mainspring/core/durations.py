"""Parses durations such as "1h30m" and writes them for people."""

from __future__ import annotations

import logging
import math
import re
from datetime import timedelta

from mainspring.errors import InvalidInput

log = logging.getLogger("mainspring")

_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_UNITS = {**{unit: n * 1_000_000 for unit, n in _SECONDS.items()}, "ms": 1_000, "us": 1}

_PART = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*(ms|us|[a-z]+)\s*", re.ASCII)
_LONG_UNITS = {
    **dict.fromkeys(("week", "weeks"), "w"),
    **dict.fromkeys(("day", "days"), "d"),
    **dict.fromkeys(("hour", "hours", "hr", "hrs"), "h"),
    **dict.fromkeys(("minute", "minutes", "min", "mins"), "m"),
    **dict.fromkeys(("second", "seconds", "sec", "secs"), "s"),
    **dict.fromkeys(("millisecond", "milliseconds"), "ms"),
}
_ISO = re.compile(
    r"P(?:(?P<w>\d{1,18}(?:[.,]\d{1,9})?)W)?(?:(?P<d>\d{1,18}(?:[.,]\d{1,9})?)D)?"
    r"(?:T(?:(?P<h>\d{1,18}(?:[.,]\d{1,9})?)H)?(?:(?P<m>\d{1,18}(?:[.,]\d{1,9})?)M)?"
    r"(?:(?P<s>\d{1,18}(?:[.,]\d{1,9})?)S)?)?",
    re.ASCII,
)
_LONGEST_TEXT = 64
_ALLOWED = (
    'a text such as "30s", "1h30m", "2 days" or "PT5M" (units: w d h m s ms), a number of seconds,'
    " or a timedelta"
)


def duration(
    value: str | int | float | timedelta, *, what: str = "duration", field: str | None = None
) -> timedelta:
    """Read a span of time, zero or longer. The error names it as `what`; `field` names the argument
    if its name differs from `what`.

    Raises `InvalidInput` for anything else: a number without a unit in a text, a negative or
    endless span, one too long for a `timedelta` (about 2.7 million years).
    """
    try:
        span = _read(value)
    except (OverflowError, ValueError):
        raise _refused(what, field, value, "it is too long") from None
    negative = isinstance(value, str) and value.strip().startswith("-")
    if negative or (span is not None and span < timedelta(0)):
        raise _refused(what, field, value, "it is negative")
    if span is None:
        raise _refused(what, field, value)
    return span


def warn_of_bare_number(value: object, what: str, usual: timedelta) -> None:
    """Warn that a bare number means seconds if it is so large that milliseconds may be meant."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return
    if usual < timedelta(seconds=min(value, 1e12)):
        log.warning(
            "%s=%s is %s, because a bare number is seconds: write a text with its unit to say what"
            ' you mean, such as "%sms" or "%ss"',
            what,
            value,
            humanize(timedelta(seconds=min(value, 1e12))),
            value,
            value,
        )


def humanize(span: timedelta) -> str:
    """A duration in words, largest unit first: `1 hour 30 minutes`."""
    left = abs(span) // timedelta(microseconds=1)
    words = []
    for unit, word in _WORDS:
        count, left = divmod(left, _UNITS[unit])
        if count:
            words.append(f"{count} {word}{'s' if count != 1 else ''}")
    text = " ".join(words) or "0 seconds"
    return f"minus {text}" if span < timedelta(0) else text


def humanize_measured(seconds: float) -> str:
    """A measured duration, rounded: `4.2 ms`, `2.5 s`, `3 minutes 5 seconds`."""
    if seconds < 0.1:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else humanize(timedelta(seconds=round(seconds)))


_WORDS = (
    ("d", "day"),
    ("h", "hour"),
    ("m", "minute"),
    ("s", "second"),
    ("ms", "millisecond"),
    ("us", "microsecond"),
)


def _read(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return timedelta(seconds=value) if math.isfinite(value) else None
    if isinstance(value, str) and len(value) <= _LONGEST_TEXT:
        return _read_text(value.strip())
    return None


def _read_text(text: str) -> timedelta | None:
    iso = _ISO.fullmatch(text.upper())
    if iso is not None:
        return _total([(n.replace(",", "."), u) for u, n in iso.groupdict().items() if n])
    parts = [(n, _LONG_UNITS.get(unit, unit)) for n, unit in _PART.findall(text.lower())]
    units = {unit for _, unit in parts}
    if _PART.sub("", text.lower()) or len(units) < len(parts) or not units <= _UNITS.keys():
        return None
    return _total(parts)


def _total(parts: list[tuple[str, str]]) -> timedelta | None:
    """The sum, in whole microseconds where the text has whole numbers (floats would drift)."""
    if not parts:
        return None
    whole = sum(int(n) * _UNITS[unit] for n, unit in parts if "." not in n)
    broken = sum(float(n) * _UNITS[unit] for n, unit in parts if "." in n)
    return timedelta(microseconds=whole) + timedelta(microseconds=broken)


def _refused(what: str, field: str | None, value: object, why: str | None = None) -> InvalidInput:
    shown = humanize(value) if isinstance(value, timedelta) else repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    reason = f" ({why})" if why else ""
    advice = ""
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d+(\.\d+)?\s*", value):
        advice = f'; a text needs a unit: "{value.strip()}s"'
    return InvalidInput(
        f"{shown} cannot be used{reason}: give {_ALLOWED}{advice}",
        subject=what,
        field=field or what,
        given=value,
        allowed=_ALLOWED,
    )
