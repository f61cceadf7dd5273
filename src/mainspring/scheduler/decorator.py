"""What `@scheduler.job` returns: the function itself, with `enqueue`, `enqueue_many`, `options`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from mainspring.core.context import RunContext
from mainspring.core.enqueue_options import CheckedEnqueueOptions
from mainspring.core.handlers import Handler
from mainspring.core.job_options import EnqueueOptions
from mainspring.core.model import Run, Source
from mainspring.scheduler.blocking import WaitFor

__all__ = ["BlockingQueue", "DecoratedJob", "JobDecorator", "Queue"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

Enqueue = Callable[
    [str, Sequence[Any], CheckedEnqueueOptions, Source, Handler], Awaitable[list[Run]]
]
"""Queues a run of a job for each payload; the handler is the one that has checked them."""


class Queue(Generic[P]):
    """Ways to put runs of one job on the queue, with the options chosen so far."""

    def __init__(
        self, handler: Handler, enqueue: Enqueue, wait_for: WaitFor, options: CheckedEnqueueOptions
    ) -> None:
        self._handler = handler
        self._enqueue = enqueue
        self._wait_for = wait_for
        self._options = options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Queue one run with these arguments, checked against the function's signature."""
        payload = self._handler.arguments(args, kwargs)
        handler = self._handler
        [run] = await self._enqueue(handler.name, [payload], self._options, Source.ENQUEUE, handler)
        return run

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run]:
        """Queue a run for each set of arguments, all in one commit."""
        checked = [self._handler.arguments((), dict(payload)) for payload in payloads]
        handler = self._handler
        return await self._enqueue(handler.name, checked, self._options, Source.ENQUEUE, handler)

    def options(self, **chosen: Unpack[EnqueueOptions]) -> Queue[P]:
        """The same queue with options: `job.options(delay="5m").enqueue(...)`."""
        given = {name: value for name, value in chosen.items() if value is not None}
        options = self._options.changed(given)
        return Queue(self._handler, self._enqueue, self._wait_for, options)

    @property
    def blocking(self) -> BlockingQueue[P]:
        """The same for plain code: `job.blocking.enqueue(...)`."""
        return BlockingQueue(self._handler.name, self, self._wait_for)


class BlockingQueue(Generic[P]):
    """The same ways for plain code: each waits until the runs are stored."""

    def __init__(self, job_id: str, queue: Queue[P], wait_for: WaitFor) -> None:
        self._job_id = job_id
        self._queue = queue
        self._wait_for = wait_for

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        coroutine = self._queue.enqueue(*args, **kwargs)
        name = self._job_id
        return self._wait_for(coroutine, f"{name}.blocking.enqueue", f"{name}.enqueue(…)")

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run]:
        coroutine = self._queue.enqueue_many(payloads)
        name = self._job_id
        return self._wait_for(coroutine, f"{name}.blocking.enqueue_many", f"{name}.enqueue_many(…)")

    def options(self, **chosen: Unpack[EnqueueOptions]) -> BlockingQueue[P]:
        return BlockingQueue(self._job_id, self._queue.options(**chosen), self._wait_for)


class DecoratedJob(Queue[P], Generic[P, Q, R]):
    """A decorated function. Calling it calls the plain function."""

    def __init__(self, handler: Handler, enqueue: Enqueue, wait_for: WaitFor) -> None:
        functools.update_wrapper(self, handler.function)  # first: it copies attributes too
        super().__init__(handler, enqueue, wait_for, CheckedEnqueueOptions())
        self.id = handler.name
        self.handler = handler

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        answer: R = self.handler.function(*args, **kwargs)
        return answer

    def __repr__(self) -> str:
        return f"<job {self.id!r}>"


class JobDecorator(Protocol):
    """What `@scheduler.job(...)` is, typed: enqueuing takes the function's arguments, but for
    the context, which the worker gives it."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[RunContext, P], R], /
    ) -> DecoratedJob[P, Concatenate[RunContext, P], R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> DecoratedJob[P, P, R]: ...
