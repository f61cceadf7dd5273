"""What `@scheduler.job` makes of a function: still the function, and a way onto the queue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from mainspring.context import RunContext
from mainspring.handlers import Handler
from mainspring.model import Run
from mainspring.options import Options
from mainspring.policy import Span

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler

__all__ = ["BlockingQueue", "DecoratedJob", "JobDecorator", "Queue"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class Queue(Generic[P]):
    """Ways to put runs of one job on the queue, with the options chosen so far."""

    def __init__(self, scheduler: Scheduler, handler: Handler, options: Options) -> None:
        self._scheduler = scheduler
        self._handler = handler
        self._options = options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Queue one run with these arguments, checked against the function's signature."""
        payload = self._handler.arguments(args, kwargs)
        [run] = await self._scheduler._enqueue(self._handler.name, [payload], self._options)
        return run

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run]:
        """Queue a run for each set of arguments, all in one commit."""
        checked = [self._handler.arguments((), dict(payload)) for payload in payloads]
        return await self._scheduler._enqueue(self._handler.name, checked, self._options)

    def options(
        self,
        *,
        delay: Span | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        dedupe_key: str | list[str] | None = None,
        dedupe_for: Span | None = None,
        after: str | list[str] | tuple[str, ...] | None = None,
    ) -> Queue[P]:
        """The same queue with options: `job.options(delay="5m").enqueue(...)`."""
        given = {
            "delay": delay,
            "at": at,
            "priority": priority,
            "queue": queue,
            "dedupe_key": dedupe_key,
            "dedupe_for": dedupe_for,
            "after": after,
        }
        chosen: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
        return Queue(self._scheduler, self._handler, replace(self._options, **chosen))

    @property
    def blocking(self) -> BlockingQueue[P]:
        """The same for plain code: `job.blocking.enqueue(...)`."""
        return BlockingQueue(self._scheduler, self)


class BlockingQueue(Generic[P]):
    def __init__(self, scheduler: Scheduler, queue: Queue[P]) -> None:
        self._scheduler = scheduler
        self._queue = queue

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        return self._scheduler.blocking.wait_for(self._queue.enqueue(*args, **kwargs))

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run]:
        return self._scheduler.blocking.wait_for(self._queue.enqueue_many(payloads))

    def options(self, **chosen: Any) -> BlockingQueue[P]:
        return BlockingQueue(self._scheduler, self._queue.options(**chosen))


class DecoratedJob(Queue[P], Generic[P, Q, R]):
    """A decorated function. Calling it calls the function, with nothing in between."""

    def __init__(self, scheduler: Scheduler, handler: Handler) -> None:
        super().__init__(scheduler, handler, Options())
        functools.update_wrapper(self, handler.function)
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
