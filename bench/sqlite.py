"""Jobs a second on the embedded store at FULL, beside the bare loop and beside Huey.

Each round runs all sides one after another, so that each ratio is of neighbours in time.
Drain: claim, no-op async handler, complete, history. End to end: enqueued one by one (64 at a
time in flight) while the worker runs. Each side has settings that suit no-ops: ours a capacity of
100 in one process, Huey the better of one thread and four.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench import bare_sqlite
from bench.measure import folder, ratio, rounded, rounds, spread
from mainspring import Scheduler

ROUNDS = 5
RUNS = 20_000
SINGLE_RUNS = 3_000
IN_FLIGHT = 64
WORKERS = 100


def run() -> dict[str, Any]:
    figures: dict[str, list[float]] = {}
    for _ in rounds(ROUNDS, "sqlite"):
        with folder() as path:
            for name, value in one_round(path).items():
                figures.setdefault(name, []).append(value)
    return {
        "jobs_per_second": {name: spread(values) for name, values in figures.items()},
        "drain_of_bare_loop": ratio(figures["drain"], figures["bare drain"]),
        "drain_of_huey": ratio(figures["drain"], figures["huey drain"]),
        "enqueue_of_bare_loop": ratio(figures["enqueue many"], figures["bare enqueue"]),
        "runs_per_round": RUNS,
    }


def one_round(path: Path) -> dict[str, float]:
    figures = {
        "bare enqueue": bare_sqlite.bare_enqueue(path / "bare-enqueue.db", RUNS, batch=RUNS),
        "bare drain": bare_sqlite.bare_drain(path / "bare-drain.db", RUNS, batch=200),
    }
    figures |= asyncio.run(measure_ours(path / "ours.db"))
    figures |= measure_huey(path / "huey.db")
    return {name: rounded(value) for name, value in figures.items()}


async def measure_ours(path: Path) -> dict[str, float]:
    done = 0
    goal = RUNS
    reached = asyncio.Event()

    async def noop(n: int) -> None:
        nonlocal done
        done += 1
        if done == goal:
            reached.set()

    def scheduler(workers: int) -> Scheduler:
        made = Scheduler(f"sqlite:///{path}", workers=workers)
        made.job(id="noop")(noop)
        return made

    async with scheduler(0) as producer:
        began = time.perf_counter()
        await producer.enqueue_many("noop", [{"n": n} for n in range(RUNS)])
        enqueue = RUNS / (time.perf_counter() - began)

    # The clock stops when everything is recorded, not when the last handler was called.
    began = time.perf_counter()
    async with scheduler(WORKERS) as worker:
        await reached.wait()
        while (await worker.stats()).runs["succeeded"] < RUNS:
            await asyncio.sleep(0.005)
        drain = RUNS / (time.perf_counter() - began)

        goal, done = SINGLE_RUNS, 0
        reached.clear()
        turns = asyncio.Semaphore(IN_FLIGHT)

        async def one(n: int) -> None:
            async with turns:
                await worker.enqueue("noop", {"n": n})

        began = time.perf_counter()
        await asyncio.gather(*(one(n) for n in range(SINGLE_RUNS)))
        single = SINGLE_RUNS / (time.perf_counter() - began)
        await reached.wait()
        end_to_end = SINGLE_RUNS / (time.perf_counter() - began)
    return {
        "enqueue many": enqueue,
        "drain": drain,
        "enqueue one by one": single,
        "end to end": end_to_end,
    }


def measure_huey(path: Path) -> dict[str, float]:
    """Huey's consumer in threads of this process, at its best of one worker and four."""
    return {"huey drain": max(huey_drain(path, workers) for workers in (1, 4))}


def huey_drain(path: Path, workers: int) -> float:
    from huey import SqliteHuey

    app = SqliteHuey("bench", filename=f"{path}.{workers}", results=False)
    done = [0]

    @app.task()  # type: ignore[untyped-decorator]
    def noop(n: int) -> None:
        done[0] += 1

    runs = RUNS // 4
    for n in range(runs):
        noop(n)
    consumer = app.create_consumer(
        workers=workers, worker_type="thread", initial_delay=0.01, max_delay=0.05, periodic=False
    )
    began = time.perf_counter()
    consumer.start()
    while done[0] < runs:
        time.sleep(0.002)
    taken = time.perf_counter() - began
    consumer.stop(graceful=True)
    return runs / taken
