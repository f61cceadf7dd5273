"""Estimates the storage's time: an earliest and a latest bound.

A reading of the storage's clock gives an earliest and a latest time. Between readings both bounds
advance with the monotonic clock and widen by its possible drift. The true time lies within all
readings, so each one narrows the bounds. What is due, lapsed or expired is decided by the earliest
time, and what is to last for a while is stamped from the latest: so no client ends early what
another one has stamped.

Object storage says its time to the second, so one reading leaves a second and a round trip. Further
readings follow every half minute, until a quarter of a second is left.

A bucket on this machine has no clock of its own. Then the machine's wall clock is the storage's,
without an error; and when somebody sets it, leases, terms and retries move with it (`clock_step`).
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from msgspec import Struct

from mainspring.core.clock import SteadyClock, from_us, to_us
from mainspring.core.durations import humanize
from mainspring.errors import StoreUnavailable
from mainspring.stores.codec import RUN, update_record
from mainspring.stores.evaluation import fields_of_clock_step
from mainspring.stores.objects.bucket import Bucket, ClockReading
from mainspring.stores.objects.state import LiveState

log = logging.getLogger("mainspring")

DRIFT = 200e-6
"""By how much a monotonic clock may be wrong. Quartz is wrong by up to 100 ppm, and NTP corrects a
clock by up to 500 ppm for a while; what that adds in ten minutes is below what a reading gives."""

NARROW_ENOUGH = timedelta(milliseconds=250)
"""Bounds that are closer than this are good enough: they are read again only now and then."""

READ_SOON, READ_RARELY = 30.38, 600.0
"""Seconds between two readings while the bounds are wide, and when they are narrow. Not whole
seconds, so that each reading falls into another part of the storage's second."""

SERVERS_DIFFER = timedelta(seconds=1)
"""The servers of one storage may differ by so much, without a warning."""

SET_BACK = timedelta(seconds=10)
"""A stored time so far ahead of the storage's clock, as this client knows it, is wrong, or the
client is: its machine stood still, or somebody has set the storage's clock back. A reading
tells."""

WIDEST_USABLE = timedelta(seconds=10)
"""If the clock cannot be read, known bounds are used until they are wider than this. From narrow
bounds that takes seven hours."""


class Bounds(Struct, frozen=True):
    """The storage's time is not before `earliest` and not after `latest`."""

    earliest: datetime
    latest: datetime


