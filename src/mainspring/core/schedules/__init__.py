"""Schedules: when a job is due. Pure values, no clock and no store.

Make one with `cron`, `every`, `at` or `rrule`, or let `parse` read whatever a user wrote. Ask it
with `next`, `previous`, `upcoming`, `describe` and `warnings`; keep it with `to_dict` and
`from_dict`. Anything that cannot be read or can never fire is `InvalidSchedule` when made.
"""

from mainspring.core.schedules.base import Schedule as Schedule
from mainspring.core.schedules.constructors import at as at
from mainspring.core.schedules.constructors import cron as cron
from mainspring.core.schedules.constructors import every as every
from mainspring.core.schedules.constructors import from_dict as from_dict
from mainspring.core.schedules.constructors import parse as parse
from mainspring.core.schedules.constructors import rrule as rrule
from mainspring.core.schedules.cron import Cron as Cron
from mainspring.core.schedules.interval import FixedDelay as FixedDelay
from mainspring.core.schedules.interval import Interval as Interval
from mainspring.core.schedules.interval import Once as Once
from mainspring.core.schedules.recurrence import Recurrence as Recurrence
