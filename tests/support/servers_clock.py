"""What hangs on leases, on a store that has a clock of its own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Protocol

from mainspring.testing.conformance.claim import LimitTests, RenewTests
from mainspring.testing.conformance.commit import RescueTests
from mainspring.testing.conformance.notes import ElectionTests


class EmptiedStore(Protocol):
    """A database that tests share."""

    def empty(self) -> None: ...


class ByTheServersClock(RenewTests, LimitTests, RescueTests, ElectionTests):
    """What hangs on leases, in real time.

    A busy machine may take longer between two calls than a lease of the test lasts. A test that
    failed there is run again: a defect of the store makes it fail every time.
    """

    tick = 0.1
    tries = 5
    shared: EmptiedStore
    _waited = 0.0

    async def advance(self, seconds: float) -> None:
        self._waited += seconds
        await asyncio.sleep(seconds)

    async def _run_test(self, test: Any, place: Path, given: dict[str, Any]) -> None:
        for tries in range(1, self.tries + 1):
            began, self._waited = time.monotonic(), 0.0
            try:
                await super()._run_test(test, place, given)
                return
            except AssertionError:
                was_slow = time.monotonic() - began - self._waited > 3 * self.tick
                if tries == self.tries or not was_slow:
                    raise
            self.shared.empty()
