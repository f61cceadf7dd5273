"""Simulated workers, each on its own machine, behind a network that loses and delays calls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from mainspring import Event, Scheduler
from mainspring.errors import StoreUnavailable
from mainspring.stores.protocol import Store
from mainspring.testing import FaultyStore, Injection, RandomFaults, VirtualClock
from tests.support.simulation.machines import Machine, machines_of, outside
from tests.support.simulation.monitor import Monitor, Proxy

Register = Callable[[Scheduler, Machine, str], None]


class SwitchedFaults:
    """Faults that can be switched off."""

    def __init__(self, rng: random.Random, span: float, slowest: float) -> None:
        self.on = True
        self.booting = True
        self.forget: Callable[[], None] = lambda: None
        self._rng = rng
        calm = rng.random() < 0.15
        outages = []
        for _ in range(rng.choice((0, 0, 1, 2))):
            begin = rng.uniform(0, span)
            outages.append((begin, begin + rng.uniform(0.5, 15)))
        self._plan = RandomFaults(
            rng.getrandbits(32),
            before=0 if calm else rng.uniform(0, 0.08),
            after=0 if calm else rng.uniform(0, 0.08),
            delay=rng.choice((0, 0.01, 0.2, slowest)),
            delay_after=rng.choice((0, 0.01, 0.2, slowest)),
            outages=outages,
        )

    def worsen(self, seed: int) -> None:
        """Lose many answers, and delay every call."""
        self._plan = RandomFaults(seed, before=0.03, after=0.2, delay=0.3, delay_after=0.3)

    def inject(self, method: str) -> Injection:
        if not self.on:
            return Injection()
        drawn = self._plan.inject(method)
        if method == "jobs" and self._rng.random() < 0.3:
            self.forget()
        if self.booting and self._rng.random() < 0.9:
            return Injection(delay=drawn.delay)  # a start is many calls, and all must succeed
        return drawn


class DeliveringStore:
    """Delivers a call that was sent, even if its sender stopped waiting, is frozen or is dead."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._context = outside()

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._store, name)
        if name in ("wait", "info"):  # a hint that reaches nobody is no hint
            return work
        if name == "transaction":
            sent = dict.fromkeys(("begin", "commit", "rollback"), self._sent)
            return lambda *held, **how: Proxy(work(*held, **how), **sent)
        return self._sent(work)

    def _sent(self, work: Callable[..., Any]) -> Callable[..., Any]:
        async def sent(*args: Any, **options: Any) -> Any:
            loop = asyncio.get_running_loop()
            call = partial(work, *args, **options)
            task = loop.create_task(_guarded(call), context=self._context.copy())
            answer, error = await asyncio.shield(task)
            if error is not None:
                raise error
            return answer

        return sent


async def _guarded(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return an error instead of raising it: asyncio would log one that no caller awaits."""
    try:
        return await work(), None
    except Exception as error:
        return None, error


class Node:
    """A member of the cluster: a machine, and after each crash another machine."""

    def __init__(
        self,
        name: str,
        monitor: Monitor,
        rng: random.Random,
        register: Register,
        *,
        span: float,
        slowest: float,
    ) -> None:
        self.name = name
        self.faults = SwitchedFaults(rng, span, slowest)
        self.clock = VirtualClock(
            offset=rng.choice((0.0, 3600.0, -3600.0)) + rng.uniform(-5, 5),
            rate=rng.uniform(0.98, 1.02),
        )
        self.author = name
        self.scheduler: Scheduler | None = None
        self.faults.forget = self._forget_jobs
        self._monitor = monitor
        self._rng = rng
        self._register = register
        self._lives = 0
        self._machine: Machine | None = None

    @property
    def machine(self) -> Machine:
        assert self._machine is not None
        return self._machine

    @property
    def up(self) -> bool:
        return self._machine is not None and not self._machine.dead and not self._machine.frozen

    def boot(self, **settings: Any) -> None:
        """Start a new machine that knows nothing of the one before."""
        self._lives += 1
        self.author = f"{self.name}.{self._lives}"
        self.scheduler = None
        self.faults.booting = True
        machine = self._machine = Machine(self.author)
        machines_of(asyncio.get_running_loop()).append(machine)
        machine.spawn(self._live(machine, self.author, settings))

    def kill(self) -> None:
        self.machine.kill()
        self.scheduler = None
        self._monitor.died(self.author)

    def freeze(self) -> None:
        self._monitor.note(self.author, "freezes")
        self.machine.freeze()

    def thaw(self) -> None:
        self._monitor.note(self.author, "thaws")
        self.machine.thaw()

    async def stop(self) -> None:
        """Stop the scheduler. It releases runs that do not end in time."""
        scheduler, self.scheduler = self.scheduler, None
        if scheduler is not None:
            self._monitor.drains(self.author)
            graceful = self._rng.random() < 0.7
            machine = self.machine
            stopping = machine.spawn(scheduler.stop(graceful=graceful, timeout="4s"))
            while not stopping.done() and not machine.dead:  # a handler may kill it meanwhile
                await asyncio.wait({stopping}, timeout=0.5)
            self._monitor.note(self.author, "stopped")

    def _reached(self, author: str) -> Store:
        """The store, as this node reaches it."""
        return cast(
            Store,
            DeliveringStore(
                cast(Store, FaultyStore(self._monitor.observe_calls(author), self.faults))
            ),
        )

    async def _live(self, machine: Machine, author: str, settings: dict[str, Any]) -> None:
        store = self._reached(author)
        rng = random.Random(self._rng.getrandbits(64))
        scheduler = Scheduler(store, inline=True, clock=self.clock, rng=rng, **settings)
        scheduler.on("scheduler.error", self._on_event)
        scheduler.on(
            "leader.elected",
            lambda event: self._monitor.elected(author, lambda: scheduler.is_leader),
        )
        self._register(scheduler, machine, author)
        while True:
            try:
                await scheduler.start()
                break
            except StoreUnavailable:
                await asyncio.sleep(0.5)
        self._monitor.note(author, "started")
        self.faults.booting = False
        self.scheduler = scheduler

    def _forget_jobs(self) -> None:
        """Empty the job cache while the node reads jobs, as edits in the same process do, or a
        cache that is full."""
        if self.scheduler is not None and self.scheduler._engine is not None:
            cache = self.scheduler._engine.context.jobs
            for job_id in list(cache._known):
                cache.forget(job_id)

    def _on_event(self, event: Event) -> None:
        if not isinstance(event.error, StoreUnavailable | TimeoutError):
            self._monitor.fail("engine", f"{self.author}: {event.error!r}")
