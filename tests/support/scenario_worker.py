"""A real worker process that tests kill or give a wrong clock:
`python -m tests.support.scenario_worker URL LOGS LEASE [PLANTED]`.

Its handlers append single lines to a log, which survive a kill -9. Times in the log are monotonic
times of the machine, which no test fakes, so the logs of several processes compare.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

from mainspring import RunContext, Scheduler
from mainspring.core.clock import SystemClock
from mainspring.stores import open_store
from mainspring.stores.protocol import Store
from tests.support.crash_worker import register_jobs

CAPACITY = 8
"""Of each worker."""


def build(
    store: str | Store, log: Path, *, lease: float, workers: int = CAPACITY, ticks: bool = True
) -> Scheduler:
    scheduler = Scheduler(store, lease=lease, poll="500ms", workers=workers)
    work = register_jobs(scheduler, log)

    async def delegate(ctx: RunContext, delay: float) -> str:
        """Enqueue a run for later, from wherever this process believes to be in time."""
        return (await scheduler.enqueue("free", delay=delay)).id

    scheduler.job(id="delegate")(delegate)
    if ticks:
        scheduler.job("* * * * * *", id="tick", misfire="all", overlap="allow")(work)
    return scheduler


# Bugs planted on purpose: the tests must notice each


def _own_clock(url: str) -> Store:
    """This process's clock says what is due and what has lapsed."""
    if url.startswith("postgresql:"):
        from mainspring.stores.postgresql import PostgresStore

        return PostgresStore(url, SystemClock())
    from mainspring.stores.mongodb import MongoStore

    return MongoStore(url, SystemClock())


def _routers_clock(url: str) -> Store:
    """The time is read by an aggregate: a router of MongoDB answers it with its own."""
    from mainspring.stores.mongodb.database import Database

    async def now(self: Database) -> int:
        asked = await self.meta.aggregate([{"$limit": 1}, {"$project": {"now": self.time.now}}])
        [schema] = await asked.to_list()
        return int(schema["now"])

    patch.object(Database, "now", now).start()
    return open_store(url)


PLANTED: dict[str, Callable[[str], Store]] = {
    "own-clock": _own_clock,
    "routers-clock": _routers_clock,
}


def main(url: str, logs: str, lease: str, planted: str = "") -> None:
    store = PLANTED.get(planted, open_store)(url)
    build(store, Path(logs) / f"{os.getpid()}.log", lease=float(lease)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
