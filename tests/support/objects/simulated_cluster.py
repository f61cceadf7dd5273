"""The simulated cluster on the object store: the same workload and invariants, on virtual time.

Each worker is a client of one bucket in memory, with its own state and its own faults: requests are
slow, throttled, answered late or never, and done after their sender was told that they failed. What
was sent is done even if its sender is frozen or dead by then.

An even seed has the store's own limits, so hardly a part is written. An odd seed has limits so
small that every other write makes a snapshot, finished runs move to segments all the time, and
garbage is collected every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, TypeVar, cast
from unittest.mock import patch

import msgspec

from mainspring.core.statistics import WHOLE_STORE
from mainspring.stores.codec import json_text
from mainspring.stores.objects import ObjectStore, compaction, counters, group_commit, schema
from mainspring.stores.objects.group_commit import GroupCommit
from mainspring.stores.objects.schema import HEAD, Entry, decode_head, encode_head
from mainspring.stores.objects.storage_clock import StorageClock
from mainspring.stores.protocol import RunQuery, Store
from mainspring.testing import VirtualClock
from tests.support.objects.head_watcher import HeadMonitor, HeadWatcher, StoreView, WatchedObjects
from tests.support.objects.memory_bucket import BucketFault, Effect, MemoryBucket
from tests.support.simulation.cluster import Node
from tests.support.simulation.machines import Machine, outside
from tests.support.simulation.scenario import Report, Simulation, run_simulation
from tests.support.simulation.workload import Client, Workload

__all__ = ["ObjectSimulation", "simulate_on_objects"]

T = TypeVar("T")

STEPS = 3_000_000
MOST_DRIFT = 100e-6
"""By how much a worker's monotonic clock is wrong: the store allows for 200 ppm."""

ENTRY_BYTES = 512
"""What each delta counts for in the size of the head, whatever it is. Host names, process ids and
paths are in it, and a seed must be the same everywhere."""

SMALL: tuple[tuple[Any, str, Any], ...] = (
    (compaction, "COLLECT_EVERY", timedelta(seconds=4)),
    (compaction, "GARBAGE_AGE", timedelta(seconds=1)),
    (compaction, "FEWEST_PERIODS", 2),
    (compaction, "SMALL_SEGMENTS", 3),
    (schema, "BYTES_BEFORE_SNAPSHOT", ENTRY_BYTES),
    (counters, "DAY", timedelta(seconds=10)),
    (counters, "CLOSED_AFTER", timedelta(seconds=20)),
)
"""The limits of the store, in an odd seed."""

SMALL_OPTIONS = {"tail_bytes": 2 * ENTRY_BYTES, "most_finished": 4}


class BucketFaults:
    """Decides what happens to each request of a worker. Can be switched off."""

    def __init__(self, rng: random.Random, span: float, slowest: float) -> None:
        self.on = True
        self.booting = True
        self.forget: Callable[[], None] = lambda: None
        self._rng = rng
        self._rate = rng.choice((0.0, rng.uniform(0, 0.1), rng.uniform(0, 0.1)))
        self._slow = rng.choice((0.0, 0.01, 0.05, 0.2, slowest))
        self._outages = []
        for _ in range(rng.choice((0, 0, 1, 2))):
            begin = rng.uniform(0, span)
            self._outages.append((begin, begin + rng.uniform(0.5, 15)))

    def worsen(self, seed: int) -> None:
        """Lose many answers, and delay every request."""
        self._rng = random.Random(seed)
        self._rate, self._slow = 0.15, 0.15

    def __call__(self, kind: str, key: str) -> BucketFault:
        rng = self._rng
        if not self.on:
            return BucketFault()
        if rng.random() < 0.02:
            self.forget()
        delay, delay_after = rng.uniform(0, self._slow), rng.uniform(0, self._slow)
        now = asyncio.get_running_loop().time()
        if any(begin <= now < end for begin, end in self._outages):
            return BucketFault("throttled", delay)
        if rng.random() >= self._rate * (0.1 if self.booting else 1):
            return BucketFault(delay=delay, delay_after=delay_after)
        effects: tuple[Effect, ...] = ("throttled", "lost answer", "lost answer", "late", "late")
        effect = rng.choice(effects)
        if effect == "late":
            delay = rng.choice((0.01, 0.1, 0.5, 2.0, 5.0)) * rng.uniform(0.5, 1)
        return BucketFault(effect, delay, delay_after)