class StorageClock:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._clock = bucket.clock
        self._steady = SteadyClock(bucket.clock)
        self._known: ClockReading | None = None
        self._next_reading = 0.0
        self._failures = 0
        self._rejected_time = 0
        """A stored time that is ahead of the clock even after a new reading, so it is ignored."""
        self._is_machine_clock = False
        self._reported: int | None = None

    async def read_if_due(self, stored: int = 0) -> None:
        """Read the storage's clock, unless what is known is good enough. `stored`: the time of the
        last write. Raises `StoreUnavailable` if the known bounds cannot be used without a reading.
        """
        if self._is_machine_clock:
            return
        if self._known is not None and self._is_behind(stored):
            await self._replace_bounds(stored)
        elif self._known is None or self._clock.monotonic() >= self._next_reading:
            await self._read_or_keep()

    def _is_behind(self, stored: int) -> bool:
        """Whether the last write was made at a time that is still to come by what is known here."""
        is_ahead = from_us(stored) > self._current_bounds().latest + SET_BACK
        return is_ahead and stored != self._rejected_time

    async def _replace_bounds(self, stored: int) -> None:
        """Replace what is known by a reading that begins now."""
        reading = await self._bucket.read_clock()
        assert reading is not None
        log.warning(
            "this machine stood still, or a clock was set: the time of %s is now %s",
            self._bucket.location,
            reading.earliest,
        )
        self._known = None
        self._take_reading(reading)
        if self._is_behind(stored):
            self._rejected_time = stored  # somebody has set the storage's clock back

    async def _read_or_keep(self) -> None:
        try:
            reading = await self._bucket.read_clock()
        except StoreUnavailable as error:
            if self._known is None or self._width() > WIDEST_USABLE:
                raise
            if not self._failures:
                log.warning(
                    "the clock of %s cannot be read. What is known of it serves for some hours: %s",
                    self._bucket.location,
                    error,
                )
            rest = min(READ_SOON * 2**self._failures, READ_RARELY)
            self._next_reading = self._clock.monotonic() + rest
            self._failures += 1
            return
        if reading is None:
            self._is_machine_clock = True
        else:
            self._take_reading(reading)

    @property
    def error(self) -> timedelta:
        """By how much the earliest time may be wrong."""
        return timedelta(0) if self._known is None else self._width()

    def _width(self) -> timedelta:
        bounds = self._current_bounds()
        return bounds.latest - bounds.earliest

    def _take_reading(self, reading: ClockReading) -> None:
        self._merge(reading)
        self._failures = 0
        is_narrow = self._width() <= NARROW_ENOUGH
        self._next_reading = reading.read_at + (READ_RARELY if is_narrow else READ_SOON)

    def _merge(self, reading: ClockReading) -> None:
        known = self._known and _advance_bounds(self._known, reading.read_at)
        if known is None:
            self._known = reading
            return
        earliest = max(known.earliest, reading.earliest)
        latest = min(known.latest, reading.latest)
        if earliest > latest:
            if earliest - latest > SERVERS_DIFFER:
                log.warning(
                    "the clock of %s was set, or this machine's clock ran wrong: its time is now"
                    " %s",
                    self._bucket.location,
                    reading.earliest,
                )
            self._known = reading
        else:
            self._known = ClockReading(reading.read_at, earliest, latest)

    def _current_bounds(self) -> Bounds:
        assert self._known is not None, "the clock was not read"
        return _advance_bounds(self._known, self._clock.monotonic())

    def bounds(self, stored: int) -> Bounds:
        """The time now. `stored` is the time of the last write: no client's time is before it."""
        if self._is_machine_clock:
            now = self._clock.now()
            return Bounds(now, now)
        bounds, last = self._current_bounds(), from_us(stored)
        if stored == self._rejected_time:
            return bounds
        return Bounds(max(bounds.earliest, last), max(bounds.latest, last))

    def seconds_since(self, stored: int) -> float:
        """How long ago a write was that stored this time, at least."""
        if self._is_machine_clock:
            return 0.0
        return max(0.0, (self._current_bounds().earliest - from_us(stored)).total_seconds())

    def stamp(self, bounds: Bounds) -> int:
        """What the head keeps as its time. A machine's clock may be set back, so it keeps none."""
        return 0 if self._is_machine_clock else to_us(bounds.earliest)

    def follow_step(self, state: LiveState) -> None:
        """If somebody has set the machine's clock, move what lasts, so that it keeps its length."""
        if not self._is_machine_clock or not self._steady.boot:
            return
        known = state.get("meta", "clock") or {}
        offset = known.get("offset")
        if known.get("boot") != self._steady.boot or not isinstance(offset, int):
            offset = self._steady.wall_offset_us()
            if offset is not None:
                state.put("meta", "clock", {"boot": self._steady.boot, "offset": offset})
        elif step := self._steady.step_from(offset):
            _move_times(state, timedelta(microseconds=step), self._clock.now())
            state.put("meta", "clock", {**known, "offset": offset + step})
            self._log_step(offset + step, timedelta(microseconds=step))

    def _log_step(self, offset: int, step: timedelta) -> None:
        """Log a step once, though reads meet it until a write has stored it."""
        if offset == self._reported:
            return
        self._reported = offset
        log.warning(
            "this machine's clock was set %s by %s. Leases and retries keep their length; schedules"
            " follow the new time",
            "forward" if step > timedelta() else "back",
            humanize(abs(step)),
        )


def _advance_bounds(reading: ClockReading, to: float) -> Bounds:
    passed = timedelta(seconds=to - reading.read_at)
    drift = abs(passed) * DRIFT
    return Bounds(reading.earliest + passed - drift, reading.latest + passed + drift)


def _move_times(state: LiveState, step: timedelta, now: datetime) -> None:
    for run in state.unfinished():
        record = state.get("runs", run.id)
        moved = fields_of_clock_step(run, step, now)
        if moved and record is not None:
            state.put("runs", run.id, update_record(RUN, record, moved))
    for key, record in list(state.table("notes").items()):
        ends = record.get("expires_at")
        if "ttl" in record and isinstance(ends, int):
            state.put("notes", key, {**record, "expires_at": ends + step // timedelta.resolution})
