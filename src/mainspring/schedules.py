"""The public names of schedules: `from mainspring.schedules import parse`.

`mainspring.core.schedules` holds them; what the package has beside these names is not public.
"""

from mainspring.core.schedules import (
    Cron,
    FixedDelay,
    Interval,
    Once,
    Recurrence,
    Schedule,
    at,
    cron,
    every,
    from_dict,
    parse,
    rrule,
)

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
