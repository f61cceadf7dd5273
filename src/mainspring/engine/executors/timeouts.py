"""The timeouts of attempts.

Of attempts with the same timeout the first to begin is the first whose time is up: one timer for
each length of time is enough, however many attempts there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import takewhile

from mainspring.core.clock import Clock
from mainspring.engine.attempt import Work

__all__ = ["Deadlines"]


class Deadlines:
    """Used on one loop. `expire(work)` is called there when its time is up."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, expire: Callable[[Work], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._expire = expire
        self._ends: dict[timedelta, dict[Work, float]] = {}  # of each, in the order of their ends
        self._timers: dict[timedelta, asyncio.TimerHandle] = {}

    def watch(self, work: Work) -> None:
        """An attempt begins."""
        timeout = work.job.policy.timeout
        if timeout is None:
            return
        seconds = timeout.total_seconds()
        if timeout not in self._ends:
            self._ends[timeout] = {}
            self._set(timeout, seconds, work)
        self._ends[timeout][work] = self._clock.monotonic() + seconds

    def forget(self, work: Work) -> None:
        """It has ended, or is being ended."""
        timeout = work.job.policy.timeout
        if timeout is None:
            return
        ends = self._ends.get(timeout)
        if ends is not None and ends.pop(work, None) is not None and not ends:
            del self._ends[timeout]
            self._timers.pop(timeout).cancel()

    def _set(self, timeout: timedelta, seconds: float, work: Work) -> None:
        self._timers[timeout] = self._loop.call_later(seconds, self._look, timeout, work)

    def _look(self, timeout: timedelta, first: Work) -> None:
        """Expire what is up, and look again when the next one is. That for which the timer was set
        is up, even by a clock that stands still."""
        now, ends = self._clock.monotonic(), self._ends[timeout]
        up = [
            work
            for work, _ in takewhile(lambda one: one[0] is first or one[1] <= now, ends.items())
        ]
        for work in up:
            del ends[work]
        if ends:
            after, end = next(iter(ends.items()))
            self._set(timeout, end - now, after)
        else:
            del self._ends[timeout], self._timers[timeout]
        for work in up:
            self._expire(work)
