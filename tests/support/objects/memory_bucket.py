"""A bucket in memory, with an injected clock and injected faults, for tests on virtual time.

Several buckets share the same `Objects`, as several processes share a bucket of real storage.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from mainspring.core.clock import Clock, SystemClock
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.objects.bucket import (
    UNCHANGED,
    Blob,
    ClockReading,
    Listed,
    Unchanged,
)

__all__ = ["BucketFault", "Killed", "MemoryBucket", "Objects"]

T = TypeVar("T")
Effect = Literal["none", "throttled", "lost answer", "late", "killed before", "killed after"]


class Killed(StoreError):
    """The client's process ended at this request: nothing that it does later reaches the bucket."""


@dataclass(frozen=True)
class BucketFault:
    """What happens to one request.

    `throttled`: it is refused. `lost answer`: it is done, and the client is told that it failed.
    `late`: the client is told that it failed, and it is done `delay` seconds later. `killed
    before`, `killed after`: the client's process ends before or after the request is done. With
    another effect `delay` is the time on the way to the bucket, and `delay_after` on the way back.
    """

    effect: Effect = "none"
    delay: float = 0.0
    delay_after: float = 0.0


NO_FAULT = BucketFault()
Plan = Callable[[str, str], BucketFault]
"""Gives the fault of a request, by its kind and key."""


@dataclass
class _Stored:
    data: bytes
    etag: str
    modified: datetime


@dataclass
class Objects:
    """What the bucket holds. `list_lag`: seconds for which a list does not show new objects."""

    clock: Clock = field(default_factory=SystemClock)
    list_lag: float = 0.0
    stored: dict[str, _Stored] = field(default_factory=dict)
    writes: int = 0
    log: list[tuple[str, str, str]] = field(default_factory=list)

    def put(self, key: str, data: bytes, expected_etag: str | None) -> str | None:
        found = self.stored.get(key)
        if (None if found is None else found.etag) != expected_etag:
            return None
        self.writes += 1
        etag = f"etag-{self.writes}"
        self.stored[key] = _Stored(data, etag, self.clock.now())
        return etag

    def delete(self, key: str) -> None:
        self.stored.pop(key, None)


class MemoryBucket:
    """One client of the objects. `plan` decides about faults. `clock_error`: bounds of the clock's
    reading, as seconds before and after the true time; None: it is the machine's own clock."""

    kind = "memory"

    def __init__(
        self,
        objects: Objects,
        plan: Plan | None = None,
        *,
        clock: Clock | None = None,
        clock_error: Callable[[], tuple[float, float]] | None = None,
        write_interval: float = 0.0,
    ) -> None:
        self.objects = objects
        self.plan = plan
        self.clock = clock or objects.clock
        self.write_interval = write_interval
        self.location = "memory-bucket://"
        self.requests: Counter[str] = Counter()
        self.dead = False
        self._clock_error = clock_error
        self._late: set[asyncio.Task[None]] = set()

    async def open(self, *, create: bool = True) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """What is late stays under way."""

    async def get(self, key: str, unless_etag: str | None = None) -> Blob | Unchanged | None:
        def done() -> Blob | Unchanged | None:
            found = self.objects.stored.get(key)
            if found is None:
                return None
            return UNCHANGED if found.etag == unless_etag else Blob(found.data, found.etag)

        return await self._request("get", key, done)

    async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        return await self._request("put", key, lambda: self.objects.put(key, data, expected_etag))

    async def delete(self, keys: Sequence[str]) -> None:
        def done() -> None:
            for key in keys:
                self.objects.delete(key)

        await self._request("delete", " ".join(keys), done)

    async def list_objects(self, folder: str, limit: int | None = None) -> list[Listed]:
        def done() -> list[Listed]:
            seen = self.objects.clock.now() - timedelta(seconds=self.objects.list_lag)
            return [
                Listed(key, stored.modified)
                for key, stored in self.objects.stored.items()
                if not folder or key.startswith(f"{folder}/")
                if stored.modified <= seen
            ][:limit]

        return await self._request("list", folder, done)

    async def read_clock(self) -> ClockReading | None:
        if self._clock_error is None:
            return None
        before, after = self._clock_error()

        def done() -> ClockReading:
            now = self.objects.clock.now()
            return ClockReading(
                self.clock.monotonic(),
                now - timedelta(seconds=before),
                now + timedelta(seconds=after),
            )

        return await self._request("head", "clock", done)

    async def _request(self, kind: str, key: str, done: Callable[[], T]) -> T:
        self._check_alive()
        self.requests[kind] += 1
        fault = NO_FAULT if self.plan is None else self.plan(kind, key)
        self.objects.log.append((kind, key, fault.effect))
        if fault.effect == "late":
            task = asyncio.get_running_loop().create_task(_later(fault.delay, done))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            await asyncio.sleep(fault.delay_after)
            raise StoreUnavailable(f"{kind} {key}: no answer in time")
        await asyncio.sleep(fault.delay)
        if fault.effect == "killed before":
            self._die()
        if fault.effect == "throttled":
            raise StoreUnavailable(f"{kind} {key}: slow down")
        answer = done()
        if fault.effect == "killed after":
            self._die()
        await asyncio.sleep(fault.delay_after)
        self._check_alive()
        if fault.effect == "lost answer":
            raise StoreUnavailable(f"{kind} {key}: the answer was lost")
        return answer

    def _die(self) -> None:
        self.dead = True
        self._check_alive()

    def _check_alive(self) -> None:
        if self.dead:
            raise Killed


async def _later(delay: float, done: Callable[[], object]) -> None:
    await asyncio.sleep(delay)
    done()
