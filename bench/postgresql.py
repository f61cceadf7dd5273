"""Jobs a second on PostgreSQL, beside a bare psycopg loop of the same batched statements.

One server on loopback, durable as it is by default. Each round runs all sides one after another, so
that each ratio is of neighbours in time.

    enqueue      runs one by one and in batches of 100, with and without hints; bare inserts
    drain        no-op runs in one process: ours, the bare loop; and in 1, 2 and 4 processes
    latency      enqueue to start on an idle worker in another process, beside an insert with NOTIFY
                 and a listener that claims
    lateness     1,000 runs that are due in the same second

Peers on PostgreSQL are in `python -m bench peers`.

Both sides are on the store's own tables and indexes, and leave the same rows behind: token, attempt
and lease written at the claim, result and attempt record at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import psycopg

from bench import mongodb_workers
from bench.measure import compare_latencies, milliseconds, ratio, rounded, rounds, say, spread
from bench.mongodb import SAMPLES, fill, gaps
from bench.mongodb_workers import WORKERS, MeasuredProcesses
from mainspring import RunContext, Scheduler
from mainspring.core.model import new_run_id
from mainspring.stores.postgresql.codec import INSERT_RUNS, arrays, run_row
from mainspring.stores.postgresql.notifier import Notifier
from mainspring.stores.sql import Lane
from tests.support.records import a_run
from tests.support.servers.postgresql import Postgres

RUNS = 4_000
BATCHES = (50, 100, 200)
LEASE = 30_000_000
_RNG = random.Random()
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_CLAIM = f"""
UPDATE $.runs SET state = 'running', token = token + 1, attempt = attempt + 1, worker = 'bare',
    started_at = {_NOW}, lease_until = {_NOW} + {LEASE}, began = false
WHERE NOT done AND seq = ANY(ARRAY(
    SELECT seq FROM $.runs WHERE NOT done AND state = 'pending' AND NOT set_aside AND lane = %s
    AND run_at <= %s ORDER BY run_at, seq LIMIT %s FOR UPDATE SKIP LOCKED
)) RETURNING id, token, attempt, payload, started_at
"""
_END = f"""
UPDATE $.runs AS run SET state = 'succeeded', done = true, result = v.result, finished_at = {_NOW},
    attempts = v.attempts, lease_until = NULL, worker = NULL, last_change = v.change
FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::text[], %s::bigint[])
    AS v (id, token, result, attempts, change)
WHERE run.id = v.id AND run.token = v.token AND run.state = 'running' AND NOT run.done
RETURNING run.id
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5)


def run(options: argparse.Namespace) -> dict[str, Any]:
    with Postgres() as server:
        return {
            "enqueue": enqueues(server.url, options.rounds),
            "drain": drains(server.url, options.rounds),
            "processes": processes(server.url),
            "latency": latencies(server.url, options.rounds),
            "lateness": lateness(server.url),
        }


@contextmanager
def schema(url: str) -> Iterator[tuple[str, str]]:
    """The URL of a schema that is dropped afterwards, and its name."""
    name = f"bench_{uuid.uuid4().hex[:12]}"
    try:
        yield f"{url}?schema={name}", name
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def _lane(job: str) -> str:
    return Lane.of(a_run(_EPOCH, "r", job_id=job, handler=job)).name


def _collect(figures: dict[str, list[float]], found: dict[str, float]) -> None:
    for name, value in found.items():
        figures.setdefault(name, []).append(value)


# -- enqueue --------------------------------------------------------------------------------


def enqueues(url: str, count: int) -> dict[str, Any]:
    figures: dict[str, list[float]] = {}
    for _ in rounds(count, "enqueue"):
        with schema(url) as (place, name):
            fill(place, "noop", 0)
            asyncio.run(_enqueue(place, ""))  # a new schema is slow at first
            _collect(figures, asyncio.run(_enqueue(place, "")))
            _collect(figures, _bare_enqueue(url, name))
            with patch.object(Notifier, "notify", lambda own: own._waiters.wake()):
                _collect(figures, asyncio.run(_enqueue(place, ", no hints")))
    return {
        "runs_per_second": {name: spread(values) for name, values in figures.items()},
        "with_hints_of_without": ratio(figures["one by one"], figures["one by one, no hints"]),
        "one_of_bare": ratio(figures["one by one"], figures["bare, one by one"]),
        "batches_of_bare": ratio(figures["batches"], figures["bare, batches"]),
    }


