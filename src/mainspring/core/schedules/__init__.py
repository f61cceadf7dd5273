"""Schedules: when a job is due. Pure values, no clock and no store.

Make one with `cron`, `every`, `at` or `rrule`, or let `parse` read whatever a user wrote. Ask it
with `next`, `previous`, `upcoming`, `describe` and `warnings`; keep it with `to_dict` and
`from_dict`. Anything that cannot be read or can never fire is `InvalidSchedule` when made.
"""

from __future__ import annotations

from mainspring.core.schedules.base import Schedule
from mainspring.core.schedules.constructors import at, cron, every, from_dict, parse, rrule
from mainspring.core.schedules.cron import Cron
from mainspring.core.schedules.interval import FixedDelay, Interval, Once
from mainspring.core.schedules.recurrence import Recurrence

__all__ = [
    "Cron",
    "FixedDelay",
    "Interval",
    "Once",
    "Recurrence",
    "Schedule",
    "at",
    "cron",
    "every",
    "from_dict",
    "parse",
    "rrule",
]
