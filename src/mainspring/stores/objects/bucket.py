"""The `Bucket` protocol: all that the store needs of object storage.

Objects are named by keys below the store's own prefix: a bucket adds the prefix itself. Every write
is conditional, so two writers of one key never overwrite each other unnoticed.

A call that fails raises:

- `StoreUnavailable`: the storage cannot be reached now, throttles, or gave no answer in time. A
  write may have been done, may still be done later, or is never done. A bucket sends each request
  once and never repeats it: its caller has to learn first what became of the write.
- another `StoreError`: the same, but it does not go away by itself (no permission, no such bucket).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from enum import Enum
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from mainspring.core.clock import Clock
from mainspring.errors import StoreUnavailable

T = TypeVar("T")

RETRY_FOR = 10.0
"""Seconds from the first failure of a request until its caller is told. S3 answers some requests
with 503 at any time, and many while it divides a prefix that has become busy."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 1.0
"""Seconds between two tries."""


class Blob(Struct, frozen=True):
    """An object's content and its entity tag, which changes with every write of other content."""

    data: bytes
    etag: str


class Unchanged(Enum):
    """The answer of `Bucket.get` where the object still has the entity tag given."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED


class Listed(Struct, frozen=True):
    """An object in a list. `modified` is by the storage's own clock."""

    key: str
    modified: datetime


class ClockReading(Struct, frozen=True):
    """At the monotonic time `read_at` of this process, the storage's clock showed a time between
    `earliest` and `latest`."""

    read_at: float
    earliest: datetime
    latest: datetime


class Bucket(Protocol):
    """Objects by key. Used on one event loop; any number of calls may be under way at once."""

    location: str
    """The URL of the store, without secrets."""

    kind: str
    """The scheme of the URL: s3, gs, az, file."""

    requests: Counter[str]
    """Requests that were sent, by kind: get, put, delete, list, head."""

    clock: Clock
    """Its monotonic time is that of `ClockReading.read_at`, and goes on while the machine is
    suspended. Where `read_clock` gives None, its wall time is the storage's time, and somebody
    may set it."""

    write_interval: float
    """Seconds that the storage wants between two writes of one key; 0 where it does not say."""

    async def open(self, *, create: bool = True) -> None:
        """Connect, and prove that the storage obeys conditions. Raises `StoreError` if not. With
        `create=False` nothing is written where there is no object yet."""
        ...

    async def close(self) -> None: ...

    async def get(self, key: str, unless_etag: str | None = None) -> Blob | Unchanged | None:
        """The object, or None if there is none. `UNCHANGED` if its entity tag is `unless_etag`.

        Reads what was written last: a get that begins after a put has answered sees that put, or a
        later one.
        """
        ...

    async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        """Write the object if the condition holds; give its new entity tag, or None if not.

        `expected_etag=None`: only if there is no such object. Otherwise only if its entity tag is
        still this one; an object that is gone does not have it. None also where an earlier request
        of this very write was done and its answer was lost. All of the object is written or
        nothing.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the objects; those that are gone already do not matter."""
        ...

    async def list_objects(self, folder: str, limit: int | None = None) -> list[Listed]:
        """The objects in a folder and below it, in any order; at most `limit`. An empty name stands
        for all of the store. Newly written objects may be missing for a while, and deleted ones may
        still be there."""
        ...

    async def read_clock(self) -> ClockReading | None:
        """Read the storage's clock, by one request. None where it is the machine's own clock
        (`clock`)."""
        ...


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