async def _enqueue(url: str, what: str) -> dict[str, float]:
    async with Scheduler(url, workers=0) as producer:

        @producer.job(id="noop")
        async def noop(n: int) -> None: ...

        began = time.perf_counter()
        for n in range(500):
            await producer.enqueue("noop", {"n": n})
        single = 500 / (time.perf_counter() - began)
        began = time.perf_counter()
        for _ in range(50):
            await producer.enqueue_many("noop", [{"n": n} for n in range(100)])
        many = 5000 / (time.perf_counter() - began)
    return {f"one by one{what}": rounded(single), f"batches{what}": rounded(many)}


def _bare_enqueue(url: str, name: str) -> dict[str, float]:
    insert: Any = INSERT_RUNS.replace("mainspring.", f"{name}.")
    figures = {}
    with psycopg.connect(url, autocommit=True) as connection:
        for what, times, size in (("one by one", 500, 1), ("batches", 50, 100)):
            began = time.perf_counter()
            for _ in range(times):
                runs = [
                    a_run(_EPOCH, new_run_id(_EPOCH, _RNG), payload={"n": 1}) for _ in range(size)
                ]
                with connection.transaction():
                    connection.execute(insert, arrays([run_row(one) for one in runs]), binary=True)
            figures[f"bare, {what}"] = rounded(times * size / (time.perf_counter() - began))
    return figures


# -- drain ----------------------------------------------------------------------------------


def drains(url: str, count: int) -> dict[str, Any]:
    """The bare loop at its best batch, before and after ours: noise that grows meets both."""
    figures: dict[str, list[float]] = {}
    for _ in rounds(count, "drain"):
        first = max(_bare_drain(url, batch) for batch in BATCHES)
        ours = _our_drain(url)
        second = max(_bare_drain(url, batch) for batch in BATCHES)
        _collect(figures, {"mainspring": ours, "bare loop": (first + second) / 2})
    return {
        "jobs_per_second": {name: spread(values) for name, values in figures.items()},
        "of_bare_loop": ratio(figures["mainspring"], figures["bare loop"]),
        "runs_per_round": RUNS,
    }


def _our_drain(url: str) -> float:
    with schema(url) as (place, _):
        fill(place, "noop", RUNS)
        return asyncio.run(_drain(place))


async def _drain(url: str) -> float:
    """From the start of the scheduler until everything is recorded."""
    done = 0
    reached = asyncio.Event()
    scheduler = Scheduler(url, workers=WORKERS)

    @scheduler.job(id="noop")
    async def noop(n: int) -> None:
        nonlocal done
        done += 1
        if done == RUNS:
            reached.set()

    began = time.perf_counter()
    async with scheduler:
        await reached.wait()
        while (await scheduler.stats()).runs["succeeded"] < RUNS:
            await asyncio.sleep(0.005)
        return RUNS / (time.perf_counter() - began)


def _bare_drain(url: str, batch: int) -> float:
    with schema(url) as (place, name):
        fill(place, "noop", RUNS)
        with psycopg.connect(url, autocommit=True) as connection:
            began = time.perf_counter()
            assert _work_off(connection, name, batch) == RUNS
            return RUNS / (time.perf_counter() - began)


def _work_off(connection: psycopg.Connection, name: str, batch: int) -> int:
    done = 0
    lane = _lane("noop")
    while held := _bare_claim(connection, name, lane, batch):
        rows = [
            [run_id, token, "null", json.dumps([[attempt, started, "bare", "succeeded"]]), n]
            for n, (run_id, token, attempt, payload, started) in enumerate(held)
            if json.loads(payload) is not None
        ]
        end: Any = _END.replace("$", name)
        with connection.transaction():
            done += len(connection.execute(end, arrays(rows), binary=True).fetchall())
    return done


