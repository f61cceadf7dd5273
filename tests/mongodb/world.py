"""The simulation's world on a real MongoDB, in real time: the same work, the same misfortunes, the
same invariants. Times are shorter, for nobody can wait; and no seed replays exactly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, cast

from mainspring.store import Store
from mainspring.testing import FaultyStore, Injection
from tests.mongodb.signed import Breaks, SignedStore, seat
from tests.mongodb.watch import Mirror, WatchClock, Watcher, WatchMonitor
from tests.servers.mongodb import with_database
from tests.simulation.cluster import Node
from tests.simulation.machines import Machine, RealMachineLoop
from tests.simulation.workload import Client, Workload
from tests.simulation.world import Report, World, quiet

__all__ = ["simulate_for_real"]

SCHEDULES = ("1s", "2s", "3s", "* * * * * *", "*/2 * * * * *", "*/5 * * * * *")
PACE = 0.3
CALM = 45.0
"""Seconds in which everything must have ended once the faults stop."""


class RealNode(Node):
    """One that reaches MongoDB over a connection of its own."""

    def __init__(self, url: str, stores: list[SignedStore], *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._url = url
        self._stores = stores
        rng = random.Random(self._rng.getrandbits(32))
        rate = rng.choice((0.0, 0.01, 0.03))
        self.breaks = Breaks(rng, rate, rate)

    def _reached(self, author: str) -> Store:
        store = SignedStore(self._url, author, self.breaks)
        self._stores.append(store)
        return cast(Store, FaultyStore(seat(store), _ButOpening(self.bad)))


class _ButOpening:
    """Faults as they are, but none while the store is opened or closed."""

    def __init__(self, bad: Any) -> None:
        self._bad = bad

    def inject(self, method: str) -> Injection:
        if method in ("open", "close"):
            return Injection()
        return cast(Injection, self._bad.inject(method))


class RealWorld(World):
    def __init__(self, seed: int, url: str, *, trace: bool = False, stress: bool = False) -> None:
        super().__init__(seed, trace, cast(Any, None), stress)
        rng = self._rng
        self._url = with_database(url, f"sim_{seed}_{rng.getrandbits(32):08x}")
        self._span = rng.choice((6.0, 9.0))
        self._settings["lease"] = rng.choice(("2s", "3s"))
        self._settings["retention"] = "30d"
        self._lease = float(self._settings["lease"][:-1])
        self._pace = PACE
        self._longest_calm = CALM
        self._began = 0.0
        self._stores: list[SignedStore] = []
        self._nodes: list[RealNode] = []
        self._machines: list[Machine] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        mirror = Mirror()
        self.monitor = WatchMonitor(cast(Any, mirror), WatchClock(), self._trace)
        watcher = Watcher(self._url, self.monitor, mirror)
        assert isinstance(loop, RealMachineLoop)
        watching = loop.create_task(watcher.watch(loop.machines))
        await watcher.ready.wait()
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
            with suppress(Exception):
                await store.close()

    def _time(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def _workload(self) -> Workload:
        return Workload(
            self._seed, self.monitor, self._rng, self._stress, pace=PACE, schedules=SCHEDULES
        )

    def _node(self, name: str, workload: Workload, slowest: float) -> Node:
        node = RealNode(
            *(self._url, self._stores, name, self.monitor, self._rng, workload.register),
            span=self._span,
            slowest=slowest / 8,
        )
        self._nodes.append(node)
        return node

    async def _alive(self, nodes: list[Node], client: Client) -> None:
        """Some may be quicker than others in real time, so there is work for all until all took
        of it."""
        began = asyncio.get_running_loop().time()
        while self._idle_since(began, nodes):
            if asyncio.get_running_loop().time() > began + CALM:
                self.monitor.fail("alive", f"{self._idle_since(began, nodes)} took nothing")
            await client.probe(len(nodes) * 3)
            await asyncio.sleep(0.5)
        while self.monitor.unfinished():
            if asyncio.get_running_loop().time() > began + 2 * CALM:
                self.monitor.fail("lost", f"still unfinished: {self.monitor.unfinished()}")
            await asyncio.sleep(0.2)

    def _idle_since(self, began: float, nodes: list[Node]) -> list[str]:
        return [n.author for n in nodes if self.monitor.last_began.get(n.author, -1) < began]

    async def _calm(self) -> None:
        for node in self._nodes:
            node.breaks.on = False

    def report(self) -> Report:
        monitor = self.monitor
        return Report(
            self._seed,
            monitor.violations,
            "",
            monitor.lines,
            monitor.calls,
            monitor.counted,
            self.ended_at,
        )


def simulate_for_real(
    seeds: Sequence[int], url: str, *, trace: bool = False, stress: bool = False
) -> list[Report]:
    """Run these seeds at the same time, each on a database of its own."""
    loop = RealMachineLoop()
    worlds = [RealWorld(seed, url, trace=trace, stress=stress) for seed in seeds]

    async def main() -> None:
        await asyncio.gather(*(world.run() for world in worlds))

    with quiet():
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
        finally:
            loop.raise_the_dead()
            _wind_up(loop, [world.close for world in worlds])
            asyncio.set_event_loop(None)
            loop.close()
    return [world.report() for world in worlds]


def _wind_up(
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
