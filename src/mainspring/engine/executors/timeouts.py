"""Watches the timeouts of attempts.

Attempts with the same timeout expire in the order in which they began. So one timer for each length
of timeout is enough, however many attempts there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import takewhile

from mainspring.core.clock import Clock
from mainspring.engine.attempt import LocalAttempt


class Timeouts:
    """Used on one loop. `expire(attempt)` is called there when its timeout is over."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, expire: Callable[[LocalAttempt], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._expire = expire
        # By length; attempts of one length are in the order of their ends.
        self._ends: dict[timedelta, dict[LocalAttempt, float]] = {}
        self._timers: dict[timedelta, asyncio.TimerHandle] = {}

    def watch(self, attempt: LocalAttempt) -> None:
        """Watch an attempt that begins."""
        timeout = attempt.job.policy.timeout
        if timeout is None:
            return
        seconds = timeout.total_seconds()
        if timeout not in self._ends:
            self._ends[timeout] = {}
            self._set(timeout, seconds, attempt)
        self._ends[timeout][attempt] = self._clock.monotonic() + seconds

    def forget(self, attempt: LocalAttempt) -> bool:
        """Stop watching an attempt that has ended. Return whether it ended after its timeout, and
        before the loop could call `expire`: something had blocked the loop."""
        timeout = attempt.job.policy.timeout
        ends = None if timeout is None else self._ends.get(timeout)
        end = None if ends is None else ends.pop(attempt, None)
        if timeout is None or end is None:
            return False
        if not ends:
            del self._ends[timeout]
            self._timers.pop(timeout).cancel()
        return self._clock.monotonic() > end

    def _set(self, timeout: timedelta, seconds: float, attempt: LocalAttempt) -> None:
        self._timers[timeout] = self._loop.call_later(seconds, self._expire_due, timeout, attempt)

    def _expire_due(self, timeout: timedelta, first: LocalAttempt) -> None:
        """Expire the attempts whose time is over, and set the timer for the next one. The attempt
        that the timer was set for has expired, even if the clock stands still."""
        now, ends = self._clock.monotonic(), self._ends[timeout]
        expired = [
            attempt
            for attempt, _ in takewhile(lambda one: one[0] is first or one[1] <= now, ends.items())
        ]
        for attempt in expired:
            del ends[attempt]
        if ends:
            after, end = next(iter(ends.items()))
            self._set(timeout, end - now, after)
        else:
            del self._ends[timeout], self._timers[timeout]
        for attempt in expired:
            self._expire(attempt)
