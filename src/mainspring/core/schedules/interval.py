"""Schedules with a fixed interval, counted from one moment or from the end of each run, and those
with a single slot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from mainspring.core.durations import humanize
from mainspring.core.schedules import dst
from mainspring.core.schedules.base import Schedule, in_utc, iso, moment
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule

SHORTEST_INTERVAL = timedelta(milliseconds=100)
"""Each slot is a record in the store, so an interval of 1 ms would flood it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spaced(Schedule):
    """A schedule with a fixed interval, which needs no zone."""

    interval: timedelta

    def in_zone(self, timezone: str) -> Self:
        """Any zone is accepted; a naive `start` or `end` is placed in it."""
        zone_named(timezone)  # an unknown one is a mistake all the same
        return replace(self, timezone=timezone, floating=None, **self._moved(timezone))

    def _check_interval(self) -> None:
        if self.interval < SHORTEST_INTERVAL:
            raise InvalidSchedule(
                f"an interval of {humanize(self.interval)} is too short: the shortest is"
                f" {humanize(SHORTEST_INTERVAL)}. For quicker work, loop in a handler",
                part="interval",
            )
        if self.jitter is not None and self.jitter > self.interval:
            raise InvalidSchedule(
                f"jitter {humanize(self.jitter)} is longer than the interval"
                f" {humanize(self.interval)}: runs would be put off past the next slot. Give a"
                " shorter jitter",
                field="jitter",
            )

    def _own_dict(self) -> dict[str, Any]:
        return {"interval": self.interval / timedelta(seconds=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval(_Spaced):
    """A slot each `interval`, by whole-number arithmetic from one moment, so without drift.

    With `start`: at start, start + interval, and so on. Otherwise one interval after `anchor` is
    the first. With neither (not bound yet) `next` counts from the moment it is asked about.
    """

    kind: ClassVar[str] = "interval"

    anchor: datetime | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.anchor is not None:
            object.__setattr__(self, "anchor", moment(self.anchor, self.timezone, "anchor"))
        self._check_interval()
        first = self._slot(self._first) if self._base is not None else None
        if first is None and self._base is not None:
            raise InvalidSchedule(f"{self.describe()} can never fire: it leaves the calendar")
        if first is not None and self.end is not None and first > self.end:
            raise InvalidSchedule(
                f"{self.describe()} can never fire: its first time would be {iso(first)}, its"
                f" end is {iso(self.end)}"
            )

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
        return {**_Spaced._own_dict(self), "anchor": iso(self.anchor)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay(_Spaced):
    """A slot `interval` after the end of the run before it. The first is at `start`, or one
    interval after the job was made."""

    kind: ClassVar[str] = "delay"
    after_end: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._check()
        self._check_interval()

    def upcoming(self, n: int, after: datetime | None = None) -> list[datetime]:
        """The next slot alone: the others depend on how long the runs take."""
        return Schedule.upcoming(self, min(n, 1), after)

    def describe(self) -> str:
        words = humanize(self.interval)
        first = f", first at {iso(self.start)}" if self.start is not None else ""
        return f"{words} after the end of the run before{first}"

    def _later(self, after: datetime) -> datetime | None:
        if self.start is not None and after < self.start:
            return self.start
        return _shifted(after, self.interval)

    def _earlier(self, before: datetime) -> datetime | None:
        return None


def _shifted(value: datetime, by: timedelta) -> datetime | None:
    try:
        return value + by
    except OverflowError:
        return None


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
