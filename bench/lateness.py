"""How late runs start when 100 and when 1,000 jobs share each second."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from bench.measure import folder, milliseconds, quantile, rounds, spread
from mainspring import RunContext, Scheduler

JOBS = (100, 1000)
ROUNDS = 5
SECONDS = 4


def run() -> dict[str, Any]:
    late: dict[int, list[list[float]]] = {jobs: [] for jobs in JOBS}
    for _ in rounds(ROUNDS, "lateness"):
        for jobs in JOBS:
            late[jobs].append(asyncio.run(measure_lateness(jobs)))
    return {f"{jobs} jobs a second": figures(jobs, late[jobs]) for jobs in JOBS}


def figures(jobs: int, late: list[list[float]]) -> dict[str, Any]:
    return {
        **milliseconds(list(chain(*late))),
        "p99_ms_of_rounds": spread([quantile(each, 0.99) * 1000 for each in late]),
        "expected": jobs * SECONDS * ROUNDS,
    }


async def measure_lateness(jobs: int) -> list[float]:
    late: list[float] = []
    with folder() as path:
        scheduler = Scheduler(f"sqlite:///{path / 'jobs.db'}", workers=100)

        @scheduler.job()
        async def tick(ctx: RunContext) -> None:
            late.append((datetime.now(UTC) - ctx.scheduled_at).total_seconds())

        async with scheduler:
            for n in range(jobs):
                await scheduler.add_job(f"tick-{n}", handler="tick", schedule="* * * * * *")
            late.clear()
            await asyncio.sleep(1.5)  # the first second still has jobs being added
            late.clear()
            await asyncio.sleep(SECONDS)
            return late
