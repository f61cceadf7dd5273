"""Runs real workers on real servers under faults, and checks every run afterwards.

Short in tests/stores, at length in chaos/.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from mainspring import Run, Scheduler, State
from mainspring.core import note_kinds
from mainspring.core.model import LIVE
from mainspring.core.transitions import JOB_PAUSED
from mainspring.errors import StoreUnavailable
from mainspring.stores.election import LEADER
from tests.support.process_crashes import Entry, WorkerProcesses, check, read_log
from tests.support.scenario_worker import CAPACITY, build
from tests.support.servers.clocks import SteppedClock, program_clock

__all__ = ["FailoverReport", "failover", "orphaned_slots", "skewed"]

NODE = "tests.support.scenario_worker"
Fault = Callable[[], None]


@dataclass(frozen=True)
class FailoverReport:
    """The account of a failover."""

    acknowledged: int
    refused: int
    runs: int
    stalls: list[float]
    """Seconds from each fault to the next acknowledged run."""
    lost_leases: int

    def __str__(self) -> str:
        stalls = ", ".join(f"{stall:.1f}" for stall in self.stalls)
        return (
            f"{self.runs} runs, {self.acknowledged} acknowledged, {self.refused} batches refused;"
            f" stalls of {stalls} s; {self.lost_leases} leases lost"
        )


async def all_runs(producer: Scheduler) -> list[Run]:
    found: list[Run] = []
    cursor = None
    while True:
        page = await producer.list_runs(limit=1000, cursor=cursor)
        found += page.items
        if (cursor := page.cursor) is None:
            return found


async def until_over(producer: Scheduler, timeout: float) -> list[Run]:
    """Wait until nothing is left to do; then all runs."""
    deadline = time.monotonic() + timeout
    while True:
        with suppress(StoreUnavailable):
            left = (await producer.stats()).runs
            if not any(left.get(state, 0) for state in LIVE):
                return await all_runs(producer)
        assert time.monotonic() < deadline, f"after {timeout} s there are still {left}"
        await asyncio.sleep(0.3)


# Failover


async def failover(
    place: Path,
    url: str,
    faults: Sequence[Fault],
    *,
    workers: int = 2,
    lease: float = 15,
    seconds: float | None = None,
    timeout: float = 90,
) -> FailoverReport:
    """Workers and a client at work while these faults befall the servers, one after another.

    `seconds` is what each handler takes; without it, a moment.
    """
    ids: list[str] = []
    refused = 0
    times: list[float] = []
    payload = None if seconds is None else {"seconds": seconds}
    with WorkerProcesses.on(place, 1, url, (NODE, str(lease))) as processes:
        producer = build(url, processes.logs / "producer.log", lease=lease, workers=0)
        async with producer:
            ended = asyncio.Event()

            async def produce() -> None:
                nonlocal refused
                while not ended.is_set():
                    job_id = processes.rng.choice(("free", "free", "limited", "once"))
                    try:
                        ids.extend(r.id for r in await producer.enqueue_many(job_id, [payload] * 5))
                        times.append(time.monotonic())
                    except StoreUnavailable:
                        refused += 1
                    await asyncio.sleep(0.05 if seconds is None else seconds / 4)

            for _ in range(workers):
                processes.start()
            producing = asyncio.create_task(produce())
            await _wait_until_begun(processes, producer)
            began = []
            for fault in faults:
                began.append(time.monotonic())
                await asyncio.to_thread(fault)
                done = time.monotonic()
                while not times or times[-1] < done:
                    await asyncio.sleep(0.05)
            ended.set()
            await producing
            await _pause_job(producer, "tick")
            runs = await until_over(producer, timeout)
        log = read_log(processes.logs)
    check(runs, log, processes)
    missing = set(ids) - {run.id for run in runs}
    assert not missing, f"{len(missing)} acknowledged runs are gone"
    _check_slots(runs)
    lost = sum(entry.what == "lost" for entry in log)
    if not lost:  # no worker died and no lease was lost: nothing had to be done again
        ends = Counter(entry.run_id for entry in log if entry.what == "end")
        assert max(ends.values()) == 1
    stalls = [min(at for at in times if at > begin) - begin for begin in began]
    return FailoverReport(len(ids), refused, len(runs), stalls, lost)


async def _wait_until_begun(
    processes: WorkerProcesses, producer: Scheduler, timeout: float = 60
) -> None:
    """Until every worker has begun something, or the time is over.

    There is work for all of them at once: of a run a second, the quickest might take every one.
    """
    deadline = time.monotonic() + timeout
    pids = {process.pid for process in processes.processes}
    while pids - {entry.pid for entry in read_log(processes.logs)} and time.monotonic() < deadline:
        assert len(processes.alive) == len(pids), "a worker ended"
        await producer.enqueue_many("free", [{"seconds": 0.5}] * CAPACITY * len(pids))
        await asyncio.sleep(1)


async def _pause_job(producer: Scheduler, job_id: str) -> None:
    """Pause a job, so that what there is can come to its end."""
    while True:
        try:
            await producer.pause_job(job_id)
            return
        except StoreUnavailable:
            await asyncio.sleep(0.2)


def _check_slots(runs: Sequence[Run]) -> list[datetime]:
    """Every second from the first to the last has its one run."""
    slots = _slots_of(runs)
    assert len(slots) == len(set(slots)), "a slot has two runs"
    if slots:
        count = (slots[-1] - slots[0]) // timedelta(seconds=1) + 1
        assert len(slots) == count, f"{count - len(slots)} slots have no run"
    return slots


def _slots_of(runs: Iterable[Run]) -> list[datetime]:
    """The slots that have a record, in order. One record has all that were due when the scenario
    paused the job: a busy machine may still be catching up then."""
    slots: list[datetime] = []
    for run in runs:
        if run.job_id == "tick":
            count = run.result["count"] if run.reason == JOB_PAUSED else 1
            slots += [run.scheduled_at + timedelta(seconds=n) for n in range(count)]
    return sorted(slots)


# The leader dies


async def orphaned_slots(place: Path, url: str, kills: int, lease: float = 5) -> int:
    """Three nodes fire a slot every second; whoever leads is killed, over and over.

    Gives how many slots there were, each of which had exactly one run that succeeded.
    """
    with WorkerProcesses.on(place, 1, url, (NODE, str(lease))) as processes:
        producer = build(url, processes.logs / "producer.log", lease=lease, workers=0)
        async with producer:
            for _ in range(3):
                processes.start()
            for _ in range(kills):
                await _wait_until_begun(processes, producer)
                leader = None
                while leader is None:  # the dead lead on until their term is over
                    await asyncio.sleep(0.3)
                    term = await producer.note(note_kinds.TERM, LEADER)
                    pid = int(term.value["holder"].split(":")[-2]) if term else 0
                    leader = next((one for one in processes.alive if one.pid == pid), None)
                processes.kill(leader)
                processes.processes.remove(leader)
                processes.start()
            await asyncio.sleep(3)
            await _pause_job(producer, "tick")
            runs = await until_over(producer, 60)
        check(runs, read_log(processes.logs), processes)
        slots = _check_slots(runs)
        # `check` allows only a slot that was due when the job was paused to be skipped.
        assert {run.state for run in runs} <= {State.SUCCEEDED, State.SKIPPED}
        return len(slots)


# Clocks that are off


async def skewed(
    place: Path, url: str, *, routers: Sequence[str] = (), planted: str = "", lease: float = 6
) -> list[str]:
    """Workers whose clocks are right, an hour ahead, an hour behind, and stepped back an hour.

    Each is given its own URL of `routers`, if there are any. Gives what went wrong.
    """
    stepped = SteppedClock(place)
    clocks: list[dict[str, str]] = [
        {},
        program_clock(3600),
        program_clock(-3600),
        stepped.environment,
    ]
    long = 1.5 * lease
    with WorkerProcesses.on(
        place, 1, url, (NODE, str(lease), *([planted] if planted else []))
    ) as processes:
        producer = build(url, processes.logs / "producer.log", lease=lease, workers=0)
        async with producer:
            for number, clock in enumerate(clocks):
                processes.start(clock, routers[number % len(routers)] if routers else None)
            await _wait_until_begun(processes, producer, 10 if planted else 60)
            held = await producer.enqueue_many("free", [{"seconds": long}] * 12)
            later = [await producer.enqueue("free", delay=delay) for delay in (1.5, 3, 4.5)]
            asked = await producer.enqueue_many("delegate", [{"delay": 3}] * 12)
            await asyncio.sleep(lease / 2)
            stepped.step(-3600)
            await asyncio.sleep(long)
            await _pause_job(producer, "tick")
            with suppress(AssertionError):
                await until_over(producer, 3 if planted else 30)
            runs = {run.id: run for run in await all_runs(producer)}
        log = read_log(processes.logs)
    return _complaints(runs, log, {run.id for run in (*held, *later, *asked)}, len(clocks))


def _complaints(
    runs: dict[str, Run], log: Sequence[Entry], accepted: set[str], workers: int
) -> list[str]:
    wall = time.time() - time.monotonic()
    found = [f"{run_id} is gone" for run_id in accepted - runs.keys()]
    for run in runs.values():
        if run.reason == JOB_PAUSED:  # it was due when the scenario paused its job
            continue
        if run.state is not State.SUCCEEDED:
            found.append(f"{run.id} is {run.state} ({run.reason}), due {run.run_at}")
        if run.attempt != 1:  # a busy worker may give back a run that has not begun
            found.append(f"{run.id} was tried {run.attempt} times")
    begins: Counter[str] = Counter()
    for entry in log:
        if entry.what == "begin" and entry.run_id in runs:
            begins[entry.run_id] += 1
            early = runs[entry.run_id].run_at.timestamp() - (entry.at + wall)
            if early > 0.01:
                found.append(f"{entry.run_id} began {early:.3f} s before its time")
    found += [f"{run_id} began {count} times" for run_id, count in begins.items() if count > 1]
    if len({entry.pid for entry in log if entry.what == "begin"}) < workers:
        found.append("a worker took nothing")
    slots = Counter(_slots_of(runs.values()))
    found += [f"the slot {slot} has {count} runs" for slot, count in slots.items() if count > 1]
    if slots:
        span = (max(slots) - min(slots)) // timedelta(seconds=1) + 1
        if span != len(slots):
            found.append(f"{span - len(slots)} slots have no run")
    return found
