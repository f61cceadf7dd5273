"""Runs one seed: a cluster with its workload and its faults, then a calm in which all must end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from mainspring.stores.memory import MemoryStore
from mainspring.testing import Deadlock, SimulationLimit, VirtualClock, run_virtual
from tests.support.simulation.cluster import Node
from tests.support.simulation.machines import MachineLoop
from tests.support.simulation.monitor import Monitor, Violation
from tests.support.simulation.workload import Client, Workload

WORKERS = 4
CAPACITY = 3
PROBES = 5
CALM = 240.0
"""Virtual seconds in which everything must have ended once the faults stop."""

MakeStore = Callable[[Any], MemoryStore]


@dataclass(frozen=True)
class Report:
    seed: int
    violations: list[Violation]
    digest: str
    lines: list[str]
    calls: int
    counted: Counter[str]
    virtual_seconds: float


def simulate(
    seed: int,
    *,
    trace: bool = False,
    make_store: MakeStore = MemoryStore,
    stress: bool = False,
    focus: str | None = None,
    calm: bool = True,
) -> Report:
    """Run one seed to its end, or to the first thing that must not happen.

    `stress` gives short leases, long handlers, many lost answers and pauses about as long as
    the lease: what is rare in the plain story is frequent there. `focus` names a job of which the
    client enqueues more than of others. Without `calm` the story ends with the faults: what
    should have ended by itself afterwards is not checked, in half of the time.
    """
    return run_simulation(
        Simulation(seed, trace=trace, make_store=make_store, stress=stress, focus=focus, calm=calm)
    )


def run_simulation(world: Simulation, steps: int = 600_000) -> Report:
    """Run a world on virtual time, for so many steps at most."""
    with silence_logs():
        try:
            run_virtual(world.run, world.seed, until=3600, steps=steps, make_loop=MachineLoop)
        except (Deadlock, SimulationLimit) as error:
            world.monitor.violations.append(Violation("lost", str(error)[:500], -1))
    monitor = world.monitor
    return Report(
        world.seed,
        monitor.violations,
        monitor.digest,
        monitor.lines,
        monitor.calls,
        monitor.counted,
        world.ended_at,
    )


class Simulation:
    def __init__(
        self,
        seed: int,
        *,
        make_store: MakeStore,
        trace: bool = False,
        stress: bool = False,
        focus: str | None = None,
        calm: bool = True,
    ) -> None:
        self.seed = seed
        self._stress = stress
        self._focus = focus
        self._with_calm = calm
        self._rng = rng = random.Random(f"world {seed}")
        self._trace = trace
        self._make_store = make_store
        self._span = rng.choice((15.0, 25.0, 40.0))
        self._settings: dict[str, Any] = {
            "workers": CAPACITY,
            "lease": rng.choice(("3s", "5s", "10s")),
            "poll": "1s",
            "retention": rng.choice(("30d", "30d", "20s")),
            "leader_election": rng.random() < 0.8,
        }
        if stress:
            self._settings["lease"] = "3s"
        if focus == "slots":
            self._settings["leader_election"] = False
        self._lease = float(self._settings["lease"][:-1])
        self._crashes = rng.choice((0.0, 0.3, 1.0))
        self._freezes = rng.choice((0.0, 0.3, 1.0))
        if stress:
            self._crashes, self._freezes = 0.0, 2.0
        self._pace = 1.0
        self._longest_calm = CALM
        self.monitor: Monitor
        self.ended_at = 0.0

    async def run(self) -> None:
        self._clock = clock = VirtualClock(asyncio.get_running_loop())
        self.monitor = monitor = Monitor(self._make_store(clock), clock, self._trace)
        if self._settings["retention"] == "20s":
            monitor.retention = timedelta(seconds=20)
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        await self._until_broken()

    async def _until_broken(self) -> None:
        """The story, to its end or to the first thing that must not happen."""
        monitor, loop = self.monitor, asyncio.get_running_loop()
        story = loop.create_task(self._run_scenario())
        broken = loop.create_task(monitor.broken.wait())
        await asyncio.wait({story, broken}, return_when=asyncio.FIRST_COMPLETED)
        self.ended_at = self._time()
        if not story.done():
            story.cancel()
        elif (error := story.exception()) is not None:
            monitor.fail("engine", f"{error!r} reached the client")
        monitor.broken.set()  # what happens from here on is the end of the loop itself

    async def _run_scenario(self) -> None:
        rng, monitor = self._rng, self.monitor
        workload = self._workload()
        nodes = [self._node(f"w{n}", workload, 2.0) for n in range(WORKERS)]
        producer = self._node("producer", workload, 0.5)
        for node in nodes:
            if self._stress:
                node.faults.worsen(rng.getrandbits(32))
            node.boot(**self._settings)
        producer.boot(**{**self._settings, "workers": 0})
        fates = [asyncio.ensure_future(self._inject_faults(node)) for node in nodes]
        fates.append(asyncio.ensure_future(self._set_clock()))
        while producer.scheduler is None:
            await asyncio.sleep(0.1)
        client = Client(monitor, rng, workload, producer.scheduler)
        restarting = asyncio.ensure_future(self._restarting(nodes, workload))
        killers = [self._killer(client) for _ in range(workload.killers)]
        busy = [self._busy(client), self._busy(client), self._pause_all(client)]
        if "filled" in workload.jobs:
            busy.append(self._backfill(client))
        if self._focus == "followers" or random.Random(f"retries {self.seed}").random() < 0.25:
            busy.append(self._retry_at_once(client))
        await asyncio.gather(*busy, *killers, *fates)
        monitor.note("WORLD", "calm")
        if not self._with_calm:
            return
        for node in (*nodes, producer):
            node.faults.on = False
        await client.resume_all()  # a pause whose answer was lost may still stand
        await self._calm()
        await self._settled(client)
        monitor.check_end()
        await self._alive(nodes, client)
        restarting.cancel()

    def _time(self) -> float:
        """Seconds since the beginning."""
        return asyncio.get_running_loop().time()

    def _workload(self) -> Workload:
        return Workload(self.seed, self.monitor, self._rng, stress=self._stress, focus=self._focus)

    def _node(self, name: str, workload: Workload, slowest: float) -> Node:
        register, span = workload.register, self._span
        return Node(name, self.monitor, self._rng, register, span=span, slowest=slowest)

    async def _calm(self) -> None:
        """The faults have stopped."""

    async def _busy(self, client: Client) -> None:
        while self._time() < self._span:
            await asyncio.sleep(self._rng.uniform(0, 1))
            await client.act()

    async def _backfill(self, client: Client) -> None:
        own = random.Random(f"backfill {self.seed}")
        await asyncio.sleep(own.uniform(0, self._span / 2))
        await client.backfill()

    async def _retry_at_once(self, client: Client) -> None:
        """Somebody who retries a run before those that wait for it were skipped."""
        while self._time() < self._span:
            await asyncio.sleep(0.1 * self._pace)
            await client.retry_at_once()

    async def _pause_all(self, client: Client) -> None:
        """In every third world all firing is paused for a while, once or twice."""
        rng = random.Random(f"pause {self.seed}")
        while rng.random() < 0.33:
            await asyncio.sleep(rng.uniform(0, 0.5) * self._span)
            if self._time() > self._span:
                return
            await client.pause_all()
            await asyncio.sleep(rng.uniform(1, 20) * self._pace)
            await client.resume_all()

    async def _killer(self, client: Client) -> None:
        """A run that kills whoever runs it, some time in the first half."""
        own = random.Random(f"killer {self.seed}")
        await asyncio.sleep(own.uniform(0, self._span / 2))
        await client.enqueue_killer()

    async def _restarting(self, nodes: list[Node], workload: Workload) -> None:
        """A worker that a run has killed is started again."""
        while True:
            await asyncio.sleep(1)
            for node in nodes:
                if node.machine in workload.killed_machines:
                    workload.killed_machines.remove(node.machine)
                    node.boot(**self._settings)

    async def _inject_faults(self, node: Node) -> None:
        """What befalls one worker, until the calm; then it is up."""
        rng = self._rng
        while True:
            await asyncio.sleep(rng.uniform(1, 12) * self._pace)
            if self._time() > self._span:
                return
            if node.machine.dead:  # by a run; it is about to be started again
                continue
            kind = rng.random()
            if kind < 0.35 * self._crashes:
                node.kill()
                await asyncio.sleep(rng.uniform(0, 2) * self._lease)
                node.boot(**self._settings)
            elif kind < 0.35 * self._crashes + 0.4 * self._freezes:
                node.freeze()
                # Often just past the lease, when another worker rescues its runs.
                longest = 1.3 if self._stress else rng.choice((1.3, 3))
                await asyncio.sleep(rng.uniform(0.5, longest) * self._lease)
                node.thaw()
            elif kind > 0.93:
                await node.stop()
                node.kill()
                node.boot(**self._settings)
            elif kind > 0.83:
                node.clock.offset += rng.uniform(-7200, 7200)

    async def _set_clock(self) -> None:
        """In every third world somebody sets the clock that the store reads, now and then."""
        rng = random.Random(f"clock {self.seed}")
        while rng.random() < 0.33:
            await asyncio.sleep(rng.uniform(0.1, 0.6) * self._span)
            if self._time() > self._span:
                return
            by = rng.choice((-1, 1)) * rng.randint(1, 240) / 4  # a float has these exactly
            self._clock.offset += by
            self.monitor.clock_set(timedelta(seconds=by))
            await self._notice_clock()
            self.monitor.check_clock_set()

    async def _notice_clock(self) -> None:
        """The store looks at its clock at once, as a busy one does."""
        await self.monitor.store.now()

    async def _settled(self, client: Client) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._longest_calm
        await asyncio.sleep(10)
        self.monitor.check_slots()
        await client.everything_resumed_then_paused()
        monitor = self.monitor
        while (monitor.unfinished() or monitor.left_behind()) and loop.time() < ends:
            await asyncio.sleep(1)

    async def _alive(self, nodes: list[Node], client: Client) -> None:
        """Every worker that is up takes part when there is work for all of them: in the end, for
        those whose handlers were short take much ahead."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        count = WORKERS * CAPACITY * 3
        idle = nodes
        for _ in range(PROBES):
            await client.probe(count)
            ends = loop.time() + self._longest_calm
            while self.monitor.unfinished() and loop.time() < ends:
                await asyncio.sleep(1)
            idle = [n for n in idle if self.monitor.last_began.get(n.author, -1) < began]
            if not idle or self.monitor.unfinished():
                break
        for node in idle:
            self.monitor.fail("alive", f"{node.author} took nothing of {count} runs, each time")
        for run in self.monitor.unfinished():
            self.monitor.fail("lost", f"{run.id} is still {run.state} ({run.reason})")

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self.monitor.broken.is_set():
            what = context.get("exception") or context["message"]
            self.monitor.fail("engine", f"unhandled: {what!r}")


@contextlib.contextmanager
def silence_logs() -> Iterator[None]:
    """The engine's warnings about the faults it lives through are no news here."""
    log = logging.getLogger("mainspring")
    level, log.level = log.level, logging.CRITICAL + 1
    log.manager._clear_cache()  # type: ignore[attr-defined]
    try:
        yield
    finally:
        log.setLevel(level)
