"""How late runs start when 100 and when 1,000 jobs share each second."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from bench.measure import folder, milliseconds
from mainspring import RunContext, Scheduler

JOBS = (100, 1000)
SECONDS = 10


def run() -> dict[str, Any]:
    return {f"{jobs} jobs a second": asyncio.run(measure_lateness(jobs)) for jobs in JOBS}


async def measure_lateness(jobs: int) -> dict[str, float]:
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
            return milliseconds(late) | {"expected": jobs * SECONDS}
