"""A schedule with a fixed interval, counted from one moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from mainspring.core.durations import humanize
from mainspring.core.schedules.base import Schedule, in_utc, iso, moment
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule

__all__ = ["Interval"]

_SHORTEST = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(Schedule):
    """A slot each `interval`, by whole-number arithmetic from one moment, so without drift.

    With `start`: at start, start + interval, and so on. Otherwise one interval after `anchor` is
    the first. With neither (not bound yet) `next` counts from the moment it is asked about.
    """

    kind: ClassVar[str] = "interval"

    interval: timedelta
    anchor: datetime | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.anchor is not None:
            object.__setattr__(self, "anchor", moment(self.anchor, self.timezone, "anchor"))
        if self.interval < _SHORTEST:
            raise InvalidSchedule(
                f"an interval of {humanize(self.interval)} is too short: the shortest is"
                f" {humanize(_SHORTEST)}",
                part="interval",
            )
        first = self._slot(self._first) if self._base is not None else None
        if first is None and self._base is not None:
            raise InvalidSchedule(f"{self.describe()} can never fire: it leaves the calendar")
        if first is not None and self.end is not None and first > self.end:
            raise InvalidSchedule(
                f"{self.describe()} can never fire: its first time would be {iso(first)}, its"
                f" end is {iso(self.end)}"
            )

    def in_zone(self, timezone: str) -> Self:
        """Any zone is accepted, for an interval needs none; a naive `start` or `end` is placed."""
        zone_named(timezone)  # an unknown one is a mistake all the same
        return replace(self, timezone=timezone, floating=None, **self._moved(timezone))

    def bind(self, key: str, anchor: datetime) -> Self:
        in_utc(anchor, "anchor")
        return replace(self, key=key, anchor=None if self.start is not None else anchor)

    def describe(self) -> str:
        words = humanize(self.interval)
        if words.startswith("1 ") and words.count(" ") == 1:
            words = words.removeprefix("1 ")
        return f"Every {words}" + (f" from {iso(self.start)}" if self.start is not None else "")

    @property
    def _base(self) -> datetime | None:
        return self.start if self.start is not None else self.anchor

    @property
    def _first(self) -> int:
        """The number of the first slot, counted in intervals from the base."""
        return 0 if self.start is not None else 1

    def _slot(self, number: int) -> datetime | None:
        assert self._base is not None
        try:
            return self._base + self.interval * number
        except OverflowError:
            return None

    def _later(self, after: datetime) -> datetime | None:
        if self._base is None:
            return _shifted(after, self.interval)
        return self._slot(max(self._first, (after - self._base) // self.interval + 1))

    def _earlier(self, before: datetime) -> datetime | None:
        if self._base is None:
            return _shifted(before, -self.interval)
        number = -((self._base - before) // self.interval) - 1
        return self._slot(number) if number >= self._first else None

    def _count(self, after: datetime, until: datetime) -> int | None:
        if self._base is None:
            return None
        passed = max((after - self._base) // self.interval, self._first - 1)
        return max((until - self._base) // self.interval - passed, 0)

    def _own_dict(self) -> dict[str, Any]:
        return {"interval": self.interval / timedelta(seconds=1), "anchor": iso(self.anchor)}


def _shifted(value: datetime, by: timedelta) -> datetime | None:
    try:
        return value + by
    except OverflowError:
        return None
