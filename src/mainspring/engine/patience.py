"""Living through a store that is away: back off with jitter, say so once, go on by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.clock import CarriedClock, Clock
from mainspring.errors import StoreUnavailable
from mainspring.events import Event, Events

__all__ = ["Patience"]

log = logging.getLogger("mainspring")
T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


class Patience:
    """Repeats store calls until they go through. Every call of the engine may be sent again."""

    def __init__(self, clock: Clock, time: CarriedClock, events: Events, rng: random.Random):
        self._clock = clock
        self._time = time
        self._events = events
        self._rng = rng
        self._away_since: float | None = None

    @property
    def away(self) -> bool:
        """Whether the store failed the last call."""
        return self._away_since is not None

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await operation()
            except Exception as error:
                self.failed(error)
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self.succeeded()
                return answer

    def failed(self, error: Exception) -> None:
        if self._away_since is not None:
            return
        self._away_since = self._clock.monotonic()
        expected = isinstance(error, StoreUnavailable)
        log.warning(
            "the store failed (%s); trying again until it answers", error, exc_info=not expected
        )
        self._events.emit(Event("scheduler.error", self._time.now(), error=error))

    def succeeded(self) -> None:
        if self._away_since is not None:
            away = self._clock.monotonic() - self._away_since
            self._away_since = None
            log.warning("the store answers again after %.1f s", away)
