"""Helpers for tests of the engine: await events, break a store, take runs away from a worker."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from mainspring import Client, Event, Run, Scheduler
from mainspring.stores import open_store
from mainspring.stores.protocol import Claim, RunQuery, Store
from mainspring.testing import Injection, run_virtual
from mainspring.testing.store_calls import claim_runs

LONG = 60.0
"""Seconds after which a test gives up waiting. Generous, because the machine may be busy."""


class EventRecorder:
    """Every event of a scheduler, in order; a test awaits the one it needs."""

    def __init__(self, scheduler: Client, pattern: str = "*") -> None:
        self.events: list[Event] = []
        self._news = asyncio.Event()
        scheduler.on(pattern, self._take)

    def _take(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def of(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    async def until(
        self, name: str, count: int = 1, where: Callable[[Event], bool] = lambda _: True
    ) -> Event:
        """The `count`-th event of that name, as soon as it has come."""
        async with asyncio.timeout(LONG):
            while True:
                self._news.clear()
                found = [event for event in self.of(name) if where(event)]
                if len(found) >= count:
                    return found[count - 1]
                await self._news.wait()


class SwitchableFaults:
    """A plan for `FaultyStore` that a test switches on and off."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.error: str = "before"
        self.met: dict[str, int] = {}

    def inject(self, method: str) -> Injection:
        if method not in self.failing and "*" not in self.failing:
            return Injection()
        self.met[method] = self.met.get(method, 0) + 1
        return Injection(self.error)  # type: ignore[arg-type]


def opened(place: str | Store) -> Store:
    return open_store(place) if isinstance(place, str) else place


async def ended(scheduler: Scheduler, run: Run) -> Run:
    return await scheduler.wait(run.id, LONG)


async def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """For what has no event: look until it holds."""
    for _ in range(int(LONG / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what} never came")


async def steal(
    store: Store, handler: str, lease: float = 1.0, limit: int = 1, worker: str = "dead"
) -> list[Run]:
    """Claim as a worker that will never renew: one that died."""
    claim = Claim(
        worker=worker,
        handlers=frozenset({handler}),
        limit=limit,
        lease=timedelta(seconds=lease),
    )
    for _ in range(int(LONG / 0.01)):
        if runs := await claim_runs(store, claim):
            return runs
        await asyncio.sleep(0.01)
    raise AssertionError("nothing to claim")


async def all_runs(store: Store) -> dict[str, Run]:
    """Every run that a store holds, by its id."""
    found = await store.find(RunQuery(limit=1_000_000))
    return {run.id: run for run in found.items}


def on_virtual_time(
    make: Callable[[], Any] | None = None, *, seeds: int = 1, **limits: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run an async test on virtual time, under a few interleavings. What `make` makes, anew for
    each of them, is the first argument of the test."""

    def decorate(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            async def main() -> None:
                await story(*([make()] if make else []), **fixtures)

            for seed in range(seeds):
                run_virtual(main, seed=seed, **limits)

        functools.update_wrapper(test, story)
        of_story = inspect.signature(story)
        fixtures = list(of_story.parameters.values())[1 if make else 0 :]
        test.__signature__ = of_story.replace(parameters=fixtures)  # type: ignore[attr-defined]
        return test

    return decorate


async def run_once(
    scheduler: Scheduler,
    handler: Callable[..., Any],
    payload: dict[str, Any] | None = None,
    **policy: Any,
) -> Run:
    """Start the scheduler, run a job of this handler once, and stop."""
    job = scheduler.job(**policy)(handler)
    async with scheduler:
        return await ended(scheduler, await scheduler.enqueue(job, payload))
