"""`scheduler.blocking`: every public method for plain code, which has no event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from mainspring.errors import NotStarted

if TYPE_CHECKING:
    from mainspring.scheduler import Scheduler

__all__ = ["Blocking"]

T = TypeVar("T")


class Blocking:
    """Calls the scheduler's methods and waits: `scheduler.blocking.enqueue("job")`.

    Works in any thread that runs no event loop; sync handlers may use it too. It starts and
    stops the scheduler as well: `with scheduler.blocking: ...`.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def start(self) -> None:
        _refuse_loop("start")
        self._scheduler._start_alone()

    def stop(self, **how: Any) -> None:
        _refuse_loop("stop")
        self._scheduler._stop_alone(**how)

    def __enter__(self) -> Blocking:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the scheduler's on the engine's loop, and wait for its answer."""
        try:
            _refuse_loop("this")
            portal = self._scheduler._open_portal()
        except BaseException:
            coroutine.close()
            raise
        return portal.call_blocking(coroutine)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._scheduler, name)
        if name.startswith("_") or not inspect.iscoroutinefunction(method):
            raise AttributeError(f"scheduler.blocking has no {name!r}: it is no async method")

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.wait_for(method(*args, **kwargs))

        return call


def _refuse_loop(what: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise NotStarted(
        f"blocking.{what} would block the event loop that runs here; await the scheduler's own"
        " method instead"
    )
