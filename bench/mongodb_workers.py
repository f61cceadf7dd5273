"""What the MongoDB and PostgreSQL benchmarks run in processes of their own."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from bench import bare_mongodb
from mainspring import Scheduler
from mainspring.cli.processes import tune_garbage_collector
from mainspring.stores import open_store

__all__ = [
    "IDLE_SECONDS",
    "WORKERS",
    "MeasuredProcesses",
    "bare_listener",
    "bare_slots",
    "idler",
    "listener",
    "receive_word",
    "worker",
]  # fmt: skip

WORKERS = 100
IDLE_SECONDS = 10.0
_spawn = multiprocessing.get_context("spawn")


class MeasuredProcesses:
    """Processes that say when they are ready, begin together, and hand back what they measured."""

    def __init__(self, target: Callable[..., None], arguments: Sequence[Sequence[Any]]) -> None:
        self._pipes: list[Connection] = []
        self._processes = []
        for given in arguments:
            here, there = _spawn.Pipe()
            process = _spawn.Process(target=target, args=(there, *given), daemon=True)
            process.start()
            there.close()  # so that a process that dies ends the wait for its word
            self._pipes.append(here)
            self._processes.append(process)
        for pipe in self._pipes:
            assert pipe.recv() == "ready"

    def send(self, word: str) -> None:
        for pipe in self._pipes:
            pipe.send(word)

    def results(self) -> list[Any]:
        answers = [json.loads(pipe.recv()) for pipe in self._pipes]
        for process in self._processes:
            process.join()
        return answers


def worker(pipe: Connection, url: str, seconds: float, limit: int | None) -> None:
    """A scheduler that works off the job `work` from "go" to "stop", in a process as `mainspring
    worker` has it; how many runs it ran."""
    asyncio.run(_worker(pipe, url, seconds, limit))


async def _worker(pipe: Connection, url: str, seconds: float, limit: int | None) -> None:
    done = 0
    scheduler = Scheduler(url, workers=WORKERS)

    @scheduler.job(id="work", concurrency=limit)
    async def work(n: int) -> None:
        nonlocal done
        if seconds:
            await asyncio.sleep(seconds)
        done += 1

    store = open_store(url)
    await store.open()  # so that what is measured does not begin with indexes
    await store.close()
    pipe.send("ready")
    await receive_word(pipe)
    async with scheduler:
        tune_garbage_collector()
        await receive_word(pipe)
    pipe.send(json.dumps(done))


async def receive_word(pipe: Connection) -> str:
    """The next word that the parent sends."""
    word: str = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    return word


def bare_slots(pipe: Connection, url: str, database: str, slots: int, part: int) -> None:
    pipe.send("ready")
    pipe.recv()
    pipe.send(json.dumps(bare_mongodb.drain_under_limit(url, database, "work", slots, part)))


def listener(pipe: Connection, url: str) -> None:
    """An idle worker; seconds from each run's enqueue to its start."""
    asyncio.run(_listener(pipe, url))


async def _listener(pipe: Connection, url: str) -> None:
    taken: list[float] = []
    scheduler = Scheduler(url)

    @scheduler.job()
    async def ping(sent: float) -> None:
        taken.append(time.time() - sent)

    async with scheduler:
        pipe.send("ready")
        await receive_word(pipe)
    pipe.send(json.dumps(taken))


def bare_listener(pipe: Connection, url: str, database: str, count: int) -> None:
    pipe.send("ready")
    pipe.send(json.dumps(bare_mongodb.listen(url, database, count, "ping")))


def idler(pipe: Connection, url: str) -> None:
    """A worker with nothing to do; seconds of CPU it used for it."""
    asyncio.run(_idler(pipe, url))


async def _idler(pipe: Connection, url: str) -> None:
    scheduler = Scheduler(url)

    @scheduler.job()
    async def ping(sent: float) -> None: ...

    async with scheduler:
        await asyncio.sleep(3)
        pipe.send("ready")
        used = time.process_time()
        await asyncio.sleep(IDLE_SECONDS)
        pipe.send(json.dumps(time.process_time() - used))
