"""The only module that reads a clock."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Wall time for stores, monotonic time for waiting."""

    def now(self) -> datetime: ...

    def monotonic(self) -> float: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    monotonic = staticmethod(time.monotonic)


class BootClock(SystemClock):
    """The machine's clock. Its monotonic time goes on while the machine is suspended, where the
    system has such a clock: on Linux `time.monotonic` stands still meanwhile."""

    if sys.platform == "linux":

        @staticmethod
        def monotonic() -> float:
            return time.clock_gettime(time.CLOCK_BOOTTIME)


thread_cpu = time.thread_time
"""Seconds of CPU that this thread has used."""

process_cpu = time.process_time
"""Seconds of CPU that all threads of this process have used."""


def utcnow() -> datetime:
    """The machine's time, for previews and defaults; never for what is due (ask the store)."""
    return datetime.now(UTC)


def to_us(moment: datetime) -> int:
    """Microseconds since 1970: exact, and what stores keep."""
    return (moment - EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def later(moment: datetime, span: timedelta) -> datetime:
    """The moment so much later, or the end of the calendar (in any time zone) if it lies behind."""
    return moment + span if span < _LATEST - moment else max(moment, _LATEST)


class _Reading(NamedTuple):
    time: datetime
    read_at: float


class CarriedClock:
    """The store's time between two readings: the last reading plus the monotonic time since.

    Used for the times in records and for a retry's `run_at`. It never decides what is due or which
    lease has lapsed. Any thread may read it while another corrects it, so a reading is one value.
    """

    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self.correct(clock.now())

    def follow(self, clock: Clock) -> None:
        """Carry the time on by another clock's monotonic time from now on."""
        self._monotonic = clock.monotonic
        self.correct(clock.now())

    def correct(self, reading: datetime) -> None:
        """Replace the last reading of the store's clock."""
        self._reading = _Reading(reading, self._monotonic())

    def advance_to(self, moment: datetime) -> None:
        """Move forward to a moment that the store's clock has reached. This clock is behind if the
        answer to its last reading was slow."""
        if self.now() < moment:
            self.correct(moment)

    @property
    def age(self) -> float:
        """Seconds since the last reading."""
        return self._monotonic() - self._reading.read_at

    def now(self) -> datetime:
        reading = self._reading
        return reading.time + timedelta(0, self._monotonic() - reading.read_at)


class SteadyClock:
    """A count of microseconds that setting the wall clock does not change.

    `elapsed_us` is the same in all processes of a machine, from its boot to its shutdown; `boot`
    identifies the boot. `wall_offset_us` is wall time minus `elapsed_us`. It changes only when
    somebody sets the wall clock, so a store that keeps it can tell by how much. On a machine
    without such a clock (`boot` is empty) the wall clock itself is counted, and no step is noticed.
    An injected clock is counted by its monotonic time.
    """

    STEP_US = 50_000
    """Two offsets that differ by less than this count as equal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.boot = _boot_id() if isinstance(clock, SystemClock) else "injected"
        self.elapsed_us: Callable[[], int]
        if not self.boot:
            self.elapsed_us = lambda: to_us(clock.now())
        elif isinstance(clock, SystemClock):
            self.elapsed_us = _boot_clock()
        else:
            self.elapsed_us = lambda: round(clock.monotonic() * 1_000_000)

    def wall_offset_us(self) -> int | None:
        """Wall time minus `elapsed_us`; None if both clocks could not be read at nearly the same
        time."""
        if not self.boot:
            return 0
        for _ in range(10):
            before = self.elapsed_us()
            wall = to_us(self._clock.now())
            after = self.elapsed_us()
            if after - before < 1_000:
                return wall - (before + after) // 2
        return None

    def step_from(self, offset_us: int) -> int:
        """By how much the wall clock was set since `wall_offset_us` was this; 0 if it was not."""
        offset = self.wall_offset_us()
        step = 0 if offset is None else offset - offset_us
        return step if abs(step) >= self.STEP_US else 0


@cache
def _boot_id() -> str:
    """An id of this boot of the machine; empty if the system has none."""
    with contextlib.suppress(OSError):
        if sys.platform == "linux":
            return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        if sys.platform == "darwin":
            asked = ("sysctl", "-n", "kern.bootsessionuuid")
            return subprocess.run(asked, capture_output=True, text=True).stdout.strip()
    return ""


@cache
def _boot_clock() -> Callable[[], int]:
    """Microseconds since the boot, sleep included."""
    if sys.platform != "linux":
        return lambda: time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000
    ahead = _time_namespace_us()
    boottime = time.CLOCK_BOOTTIME
    return lambda: time.clock_gettime_ns(boottime) // 1_000 - ahead


def _time_namespace_us() -> int:
    """By how much this container's boot clock is ahead of the machine's (`man 7 time_namespaces`).
    Processes inside and outside the container must count alike."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/timens_offsets").read_text("ascii").splitlines():
            name, seconds, nanoseconds = line.split()
            if name == "boottime":
                return int(seconds) * 1_000_000 + int(nanoseconds) // 1_000
    return 0
