"""A hundred thousand runs on a real file leave the process as large as it was.

The first hundred thousand fill SQLite's page caches (32 MiB at most for each connection), so it
is the second that is measured.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import Counter
from pathlib import Path

from mainspring import Scheduler

WARM, MORE = 100_000, 100_000
BATCH = 10_000


def resident() -> int:
    """Bytes of memory this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def test_a_hundred_thousand_runs_leave_nothing_behind(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}")
    done = 0
    reached = asyncio.Event()

    @scheduler.job()
    async def noop(n: int) -> int:
        nonlocal done
        done += 1
        if done % BATCH == 0:
            reached.set()
        return n

    async def drain(runs: int) -> None:
        for _ in range(0, runs, BATCH):
            reached.clear()
            await noop.enqueue_many({"n": n} for n in range(BATCH))
            await reached.wait()
            while (await scheduler.stats()).runs["succeeded"] < done:
                await asyncio.sleep(0.05)

    async with scheduler:
        await drain(WARM)
        gc.collect()
        before, kinds = resident(), Counter(type(o).__name__ for o in gc.get_objects())
        await drain(MORE)
        gc.collect()
        grown = Counter(type(o).__name__ for o in gc.get_objects()) - kinds
        assert max(grown.values(), default=0) < 1_000, grown.most_common(5)
        assert resident() - before < 10 * 2**20
