"""Recurrence rules (RFC 5545) as schedules."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

from mainspring.core.schedules import dst
from mainspring.core.schedules.base import WallClockSchedule, in_utc, iso
from mainspring.core.schedules.description import rule_in_words
from mainspring.core.schedules.rrule import (
    Freq,
    RuleWallTimes,
    read_recurrence_text,
    rule_wall_times,
)
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidSchedule

_UNBOUND = datetime(1970, 1, 1)
_EARLIEST = datetime(1900, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence(WallClockSchedule):
    """The times of an RRULE on the wall clock of `timezone`, counted from `dtstart`.

    `dtstart`, `exdates` and `rdates` (times beside the rule) are naive wall times there. Without
    a `dtstart` a rule counts from the anchor it is bound to, and until then from 1970. Rules of
    hours, minutes and seconds follow the clock through a repeated hour; all others name fixed
    times.
    """

    kind: ClassVar[str] = "rrule"

    rule: str
    dtstart: datetime | None = None
    exdates: tuple[datetime, ...] = ()
    rdates: tuple[datetime, ...] = ()
    source: str | None = field(default=None, compare=False, repr=False)
    """The text it was read from, where no zone was given: its UTC times are read once more."""
    _wall_times: RuleWallTimes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        zone_named(self.timezone)
        self._check()
        dtstart = self.dtstart or _UNBOUND
        if dtstart.tzinfo is not None or dtstart.microsecond or dtstart < _EARLIEST:
            raise InvalidSchedule(
                f"dtstart {dtstart} must be wall time (naive), in whole seconds, from 1900 on",
                part="dtstart",
            )
        wall_times = rule_wall_times(self.rule, dtstart, self.timezone, self.exdates, self.rdates)
        object.__setattr__(self, "_wall_times", wall_times)
        if self.next(_EARLIEST.replace(tzinfo=UTC)) is None:
            raise InvalidSchedule(
                f"{self.rule!r} can never fire: no time of it was found"
                f" {self._bounds_text() or f'from {dtstart} on'}"
            )

    def _moved(self, timezone: str) -> dict[str, Any]:
        moved = WallClockSchedule._moved(self, timezone)
        if self.source is None:
            return moved
        parts = read_recurrence_text(self.source, timezone)
        dtstart = parts.dtstart
        start = moved.get("start", self.start)
        if dtstart is None and start is not None:
            dtstart = dst.wall_of(start, zone_named(timezone)).replace(microsecond=0, fold=0)
        stamps = {"dtstart": dtstart, "exdates": parts.exdates, "rdates": parts.rdates}
        return {**moved, **stamps, "source": None}

    def bind(self, key: str, anchor: datetime) -> Self:
        wall = dst.wall_of(in_utc(anchor, "anchor"), zone_named(self.timezone))
        return replace(self, key=key, dtstart=self.dtstart or wall.replace(microsecond=0, fold=0))

    def describe(self) -> str:
        times = "once more" if len(self.rdates) == 1 else f"{len(self.rdates)} more times"
        more = f", and {times}" if self.rdates else ""
        return f"{rule_in_words(self._wall_times.rule, self.dtstart)}{more}, {self.timezone}"

    @property
    def text(self) -> str:
        """The lines that give it back when they are read in its zone."""
        lines = [f"RRULE:{self.rule}"]
        if self.dtstart is not None:
            lines.insert(0, f"DTSTART:{_stamp(self.dtstart)}")
        for name, wall_times in (("EXDATE", self.exdates), ("RDATE", self.rdates)):
            if wall_times:
                lines.append(f"{name}:{','.join(map(_stamp, wall_times))}")
        return "\n".join(lines)

    @property
    def ends_by_count(self) -> bool:
        """Whether its rule has a COUNT."""
        return self._wall_times.rule.count is not None

    @property
    def follows_clock(self) -> bool:
        return self._wall_times.rule.freq >= Freq.HOURLY

    def _own_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "dtstart": iso(self.dtstart),
            "exdates": [iso(wall) for wall in self.exdates],
            **({"rdates": [iso(wall) for wall in self.rdates]} if self.rdates else {}),
        }


def _stamp(wall: datetime) -> str:
    return f"{wall:%Y%m%dT%H%M%S}"
