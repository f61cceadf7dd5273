"""Several writers of one store on object storage, on virtual time: figures of the protocol, which
do not depend on a server or on how busy this machine is.

Each request takes 10 to 30 ms. Each writer has two callers, which add, claim and complete ten runs
at a time.
"""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

from bench.measure import quantile
from mainspring.core import transitions
from mainspring.core.model import Run
from mainspring.stores.objects import ObjectStore
from mainspring.stores.protocol import Claim
from mainspring.testing import VirtualClock, run_virtual
from tests.support.objects.memory_bucket import BucketFault, MemoryBucket, Objects

__all__ = ["measure_writers"]

WRITERS = (1, 4, 32)
CALLERS = 2
BATCH = 10
LEASE = timedelta(minutes=1)


def measure_writers(seconds: float) -> dict[str, dict[str, float]]:
    """`seconds`: how long they write, on virtual time."""
    return {f"{count} writers": run_virtual(_race(count, seconds)) for count in WRITERS}


async def _race(writers: int, seconds: float) -> dict[str, float]:
    objects = Objects(VirtualClock(asyncio.get_running_loop()))
    buckets, took, ended = [], [], 0

    async def call(store: ObjectStore, name: str) -> None:
        nonlocal ended
        clock, number = objects.clock, 0
        claim = Claim(worker=name, handlers=frozenset({"h"}), limit=BATCH, lease=LEASE)
        while clock.monotonic() < seconds:
            began = clock.monotonic()
            now = await store.now()
            times: dict[str, Any] = dict.fromkeys(("created_at", "scheduled_at", "run_at"), now)
            ids = [f"{name}-{number + one}" for one in range(BATCH)]
            await store.add([Run(id=id, job_id="job", handler="h", **times) for id in ids])
            runs = (await store.claim(claim)).runs
            done = await store.commit([transitions.succeeded(run, now, None) for run in runs])
            number += BATCH
            ended += sum(done)
            took.append(clock.monotonic() - began)

    async def write(number: int) -> None:
        rng = random.Random(number)

        def plan(kind: str, key: str) -> BucketFault:
            return BucketFault(
                delay=rng.uniform(0.005, 0.015), delay_after=rng.uniform(0.005, 0.015)
            )

        bucket = MemoryBucket(
            objects, plan, clock_error=lambda: (rng.uniform(0, 0.1), rng.uniform(0, 0.1))
        )
        buckets.append(bucket)
        store = ObjectStore(bucket, rng=rng)
        await store.open()
        await asyncio.gather(*(call(store, f"{number}-{one}") for one in range(CALLERS)))
        await store.close()

    await asyncio.gather(*map(write, range(writers)))
    requests = sum(sum(bucket.requests.values()) for bucket in buckets)
    return {
        "runs_per_s": round(ended / objects.clock.monotonic()),
        "requests_per_run": round(requests / ended, 2),
        "p50_s": round(quantile(took, 0.5), 2),
        "p99_s": round(quantile(took, 0.99), 2),
    }
