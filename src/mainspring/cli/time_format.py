"""Formats times for people (local zone, words) and for programs (ISO 8601, UTC)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, tzinfo

_UNITS = (
    ("second", 1, 60),
    ("minute", 60, 60),
    ("hour", 3_600, 24),
    ("day", 86_400, math.inf),
)


def iso(moment: datetime | None) -> str | None:
    """`2026-11-15T09:30:00Z`, with a fraction where there is one."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def seconds(moment: datetime | None) -> str:
    """The same to the second, for columns; `-` for none."""
    return "-" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def span(length: float) -> str:
    """Seconds, short and without spaces: `0.42s`, `12s`, `3m05s`, `2h10m`."""
    whole = round(length)
    if length < 10:
        return f"{length:.2f}s"
    if whole < 60:
        return f"{whole}s"
    if whole < 3_600:
        return f"{whole // 60}m{whole % 60:02}s"
    return f"{whole // 3_600}h{whole % 3_600 // 60:02}m"


def relative(moment: datetime, now: datetime) -> str:
    """`in 5 minutes`, `3 hours ago`, `now`: one unit, rounded."""
    distance = (moment - now) / timedelta(seconds=1)
    for word, size, limit in _UNITS:
        count = round(abs(distance) / size)
        if count == 0:
            return "now"
        if count < limit:
            words = f"{count} {word}{'s' if count != 1 else ''}"
            return f"in {words}" if distance > 0 else f"{words} ago"
    raise AssertionError("days have no limit")


def local(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """Wall time in a zone (the machine's own unless given), no longer than is needed."""
    here, today = moment.astimezone(zone), now.astimezone(zone)
    if here.date() == today.date():
        return f"{here:%H:%M:%S}"
    if here.year == today.year:
        return f"{here:%a %d %b %H:%M:%S}"
    return f"{here:%a %d %b %Y %H:%M}"


def local_short(moment: datetime, now: datetime, zone: tzinfo | None = None) -> str:
    """The same in at most 12 characters."""
    here, today = moment.astimezone(zone), now.astimezone(zone)
    if here.date() == today.date():
        return f"{here:%H:%M:%S}"
    return f"{here:%d %b %H:%M}" if here.year == today.year else f"{here:%d %b %Y}"
