"""What every schedule is: a frozen value that names instants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, ClassVar, Protocol, Self

from mainspring.core import clock
from mainspring.core.durations import humanize
from mainspring.core.schedules import dst
from mainspring.core.schedules.zones import zone_named
from mainspring.errors import InvalidInput, InvalidSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(ABC):
    """A rule that names instants ("slots"). Frozen, equal by value, with no clock of its own.

    `start` and `end` bound the slots, both inclusive. `jitter` does not move slots: it is the
    longest that a run may be put off, and `delay` says by how much. `key` is the job that the
    schedule was bound to.

    `floating` is None where the schedule was given a zone. Otherwise no zone was given, its wall
    times count as UTC until `in_zone` places them, and `floating` names the moments (`start`,
    `end`, `when`) that were given without an offset.
    """

    kind: ClassVar[str]
    after_end: ClassVar[bool] = False
    """Whether each slot counts from the end of the run before it, so that no slot but the next one
    is known. `next` then gives the earliest that a slot can be: as if the run took no time."""

    timezone: str = "UTC"
    start: datetime | None = None
    end: datetime | None = None
    jitter: timedelta | None = None
    key: str = ""
    floating: frozenset[str] | None = field(default=None, compare=False, repr=False)

    def in_zone(self, timezone: str) -> Self:
        """This schedule with its wall times in `timezone`. `InvalidSchedule` where it was made
        with another zone: one of the two must be wrong."""
        if self.floating is not None:
            zone_named(timezone)
            return replace(self, timezone=timezone, floating=None, **self._moved(timezone))
        if zone_named(timezone) is zone_named(self.timezone):
            return self
        raise InvalidSchedule(
            f"the schedule is in {self.timezone}, and timezone {timezone} was given as well:"
            " leave out one of them",
            field="timezone",
        )

    def _moved(self, timezone: str) -> dict[str, Any]:
        """The fields that were given as wall times without a zone, as they are in this one."""
        return {
            name: moment(getattr(self, name).replace(tzinfo=None), timezone, name)
            for name in self.floating or ()
        }

    def next(self, after: datetime) -> datetime | None:
        """The first slot strictly later than `after`, in UTC; None when there is no more."""
        after = in_utc(after, "after")
        if self.start is not None and after < self.start:
            after = _just_before(self.start)
        slot = self._later(after)
        if slot is None or (self.end is not None and slot > self.end):
            return None
        return slot

    def previous(self, before: datetime) -> datetime | None:
        """The last slot strictly earlier than `before`, in UTC; None when there is none."""
        before = in_utc(before, "before")
        if self.end is not None and before > self.end:
            before = _just_after(self.end)
        slot = self._earlier(before)
        if slot is None or (self.start is not None and slot < self.start):
            return None
        return slot

    def upcoming(self, n: int, after: datetime | None = None) -> list[datetime]:
        """The next `n` slots (fewer when the schedule ends) after a moment, or after now."""
        slots: list[datetime] = []
        moment = clock.utcnow() if after is None else after
        while len(slots) < n and (slot := self.next(moment)) is not None:
            slots.append(slot)
            moment = slot
        return slots

    def count(self, after: datetime, until: datetime) -> int | None:
        """How many slots lie in `(after, until]`, by arithmetic; None where they could only be
        counted one by one."""
        after, until = in_utc(after, "after"), in_utc(until, "until")
        if self.start is not None and after < self.start:
            after = _just_before(self.start)
        if self.end is not None and until > self.end:
            until = self.end
        return self._count(after, until) if after < until else 0

    def delay(self, slot: datetime) -> timedelta:
        """How long the run of `slot` is put off: in [0, jitter], the same on every machine."""
        if self.jitter is None:
            return timedelta(0)
        span = self.jitter // dst.TICK
        return dst.TICK * (stable_hash(f"{self.key}\0{clock.to_us(slot)}") % (span + 1))

    def bind(self, key: str, anchor: datetime) -> Self:
        """This schedule as the job `key`'s own: `H` resolved for it, intervals counted from
        `anchor` (its creation) unless they have a start.
        """
        in_utc(anchor, "anchor")
        return replace(self, key=key)

    def warnings(self, after: datetime, until: datetime) -> list[str]:
        """What changes of the zone's clocks do to this schedule in `(after, until]`.

        Looks ahead for at most ten years.
        """
        return []

    def to_dict(self) -> dict[str, Any]:
        """A JSON-safe form; `from_dict` gives an equal schedule back."""
        return {
            "kind": self.kind,
            "tz": self.timezone,
            "start": iso(self.start),
            "end": iso(self.end),
            "jitter": None if self.jitter is None else self.jitter / timedelta(seconds=1),
            "key": self.key,
            **self._own_dict(),
        }

    @abstractmethod
    def describe(self) -> str:
        """The schedule in plain English, with its zone."""

    @abstractmethod
    def _later(self, after: datetime) -> datetime | None:
        """`next` without the bounds."""

    @abstractmethod
    def _earlier(self, before: datetime) -> datetime | None:
        """`previous` without the bounds."""

    def _count(self, after: datetime, until: datetime) -> int | None:
        """`count` without the bounds, for an `until` later than `after`."""
        return None

    @abstractmethod
    def _own_dict(self) -> dict[str, Any]:
        """What `to_dict` adds for this kind."""

    def _check(self) -> None:
        """Bring bounds to UTC; refuse those that leave nothing. For `__post_init__`."""
        for name in ("start", "end"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, moment(value, self.timezone, name))
        if self.start is not None and self.end is not None and self.end < self.start:
            raise InvalidSchedule(
                f"the schedule ends ({iso(self.end)}) before it starts ({iso(self.start)})",
                part="end",
            )
        if self.jitter is not None and self.jitter < timedelta(0):
            why = f"jitter {humanize(self.jitter)} is negative: give a positive duration"
            raise InvalidSchedule(why, field="jitter")

    def _bounds_text(self) -> str:
        words = [f"from {iso(self.start)}" if self.start else ""]
        words.append(f"until {iso(self.end)}" if self.end else "")
        return " ".join(word for word in words if word)


class NearestWallTimes(Protocol):
    """Finds the nearest wall times of a schedule; naive in, naive out."""

    def later(self, wall: datetime) -> datetime | None:
        """The first wall time strictly later."""

    def earlier(self, wall: datetime) -> datetime | None:
        """The last wall time strictly earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WallClockSchedule(Schedule):
    """A schedule of wall times in a zone: the DST policy turns them into instants."""

    _wall_times: NearestWallTimes = field(init=False, repr=False, compare=False)

    @property
    @abstractmethod
    def follows_clock(self) -> bool:
        """Whether a repeated wall time counts on both passes."""

    def _later(self, after: datetime) -> datetime | None:
        zone = zone_named(self.timezone)
        return dst.next_instant(after, zone, self._wall_times.later, repeats=self.follows_clock)

    def _earlier(self, before: datetime) -> datetime | None:
        zone = zone_named(self.timezone)
        return dst.previous_instant(
            before, zone, self._wall_times.earlier, repeats=self.follows_clock
        )

    def warnings(self, after: datetime, until: datetime) -> list[str]:
        """One line for each change of the clocks that skips or repeats a slot."""
        zone = zone_named(self.timezone)
        period = in_utc(after, "after"), in_utc(until, "until")
        warnings = (self._warning(jump) for jump in dst.jumps(*period, zone))
        return [line for line in warnings if line is not None]

    def _warning(self, jump: dst.Jump) -> str | None:
        first, last = sorted((jump.before, jump.after))
        wall = self._wall_times.later(first - dst.TICK)
        if wall is None or wall >= last or not self._in_bounds(jump.instant):
            return None
        if jump.before < jump.after:
            if self.follows_clock and self._wall_times.later(last - dst.TICK) == last:
                return None  # a slot of its own falls on the gap's end: nothing is moved
            return f"{wall:%F %R} does not exist in {self.timezone}: runs at {jump.after:%R}"
        times = "both times" if self.follows_clock else "the first time only"
        return f"{wall:%F %R} happens twice in {self.timezone}: runs {times}"

    def _in_bounds(self, instant: datetime) -> bool:
        return (self.start is None or self.start <= instant) and (
            self.end is None or instant <= self.end
        )