class WorkerBucket(MemoryBucket):
    """The bucket of one client. A request that was sent is done, whatever becomes of its sender."""

    def __init__(self, watcher: HeadWatcher, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.store: ObjectStore | None = None
        self._group_commit: GroupCommit | None = None
        self._watcher = watcher
        self._context = outside()

    async def put(self, key: str, data: bytes, *, expected_etag: str | None) -> str | None:
        if key == HEAD:
            assert self.store is not None
            # A store that closes has none.
            self._group_commit = self.store._group_commit or self._group_commit
            self._watcher.sent(self._group_commit)
        return await super().put(key, data, expected_etag=expected_etag)

    async def _request(self, kind: str, key: str, done: Callable[[], T]) -> T:
        async def send() -> tuple[T | None, Exception | None]:
            try:
                return await request(kind, key, done), None
            except Exception as error:
                return None, error

        request = super()._request
        loop = asyncio.get_running_loop()
        task = loop.create_task(send(), context=self._context.copy())
        answer, error = await asyncio.shield(task)
        if error is not None:
            raise error
        return cast(T, answer)


class ObjectNode(Node):
    """A worker whose store is a client of the bucket. Each life has another client."""

    def __init__(self, world: ObjectSimulation, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._world = world
        faults = BucketFaults(random.Random(self._rng.getrandbits(64)), **options)
        faults.forget = self._forget_jobs
        self.faults = cast(Any, faults)
        drift = random.Random(self._rng.getrandbits(64)).uniform(-MOST_DRIFT, MOST_DRIFT)
        self._steady = VirtualClock(rate=1 + drift)

    def _reached(self, author: str) -> Store:
        return self._world.client(author, cast(Any, self.faults), self._steady)


class ObjectWorkload(Workload):
    """Without transactions: a bucket has none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        del self.jobs["exact"]["delivery"]

    def _exact(self, machine: Machine, author: str) -> Callable[..., Any]:
        return self._handler(machine, author)


class ObjectSimulation(Simulation):
    def __init__(self, seed: int, **how: Any) -> None:
        super().__init__(seed, make_store=cast(Any, None), **how)
        own = random.Random(f"objects {seed}")
        self.is_small = seed % 2 == 1
        self._own_clock = own.random() < 0.7
        """Whether the storage has a clock of its own; otherwise it is this machine's."""
        self._settings["prune_every"] = own.choice(("1s", "4s", "15s"))
        self._most_clients = own.choice((2, 3, 256)) if self.is_small else 256
        self._large_delta = own.choice((0, group_commit.LARGE_DELTA))
        """0: every delta is written as a part."""
        self._clients = random.Random(own.getrandbits(64))
        self._error = own.choice((0.05, 0.5, 1.0))

    async def run(self) -> None:
        self._clock = VirtualClock(asyncio.get_running_loop())
        self._objects = WatchedObjects(self._clock)
        self._objects.list_lag = self._clients.choice((0.0, 0.0, 3.0))
        view = StoreView()
        self.monitor = HeadMonitor(cast(Any, view), self._clock, self._trace)
        if self._settings["retention"] == "20s":
            self.monitor.retention = timedelta(seconds=20)
        if self._own_clock:
            self.monitor.uncertainty = timedelta(seconds=self._error)
        self._watcher = HeadWatcher(self.monitor, view, self._objects)
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        with self._patched():
            await self._until_broken()

    @contextlib.contextmanager
    def _patched(self) -> Iterator[None]:
        """Small limits, and nothing that is another one in the next process."""
        numbers = itertools.count()
        changes = [
            (schema, "MOST_CLIENTS", self._most_clients),
            (schema.Entry, "size", ENTRY_BYTES),
            (group_commit, "new_client", lambda: f"{next(numbers):012x}"),
            (secrets, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}"),
        ]
        if self.is_small:
            changes += [*SMALL, (group_commit, "LARGE_DELTA", self._large_delta)]
        with contextlib.ExitStack() as stack:
            for owner, name, value in changes:
                stack.enter_context(patch.object(owner, name, value))
            yield

    def client(self, author: str, plan: Any, clock: VirtualClock) -> Store:
        """A store of its own on the bucket."""
        rng = random.Random(self._clients.getrandbits(64))

        error = rng.uniform(0, self._error), rng.uniform(0, self._error)
        bucket = WorkerBucket(
            self._watcher,
            self._objects,
            plan,
            clock=clock if self._own_clock else self._clock,
            clock_error=(lambda: error) if self._own_clock else None,
        )
        options: dict[str, Any] = SMALL_OPTIONS if self.is_small else {}
        bucket.store = ObjectStore(bucket, rng=rng, **options)
        return self._watcher.observe(bucket.store, author)

    def _workload(self) -> Workload:
        return ObjectWorkload(
            self.seed, self.monitor, self._rng, stress=self._stress, focus=self._focus
        )

    def _node(self, name: str, workload: Workload, slowest: float) -> Node:
        return ObjectNode(
            *(self, name, self.monitor, self._rng, workload.register),
            span=self._span,
            slowest=slowest / 2,
        )

    async def _set_clock(self) -> None:
        """Only a machine's clock is ever set; and another process of it notices that at once."""
        if not self._own_clock:
            await super()._set_clock()

    async def _notice_clock(self) -> None:
        """Another client writes, without a request on its way: what is under way is void."""
        found = self._objects.stored.get(HEAD)
        if found is None:
            return
        known = decode_head(found.data)
        clock = StorageClock(MemoryBucket(self._objects))
        clock._is_machine_clock = True
        nonce = f"step{known.seq}"
        delta = self._watcher.follow_step(clock, nonce)
        if delta:
            entry = Entry(known.seq + 1, msgspec.Raw(json_text(delta).encode()))
            made = known.with_write(entry, "setter", nonce, 0)
            self._objects.put(HEAD, encode_head(made), found.etag)

    async def _alive(self, nodes: list[Node], client: Client) -> None:
        await super()._alive(nodes, client)
        await self._read_again()

    async def _read_again(self) -> None:
        """A new client finds what the monitor has seen."""
        store = ObjectStore(MemoryBucket(self._objects))
        await store.open()
        runs = {run.id: run for run in (await store.find(RunQuery(limit=10**6))).items}
        if runs != self.monitor.runs:
            other = [i for i, run in self.monitor.runs.items() if runs.get(i) != run]
            more = runs.keys() - self.monitor.runs.keys()
            self.monitor.fail("storage", f"a new client reads other runs: {other}, {sorted(more)}")
        counts = await store.counts(since=self._clock._epoch - timedelta(days=1))
        ended = sum(counts.totals[WHOLE_STORE].ended.values())
        in_periods = sum(
            sum(period.ended.values()) for period in counts.periods.get(WHOLE_STORE, ())
        )
        if ended != in_periods:
            self.monitor.fail("counters", f"{ended} ends in total, {in_periods} in all periods")


def simulate_on_objects(seed: int, **how: Any) -> Report:
    """As `simulate`, on the object store."""
    return run_simulation(ObjectSimulation(seed, **how), STEPS)