def _bare_claim(connection: psycopg.Connection, name: str, lane: str, batch: int) -> list[Any]:
    claim: Any = _CLAIM.replace("$", name)
    with connection.transaction():
        [(now,)] = connection.execute(f"SELECT {_NOW}").fetchall()
        return connection.execute(claim, [lane, now, batch], binary=True).fetchall()


def processes(url: str) -> dict[str, Any]:
    """Runs a second in 4 seconds of work, by how many processes work."""
    figures = {}
    for count in (1, 2, 4):
        say(f"{count} processes")
        with schema(url) as (place, _):
            fill(place, "work", 60_000)
            workers = MeasuredProcesses(mongodb_workers.worker, [(place, 0, None)] * count)
            workers.send("go")
            time.sleep(4)
            workers.send("stop")
            figures[str(count)] = rounded(sum(workers.results()) / 4)
    return figures


# -- latency --------------------------------------------------------------------------------


def latencies(url: str, count: int) -> dict[str, Any]:
    ours: list[list[float]] = []
    bare: list[list[float]] = []
    for at in rounds(count, "latency"):
        with schema(url) as (place, _):
            workers = MeasuredProcesses(mongodb_workers.listener, [(place,)])
            asyncio.run(_produce(place, at))
            workers.send("stop")
            ours += workers.results()
        with schema(url) as (place, name):
            fill(place, "noop", 0)
            workers = MeasuredProcesses(bare_listener, [(url, name)])
            _bare_ping(url, name, at)
            bare += workers.results()
    return compare_latencies(ours, bare)


async def _produce(url: str, seed: int) -> None:
    async with Scheduler(url, workers=0) as producer:
        await asyncio.sleep(0.5)
        for gap in gaps(seed):
            await asyncio.sleep(gap)
            await producer.enqueue("ping", {"sent": time.time()})
        await asyncio.sleep(0.5)


def _bare_ping(url: str, name: str, seed: int) -> None:
    insert: Any = INSERT_RUNS.replace("mainspring.", f"{name}.")
    with psycopg.connect(url, autocommit=True) as connection:
        for gap in gaps(seed):
            time.sleep(gap)
            sent = {"sent": time.time()}
            run_id = new_run_id(_EPOCH, _RNG)
            row = run_row(a_run(_EPOCH, run_id, job_id="noop", handler="noop", payload=sent))
            with connection.transaction():
                connection.execute(insert, arrays([row]), binary=True)
                connection.execute(f"NOTIFY {name}")


def bare_listener(pipe: Connection, url: str, name: str) -> None:
    taken: list[float] = []
    lane = _lane("noop")
    with (
        psycopg.connect(url, autocommit=True) as connection,
        psycopg.connect(url, autocommit=True) as listening,
    ):
        listening.execute(f"LISTEN {name}")
        pipe.send("ready")
        while len(taken) < SAMPLES:
            for _ in listening.notifies(timeout=5, stop_after=1):
                break
            for run in _bare_claim(connection, name, lane, 10):
                taken.append(time.time() - json.loads(run[3])["sent"])
    pipe.send(json.dumps(taken))


# -- lateness -------------------------------------------------------------------------------


def lateness(url: str) -> dict[str, Any]:
    """1,000 runs that are due at one moment: from that moment to the start of each."""
    with schema(url) as (place, _):
        fill(place, "late", 1000, delay=5)
        return milliseconds(asyncio.run(_late(place)))


async def _late(url: str) -> list[float]:
    late: list[float] = []
    reached = asyncio.Event()
    scheduler = Scheduler(url, workers=WORKERS)

    @scheduler.job(id="late")
    async def work(ctx: RunContext, n: int) -> None:
        late.append(time.time() - ctx.scheduled_at.timestamp())
        if len(late) == 1000:
            reached.set()

    async with scheduler:
        await asyncio.wait_for(reached.wait(), 60)
    return late
