"""Retries store calls while the store is unavailable, and logs when an outage begins and ends.

`RetryingStore` has the engine's calls of the store protocol. It repeats each call, with growing
pauses, until the store answers. `Outages` knows which operations fail at the moment. It writes one
log line when the first one fails and one when all succeed again, however many calls fail between.
`contended` is the error of a compare-and-set that others always win.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import TypeVar

from mainspring.core.clock import CarriedClock, Clock
from mainspring.core.durations import humanize
from mainspring.core.events import Event, Events
from mainspring.core.model import Job, Page, Run
from mainspring.core.transitions import Change
from mainspring.errors import (
    Conflict,
    StoreDamaged,
    StoreError,
    StoreFileChanged,
    StoreTooNew,
    StoreUnavailable,
)
from mainspring.stores.protocol import Claim, Claimed, JobQuery, RunQuery, Store

log = logging.getLogger("mainspring")
T = TypeVar("T")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0

TRIES = 20
"""How often a compare-and-set is tried before the operation raises Conflict."""

OPERATIONS = {
    "announce": "announcing this worker",
    "breakers": "reading and changing circuit breakers",
    "claim": "claiming runs",
    "commit": "recording outcomes of runs",
    "elect": "electing the leader",
    "find": "reading runs",
    "fire": "firing schedules",
    "jobs": "reading jobs",
    "prune": "deleting old runs",
    "renew": "renewing leases",
    "rescue": "looking for lapsed leases",
    "nodes": "looking for runs of nodes that are gone",
    "sweep": "looking through waiting runs",
    "unblock": "releasing runs that come after others",
    "wait": "waiting for changes",
    "workers": "reading which workers are alive",
}
"""What the engine does with the store: the name of each operation, and the words for log lines."""

PERMANENT = (StoreFileChanged, StoreDamaged, StoreTooNew)
"""Errors that need an operator. They are logged as errors, also during another outage."""


def reason_of(error: BaseException) -> str:
    """Return the text of an error, or its type where it has no text."""
    try:
        text = str(error).strip()
    except Exception:  # its __str__ raises
        text = ""
    if isinstance(error, TimeoutError) and not text:
        return "it did not answer in time"
    return text or type(error).__name__


async def wait_for_store(
    open_store: Callable[[], Awaitable[T]], most: timedelta, clock: Clock
) -> T:
    """Open the store, and retry for at most so long while it is unavailable.

    Other errors (a wrong password, a damaged file) do not go away, so they are raised at once.
    """
    began, pause, logged = clock.monotonic(), FIRST_PAUSE, False
    while True:
        try:
            answer = await open_store()
        except StoreUnavailable as error:
            if clock.monotonic() - began + pause > most.total_seconds():
                raise
            if not logged:
                log.warning("waiting for the store up to %s: %s", humanize(most), error)
                logged = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
        else:
            if logged:
                log.warning("the store is there, after %.1f s", clock.monotonic() - began)
            return answer


class Outages:
    """Which operations fail at the moment; logs the beginning and the end of an outage."""

    def __init__(self, clock: Clock, time: CarriedClock, events: Events) -> None:
        self._clock = clock
        self._time = time
        self._events = events
        self._failing: set[str] = set()
        self._permanent_logged = False
        self._since = 0.0

    @property
    def failing(self) -> tuple[str, ...]:
        """The operations that have failed and not succeeded since."""
        return tuple(sorted(self._failing))

    def failed(self, operation: str, error: Exception) -> None:
        """Note a failure. Only the first of an outage is logged and emitted as an event."""
        permanent = isinstance(error, PERMANENT)
        logged = bool(self._failing) and not (permanent and not self._permanent_logged)
        if not self._failing:
            self._since = self._clock.monotonic()
        self._failing.add(operation)
        if logged:
            return
        self._permanent_logged = permanent
        expected = permanent or isinstance(error, StoreUnavailable | TimeoutError)
        log.log(
            logging.ERROR if permanent else logging.WARNING,
            "the store failed at %s: %s; this is tried again until it succeeds",
            OPERATIONS.get(operation, operation),
            reason_of(error),
            exc_info=not expected,
        )
        self._events.emit(Event("scheduler.error", self._time.now(), error=error))

    def succeeded(self, operation: str) -> None:
        """Note a success. The outage ends when no operation fails any more: a store that can read
        but not write is not back."""
        if operation in self._failing:
            self._failing.discard(operation)
            if not self._failing:
                self._permanent_logged = False
                away = self._clock.monotonic() - self._since
                log.warning("the store answers again after %.1f s", away)

    @contextlib.contextmanager
    def suppressed(self, operation: str) -> Iterator[None]:
        """Note whether the block succeeds, and suppress its error: the caller tries again later."""
        try:
            yield
        except Exception as error:
            self.failed(operation, error)
        else:
            self.succeeded(operation)


class RetryingStore:
    """The calls of the store protocol that the engine makes for itself, each with retries.

    Every call may be sent again, also where it was done and only its answer was lost. All errors
    are retried, except those of `commit` that the changes themselves cause. Cancelling the task
    ends the retries.
    """

    def __init__(self, store: Store, outages: Outages, rng: random.Random) -> None:
        self._store = store
        self._outages = outages
        self._rng = rng

    async def claim(self, claim: Claim) -> Claimed:
        return await self.repeat("claim", lambda: self._store.claim(claim))

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        """Retry errors of the store (a full disk, a lost right); raise all others at once, since
        they are about these changes."""
        return await self.repeat(
            "commit", lambda: self._store.commit(changes), retried=(StoreError, OSError)
        )

    async def find(self, query: RunQuery) -> Page[Run]:
        return await self.repeat("find", lambda: self._store.find(query))

    async def jobs(self, query: JobQuery) -> Page[Job]:
        return await self.repeat("jobs", lambda: self._store.jobs(query))

    async def wait(self, timeout: float) -> bool:
        return await self.repeat("wait", lambda: self._store.wait(timeout))

    async def repeat(
        self,
        operation: str,
        procedure: Callable[[], Awaitable[T]],
        *,
        retried: type[Exception] | tuple[type[Exception], ...] = Exception,
    ) -> T:
        """Repeat a procedure of several store calls, from its beginning, until it succeeds."""
        pause = FIRST_PAUSE
        while True:
            try:
                answer = await procedure()
            except retried as error:
                self._outages.failed(operation, error)
                await asyncio.sleep(pause * (0.5 + self._rng.random()))
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self._outages.succeeded(operation)
                return answer


def contended(what: str) -> Conflict:
    return Conflict(f"{what} was changed {TRIES} times while this call tried to write; try again")
