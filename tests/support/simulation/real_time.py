"""The simulated cluster on a real database, in real time: the same workload, faults and invariants.

Times are shorter, and no seed replays exactly.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, cast
from unittest.mock import patch

from mainspring.stores.protocol import Store
from mainspring.testing import FaultyStore, Injection
from tests.support.simulation.cluster import Node
from tests.support.simulation.machines import Machine, RealMachineLoop
from tests.support.simulation.monitor import LATE, Violation
from tests.support.simulation.scenario import CAPACITY, Report, Simulation, silence_logs
from tests.support.simulation.watching import (
    ConnectionFaults,
    Mirror,
    WatchClock,
    WatchMonitor,
    observe_calls,
)
from tests.support.simulation.workload import Client, Workload

SCHEDULES = ("2s", "3s", "5s", "* * * * * *", "*/2 * * * * *", "*/5 * * * * *")
PACE = 0.3
CALM = 120.0
"""Seconds in which everything must have ended once the faults stop."""


class Watcher(Protocol):
    ready: asyncio.Event

    async def watch(self, machines: list[Machine]) -> None:
        """Tell the monitor every write until it is broken."""


class Place(Protocol):
    """A database of its own for one seed."""

    def store(self, author: str, breaks: ConnectionFaults) -> Store:
        """A store whose writes name their author, and whose connection breaks."""

    def watcher(self, monitor: WatchMonitor, mirror: Mirror) -> Watcher: ...


MakePlace = Callable[[int], Place]
"""Makes the place of a seed."""


class RealNode(Node):
    """One that reaches the database over connections of its own."""

    def __init__(self, place: Place, stores: list[Store], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._place = place
        self._stores = stores
        rng = random.Random(self._rng.getrandbits(32))
        rate = rng.choice((0.0, 0.01, 0.03))
        self.breaks = ConnectionFaults(rng, rate, rate)

    def _reached(self, author: str) -> Store:
        store = self._place.store(author, self.breaks)
        self._stores.append(store)
        return cast(Store, FaultyStore(observe_calls(store), _FaultsAfterOpening(self.faults)))


class _FaultsAfterOpening:
    """Faults as they are, but none while the store is opened or closed."""

    def __init__(self, bad: Any) -> None:
        self._bad = bad

    def inject(self, method: str) -> Injection:
        if method in ("open", "close"):
            return Injection()
        return cast(Injection, self._bad.inject(method))


class RealWorkload(Workload):
    """Without transactions: those have tests of their own (test_handler_transaction.py). And
    without runs that kill their workers: each would need many leases of real time. And without
    backfills: the monitor is told of a run some time after the client is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.killers = 0
        self.jobs.pop("killer", None)
        self.jobs.pop("filled", None)
        del self.jobs["exact"]["delivery"]

    def _exact(self, machine: Machine, author: str) -> Callable[..., Any]:
        return self._handler(machine, author)


