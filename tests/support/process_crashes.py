"""Kills and freezes real worker processes on one SQLite file, then checks every run against their
logs."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from mainspring import Run, Scheduler, State
from mainspring.core.model import Outcome
from mainspring.core.transitions import JOB_PAUSED
from tests.support.crash_worker import LEASE, LIMIT, build

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Entry:
    what: str
    run_id: str
    token: int
    at: float
    pid: int


@dataclass
class WorkerProcesses:
    """The processes of one test: it ends those that it has started, and no others."""

    url: str
    logs: Path
    rng: random.Random
    program: Sequence[str] = ("tests.support.crash_worker",)
    """A module that is run with the URL and the folder of logs, and what else it is given."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed: dict[int, float] = field(default_factory=dict)
    stopped: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def start(
        self, environment: Mapping[str, str] | None = None, url: str | None = None
    ) -> subprocess.Popen[bytes]:
        module, *more = self.program
        with (self.logs / f"errors{len(self.processes)}").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", module, url or self.url, str(self.logs), *more],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **(environment or {})},
                stderr=errors,
            )
        self.processes.append(process)
        return process

    @property
    def alive(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes if process.poll() is None]

    def has_worked(self, process: subprocess.Popen[bytes]) -> bool:
        """Whether a handler has begun in it, which it writes to its log."""
        log = self.logs / f"{process.pid}.log"
        return log.exists() and log.stat().st_size > 0

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        self.killed[process.pid] = time.monotonic()

    @contextmanager
    def frozen(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Stop the process (SIGSTOP) until the block ends."""
        process.send_signal(signal.SIGSTOP)
        self.stopped[process.pid].append(time.monotonic())
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextmanager
    def frozen_without_lock(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Stop the process at a moment when it does not hold the write lock of the SQLite file,
        which would stop all others too."""
        lock = self.url.removeprefix("sqlite:///") + "-lock"
        with open(lock, "rb") as file:
            while True:
                with self.frozen(process), contextlib.suppress(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_UN)
                    yield
                    return
                time.sleep(0.01)

    @classmethod
    @contextmanager
    def on(
        cls, place: Path, seed: int, url: str | None = None, program: Sequence[str] = ()
    ) -> Iterator[Self]:
        """Of workers on this store, or on an SQLite file of their own."""
        logs = place / "logs"
        logs.mkdir()
        workers = cls(url or f"sqlite:///{place / 'runs.db'}", logs, random.Random(seed))
        workers.program = program or workers.program
        try:
            yield workers
        finally:
            for process in workers.alive:
                process.send_signal(signal.SIGCONT)
                process.kill()
            for process in workers.processes:
                process.wait()


@dataclass(frozen=True)
class CrashReport:
    runs: list[Run]
    kills: int
    stops: int
    begun: int
    ended: int
    refused: int

    def __str__(self) -> str:
        states = Counter(str(run.state) for run in self.runs)
        return (
            f"{len(self.runs)} runs {dict(states)}, {self.kills} kills, {self.stops} stops,"
            f" {self.begun} handlers begun, {self.ended} ended, {self.refused} outcomes lost"
        )


async def crash_test(
    place: Path,
    *,
    runs: int,
    kills: int,
    stops: int,
    seed: int,
    timeout: float,
    url: str | None = None,
) -> CrashReport:
    """Four workers; so many kills and stops while they work; then peace until all has ended."""
    with WorkerProcesses.on(place, seed, url) as workers:
        producer = build(workers.url, workers.logs / "producer.log", workers=0)
        async with producer:
            ids = await _enqueue(producer, workers.rng, runs)
            for _ in range(4):
                workers.start()
            faults = asyncio.create_task(kill_and_freeze(workers, kills, stops, LEASE))
            ended = await all_ended(producer, ids, timeout)
            await faults
        log = read_log(workers.logs)
        check(ended, log, workers)
        what = Counter(entry.what for entry in log)
        begun, over, refused = what["begin"], what["end"], what["lost"]
        return CrashReport(ended, len(workers.killed), stops, begun, over, refused)


async def _enqueue(producer: Scheduler, rng: random.Random, count: int) -> list[str]:
    ids: list[str] = []
    for job_id, share in (("free", 0.8), ("limited", 0.15), ("once", 0.05)):
        payloads = [None] * int(count * share)
        ids += [run.id for run in await producer.enqueue_many(job_id, payloads)]
    rng.shuffle(ids)
    return ids


async def kill_and_freeze(workers: WorkerProcesses, kills: int, stops: int, lease: float) -> None:
    rng = workers.rng
    signals = ["kill"] * kills + ["stop"] * stops
    rng.shuffle(signals)
    await asyncio.sleep(1.0)
    for signal_name in signals:
        await asyncio.sleep(rng.uniform(0, 0.8))
        victim = rng.choice(await _working(workers) or workers.alive)
        if signal_name == "kill":
            workers.kill(victim)
            workers.start()
        else:
            with workers.frozen(victim):
                await asyncio.sleep(rng.uniform(1.1, 1.6) * lease)


async def _working(workers: WorkerProcesses) -> list[subprocess.Popen[bytes]]:
    """The processes in which a handler has begun. On a busy machine a new process needs seconds to
    get there, and the kill of one that does nothing yet shows nothing. Empty if there is none for
    long: no run may be left."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if found := [process for process in workers.alive if workers.has_worked(process)]:
            return found
        await asyncio.sleep(0.02)
    return []


async def all_ended(producer: Scheduler, ids: list[str], timeout: float) -> list[Run]:
    deadline = time.monotonic() + timeout
    while True:
        left = (await producer.stats()).runs
        live = sum(left.get(state, 0) for state in (State.WAITING, State.PENDING, State.RUNNING))
        if not live:
            return [await producer.get_run(run_id) for run_id in ids]
        assert time.monotonic() < deadline, f"after {timeout} s there are still {left}"
        await asyncio.sleep(0.5)


def read_log(logs: Path) -> list[Entry]:
    entries = []
    for path in sorted(logs.glob("*.log")):
        for line in path.read_text().splitlines():
            what, run_id, token, at, pid = line.split()
            entries.append(Entry(what, run_id, int(token), float(at), int(pid)))
    return sorted(entries, key=lambda entry: entry.at)


def check(runs: list[Run], log: list[Entry], workers: WorkerProcesses) -> None:
    """What the store says, against what the processes did."""
    begins = Counter((entry.run_id, entry.token) for entry in log if entry.what == "begin")
    ends = Counter((entry.run_id, entry.token) for entry in log if entry.what == "end")
    starts: Counter[str] = Counter()
    for (run_id, _), count in begins.items():
        assert count == 1, f"{run_id} began twice under one token"
        starts[run_id] += 1
    for run in runs:
        outcomes = [attempt.outcome for attempt in run.attempts]
        wins = outcomes.count(Outcome.SUCCEEDED)
        if run.state is State.SUCCEEDED:
            assert wins == 1, f"{run.id} succeeded {wins} times: {outcomes}"
            assert outcomes[-1] is Outcome.SUCCEEDED, f"{run.id} went on after success: {outcomes}"
            assert run.result["token"] == run.token, f"{run.id}: another token's result"
            assert ends[run.id, run.token] == 1, f"{run.id} succeeded, but no handler ended"
        elif run.state is State.SKIPPED:
            # A scenario ends by pausing the job: a slot that is due at that moment is recorded.
            assert run.reason == JOB_PAUSED, f"{run.id} was skipped: {run.reason}"
            assert not starts[run.id]
        else:
            lost = run.job_id == "once" and run.reason == "lost"
            poison = run.reason in ("poison", "lapsed") and outcomes.count(Outcome.LOST) >= 4
            assert run.state is State.FAILED, f"{run.id} ended {run.state}"
            assert lost or poison, f"{run.id} failed: {run.error} ({run.reason})"
            assert not wins
        if run.job_id == "once":
            assert starts[run.id] <= 1, f"{run.id} may start once, and began {starts[run.id]} times"
    limited = {run.id for run in runs if run.job_id == "limited"}
    most = _most_at_once([entry for entry in log if entry.run_id in limited], workers)
    assert most <= LIMIT, f"{most} at once, and {LIMIT} are allowed"


def _most_at_once(log: list[Entry], workers: WorkerProcesses) -> int:
    """How many handlers were at work under a lease at one moment.

    A handler that begins has a fifth of its lease before it, at least; a stopped process has
    no claim to more than it had when it stopped.
    """
    ends = {(e.run_id, e.token): e.at for e in log if e.what == "end"}
    steps = []
    for entry in log:
        if entry.what != "begin":
            continue
        over = [entry.at + LEASE / 5, ends.get((entry.run_id, entry.token), entry.at + LEASE / 5)]
        over += [at for at in (workers.killed.get(entry.pid),) if at is not None]
        over += [at for at in workers.stopped[entry.pid] if at >= entry.at]
        steps += [(entry.at, 1), (min(over), -1)]
    at_once = most = 0
    for _, step in sorted(steps):
        at_once += step
        most = max(most, at_once)
    return most
