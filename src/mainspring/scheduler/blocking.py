"""Async methods for plain code, which has no event loop: `client.blocking.enqueue("job")`.

`BlockingMethod` takes its parameters, its result and its documentation from the async method, so
that type checkers and editors know them too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from mainspring.core.events import running_loop
from mainspring.engine.loop_thread import run_in_this_thread
from mainspring.errors import InvalidState
from mainspring.stores.caller_connection import without_proxy

P = ParamSpec("P")
T = TypeVar("T")


class WaitFor(Protocol):
    """Runs a coroutine in the caller's thread and waits for its result. Where an event loop runs
    there, it raises an error that names `called`, and what to await `instead`."""

    def __call__(self, coroutine: Coroutine[Any, Any, T], called: str, instead: str) -> T: ...


class BlockingOwner(Protocol):
    """The object whose attributes are `BlockingMethod`s."""

    @property
    def name(self) -> str:
        """What the client is called in messages: `client` or `scheduler`."""
        ...

    @property
    def client(self) -> Any:
        """The object that has the async methods."""
        ...

    @property
    def wait_for(self) -> WaitFor: ...


class BlockingMethod(Generic[P, T]):
    """An async method of a client, as a method that returns its result."""

    def __init__(self, method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __get__(self, owner: BlockingOwner, owner_type: type) -> Callable[P, T]:
        name = self._method.__name__

        @functools.wraps(self._method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if "within" in kwargs:
                kwargs["within"] = without_proxy(kwargs["within"])
            coroutine = self._method(owner.client, *args, **kwargs)
            return owner.wait_for(
                coroutine, f"{owner.name}.blocking.{name}", f"{owner.name}.{name}(…)"
            )

        return call


def wait_in_plain_code(
    coroutine: Coroutine[Any, Any, T],
    called: str,
    instead: str,
    prepare: Callable[[], object] = lambda: None,
) -> T:
    """Run a coroutine in this thread, after `prepare`, and wait for its result (see `WaitFor`)."""
    try:
        refuse_running_loop(called, instead)
        prepare()
    except BaseException:
        coroutine.close()
        raise
    return run_in_this_thread(coroutine)


def refuse_running_loop(called: str, instead: str) -> None:
    """Raise where an event loop runs in this thread: waiting would block it."""
    if running_loop() is not None:
        raise InvalidState(
            f"{called}() would block the event loop that runs here: await {instead} instead"
        )
