"""What `@scheduler.job` returns: the function itself, with `enqueue`, `enqueue_many`, `options`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from mainspring.core.context import RunContext
from mainspring.core.handlers import Handler
from mainspring.core.model import Run
from mainspring.core.options import CheckedEnqueueOptions, EnqueueOptions
from mainspring.engine.run_operations import EnqueueBatch
from mainspring.scheduler.blocking import WaitFor
from mainspring.stores.caller_connection import without_proxy

P = ParamSpec("P")
C = TypeVar("C", bound=Mapping[str, Any])  # resources; with Any, the overloads would be ambiguous
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

EnqueueRuns = Callable[[EnqueueBatch], Awaitable[list[Run]]]


class Queue(Generic[P, T]):
    """Ways to put runs of one job on the queue, with the options chosen so far. `T` is the type of
    their results."""

    def __init__(
        self,
        handler: Handler,
        enqueue: EnqueueRuns,
        wait_for: WaitFor,
        options: CheckedEnqueueOptions,
    ) -> None:
        self._handler = handler
        self._enqueue = enqueue
        self._wait_for = wait_for
        self._options = options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        """Queue one run with these arguments, checked against the function's signature."""
        [run] = await self._enqueue_payloads([self._handler.arguments(args, kwargs)])
        return run

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run[T]]:
        """Queue a run for each set of arguments, all in one commit."""
        checked = [self._handler.arguments((), dict(payload)) for payload in payloads]
        return await self._enqueue_payloads(checked)

    async def _enqueue_payloads(self, payloads: list[Any]) -> list[Run[T]]:
        handler = self._handler
        return await self._enqueue(EnqueueBatch(handler.name, payloads, self._options, handler))

    def options(self, **chosen: Unpack[EnqueueOptions]) -> Queue[P, T]:
        """The same queue with options: `job.options(delay="5m").enqueue(...)`."""
        given = {name: value for name, value in chosen.items() if value is not None}
        if "within" in given:
            given["within"] = without_proxy(given["within"])
        options = self._options.changed(given)
        return Queue(self._handler, self._enqueue, self._wait_for, options)

    @property
    def blocking(self) -> BlockingQueue[P, T]:
        """The same for plain code: `job.blocking.enqueue(...)`."""
        return BlockingQueue(self._handler.name, self, self._wait_for)


class BlockingQueue(Generic[P, T]):
    """The same ways for plain code: each waits until the runs are stored."""

    def __init__(self, job_id: str, queue: Queue[P, T], wait_for: WaitFor) -> None:
        self._job_id = job_id
        self._queue = queue
        self._wait_for = wait_for

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[T]:
        coroutine = self._queue.enqueue(*args, **kwargs)
        name = self._job_id
        return self._wait_for(coroutine, f"{name}.blocking.enqueue", f"{name}.enqueue(…)")

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run[T]]:
        coroutine = self._queue.enqueue_many(payloads)
        name = self._job_id
        return self._wait_for(coroutine, f"{name}.blocking.enqueue_many", f"{name}.enqueue_many(…)")

    def options(self, **chosen: Unpack[EnqueueOptions]) -> BlockingQueue[P, T]:
        return BlockingQueue(self._job_id, self._queue.options(**chosen), self._wait_for)


OTHER_NAMES = frozenset(
    {"apply_async", "defer", "defer_async", "delay", "kiq", "queue", "schedule", "send"}
)
"""What other job queues call `enqueue`."""


class DecoratedJob(Queue[P, T], Generic[P, Q, R, T]):
    """A decorated function. Calling it calls the plain function."""

    def __init__(self, handler: Handler, enqueue: EnqueueRuns, wait_for: WaitFor) -> None:
        functools.update_wrapper(self, handler.function)  # first: it copies attributes too
        super().__init__(handler, enqueue, wait_for, CheckedEnqueueOptions())
        self.id = handler.name
        self.handler = handler

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        answer: R = self.handler.function(*args, **kwargs)
        return answer

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            job = self.__dict__.get("id", "job")
            advice = (
                f": write `await {job}.enqueue(…)`, or in plain code `{job}.blocking.enqueue(…)`;"
                f' `{job}.options(delay="5m").enqueue(…)` runs it later'
                if name in OTHER_NAMES
                else ""
            )
            raise AttributeError(f"job {job!r} has no attribute {name!r}{advice}")

    def __repr__(self) -> str:
        return f"<job {self.id!r}>"


class JobDecorator(Protocol):
    """What `@scheduler.job(...)` is, typed: enqueuing takes the function's arguments, but for
    the context, which the worker gives it, and its run has the function's result."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[RunContext[C], P], Coroutine[Any, Any, T]], /
    ) -> DecoratedJob[P, Concatenate[RunContext[C], P], Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> DecoratedJob[P, P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[RunContext[C], P], T], /
    ) -> DecoratedJob[P, Concatenate[RunContext[C], P], T, T]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> DecoratedJob[P, P, T, T]: ...
