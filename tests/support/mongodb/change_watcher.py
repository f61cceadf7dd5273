"""The simulation's monitor over a real MongoDB: every write to runs and jobs, in their order.

A change stream tells each document as it was after each write, and the server's clock at that
moment. From that a mirror of the store is kept, which the monitor looks at as it looks at the
memory store: after every step.

The writes of a transaction come one by one, in the order in which it sent them: a job advances
behind the runs that it fired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from mainspring.core.clock import SystemClock
from mainspring.core.model import Job, Note, Run, Source
from mainspring.stores.mongodb.codec import read_job, read_run
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from tests.support.simulation.machines import Machine
from tests.support.simulation.monitor import Key, Monitor, _Handling

__all__ = ["WatchClock", "WatchMonitor", "Watcher"]

RUNS, JOBS = DEFAULT_PREFIX + "runs", DEFAULT_PREFIX + "jobs"
ChangeEvent = Mapping[str, Any]


class Mirror:
    """What the memory store has for the monitor to look at."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._jobs: dict[str, Job] = {}
        self._notes: dict[tuple[str, str], Note] = {}


class WatchClock(SystemClock):
    """The machine's clock; while a write is looked at, the server's at that write."""

    def __init__(self) -> None:
        self.then: datetime | None = None

    def now(self) -> datetime:
        return self.then or super().now()


class WatchMonitor(Monitor):
    """Told late: handlers wait for the news of their own claim, and the end of a lease is judged
    when the news of its last renewal must have come."""

    LAG = 1.0

    @property
    def _watch(self) -> WatchClock:
        assert isinstance(self.clock, WatchClock)
        return self.clock

    def _check_counters(self, ended: list[Run]) -> None:
        """Not here: MongoDB counts ends after it has stored them, and a client that is killed in
        between loses the counts of its batch (stores/protocol.py)."""

    async def saw_claim(self, run_id: str, token: int) -> None:
        while (run_id, token) not in self._claimed and not self.broken.is_set():
            await asyncio.sleep(0.005)

    def _check_overrun(self, handling: _Handling, key: Key, now: datetime) -> None:
        later = super()._check_overrun
        asyncio.get_running_loop().call_later(self.LAG, later, handling, key, now)

    def _check_begin(self, run: Run, token: int, author: str) -> None:
        """The news that it has begun may come behind its handler."""
        check = super()._check_begin

        def later() -> None:
            check(self.store._runs.get(run.id, run), token, author)

        asyncio.get_running_loop().call_later(self.LAG, later)

    def _check_effects(self, changed: list[Run]) -> None:
        """No transactions here."""

    def _moment(self) -> float:
        told = asyncio.get_running_loop().time()
        if (then := self._watch.then) is not None:
            told -= max(0.0, (datetime.now(UTC) - then).total_seconds())
        return told


class Watcher:
    def __init__(self, url: str, monitor: WatchMonitor, mirror: Mirror) -> None:
        self._client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(url, tz_aware=True)
        self._monitor = monitor
        self._mirror = mirror
        self.ready = asyncio.Event()

    async def watch(self, machines: list[Machine]) -> None:
        database = self._client.get_default_database()
        for name in (RUNS, JOBS):
            await database.create_collection(name, changeStreamPreAndPostImages={"enabled": True})
        standing = asyncio.get_running_loop().create_task(_notice_stalls(machines))
        try:
            ours = [{"$match": {"ns.coll": {"$in": [RUNS, JOBS]}}}]
            async with await database.watch(ours, full_document="whenAvailable") as stream:
                self.ready.set()
                while not self._monitor.broken.is_set():
                    event = await stream.try_next()
                    if event is not None:
                        self._take(event)
        except PyMongoError as error:
            self._monitor.fail("engine", f"the watcher sees nothing any more: {error}")
        finally:
            standing.cancel()
            await self._client.close()

    def _take(self, event: ChangeEvent) -> None:
        if event["operationType"] not in ("insert", "update", "replace", "delete"):
            return
        clock = self._monitor._watch
        clock.then = event["wallTime"]
        try:
            if event["ns"]["coll"] == RUNS:
                self._take_run(event)
            elif event["ns"]["coll"] == JOBS:
                self._take_job(event)
        except Exception as error:
            self._monitor.fail("engine", f"the watcher itself failed: {error!r}")
            raise
        finally:
            clock.then = None

    def _take_run(self, event: ChangeEvent) -> None:
        run_id, kept = event["documentKey"]["_id"], event.get("fullDocument")
        runs = self._mirror._runs
        if kept is None:
            if runs.pop(run_id, None) is not None:
                self._monitor.observe("", "maintain")
            return
        run, old = read_run(kept), runs.get(run_id)
        if run != old:
            runs[run_id] = run
            author, method = kept["signed"].split()
            if old is None:
                method = "fire" if run.source is Source.SCHEDULE else "add"
            self._monitor.observe(author, method)

    def _take_job(self, event: ChangeEvent) -> None:
        job_id, kept = event["documentKey"]["_id"], event.get("fullDocument")
        if kept is None:
            self._mirror._jobs.pop(job_id, None)
            self._monitor.observe("", "put_jobs")
        else:
            self._mirror._jobs[job_id] = read_job(kept)
            self._monitor.observe(*kept["signed"].split())


async def _notice_stalls(machines: list[Machine]) -> None:
    """This very process may stand still on a busy computer: then all its machines did."""
    loop = asyncio.get_running_loop()
    while True:
        before = loop.time()
        await asyncio.sleep(0.05)
        if loop.time() - before > 0.15:
            for machine in machines:
                machine.thawed_at = loop.time()
