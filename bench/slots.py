"""Slots a second: jobs that all fire every second, on one instance and on two that share a store.

    python -m bench slots [--store sqlite|mongodb|both] [--rate 1000] [--seconds 30] [--json]

Each instance is a process of its own, as `mainspring worker` has it, with a handler that does
nothing. On MongoDB the server (a replica set of one, on loopback) shares the machine's cores. It
prints for each store and number of instances:

    slots        how many slots the measured seconds have
    ran          how many of them ran, by instance
    lost, twice  slots without a run, and slots that ran more than once: both must be 0
    skipped      slots that were passed over, because the run of the slot before was unfinished
    lateness     from the slot to the start of its handler
    cpu          seconds of CPU for each second measured: of the instances, and of mongod
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any

from bench.measure import cpu_of, folder, milliseconds, say
from bench.mongodb_workers import MeasuredProcesses, receive_word
from mainspring import Run, RunContext, Scheduler
from mainspring.cli.processes import tune_garbage_collector
from mainspring.core.model import State
from mainspring.stores import open_store
from mainspring.stores.protocol import RunQuery

CAPACITY = 200
STORES = ("sqlite", "mongodb")
SETTLE_SECONDS = 5
"""Seconds between the start of the instances and the first slot that is measured."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", choices=[*STORES, "both"], default="both")
    parser.add_argument("--rate", type=int, default=1000, help="slots a second")
    parser.add_argument("--seconds", type=int, default=30, help="how long to measure")
    parser.add_argument("--instances", type=int, action="append", help="1, 2 or more; repeatable")


def run(options: argparse.Namespace) -> dict[str, Any]:
    load = [round(value, 2) for value in os.getloadavg()]
    stores = STORES if options.store == "both" else (options.store,)
    instances = options.instances or [1, 2]
    return {
        store: {
            f"{count} instance{'s' if count > 1 else ''}": measure(
                store, count, options.rate, options.seconds
            )
            for count in instances
        }
        for store in stores
    } | {"slots_a_second": options.rate, "load_before": load, "cores": os.cpu_count()}


def measure(store: str, instances: int, rate: int, seconds: int) -> dict[str, Any]:
    say(f"slots on {store}, {instances} instance(s): {seconds} seconds")
    with empty_store(store) as (url, server):
        asyncio.run(define(url, rate))
        workers = MeasuredProcesses(instance, [(url,)] * instances)
        first = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=SETTLE_SECONDS)
        last = first + timedelta(seconds=seconds)
        workers.send(json.dumps([first.timestamp(), last.timestamp()]))
        server_used = cpu_of(server) if server else 0.0
        time.sleep(max(0.0, (last - datetime.now(UTC)).total_seconds()))
        server_used = (cpu_of(server) if server else 0.0) - server_used
        told = workers.results()
        skipped = asyncio.run(count_skipped(url, first, last))
    ran = Counter(slot for one in told for slot in one["slots"])
    lateness = [late for one in told for late in one["lateness"]]
    return {
        "slots": rate * seconds,
        "ran": [len(one["slots"]) for one in told],
        "skipped": skipped,
        "lost": rate * seconds - len(ran) - skipped,
        "twice": sum(1 for count in ran.values() if count > 1),
        "lateness": milliseconds(lateness) if lateness else {},
        "cpu": {
            "instances": [round(one["cpu"] / seconds, 2) for one in told],
            **({"mongod": round(server_used / (seconds + SETTLE_SECONDS), 2)} if server else {}),
        },
    }


@contextmanager
def empty_store(store: str) -> Iterator[tuple[str, int | None]]:
    """The URL of an empty store, and the id of its server's process."""
    if store == "sqlite":
        with folder() as path:
            yield f"sqlite:///{path / 'jobs.db'}", None
        return
    from tests.support.servers.mongodb import ReplicaSet, with_database

    with ReplicaSet(1, election_timeout=10) as servers:
        yield with_database(servers.url, "bench_slots"), servers.members[0].process.pid


async def define(url: str, rate: int) -> None:
    async with Scheduler(url, workers=0) as producer:

        @producer.job()
        async def tick(ctx: RunContext) -> None: ...

        for n in range(rate):
            await producer.add_job(f"tick-{n}", handler="tick", schedule="* * * * * *")


async def count_skipped(url: str, first: datetime, last: datetime) -> int:
    """Slots that left a skipped record: one for each that overlapped, and one for each gap."""
    store = open_store(url)
    await store.open()
    count, cursor = 0, None
    while True:
        query = RunQuery(states=frozenset({State.SKIPPED}), limit=1000, cursor=cursor)
        page = await store.find(query)
        count += sum(_skipped(run, first, last) for run in page.items)
        if (cursor := page.cursor) is None:
            break
    await store.close()
    return count


def _skipped(run: Run, first: datetime, last: datetime) -> int:
    """How many of the slots between two moments a skipped record stands for. Jobs have a slot each
    second; a gap names its first and its last."""
    begins, ends = run.scheduled_at, run.scheduled_at
    if run.reason == "misfire":
        begins, ends = run.result["first"], run.result["last"]
    begins, ends = max(begins, first), min(ends, last - timedelta(seconds=1))
    return max(0, round((ends - begins).total_seconds()) + 1)


def instance(pipe: Connection, url: str) -> None:
    logging.getLogger("mainspring").setLevel(logging.ERROR)  # slots are missed before the start
    asyncio.run(_instance(pipe, url))


async def _instance(pipe: Connection, url: str) -> None:
    """A scheduler until the slots between two moments are over; what it ran of them."""
    slots: list[tuple[str, float]] = []
    lateness: list[float] = []
    first = last = float("inf")
    scheduler = Scheduler(url, workers=CAPACITY)

    @scheduler.job()
    async def tick(ctx: RunContext) -> None:
        slot = ctx.scheduled_at.timestamp()
        if first <= slot < last:
            slots.append((ctx.job_id, slot))
            lateness.append(time.time() - slot)

    async with scheduler:
        tune_garbage_collector()
        pipe.send("ready")
        first, last = json.loads(await receive_word(pipe))
        await asyncio.sleep(max(0.0, first - time.time()))
        used = time.process_time()
        await asyncio.sleep(max(0.0, last - time.time()))
        used = time.process_time() - used
        await asyncio.sleep(3)  # for slots that are late
    names = [f"{job_id}@{slot:.0f}" for job_id, slot in slots]
    pipe.send(json.dumps({"slots": names, "lateness": lateness, "cpu": used}))
