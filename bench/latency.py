"""Enqueue to start on an idle worker, in one process and across two.

Beside it, a bare writer that inserts a row and a bare reader that polls every 10 ms and claims
what it finds, each write a commit at FULL, on a table of the same file settings.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import sqlite3
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.measure import compare_latencies, folder, rounds
from mainspring import Scheduler

ROUNDS = 5
SAMPLES = 60
POLL = 0.01
_spawn = multiprocessing.get_context("spawn")


def run() -> dict[str, Any]:
    samples: dict[str, list[list[float]]] = {}
    for at in rounds(ROUNDS, "latency"):
        with folder() as path:
            for side, measured in (
                ("same", asyncio.run(same_process(path / "same.db", at))),
                ("bare same", bare(path / "bare-same.db", at, other_process=False)),
                ("other", other_process(path / "other.db", at)),
                ("bare other", bare(path / "bare-other.db", at, other_process=True)),
            ):
                samples.setdefault(side, []).append(measured)
    return {
        "same process": compare_latencies(samples["same"], samples["bare same"]),
        "other process": compare_latencies(samples["other"], samples["bare other"]),
    }


def gaps(seed: int) -> list[float]:
    """Pauses between samples: longer than a start takes, so that each finds an idle worker."""
    rng = random.Random(seed)
    return [rng.uniform(0.03, 0.08) for _ in range(SAMPLES)]


async def same_process(path: Path, seed: int) -> list[float]:
    scheduler = Scheduler(f"sqlite:///{path}")
    taken: list[float] = []

    @scheduler.job()
    async def ping(sent: float) -> None:
        taken.append(time.time() - sent)

    async with scheduler:
        await scheduler.wait((await ping.enqueue(time.time())).id)
        taken.clear()
        for gap in gaps(seed):
            await asyncio.sleep(gap)
            await ping.enqueue(time.time())
        await asyncio.sleep(0.5)
    return taken


def other_process(path: Path, seed: int) -> list[float]:
    here, there = _spawn.Pipe()
    worker = _spawn.Process(target=worker_process, args=(path, there), daemon=True)
    worker.start()
    assert here.recv() == "ready"
    asyncio.run(produce(path, seed))
    here.send("stop")
    taken: list[float] = json.loads(here.recv())
    worker.join()
    return taken


async def produce(path: Path, seed: int) -> None:
    async with Scheduler(f"sqlite:///{path}", workers=0) as producer:
        await asyncio.sleep(0.5)
        for gap in gaps(seed):
            await asyncio.sleep(gap)
            await producer.enqueue("ping", {"sent": time.time()})
        await asyncio.sleep(0.5)


def worker_process(path: Path, pipe: Connection) -> None:
    asyncio.run(work(path, pipe))


async def work(path: Path, pipe: Connection) -> None:
    scheduler = Scheduler(f"sqlite:///{path}")
    taken: list[float] = []

    @scheduler.job()
    async def ping(sent: float) -> None:
        taken.append(time.time() - sent)

    async with scheduler:
        pipe.send("ready")
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    pipe.send(json.dumps(taken))


def bare(path: Path, seed: int, *, other_process: bool) -> list[float]:
    connection = connect(path)
    connection.execute("CREATE TABLE runs (id INTEGER PRIMARY KEY, sent REAL, state TEXT)")
    connection.execute("CREATE INDEX pending ON runs (id) WHERE state = 'pending'")
    if other_process:
        here, there = _spawn.Pipe()
        reader: Any = _spawn.Process(target=bare_reader, args=(path, there, SAMPLES), daemon=True)
    else:
        here, there = multiprocessing.Pipe()
        reader = threading.Thread(target=bare_reader, args=(path, there, SAMPLES), daemon=True)
    reader.start()
    assert here.recv() == "ready"
    for gap in gaps(seed):
        time.sleep(gap)
        connection.execute("INSERT INTO runs (sent, state) VALUES (?, 'pending')", (time.time(),))
    taken: list[float] = json.loads(here.recv())
    reader.join()
    return taken


def bare_reader(path: Path, pipe: Connection, samples: int) -> None:
    connection = connect(path)
    taken: list[float] = []
    pipe.send("ready")
    while len(taken) < samples:
        found = connection.execute("SELECT id, sent FROM runs WHERE state = 'pending'").fetchall()
        for run_id, sent in found:
            connection.execute("UPDATE runs SET state = 'running' WHERE id = ?", (run_id,))
            taken.append(time.time() - sent)
        if not found:
            time.sleep(POLL)
    pipe.send(json.dumps(taken))


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, timeout=5)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    return connection
