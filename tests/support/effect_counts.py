"""Kills and freezes real processes that write in transactions, then counts every effect."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
from pymongo import MongoClient

from mainspring import Run, Scheduler, State
from mainspring.core.model import Outcome
from tests.support.effect_worker import LEASE, build
from tests.support.process_crashes import WorkerProcesses, all_ended, kill_and_freeze
from tests.support.servers.server import Document

_TABLE = "CREATE TABLE effects (run TEXT, token INTEGER, pid INTEGER)"
BACKLOG = 60
"""Pending runs that there are at least while workers are killed."""


@dataclass(frozen=True)
class EffectCounts:
    runs: int
    succeeded: int
    again: int
    """Runs that took more than one attempt."""
    lapses: int
    kills: int

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.succeeded} succeeded with one effect each, {self.again} in"
            f" more than one attempt, {self.lapses} lapsed leases, {self.kills} kills"
        )


async def effect_test(
    place: Path,
    *,
    runs: int,
    kills: int,
    stops: int,
    seed: int,
    timeout: float,
    url: str | None = None,
    trouble: Callable[[], Awaitable[None]] | None = None,
) -> EffectCounts:
    """Four workers; so many kills and stops (or other trouble) while they work; then peace until
    all has ended. Without other trouble more runs are added while workers are killed, so that a
    kill meets handlers, however fast the workers are and however slowly they start."""
    with WorkerProcesses.on(place, seed, url, ("tests.support.effect_worker",)) as workers:
        make_effects(workers.url)
        async with build(workers.url, workers=0) as producer:
            ids = await _enqueue(producer, runs)
            for _ in range(4):
                workers.start()
            faults = asyncio.create_task(kill_and_freeze(workers, kills, stops, LEASE))
            if trouble is not None:
                await trouble()
            while trouble is None and not faults.done():
                if (await producer.stats()).runs.get(State.PENDING, 0) < BACKLOG:
                    ids += await _enqueue(producer, BACKLOG)
                await asyncio.sleep(0.1)
            ended = await all_ended(producer, ids, timeout)
            await faults
            for run in ended:  # nothing that still lingered has changed any of it
                assert await producer.get_run(run.id) == run
        return _tally(ended, workers)


async def _enqueue(producer: Scheduler, count: int) -> list[str]:
    batches = [
        await producer.enqueue_many(job, [None] * (count // 2)) for job in ("loop", "thread")
    ]
    return [run.id for batch in batches for run in batch]


def make_effects(url: str) -> None:
    """The user's own table, or collection."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.execute(_TABLE)
    elif url.startswith("postgresql:"):
        with psycopg.connect(url) as connection:
            connection.execute(_TABLE)
    else:
        with MongoClient[Document](url) as client:
            client.get_default_database().create_collection("effects", check_exists=False)


def _effects(url: str) -> list[tuple[str, int]]:
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return connection.execute("SELECT run, token FROM effects").fetchall()
    if url.startswith("postgresql:"):
        with psycopg.connect(url) as connection:
            return connection.execute("SELECT run, token FROM effects").fetchall()
    with MongoClient[Document](url) as client:
        return [(one["run"], one["token"]) for one in client.get_default_database().effects.find()]


def _tally(runs: list[Run], workers: WorkerProcesses) -> EffectCounts:
    found = _effects(workers.url)
    counted, tokens = Counter(run_id for run_id, _ in found), dict(found)
    for run in runs:
        poison = run.state is State.FAILED and run.reason in ("poison", "lapsed")
        assert run.state is State.SUCCEEDED or poison, f"{run.id} is {run.state}: {run.error}"
        expected = int(run.state is State.SUCCEEDED)
        assert counted[run.id] == expected, f"{run.id}, {run.state}: {counted[run.id]} effects"
        if expected:
            assert tokens[run.id] == run.token == run.result["token"], f"{run.id}: another token's"
            outcomes = [attempt.outcome for attempt in run.attempts]
            assert outcomes.count(Outcome.SUCCEEDED) == 1
    assert counted.keys() <= {run.id for run in runs}
    return EffectCounts(
        len(runs),
        sum(run.state is State.SUCCEEDED for run in runs),
        sum(run.attempt > 1 for run in runs),
        sum(run.lapses for run in runs),
        len(workers.killed),
    )
