"""Server time of every page of the dashboard, on an SQLite file with many jobs and finished runs.

Each page is read by the application itself, without a network, one request after the other.
`cpu_ms` is the CPU time of the whole process per request, `p50_ms` the time that passes; on a busy
machine the first is the one to trust.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from itertools import chain, count, islice
from typing import Any

import httpx
from fastapi.routing import APIRoute

from bench.measure import folder, milliseconds, say
from mainspring import Scheduler
from mainspring.core.model import State
from mainspring.dashboard.app import VIEWS, create_app
from mainspring.dashboard.demo import WEEK, demo_scheduler, make_history, make_jobs
from mainspring.service.settings import ServiceSettings
from mainspring.stores.protocol import JobWrite

TIMES = 10
BATCH = 5_000


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=1_000_000)


def run(options: argparse.Namespace) -> dict[str, Any]:
    with folder() as place:
        return asyncio.run(_measure(f"sqlite:///{place}/many.db", options.jobs, options.runs))


async def _measure(url: str, jobs: int, runs: int) -> dict[str, Any]:
    async with demo_scheduler(url, workers=0) as scheduler:
        await _fill(scheduler, jobs, runs)
        await scheduler.pause_all()
        app = create_app(scheduler, ServiceSettings.read(), loopback=True)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:3000", timeout=120
        ) as client:
            return {path: await _page(client, path) for path in await _paths(scheduler)}


async def _fill(scheduler: Scheduler, jobs: int, runs: int) -> None:
    chance = random.Random(1)
    now = await scheduler.now()
    definitions = make_jobs(scheduler, now, jobs, chance)
    for at in range(0, jobs, 1000):
        writes = [JobWrite.put(job) for job in definitions[at : at + 1000]]
        await scheduler.store.put_jobs(writes)
    weeks = (make_history(definitions, now - n * WEEK, chance) for n in count())
    history = chain.from_iterable(weeks)
    left = runs
    while batch := list(islice(history, min(BATCH, left))):
        await scheduler.store.add(batch)
        left -= len(batch)
    say(f"{jobs:,} jobs, {runs - left:,} finished runs")


async def _paths(scheduler: Scheduler) -> list[str]:
    job = (await scheduler.list_jobs(limit=1, search="payments")).items[0]
    run = (await scheduler.list_runs(state=State.FAILED, limit=1)).items[0]
    found = []
    for view in VIEWS:
        for route in view.router.routes:
            assert isinstance(route, APIRoute)
            path = route.path.replace("{id}", job.id if "/jobs/" in route.path else run.id)
            found.append(path)
    found.remove("/load")
    more = ["/?window=7d", "/jobs?q=payments", "/jobs?sort=next", "/runs?state=failed"]
    # Its forecast is computed beside the requests for seconds: what is measured then costs more.
    return [*found, *more, "/api/v1/statistics/history?window=7d", "/load"]


async def _page(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    say(path)
    answer = await client.get(path)  # the first one fills caches
    times: list[float] = []
    before = time.process_time()
    for _ in range(TIMES):
        begun = time.perf_counter()
        answer = await client.get(path)
        times.append(time.perf_counter() - begun)
    return {
        "status": answer.status_code,
        "kilobytes": round(len(answer.content) / 1000, 1),
        "cpu_ms": round((time.process_time() - before) / TIMES * 1000, 1),
        "p50_ms": milliseconds(times)["p50_ms"],
    }