def in_utc(value: datetime, what: str) -> datetime:
    """An aware date-time in UTC; one without a zone is refused: it names no instant."""
    if value.tzinfo is UTC:
        return value
    if value.utcoffset() is None:
        raise InvalidInput(
            f"{what} must be an aware datetime (with tzinfo), not {value!r}:"
            " datetime.now(UTC) gives one"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        return (datetime.min if value.year < 5000 else datetime.max).replace(tzinfo=UTC)


def moment(value: datetime | str, timezone: str, what: str) -> datetime:
    """An instant in UTC from a date-time or ISO 8601 text; a naive one is wall time there."""
    if isinstance(value, str):
        value = _from_iso(value, what)
    if not isinstance(value, datetime):
        raise InvalidSchedule(f"{what} must be a datetime or ISO text, not {value!r}", part=what)
    try:
        if value.utcoffset() is None:
            return dst.instant_of(value.replace(tzinfo=None), zone_named(timezone))
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidSchedule(
            f"{what} {value} lies outside the calendar in UTC", part=what
        ) from None


def _from_iso(text: str, what: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidSchedule(
            f"{what} {text[:64]!r} is no ISO 8601 date-time such as 2027-03-28T09:00:00+02:00",
            part=what,
        ) from None


def iso(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def stable_hash(text: str) -> int:
    """A number that is the same in every process (`hash` is not)."""
    return int.from_bytes(
        blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "big"
    )


def _just_before(value: datetime) -> datetime:
    return value - dst.TICK if value.replace(tzinfo=None) > datetime.min else value


def _just_after(value: datetime) -> datetime:
    return value + dst.TICK if value.replace(tzinfo=None) < datetime.max else value
