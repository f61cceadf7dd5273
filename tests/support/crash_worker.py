"""A real worker process that tests kill: `python -m tests.support.crash_worker FILE LOGS`.

Its handlers append single lines to a log, which survive a kill -9 because the kernel has them.
Times in the log are monotonic times of the machine, so the logs of several processes compare.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from mainspring import Event, RunContext, Scheduler

LEASE = 5.0
LIMIT = 3


Work = Callable[..., Awaitable[dict[str, int]]]


def build(url: str, log: Path, *, workers: int = 8) -> Scheduler:
    scheduler = Scheduler(url, lease=LEASE, poll="200ms", workers=workers)
    register_jobs(scheduler, log)
    return scheduler


def register_jobs(scheduler: Scheduler, log: Path) -> Work:
    """Give it the jobs of a crash test, whose one handler notes what it does in a file."""
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(what: str, run_id: str, token: int) -> None:
        os.write(out, f"{what} {run_id} {token} {time.monotonic()!r} {os.getpid()}\n".encode())

    async def work(ctx: RunContext, seconds: float | None = None) -> dict[str, int]:
        note("begin", ctx.run_id, ctx.token)
        await asyncio.sleep(random.uniform(0.01, 0.1) if seconds is None else seconds)
        note("end", ctx.run_id, ctx.token)
        return {"token": ctx.token, "pid": os.getpid()}

    def lost(event: Event) -> None:
        if event.run is not None:
            note("lost", event.run.id, event.run.token)

    scheduler.job(id="free")(work)
    scheduler.job(id="limited", concurrency=LIMIT)(work)
    scheduler.job(id="once", delivery="at_most_once")(work)
    scheduler.on("ownership.lost", lost)
    return work


if __name__ == "__main__":
    build(sys.argv[1], Path(sys.argv[2]) / f"{os.getpid()}.log").run()
