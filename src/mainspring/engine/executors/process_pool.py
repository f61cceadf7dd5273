"""A pool of child processes that run handlers with `isolation="process"`.

Each child leads its own session, so that a run's processes can be ended together: with SIGTERM, so
that the handler can clean up, and a second later with SIGKILL. A child serves one run after another
until it is idle for too long, or until a run leaves something behind in it. `child_handle.py` is
the handle of one child, `child_main.py` the code that runs in it.
docs/decisions/0003-process-isolation.md says why.
"""

from __future__ import annotations

import asyncio
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from msgspec import structs

from mainspring.core.codec import encode
from mainspring.core.context import ProcessResources, RunContext
from mainspring.core.model import Run
from mainspring.engine.executors.child_handle import Child, Reply
from mainspring.engine.executors.child_main import make_frame, refuse_while_loading
from mainspring.errors import InvalidInput, NotStarted, ProcessDied

_RUN_FIELDS: Final = (
    *("id", "job_id", "handler", "attempt", "token"),
    *("created_at", "scheduled_at", "run_at", "started_at"),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a child finds a handler's function.

    Functions of the script that was started have `module="__main__"`, its path, and its package
    where it was started by `python -m`. `layers` is how many `__wrapped__` lie between the name
    in the module and the function itself.
    """

    module: str
    qualname: str
    main_path: str | None = None
    package: str | None = None
    layers: int = 0

    @classmethod
    def check(cls, function: Callable[..., Any]) -> None:
        """Refuse a function that another process cannot find by its name, also while decorating."""
        name = getattr(function, "__qualname__", None)
        if name is None or getattr(function, "__module__", None) is None:
            raise _unfit(function, "it is an object without a name")
        if "<lambda>" in name:
            raise _unfit(function, "a lambda has no name")
        if "<locals>" in name:
            raise _unfit(function, "it is made inside another function")
        owner = getattr(function, "__self__", None)
        if owner is not None and not isinstance(owner, types.ModuleType):
            raise _unfit(function, "it is a method bound to an object, which stays behind")
        if function.__module__ == "__main__" and _main_path() is None:
            raise _unfit(function, "it is made in an interactive session, not in a file")

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Target:
        """The target of a function whose module has been loaded; InvalidInput if it has none."""
        cls.check(function)
        module, qualname = function.__module__, function.__qualname__
        layers = _layers(function, module, qualname)
        if module != "__main__":
            return cls(module, qualname, layers=layers)
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        return cls(module, qualname, _main_path(), spec.parent if spec else None, layers)


def _main_path() -> str | None:
    """The file of the program that was started; None in an interactive session."""
    path = os.path.abspath(getattr(sys.modules["__main__"], "__file__", None) or "")
    return path if os.path.isfile(path) else None


def _layers(function: Callable[..., Any], module: str, qualname: str) -> int:
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, name, None)
    layers = 0
    while found is not None and found is not function:
        found, layers = getattr(found, "__wrapped__", None), layers + 1
    if found is None:
        raise _unfit(function, f"{module}.{qualname} is not there, or is something else")
    return layers


def _name(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None)
    return repr(function) if name is None else f"{function.__module__}.{name}"


def _unfit(function: Callable[..., Any], why: str) -> InvalidInput:
    return InvalidInput(
        f"{_name(function)} cannot run in a process of its own: {why}. Use a function that is"
        ' defined at the top of a module, or isolation="thread"',
        field="isolation",
    )


class ProcessPool:
    """At most `size` processes at once; each ends after `idle` seconds without a run.

    Belongs to the event loop that it is used on.
    """

    def __init__(self, *, size: int, idle: float = 60.0) -> None:
        self._size = size
        self._idle_seconds = idle
        self._free = asyncio.Semaphore(size)
        self._children: set[Child] = set()
        self._idle: dict[Child, asyncio.TimerHandle] = {}
        self._endings: dict[Child, asyncio.Task[None]] = {}
        self._closed = False

    async def run(
        self,
        target: Target,
        run: Run,
        *,
        takes_context: bool,
        arguments: Mapping[str, Any],
        context: RunContext,
        memory_limit: int | None = None,
        around: Target | None = None,
    ) -> Reply:
        """Run the handler in a process; log lines and progress go to `context` as they come.

        Raises ProcessDied and MemoryExceeded. When cancelled, it ends the run's whole process
        group, waits until it is gone, and raises CancelledError.
        """
        refuse_while_loading()
        needs_resources = takes_context or around is not None
        resources, withheld = ProcessResources.encode(context.resources if needs_resources else {})
        request = make_frame(
            {
                "target": asdict(target),
                "around": None if around is None else asdict(around),
                "run": {name: getattr(run, name) for name in _RUN_FIELDS},
                "payload": encode(run.payload),
                "arguments": encode(dict(arguments), what="arguments"),
                "upstream": encode(
                    [structs.asdict(run) for run in context.results.runs],
                    what="upstream runs",
                    limit=sys.maxsize,
                ),
                "resources": resources,
                "withheld": withheld,
                "takes_context": takes_context,
                "memory_limit": memory_limit,
                "log_level": context.log.getEffectiveLevel(),
            }
        )
        async with self._free:
            while True:
                child = await self._take(memory_limit)
                try:
                    return await self._serve(child, request, context, memory_limit)
                except ProcessDied:
                    # It died while it was idle, or before its handler began: another one serves it.
                    if child.began or not child.served:
                        raise

    async def close(self) -> None:
        """End every child and wait until none is left; current runs get RunCancelled."""
        self._closed = True
        for child in list(self._children):
            child.closing = True
            self._end(child)
        while self._endings:
            await asyncio.wait(list(self._endings.values()))

    async def _serve(
        self, child: Child, request: bytes, context: RunContext, memory_limit: int | None
    ) -> Reply:
        """Return the reply of the child. Afterwards the child is idle, or it ends."""
        try:
            reply = await child.serve(request, context, memory_limit)
        except BaseException:
            await self._ended(child)
            raise
        if child.spent or self._closed:
            await self._ended(child)
        else:
            self._make_idle(child)
        return reply

    async def _take(self, memory_limit: int | None) -> Child:
        while self._idle:
            child, timer = self._idle.popitem()  # the newest, so that the others can end
            timer.cancel()
            if child.fits(memory_limit):
                return child
            self._end(child)
        # Those that are ending still count, or there would be more than `size`.
        while len(self._children) >= self._size:
            await asyncio.wait(list(self._endings.values()), return_when=asyncio.FIRST_COMPLETED)
        if self._closed:
            raise NotStarted("the process pool is closed: it takes no more runs")
        child = Child.start()
        self._children.add(child)
        return child

    def _make_idle(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        self._idle[child] = loop.call_later(self._idle_seconds, self._end, child)

    def _end(self, child: Child) -> asyncio.Task[None]:
        if timer := self._idle.pop(child, None):
            timer.cancel()
        if child not in self._endings:
            self._endings[child] = asyncio.get_running_loop().create_task(child.end())
            self._endings[child].add_done_callback(lambda _: self._forget(child))
        return self._endings[child]

    def _forget(self, child: Child) -> None:
        self._children.discard(child)
        self._endings.pop(child, None)

    async def _ended(self, child: Child) -> None:
        """Wait until the child is gone, whatever is cancelled meanwhile; then raise that."""
        ending, cancelled = self._end(child), None
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled
