"""Simulated machines on one event loop: each can be frozen (SIGSTOP) and killed (SIGKILL).

Every task, timer and callback carries its machine in its context. The loop looks at the machine
before each step. It keeps the steps of a frozen machine until the machine thaws, and never runs
the steps of a dead one, so no `finally` cleans up after it.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections.abc import Coroutine
from typing import Any

from mainspring.testing import VirtualLoop

_MACHINE: contextvars.ContextVar[Machine | None] = contextvars.ContextVar("machine", default=None)


class Machine:
    def __init__(self, name: str) -> None:
        self.name = name
        self.frozen = False
        self.dead = False
        self.thawed_at = -1.0
        self._aside: list[Any] = []
        self._context = contextvars.copy_context()
        self._context.run(_MACHINE.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task that, with all it ever starts, belongs to this machine."""
        loop = asyncio.get_running_loop()
        return loop.create_task(work, context=self._context.copy())

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> None:
        """Go on where it stood. Its timers have run on meanwhile."""
        loop: Any = asyncio.get_running_loop()
        self.frozen = False
        self.thawed_at = loop.time()
        loop._ready.extend(self._aside)
        self._aside.clear()

    def kill(self) -> None:
        self.dead = True

    def put_aside(self, handle: Any) -> None:
        self._aside.append(handle)


class MachineLoop(VirtualLoop):
    """`machines` is filled by whoever makes them, so that the end can let go of them all."""

    def __init__(self, seed: int = 0, **bounds: Any) -> None:
        super().__init__(seed, **bounds)
        self.machines: list[Machine] = []

    def _run_handle(self, handle: Any) -> None:
        machine = handle._context.get(_MACHINE)
        if machine is not None and (machine.frozen or machine.dead):
            machine.put_aside(handle)
        else:
            handle._run()

    def finish(self) -> None:
        """The dead rise for a moment, so that their tasks can be cancelled like any other."""
        ready: Any = self._ready  # type: ignore[attr-defined]
        for machine in self.machines:
            machine.frozen = machine.dead = False
            ready.extend(machine._aside)
            machine._aside.clear()
        super().finish()


class _FreezableHandle:
    """A step of a loop in real time, which is put aside while its machine stands still."""

    _context: contextvars.Context

    def _run(self) -> None:
        machine = self._context.get(_MACHINE)
        if machine is not None and (machine.frozen or machine.dead):
            machine.put_aside(self)
        else:
            super()._run()  # type: ignore[misc]


class _Handle(_FreezableHandle, asyncio.Handle):
    pass


class _TimerHandle(_FreezableHandle, asyncio.TimerHandle):
    pass


class RealMachineLoop(asyncio.SelectorEventLoop):
    """Machines in real time, with real sockets. A machine that thaws finds what has arrived while
    it was frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.machines: list[Machine] = []

    def _call_soon(self, callback: Any, args: Any, context: Any) -> Any:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> Any:
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def revive_machines(self) -> None:
        """Let the tasks of frozen and dead machines run again, so that the test can cancel them."""
        for machine in self.machines:
            machine.frozen = machine.dead = False
            self._ready.extend(machine._aside)  # type: ignore[attr-defined]
            machine._aside.clear()


def machines_of(loop: asyncio.AbstractEventLoop) -> list[Machine]:
    assert isinstance(loop, MachineLoop | RealMachineLoop)
    return loop.machines


def outside() -> contextvars.Context:
    """A context that belongs to no machine, for the network and the store."""
    context = contextvars.copy_context()
    context.run(_MACHINE.set, None)
    return context
