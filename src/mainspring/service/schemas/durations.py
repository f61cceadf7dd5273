"""Spans of time as clients send them."""

from __future__ import annotations

from datetime import timedelta

from mainspring.core.durations import duration
from mainspring.errors import InvalidInput

__all__ = ["span"]

LONGEST = timedelta(days=3660)


def span(value: float | str, what: str) -> timedelta:
    """Milliseconds, or a text such as `"30s"`."""
    try:
        if isinstance(value, str):
            made = duration(value, what=what)
        else:
            made = timedelta(milliseconds=value)
    except (InvalidInput, OverflowError, ValueError):
        made = -LONGEST
    if not timedelta(0) <= made <= LONGEST:
        raise InvalidInput(
            f"{what} is milliseconds or a text such as '30s', '1h30m' or 'PT5M', at most"
            f" {LONGEST.days} days, not {value!r}"
        )
    return made