class RealTimeSimulation(Simulation):
    def __init__(
        self, seed: int, make_place: MakePlace, *, trace: bool = False, stress: bool = False
    ) -> None:
        super().__init__(seed, make_store=cast(Any, None), trace=trace, stress=stress)
        rng = self._rng
        self._place = make_place(seed)
        self._span = rng.choice((6.0, 9.0))
        self._settings["lease"] = "2s" if stress else rng.choice(("5s", "8s"))
        self._settings["retention"] = "30d"
        self._lease = float(self._settings["lease"][:-1])
        self._pace = PACE
        self._longest_calm = CALM
        self._began = 0.0
        self._stores: list[Store] = []
        self._nodes: list[RealNode] = []

    async def _set_clock(self) -> None:
        """The clock is the server's: it cannot be set from here."""

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        self._mirror = Mirror()
        self.monitor = WatchMonitor(cast(Any, self._mirror), WatchClock(), self._trace)
        watcher = self._place.watcher(self.monitor, self._mirror)
        assert isinstance(loop, RealMachineLoop)
        watching = loop.create_task(watcher.watch(loop.machines))
        ready = loop.create_task(watcher.ready.wait())
        await asyncio.wait({ready, watching}, return_when=asyncio.FIRST_COMPLETED)
        assert watcher.ready.is_set(), self.monitor.violations
        self._began = loop.time()
        try:
            await self._until_broken()
        finally:
            self.monitor.broken.set()
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def close(self) -> None:
        for store in self._stores:
            with suppress(Exception, asyncio.CancelledError):  # its own tasks were cancelled
                await store.close()

    def _time(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def _workload(self) -> Workload:
        return RealWorkload(
            self.seed, self.monitor, self._rng, self._stress, pace=PACE, schedules=SCHEDULES
        )

    def _node(self, name: str, workload: Workload, slowest: float) -> Node:
        node = RealNode(
            *(self._place, self._stores, name, self.monitor, self._rng, workload.register),
            span=self._span,
            slowest=slowest / 8,
        )
        self._nodes.append(node)
        return node

    async def _settled(self, client: Client) -> None:
        """A slow computer may fire late for long; but it catches up, and then all is accounted
        for."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + CALM
        while self._behind() and loop.time() < ends:
            await asyncio.sleep(0.5)
        self.monitor.check_slots()
        await client.everything_resumed_then_paused()
        while self.monitor.unfinished() and loop.time() < ends:
            await asyncio.sleep(0.5)

    def _behind(self) -> list[str]:
        now = self.monitor.clock.now()
        return [
            job.id
            for job in self._mirror._jobs.values()
            if job.next_run_at is not None and job.next_run_at < now - LATE
        ]

    async def _alive(self, nodes: list[Node], client: Client) -> None:
        """In real time some are quicker than others: there is work for all until all took of it."""
        loop = asyncio.get_running_loop()
        began, ends = loop.time(), loop.time() + CALM
        while (idle := self._idle_since(began, nodes)) and loop.time() < ends:
            if len(self.monitor.unfinished()) < len(nodes) * CAPACITY:
                await client.probe(len(nodes) * CAPACITY)
            await asyncio.sleep(0.2)
        if idle:
            self.monitor.fail("alive", f"{idle} took nothing")
        ends = loop.time() + CALM
        while (left := self.monitor.unfinished()) and loop.time() < ends:
            await asyncio.sleep(0.2)
        for run in left:
            self.monitor.fail("lost", f"{run.id} is still {run.state} ({run.reason})")

    def _idle_since(self, began: float, nodes: list[Node]) -> list[str]:
        return [n.author for n in nodes if self.monitor.last_began.get(n.author, -1) < began]

    async def _calm(self) -> None:
        for node in self._nodes:
            node.breaks.on = False

    @property
    def violations(self) -> list[Violation]:
        return self.monitor.violations if hasattr(self, "monitor") else []

    def report(self) -> Report:
        monitor = self.monitor
        return Report(
            self.seed,
            monitor.violations,
            "",
            monitor.lines,
            monitor.calls,
            monitor.counted,
            self.ended_at,
        )


def simulate_for_real(
    seeds: Sequence[int], make_place: MakePlace, *, trace: bool = False, stress: bool = False
) -> list[Report]:
    """Run these seeds at the same time, each on a database of its own, until all have ended or
    one of them has failed."""
    loop = RealMachineLoop()
    worlds = [RealTimeSimulation(seed, make_place, trace=trace, stress=stress) for seed in seeds]

    async def main() -> None:
        left = {loop.create_task(world.run()) for world in worlds}
        while left and not any(world.violations for world in worlds):
            done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    with silence_logs():
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
        finally:
            loop.revive_machines()
            _close_simulations(loop, [world.close for world in worlds])
            asyncio.set_event_loop(None)
            loop.close()
    return [world.report() for world in worlds]


def _close_simulations(
    loop: asyncio.AbstractEventLoop, closing: Sequence[Callable[[], Coroutine[Any, Any, None]]]
) -> None:
    """End all that is left. A driver whose own tasks are cancelled takes it for a lost connection,
    and those who wait for it try again: so it takes more than one round."""
    for _ in range(10):
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if not tasks:
            break
        loop.run_until_complete(asyncio.wait(tasks, timeout=1))
    for close in closing:
        loop.run_until_complete(close())
    loop.run_until_complete(loop.shutdown_asyncgens())


# Bugs planted on purpose: the invariants must notice each, on this store too


@dataclass(frozen=True)
class Planted:
    name: str
    description: str
    caught_by: frozenset[str]
    patched: tuple[object, str, Any]
    stress: bool = False


def hunt(bug: Planted, make_place: MakePlace, most: int = 36, at_once: int = 2) -> Report | None:
    """Run seeds with the bug planted until one of them fails. Real time decides what happens, so a
    seed finds a bug sometimes: "no fence" in a quarter of the cases. One in thirty hunts of 12
    seeds found nothing; of 36 it is one in 30,000."""
    with patch.object(*bug.patched):
        for first in range(0, most, at_once):
            seeds = range(first, first + at_once)
            for report in simulate_for_real(seeds, make_place, stress=bug.stress):
                if report.violations:
                    return report
    return None
