"""Cron expressions as schedules."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar

from mainspring.core.schedules import dst
from mainspring.core.schedules.base import WallClockSchedule
from mainspring.core.schedules.cron_calendar import CronWallTimes, wall_times_of
from mainspring.core.schedules.cron_syntax import Fields
from mainspring.core.schedules.description import cron_in_words
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule

_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron(WallClockSchedule):
    """The times that a cron expression matches on the wall clock of `timezone`.

    An expression that cannot be read, an unknown zone, and one that can never fire within its
    bounds are `InvalidSchedule` when made.
    """

    kind: ClassVar[str] = "cron"

    expression: str
    _wall_times: CronWallTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        zone_named(self.timezone)
        object.__setattr__(self, "_wall_times", wall_times_of(self.expression, self.key))
        self._check()
        if self.next(_EARLIEST) is None:
            raise InvalidSchedule(f"{self.expression!r} can never fire: {self._why_never()}")

    def describe(self) -> str:
        return f"{cron_in_words(self.expression, self.key)}, {self.timezone}"

    @property
    def fields(self) -> Fields:
        """The expression as sets of numbers, with `H` as it is for the job."""
        return self._wall_times.fields

    @property
    def follows_clock(self) -> bool:
        return self.fields.follows_clock

    def _wall_later(self, wall: datetime) -> datetime | None:
        return self._wall_times.later(wall)

    def _wall_earlier(self, wall: datetime) -> datetime | None:
        return self._wall_times.earlier(wall)

    def _count(self, after: datetime, until: datetime) -> int | None:
        if until - after > dst.TEN_YEARS:
            return None
        zone = zone_named(self.timezone)
        return dst.count_instants(
            after, until, zone, self._wall_times.count, repeats=self.follows_clock
        )

    def _own_dict(self) -> dict[str, Any]:
        return {"expression": self.expression}

    def _why_never(self) -> str:
        bounded = self.start is not None or self.end is not None
        if bounded and self._wall_times.later(datetime.min) is not None:
            return f"no time of it lies {self._bounds_text()}"
        if self.fields.years is not None:
            return "no day of its years matches its day and month fields"
        return "no month of it has such a day"
