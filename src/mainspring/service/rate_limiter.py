"""Limits how often something is done, by name: a token bucket for each."""

from __future__ import annotations

import math
from typing import NamedTuple

from mainspring.core.clock import Clock


class RateState(NamedTuple):
    """What a client may know of its rate: as the headers `RateLimit-*` say it."""

    limit: int
    remaining: int
    reset: int
    """Seconds until all is there again."""


class RateLimiter:
    """A token bucket for each name: `rate` tokens a second, and up to `burst` saved."""

    MAX_NAMES = 10_000
    MOST_DEBT = 10
    """How many bursts a name may owe after it was charged."""

    def __init__(self, rate: float, burst: float, clock: Clock) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, name: str) -> float:
        """Take a token. Returns 0, or if none is left how many seconds to wait for the next."""
        left = self._tokens(name)
        wait = max(0.0, (1 - left) / self._rate)
        self._keep(name, left if wait else left - 1)
        return wait

    def charge(self, name: str, tokens: float) -> None:
        """Take tokens for what was done already. If there are fewer, the name owes them."""
        self._keep(name, max(self._tokens(name) - tokens, -self.MOST_DEBT * self._burst))

    def state(self, name: str) -> RateState:
        left = self._tokens(name)
        reset = math.ceil((self._burst - left) / self._rate)
        return RateState(math.floor(self._burst), max(0, math.floor(left)), reset)

    def _tokens(self, name: str) -> float:
        now = self._clock.monotonic()
        left, at = self._left.get(name, (self._burst, now))
        return min(self._burst, left + (now - at) * self._rate)

    def _keep(self, name: str, left: float) -> None:
        self._left.pop(name, None)
        self._left[name] = (left, self._clock.monotonic())
        if len(self._left) > self.MAX_NAMES:  # the name that was used longest ago
            del self._left[next(iter(self._left))]
