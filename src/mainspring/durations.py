"""Placeholder until the schedules branch lands."""

from __future__ import annotations

import re
from datetime import timedelta


def duration(value: str | float | timedelta, *, what: str = "duration") -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float):
        return timedelta(seconds=value)
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    return timedelta(
        seconds=sum(float(n) * units[u] for n, u in re.findall(r"([\d.]+)(ms|[smhdw])", value))
    )
