"""After an outage: per-minute cron jobs and one-second intervals that nobody fired for a month.

    python -m bench catch_up [--store sqlite|mongodb|both] [--jobs 10000] [--days 30] [--json]

One instance starts on a store with so many jobs of either kind, all due since the outage began.
It prints for each store:

    caught_up_s      seconds from the start until no job has a slot that is older than the start
    missed           slots that the records of the gaps account for
    leases_kept      handlers that ran all the while under a lease of five seconds, and were
                     neither stopped nor started again
    no_op            from enqueue to end of a run that is enqueued meanwhile, every half second
    cpu              seconds of CPU of the instance
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from bench.measure import milliseconds, say
from bench.slots import STORES, empty_store
from mainspring import RunContext, Scheduler, State, cron, every
from mainspring.core.model import Job
from mainspring.stores import open_store
from mainspring.stores.protocol import JobQuery, Store
from mainspring.testing.store_calls import add_jobs

RUNS_IN_PROGRESS = 5
LONGEST_SECONDS = 120.0
"""Seconds after which it is given up."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", choices=[*STORES, "both"], default="both")
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs of either kind")
    parser.add_argument("--days", type=int, default=30, help="how long nothing ran")


def run(options: argparse.Namespace) -> dict[str, Any]:
    logging.getLogger("mainspring").setLevel(logging.ERROR)
    load = [round(value, 2) for value in os.getloadavg()]
    stores = STORES if options.store == "both" else (options.store,)
    figures = {}
    for store in stores:
        say(f"catch up on {store}")
        with empty_store(store) as (url, _):
            figures[store] = asyncio.run(measure(url, options.jobs, timedelta(options.days)))
    return figures | {"jobs": 2 * options.jobs, "load_before": load, "cores": os.cpu_count()}


async def measure(url: str, jobs: int, outage: timedelta) -> dict[str, Any]:
    scheduler = Scheduler(url, lease="5s", workers=10 + RUNS_IN_PROGRESS)
    over = asyncio.Event()

    @scheduler.job()
    async def tick() -> None: ...

    @scheduler.job(priority=9)
    async def no_op() -> None: ...

    @scheduler.job(priority=9)
    async def long(ctx: RunContext) -> None:
        await over.wait()

    async with Scheduler(url, workers=0) as producer:
        producer.job(id="tick")(tick)
        producer.job(id="long", priority=9)(long)
        handler = (await producer.get_job("tick")).handler
        running = await producer.enqueue_many("long", [{}] * RUNS_IN_PROGRESS)
    store = open_store(url)
    await store.open()
    await define(store, handler, jobs, outage)
    started, used = time.monotonic(), time.process_time()
    missed = 0

    def count_missed(event: Any) -> None:
        nonlocal missed
        missed += event.data["count"]

    scheduler.on("schedule.missed", count_missed)
    async with scheduler:
        now = await store.now()
        waits: list[float] = []
        watching = asyncio.create_task(watch(scheduler, waits))
        while (await store.jobs(JobQuery(due=now, limit=1))).items:
            await asyncio.sleep(0.25)
            if time.monotonic() - started > LONGEST_SECONDS:
                break
        took = time.monotonic() - started
        used = time.process_time() - used
        watching.cancel()
        over.set()
        ends = [await scheduler.wait(run.id, 30) for run in running]
        left = len((await store.jobs(JobQuery(due=now, limit=2 * jobs))).items)
        await scheduler.stop(graceful=False)
    await store.close()
    kept = [run for run in ends if run.state is State.SUCCEEDED and run.attempt == 1]
    return {
        "caught_up_s": round(took, 1),
        "left": left,
        "missed": missed,
        "leases_kept": f"{len(kept)} of {RUNS_IN_PROGRESS}",
        "no_op": milliseconds(waits) if waits else {},
        "cpu": round(used, 1),
    }


async def define(store: Store, handler: str, jobs: int, outage: timedelta) -> None:
    """Jobs as an outage leaves them: their next slot is as old as it is long."""
    began = datetime.now(UTC).replace(microsecond=0) - outage
    made = list(_jobs(handler, jobs, began))
    for at in range(0, len(made), 1000):
        await add_jobs(store, made[at : at + 1000])


def _jobs(handler: str, jobs: int, began: datetime) -> Iterator[Job]:
    minutely, secondly = cron("* * * * *"), every("1s")
    for number in range(jobs):
        for kind, schedule in (("cron", minutely), ("interval", secondly)):
            job_id = f"{kind}-{number}"
            bound = schedule.bind(job_id, began)
            yield Job(
                id=job_id,
                handler=handler,
                created_at=began,
                updated_at=began,
                schedule=bound,
                next_run_at=bound.next(began),
                version=1,
            )


async def watch(scheduler: Scheduler, waits: list[float]) -> None:
    """Somebody who uses the scheduler meanwhile."""
    while True:
        began = time.monotonic()
        run = await scheduler.enqueue("no_op")
        await scheduler.wait(run.id, LONGEST_SECONDS)
        waits.append(time.monotonic() - began)
        await asyncio.sleep(0.5)
