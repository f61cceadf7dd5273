"""What `@scheduler.job` makes of a function: still the function, and a way onto the queue."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    overload,
)

from mainspring.core.context import RunContext
from mainspring.core.enqueue_options import Options
from mainspring.core.handlers import Handler
from mainspring.core.job_options import EnqueueOptions
from mainspring.core.model import Run

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler

__all__ = ["BlockingQueue", "DecoratedJob", "JobDecorator", "Queue"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")


class Queue(Generic[P]):
    """Ways to put runs of one job on the queue, with the options chosen so far."""

    def __init__(self, scheduler: Scheduler, handler: Handler, options: Options) -> None:
        self._scheduler = scheduler
        self._handler = handler
        self._options = options

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        """Queue one run with these arguments, checked against the function's signature."""
        payload = self._handler.arguments(args, kwargs)
        [run] = await self._scheduler._enqueue(
            self._handler.name, [payload], self._options, checked_by=self._handler
        )
        return run

    async def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run]:
        """Queue a run for each set of arguments, all in one commit."""
        checked = [self._handler.arguments((), dict(payload)) for payload in payloads]
        return await self._scheduler._enqueue(
            self._handler.name, checked, self._options, checked_by=self._handler
        )

    def options(self, **chosen: Unpack[EnqueueOptions]) -> Queue[P]:
        """The same queue with options: `job.options(delay="5m").enqueue(...)`."""
        given = {name: value for name, value in chosen.items() if value is not None}
        return Queue(self._scheduler, self._handler, self._options.changed(given))

    @property
    def blocking(self) -> BlockingQueue[P]:
        """The same for plain code: `job.blocking.enqueue(...)`."""
        return BlockingQueue(self._scheduler, self)


class BlockingQueue(Generic[P]):
    def __init__(self, scheduler: Scheduler, queue: Queue[P]) -> None:
        self._scheduler = scheduler
        self._queue = queue

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run:
        return self._wait_for(self._queue.enqueue(*args, **kwargs), "enqueue")

    def enqueue_many(self, payloads: Iterable[Mapping[str, Any]]) -> list[Run]:
        return self._wait_for(self._queue.enqueue_many(payloads), "enqueue_many")

    def options(self, **chosen: Unpack[EnqueueOptions]) -> BlockingQueue[P]:
        return BlockingQueue(self._scheduler, self._queue.options(**chosen))

    def _wait_for(self, coroutine: Coroutine[Any, Any, T], name: str) -> T:
        job = self._queue._handler.name
        return self._scheduler.blocking.wait_for(
            coroutine, f"{job}.blocking.{name}", f"{job}.{name}(…)"
        )


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
