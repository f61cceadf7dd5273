"""A run that kills its workers is found, and other runs come to no harm."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from mainspring import RunContext, Scheduler, State
from mainspring.core.model import Run, replace
from mainspring.engine.worker import LONGEST_ALONE, SUSPECT_PATIENCE
from mainspring.stores.memory import MemoryStore
from mainspring.testing import VirtualClock
from tests.support.engine import all_runs, on_virtual_time
from tests.support.simulation.machines import Machine, MachineLoop, machines_of


class Cluster:
    """Workers on one store; who dies is started again a second later, as by a supervisor."""

    def __init__(self, machines: int, seed: int, *, workers: int = 10) -> None:
        self.store = MemoryStore(VirtualClock())
        self.starts: Counter[str] = Counter()
        self.at_work: dict[Machine, set[str]] = {}
        self._rng = random.Random(seed)
        self._workers = workers
        self._machines = [self._boot() for _ in range(machines)]

    def _boot(self) -> Machine:
        machine = Machine("worker")
        machines_of(asyncio.get_running_loop()).append(machine)
        self.at_work[machine] = set()
        machine.spawn(self._live(machine))
        return machine

    async def _live(self, machine: Machine) -> None:
        scheduler = Scheduler(
            self.store,
            inline=True,
            clock=VirtualClock(),
            rng=random.Random(self._rng.getrandbits(32)),
            lease="6s",
            workers=self._workers,
        )

        async def begin(ctx: RunContext) -> None:
            self.starts[ctx.run_id] += 1
            self.at_work[machine].add(ctx.run_id)

        async def harmless(ctx: RunContext, seconds: float) -> None:
            await begin(ctx)
            await asyncio.sleep(seconds)
            self.at_work[machine].discard(ctx.run_id)

        async def killer(ctx: RunContext, seconds: float) -> None:
            await begin(ctx)
            await asyncio.sleep(seconds)
            machine.kill()
            await asyncio.sleep(0)

        scheduler.job()(harmless)
        scheduler.job(id="once", delivery="at_most_once")(harmless)
        scheduler.job()(killer)
        await scheduler.start()

    async def runs(self, ids: set[str]) -> list[Run]:
        return [run for run in (await all_runs(self.store)).values() if run.id in ids]

    async def work_off(self) -> dict[str, Run]:
        """Until everything has ended."""
        async with asyncio.timeout(3000):
            while any(not run.finished for run in (await all_runs(self.store)).values()):
                await asyncio.sleep(1)
                for number, machine in enumerate(self._machines):
                    if machine.dead:
                        self._machines[number] = self._boot()
        return await all_runs(self.store)


def make_suspects(cluster: Cluster, runs: list[Run]) -> None:
    for run in runs:
        cluster.store._runs[run.id] = replace(cluster.store._runs[run.id], lapses=2)


def producer(store: Any) -> Scheduler:
    return Scheduler(store, inline=True, clock=VirtualClock(), rng=random.Random(2), workers=0)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seconds", [0.0, 2.0], ids=["at once", "after a while"])
@on_virtual_time(make_loop=MachineLoop)
async def test_a_run_that_kills_workers_harms_none_of_a_hundred_others(
    workers: int, seconds: float
) -> None:
    cluster = Cluster(workers, seed=1)
    client = producer(cluster.store)
    await client.start()
    await asyncio.sleep(1)
    harmless = await client.enqueue_many("harmless", [{"seconds": 0.01}] * 100)
    once = await client.enqueue_many("once", [{"seconds": 0.01}] * 20)
    killers = await client.enqueue_many("killer", [{"seconds": seconds}] * 2)
    runs = await cluster.work_off()
    for one in killers:
        run = runs[one.id]
        assert (run.state, run.reason) == (State.FAILED, "poison")
        assert 2 <= cluster.starts[one.id] <= 4  # it may have been beside the other one
    assert {runs[run.id].state for run in harmless} == {State.SUCCEEDED}
    for one in once:
        run = runs[one.id]
        if run.state is State.SUCCEEDED:
            assert cluster.starts[one.id] == 1
        else:  # its begin was on record; the worker may have died on the way to it
            assert (run.reason, run.began) == ("lost", True)
            assert cluster.starts[one.id] <= 1


@on_virtual_time(make_loop=MachineLoop)
async def test_a_suspect_that_takes_long_does_not_stop_everything_else() -> None:
    """It has the worker to itself for a minute, then others go on beside it."""

    cluster = Cluster(1, seed=1)
    client = producer(cluster.store)
    await client.start()
    await asyncio.sleep(1)
    long = await client.enqueue("harmless", {"seconds": 1200})
    for _ in range(2):  # somebody kills the worker, twice
        while cluster.starts[long.id] == 0:
            await asyncio.sleep(1)
        cluster._machines[0].kill()
        cluster._machines[0] = cluster._boot()
        cluster.starts.clear()
        while (await all_runs(cluster.store))[long.id].state is not State.RUNNING:
            await asyncio.sleep(1)
    while cluster.starts[long.id] == 0:
        await asyncio.sleep(1)
    assert (await all_runs(cluster.store))[long.id].lapses == 2
    began = asyncio.get_running_loop().time()
    other = await client.enqueue("harmless", {"seconds": 1})
    await client.wait(other.id, 600)
    assert asyncio.get_running_loop().time() - began < LONGEST_ALONE + 10
    runs = await cluster.work_off()
    assert (runs[long.id].state, cluster.starts[long.id]) == (State.SUCCEEDED, 1)


@on_virtual_time(make_loop=MachineLoop)
async def test_a_suspect_that_meets_no_idle_worker_begins_beside_others_in_the_end() -> None:
    """A handler of half an hour is at work, and there is always more to do."""

    cluster = Cluster(1, seed=1)
    client = producer(cluster.store)
    await client.start()
    await asyncio.sleep(1)
    busy = await client.enqueue("harmless", {"seconds": 1800})
    while cluster.starts[busy.id] == 0:
        await asyncio.sleep(1)
    suspect = await client.enqueue("harmless", {"seconds": 0})
    make_suspects(cluster, [suspect])
    loop = asyncio.get_running_loop()
    began, other_waits = loop.time(), list[float]()
    while cluster.starts[suspect.id] == 0:  # they go on meanwhile
        enqueued = loop.time()
        other = await client.enqueue("harmless", {"seconds": 0.1})
        await client.wait(other.id, 60)
        other_waits.append(loop.time() - enqueued)
        await asyncio.sleep(5)
    assert max(other_waits) < 2
    waited = loop.time() - began
    assert SUSPECT_PATIENCE.total_seconds() <= waited < SUSPECT_PATIENCE.total_seconds() + 60
    run = await client.wait(suspect.id, 60)
    assert (run.state, run.lapses, cluster.starts[busy.id]) == (State.SUCCEEDED, 2, 1)


@pytest.mark.parametrize("workers", [1, 10])
@on_virtual_time(make_loop=MachineLoop)
async def test_many_harmless_suspects_stop_a_worker_only_one_at_a_time(workers: int) -> None:
    """Ten reports of five seconds were beside a killer, twice. A tick of each second goes on."""

    cluster = Cluster(1, seed=1, workers=workers)
    client = producer(cluster.store)
    await client.start()
    await asyncio.sleep(1)
    reports = await client.enqueue_many("harmless", [{"seconds": 5}] * 10, delay="2s")
    make_suspects(cluster, reports)
    loop = asyncio.get_running_loop()
    ticks: list[asyncio.Task[float]] = []

    async def tick() -> float:
        began = loop.time()
        await client.wait((await client.enqueue("harmless", {"seconds": 0})).id, 300)
        return loop.time() - began

    wanted = {run.id for run in reports}
    while any(not run.finished for run in await cluster.runs(wanted)):
        ticks.append(loop.create_task(tick()))
        await asyncio.sleep(1)
    waits = await asyncio.gather(*ticks)
    assert max(waits) < 10  # one report, and a second that the next one may be waiting
    assert sum(wait < 1 for wait in waits) > len(waits) / 3
    assert {run.state for run in await cluster.runs(wanted)} == {State.SUCCEEDED}
    assert len(waits) < 200  # they are run soon, too
