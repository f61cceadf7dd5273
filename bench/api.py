"""Job creations a second and the latency of lists, beside a bare FastAPI endpoint that only
validates and inserts (bare_api.py). Both are processes of their own under uvicorn on SQLite at
FULL, called by one aiohttp client, one after the other.

Ours parses the schedule, computes the next slot, encrypts a secret header and a signing secret, and
wakes the scheduler; the bare one does none of that, but has a commit for each request.

Lists are measured on MongoDB too (one mongod, a replica set of one), if mongod is installed or can
be fetched.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import socket
import sys
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from bench.measure import folder, quantile, ratio, rounds, say, spread
from tests.support.servers.cache import ServerUnavailable
from tests.support.servers.mongodb import ReplicaSet, with_database

ROUNDS = 5
CREATIONS = 400
IN_FLIGHT = 16
JOBS = 10_000
LISTS = 300
LIMIT = 20
CHUNK = 500

JOB = {
    "schedule": "0 0 0 1 1 *",  # none fires while we measure
    "endpoint": "https://api.example.com/webhook",
    "headers": {"Authorization": "Bearer token", "Content-Type": "application/json"},
    "body": {"event": "scheduled_task", "timestamp": "{{timestamp}}"},
}


def run() -> dict[str, Any]:
    return asyncio.run(_run())


async def _run() -> dict[str, Any]:
    rates: dict[str, list[float]] = {"ours": [], "bare": []}
    lists: dict[str, list[float]] = {}
    with folder() as path, _mongodb() as (mongodb, why):
        # Servers let go of idle connections after 5 s: let go first.
        lines = aiohttp.TCPConnector(keepalive_timeout=2)
        async with (
            _serve_ours(f"sqlite:///{path}/ours.db") as ours,
            _serve_bare(path) as bare,
            aiohttp.ClientSession(connector=lines) as client,
        ):
            sides = {"ours": ours, "bare": bare}
            for _ in rounds(ROUNDS, "creations"):
                for name, url in sides.items():
                    rates[name].append(await _measure_creations(client, url, CREATIONS))
            say(f"making {JOBS:,} jobs")
            for url in sides.values():
                await _fill_jobs(client, url, JOBS - ROUNDS * CREATIONS)
            async with AsyncExitStack() as stack:
                if mongodb is not None:
                    sides["ours on MongoDB"] = await stack.enter_async_context(_serve_ours(mongodb))
                    await _fill_jobs(client, sides["ours on MongoDB"], JOBS)
                for _ in rounds(ROUNDS, "lists"):
                    for name, url in sides.items():
                        lists.setdefault(name, []).extend(await _measure_lists(client, url))
    return {
        "creations_per_second": {name: spread(values) for name, values in rates.items()},
        "creations_of_bare": ratio(rates["ours"], rates["bare"]),
        "list_of_10000_jobs_by_page_of_20": {
            **{name: _latencies(seconds) for name, seconds in lists.items()},
            **({} if why is None else {"ours on MongoDB": f"not measured: {why}"}),
        },
        "in_flight": IN_FLIGHT,
    }


def _latencies(seconds: list[float]) -> dict[str, float]:
    parts = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return {name: round(quantile(seconds, part) * 1000, 2) for name, part in parts.items()}


async def _measure_creations(client: aiohttp.ClientSession, url: str, count: int) -> float:
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            async with client.post(f"{url}/api/jobs", json=JOB) as answer:
                assert answer.status == 201, await answer.text()
                await answer.read()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return count / (time.perf_counter() - began)


async def _fill_jobs(client: aiohttp.ClientSession, url: str, count: int) -> None:
    for start in range(0, count, CHUNK):
        jobs = [JOB] * min(CHUNK, count - start)
        async with client.post(f"{url}/api/v1/jobs/bulk", json={"jobs": jobs}) as answer:
            assert (await answer.json())["succeeded"] == len(jobs)


async def _measure_lists(client: aiohttp.ClientSession, url: str) -> list[float]:
    rng = random.Random(1)
    times = []
    for _ in range(LISTS):
        page = rng.randint(1, JOBS // LIMIT)
        began = time.perf_counter()
        async with client.get(f"{url}/api/jobs?page={page}&limit={LIMIT}") as answer:
            document = json.loads(await answer.read())
        times.append(time.perf_counter() - began)
        assert document["total"] == JOBS
    return times


@contextmanager
def _mongodb() -> Iterator[tuple[str | None, str | None]]:
    """The URL of a store on MongoDB, or why there is none."""
    url, why = None, None
    with ExitStack() as stack:
        try:
            servers = stack.enter_context(ReplicaSet(1, election_timeout=10))
            url = with_database(servers.url, "bench_api")
        except ServerUnavailable as error:
            why = str(error)
        yield url, why


@asynccontextmanager
async def _serve_ours(store: str) -> AsyncIterator[str]:
    words = ["-m", "mainspring", "serve", "--quiet", "--store", store]
    secret = base64.b64encode(os.urandom(32)).decode()  # a shared store has none of its own
    async with _process([*words, "--port"], {"MAINSPRING_SECRET_KEY": secret}) as url:
        yield url


@asynccontextmanager
async def _serve_bare(path: Path) -> AsyncIterator[str]:
    words = ["-m", "uvicorn", "bench.bare_api:app", "--log-level", "warning", "--no-access-log"]
    environ = {"BARE_DATABASE": str(path / "bare.db")}
    async with _process([*words, "--port"], environ) as url:
        yield url


@asynccontextmanager
async def _process(words: list[str], environ: dict[str, str]) -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = Path(__file__).parent.parent
    environ = {**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}", **environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, str(port), env=environ, stdout=DEVNULL, stderr=DEVNULL
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await _wait_until_up(url)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def _wait_until_up(url: str) -> None:
    async with aiohttp.ClientSession() as client:
        for _ in range(600):
            try:
                async with client.get(f"{url}/api/jobs") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)
    raise RuntimeError(f"{url} did not come up")
