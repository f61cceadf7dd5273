"""Tells the simulation's monitor every write to runs and jobs of a MongoDB, in their order.

A change stream tells each document as it was after each write, and the server's clock at that
moment.

The writes of a transaction come one by one, in the order in which it sent them: a job advances
behind the runs that it fired.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.errors import PyMongoError

from mainspring.core.model import Source
from mainspring.stores.mongodb.codec import read_job, read_run
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from tests.support.simulation.machines import Machine
from tests.support.simulation.watching import Mirror, WatchMonitor, notice_stalls

RUNS, JOBS = DEFAULT_PREFIX + "runs", DEFAULT_PREFIX + "jobs"
ChangeEvent = Mapping[str, Any]


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
        standing = asyncio.get_running_loop().create_task(notice_stalls(machines))
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
