"""Opens the resources of a scheduler at its start and closes them at its stop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from mainspring.core.resources import Factory, Resources
from mainspring.engine.attempt import error_text
from mainspring.errors import ResourceFailed, refused

log = logging.getLogger("mainspring")


def check_resources(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of what `Scheduler(resources=…)` is given. Refuses a factory that cannot be called."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise refused("resources", given, "is a mapping of names to values and factories")
    for name, value in given.items():
        Factory.of(name, value)
    return dict(given)


class ResourceKeeper:
    """Opens and closes resources on the program's loop, both in one task: some context managers
    must be left by the task that entered them."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        made = {name: Factory.of(name, value) for name, value in given.items()}
        self._given = given
        self._factories = {name: factory for name, factory in made.items() if factory}
        self._closed: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None]
        self._closing: asyncio.Event

    async def open(self) -> Mapping[str, Any]:
        """Open them in the order in which they were given. Raises ResourceFailed."""
        if not self._factories:
            return self._given
        self._loop = asyncio.get_running_loop()
        self._closing = asyncio.Event()
        opened: asyncio.Future[Mapping[str, Any]] = self._loop.create_future()
        self._task = self._loop.create_task(self._keep(opened))
        try:
            return await opened
        except BaseException:
            self._task.cancel()
            await asyncio.wait([self._task])
            raise

    async def close(self) -> None:
        """Close them, the last one first. Errors are logged."""
        if not self._factories or self._closed.done() or self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._closing.set)
        await asyncio.wrap_future(self._closed)

    async def _keep(self, opened: asyncio.Future[Mapping[str, Any]]) -> None:
        try:
            async with AsyncExitStack() as stack:
                try:
                    resources = await self._open_all(stack)
                except BaseException as error:
                    if not opened.done():
                        opened.set_exception(error)
                    return
                if not opened.done():
                    opened.set_result(resources)
                    await self._closing.wait()
        finally:
            self._closed.set_result(None)

    async def _open_all(self, stack: AsyncExitStack) -> Mapping[str, Any]:
        values = {n: value for n, value in self._given.items() if n not in self._factories}
        on_loop = set()
        for name, factory in self._factories.items():
            if factory.per_run:
                continue
            own = AsyncExitStack()
            stack.push_async_callback(self._close_one, name, own)
            try:
                values[name], is_async = await factory.open(own)
            except Exception as error:
                raise ResourceFailed(
                    f"the resource {name!r} could not be opened, so nothing was started:"
                    f" {error_text(error)}"
                ) from error
            if is_async:
                on_loop.add(name)
        return Resources(
            values, factories=self._factories, on_loop=frozenset(on_loop), loop=self._loop
        )

    async def _close_one(self, name: str, stack: AsyncExitStack) -> None:
        try:
            await stack.aclose()
        except Exception:
            log.exception("the resource %r could not be closed", name)
