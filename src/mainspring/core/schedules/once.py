"""A schedule with a single slot."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from mainspring.core.schedules import dst
from mainspring.core.schedules.base import Schedule, iso, moment
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Once(Schedule):
    """A single slot. A naive `when` is wall time in `timezone`."""

    kind: ClassVar[str] = "once"

    when: datetime

    def __post_init__(self) -> None:
        zone_named(self.timezone)
        object.__setattr__(self, "when", moment(self.when, self.timezone, "when"))
        self._check()
        if (self.start is not None and self.when < self.start) or (
            self.end is not None and self.when > self.end
        ):
            raise InvalidSchedule(
                f"{iso(self.when)} can never fire: it is not {self._bounds_text()}"
            )

    def describe(self) -> str:
        wall = dst.wall_of(self.when, zone_named(self.timezone))
        return f"Once, at {wall.replace(fold=0).isoformat(sep=' ')}, {self.timezone}"

    def _later(self, after: datetime) -> datetime | None:
        return self.when if self.when > after else None

    def _earlier(self, before: datetime) -> datetime | None:
        return self.when if self.when < before else None

    def _own_dict(self) -> dict[str, Any]:
        return {"when": iso(self.when)}
