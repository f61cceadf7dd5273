"""The simulation's monitor over a real database: a watcher tells it of each write.

The watcher keeps a mirror of the store, which the monitor looks at as it looks at the memory store:
after every step.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, cast

from mainspring.core.clock import SystemClock
from mainspring.core.model import Job, Note, Run
from mainspring.stores.protocol import Store
from tests.support.simulation.machines import Machine
from tests.support.simulation.monitor import Key, Monitor, _Handling

METHOD: ContextVar[str] = ContextVar("method", default="open")
"""The call of the store that is under way."""


class Mirror:
    """What the memory store has for the monitor to look at."""

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._jobs: dict[str, Job] = {}
        self._notes: dict[tuple[str, str], Note] = {}


class WatchClock(SystemClock):
    """The machine's clock; while a write is looked at, the server's at that write."""

    def __init__(self) -> None:
        self.then: datetime | None = None

    def now(self) -> datetime:
        return self.then or super().now()


class WatchMonitor(Monitor):
    """Told late: handlers wait for the news of their own claim, and the end of a lease is judged
    when the news of its last renewal must have come."""

    LAG = 1.0

    @property
    def _watch(self) -> WatchClock:
        assert isinstance(self.clock, WatchClock)
        return self.clock

    def _check_counters(self, ended: list[Run]) -> None:
        """Not here: a store may count ends after it has stored them, and a client that is killed in
        between loses the counts of its batch (stores/protocol.py)."""

    async def saw_claim(self, run_id: str, token: int) -> None:
        while (run_id, token) not in self._claimed and not self.broken.is_set():
            await asyncio.sleep(0.005)

    def _check_overrun(self, handling: _Handling, key: Key, now: datetime) -> None:
        later = super()._check_overrun
        asyncio.get_running_loop().call_later(self.LAG, later, handling, key, now)

    def _check_begin(self, run: Run, token: int, author: str) -> None:
        """The news that it has begun may come behind its handler."""
        check = super()._check_begin

        def later() -> None:
            check(self.store._runs.get(run.id, run), token, author)

        asyncio.get_running_loop().call_later(self.LAG, later)

    def _check_effects(self, changed: list[Run]) -> None:
        """No transactions here."""

    def _moment(self) -> float:
        told = asyncio.get_running_loop().time()
        if (then := self._watch.then) is not None:
            told -= max(0.0, (datetime.now(UTC) - then).total_seconds())
        return told


class ConnectionFaults:
    """Decides at each write whether the connection breaks before it or after it."""

    def __init__(self, rng: random.Random, before: float = 0.0, after: float = 0.0) -> None:
        self.on = True
        self._rng = rng
        self._before, self._after = before, after

    def draw(self) -> str | None:
        drawn = self._rng.random()
        if not self.on or drawn > self._before + self._after:
            return None
        return "before" if drawn < self._before else "after"


def observe_calls(store: object) -> Store:
    """The store, so that each write knows the call it belongs to."""
    return cast(Store, _ObservedStore(store))


class _ObservedStore:
    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._store, name)
        if not inspect.iscoroutinefunction(work):
            return work

        async def called(*args: Any, **options: Any) -> Any:
            METHOD.set(name)
            return await work(*args, **options)

        return called


async def notice_stalls(machines: list[Machine]) -> None:
    """This very process may stand still on a busy computer: then all its machines did."""
    loop = asyncio.get_running_loop()
    while True:
        before = loop.time()
        await asyncio.sleep(0.05)
        if loop.time() - before > 0.15:
            for machine in machines:
                machine.thawed_at = loop.time()
