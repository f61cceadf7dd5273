"""Repeats requests that the storage refuses for now, or does not answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mainspring.core.clock import Clock
from mainspring.errors import StoreUnavailable

T = TypeVar("T")

RETRY_FOR = 10.0
"""Seconds from the first failure of a request until its caller is told. S3 answers some requests
with 503 at any time, and many while it divides a prefix that has become busy."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 1.0
"""Seconds between two tries."""


class Retries:
    """How long one client repeats a request. It is sent again at least once, however long the first
    one took; with `retry_for=0` never."""

    def __init__(self, clock: Clock, rng: random.Random, retry_for: float = RETRY_FOR) -> None:
        self.now = clock.monotonic
        self._rng = rng
        self._retry_for = retry_for

    def has_expired(self, failing_since: float) -> bool:
        return self.now() - failing_since >= self._retry_for

    async def repeat(
        self,
        request: Callable[[], Awaitable[T]],
        unless: type[StoreUnavailable] | tuple[()] = (),
    ) -> T:
        """The answer of a request that may be sent any number of times. Errors of the kind `unless`
        are raised at once."""
        failing_since: float | None = None
        longest = 2 * SHORTEST_PAUSE
        while True:
            try:
                return await request()
            except StoreUnavailable as error:
                if isinstance(error, unless):
                    raise
                failing_since = self.now() if failing_since is None else failing_since
                if self.has_expired(failing_since):
                    raise
            longest = min(2 * longest, LONGEST_PAUSE)
            await asyncio.sleep(self._rng.uniform(0, longest))
