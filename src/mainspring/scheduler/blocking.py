"""`scheduler.blocking`: every public method for plain code, which has no event loop.

No method is implemented here: each takes its parameters, its result and its documentation from
the scheduler's own, so that type checkers and editors know them too.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from mainspring.core.policy import Span
from mainspring.errors import NotStarted
from mainspring.scheduler import Scheduler

__all__ = ["Blocking"]

P = ParamSpec("P")
T = TypeVar("T")


class _Method(Generic[P, T]):
    """A method of the scheduler, called and waited for."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, blocking: Blocking, owner: type[Blocking]) -> Callable[P, T]:
        name = self._method.__name__

        @functools.wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            coroutine = self._method(blocking._scheduler, *args, **kwargs)
            return blocking.wait_for(
                coroutine, f"scheduler.blocking.{name}", f"scheduler.{name}(…)"
            )

        return call


class Blocking:
    """Calls the scheduler's methods and waits: `scheduler.blocking.enqueue("job")`.

    Works in any thread that runs no event loop; sync handlers may use it too. It starts and
    stops the scheduler as well: `with scheduler.blocking: ...`.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def start(self) -> None:
        _refuse_loop("scheduler.blocking.start", "scheduler.start()")
        self._scheduler._start_alone()

    def stop(self, *, graceful: bool = True, timeout: Span = "30s") -> None:
        _refuse_loop("scheduler.blocking.stop", "scheduler.stop()")
        self._scheduler._stop_alone(graceful=graceful, timeout=timeout)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    # Jobs
    add_job = _Method(Scheduler.add_job)
    update_job = _Method(Scheduler.update_job)
    remove_job = _Method(Scheduler.remove_job)
    pause_job = _Method(Scheduler.pause_job)
    resume_job = _Method(Scheduler.resume_job)
    pause_jobs = _Method(Scheduler.pause_jobs)
    resume_jobs = _Method(Scheduler.resume_jobs)
    remove_jobs = _Method(Scheduler.remove_jobs)
    get_job = _Method(Scheduler.get_job)
    list_jobs = _Method(Scheduler.list_jobs)
    rotate_secret = _Method(Scheduler.rotate_secret)
    reseal_secrets = _Method(Scheduler.reseal_secrets)

    # Runs
    enqueue = _Method(Scheduler.enqueue)
    enqueue_many = _Method(Scheduler.enqueue_many)
    trigger = _Method(Scheduler.trigger)
    get_run = _Method(Scheduler.get_run)
    list_runs = _Method(Scheduler.list_runs)
    wait = _Method(Scheduler.wait)
    cancel = _Method(Scheduler.cancel)
    retry = _Method(Scheduler.retry)
    cancel_runs = _Method(Scheduler.cancel_runs)
    retry_runs = _Method(Scheduler.retry_runs)
    remove_runs = _Method(Scheduler.remove_runs)

    # How things stand
    stats = _Method(Scheduler.stats)
    counts = _Method(Scheduler.counts)
    health = _Method(Scheduler.health)
    job_health = _Method(Scheduler.job_health)
    job_metrics = _Method(Scheduler.job_metrics)
    explain_run = _Method(Scheduler.explain_run)
    list_workers = _Method(Scheduler.list_workers)
    list_unreadable = _Method(Scheduler.list_unreadable)
    now = _Method(Scheduler.now)
    drain = _Method(Scheduler.drain)

    # Notes
    note = _Method(Scheduler.note)
    list_notes = _Method(Scheduler.list_notes)
    put_note = _Method(Scheduler.put_note)
    remove_note = _Method(Scheduler.remove_note)

    def wait_for(
        self,
        coroutine: Coroutine[Any, Any, T],
        name: str = "scheduler.blocking.wait_for",
        instead: str = "the coroutine itself",
    ) -> T:
        """Run a coroutine on the engine's loop, and wait for its answer. `name` is what was
        called, `instead` what to await where a loop runs."""
        try:
            _refuse_loop(name, instead)
            portal = self._scheduler._open_portal()
        except BaseException:
            coroutine.close()
            raise
        return portal.call_blocking(coroutine)


def _refuse_loop(name: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise NotStarted(f"{name}() would block the event loop that runs here: await {instead} instead")
