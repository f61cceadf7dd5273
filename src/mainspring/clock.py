"""The only module that reads a clock."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

__all__ = ["EPOCH", "CarriedClock", "Clock", "SystemClock", "from_us", "to_us", "utcnow"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """Wall time for stores, monotonic time for waiting."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)


def utcnow() -> datetime:
    """The machine's time, for previews and defaults; never for what is due (ask the store)."""
    return datetime.now(UTC)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970: exact, and what stores keep."""
    return (moment - EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


class CarriedClock:
    """The store's time between readings, carried on by the monotonic clock.

    For record times and for a retry's `run_at`; it never decides what is due or lapsed.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self.correct(clock.now())

    def correct(self, reading: datetime) -> None:
        """Take a fresh reading of the store's clock."""
        self._reading = reading
        self._read_at = self._monotonic()

    def now(self) -> datetime:
        return self._reading + timedelta(0, self._monotonic() - self._read_at)
