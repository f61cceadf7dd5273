"""Living through a store that is away: back off with jitter, say so once, go on by itself."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from mainspring.core.clock import CarriedClock, Clock
from mainspring.core.durations import humanize
from mainspring.core.events import Event, Events
from mainspring.errors import StoreDamaged, StoreFileChanged, StoreTooNew, StoreUnavailable

__all__ = ["OPERATIONS", "Patience", "reason_of"]

log = logging.getLogger("mainspring")
T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


OPERATIONS = {
    "announce": "announcing this worker",
    "claim": "claiming runs",
    "commit": "recording outcomes of runs",
    "elect": "electing the leader",
    "fire": "firing schedules",
    "get": "reading runs",
    "jobs": "reading jobs",
    "next due": "looking for the next due run",
    "prune": "deleting old runs",
    "renew": "renewing leases",
    "rescue": "looking for lapsed leases",
    "unblock": "looking for waiting runs",
    "wait": "waiting for changes",
}
"""The engine's calls to the store, in words."""


def reason_of(error: BaseException) -> str:
    """An error in words, also one that has none of its own."""
    try:
        text = str(error).strip()
    except Exception:  # an error whose text cannot be made
        text = ""
    if isinstance(error, TimeoutError) and not text:
        return "it did not answer in time"
    return text or type(error).__name__


NEEDS_SOMEBODY = (StoreFileChanged, StoreDamaged, StoreTooNew)
"""What does not go away by itself: it is logged as an error, also during another outage."""


class Patience:
    """Repeats store calls until they go through. Every call of the engine may be sent again."""

    def __init__(self, clock: Clock, time: CarriedClock, events: Events, rng: random.Random):
        self._clock = clock
        self._time = time
        self._events = events
        self._rng = rng
        self._failing: set[str] = set()
        self._called_somebody = False
        self._since = 0.0

    @property
    def failing(self) -> tuple[str, ...]:
        """What the engine asked of the store that has failed and not worked since."""
        return tuple(sorted(self._failing))

    async def first(self, longest: timedelta, operation: Callable[[], Awaitable[T]]) -> T:
        """The first call of all: what is away may come, but not for ever. Other errors (a wrong
        password, a damaged file) will not go away by themselves."""
        began, pause, said = self._clock.monotonic(), FIRST_PAUSE, False
        while True:
            try:
                answer = await operation()
            except StoreUnavailable as error:
                if self._clock.monotonic() - began + pause > longest.total_seconds():
                    raise
                if not said:
                    log.warning("waiting for the store up to %s: %s", humanize(longest), error)
                    said = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                if said:
                    log.warning("the store is there, after %.1f s", self._clock.monotonic() - began)
                return answer

    async def call(self, what: str, operation: Callable[[], Awaitable[T]]) -> T:
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await operation()
            except Exception as error:
                self.failed(what, error)
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self.succeeded(what)
                return answer

    def failed(self, what: str, error: Exception) -> None:
        """Say so, unless it was said: one outage is one message, however many calls it fails."""
        needs_somebody = isinstance(error, NEEDS_SOMEBODY)
        said = bool(self._failing) and not (needs_somebody and not self._called_somebody)
        if not self._failing:
            self._since = self._clock.monotonic()
        self._failing.add(what)
        if said:
            return
        self._called_somebody = needs_somebody
        expected = needs_somebody or isinstance(error, StoreUnavailable | TimeoutError)
        log.log(
            logging.ERROR if needs_somebody else logging.WARNING,
            "the store failed at %s: %s; this is tried again until it succeeds",
            OPERATIONS.get(what, what),
            reason_of(error),
            exc_info=not expected,
        )
        self._events.emit(Event("scheduler.error", self._time.now(), error=error))

    def succeeded(self, what: str) -> None:
        """What failed works again. A store that reads but cannot write has not come back."""
        if what in self._failing:
            self._failing.discard(what)
            if not self._failing:
                self._called_somebody = False
                away = self._clock.monotonic() - self._since
                log.warning("the store answers again after %.1f s", away)
