"""`FakeClock`: a clock whose time moves only when a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["FakeClock"]

_START = datetime(2030, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock that stands still until it is moved.

    Wall time may be set anywhere, back as well, as an operator or NTP would; monotonic time
    follows it forward and never steps back.
    """

    def __init__(self, start: datetime = _START) -> None:
        self._now = _aware(start)
        self._monotonic = 0.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, by: float | timedelta) -> datetime:
        """Let seconds (or a timedelta) pass; the new time."""
        span = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if span < timedelta():
            raise ValueError(f"time passes forwards only, not by {by!r}; set() moves the wall back")
        self._now += span
        self._monotonic += span.total_seconds()
        return self._now

    def set(self, to: datetime) -> None:
        """Move the wall clock; monotonic time goes along forward, and stands still otherwise."""
        to = _aware(to)
        self._monotonic += max(0.0, (to - self._now).total_seconds())
        self._now = to

    def step(self, by: float | timedelta) -> datetime:
        """Move the wall clock alone, back or forward, as an operator or NTP does; the new time."""
        self._now += by if isinstance(by, timedelta) else timedelta(seconds=by)
        return self._now


def _aware(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"a clock's time has a time zone, unlike {moment!r}")
    return moment.astimezone(UTC)
