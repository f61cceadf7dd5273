"""Nothing of the engine grows with the number of runs: no timer, task or object."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from mainspring import RunContext, Scheduler
from mainspring.core.model import Attempt, Run
from mainspring.core.transitions import Change
from mainspring.engine.attempt import AttemptError, LocalAttempt
from mainspring.engine.outcome import Decision
from mainspring.stores.memory import MemoryStore

BATCH = 1_000
ROUNDS = 2
MOST = 20
WATCHED = (
    Attempt,
    Change,
    AttemptError,
    Run,
    RunContext,
    Decision,
    LocalAttempt,
    asyncio.TimerHandle,
)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "timeout", "thread", "failing", "listening"])
async def test_memory_does_not_grow_with_runs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Kept from pytest's own capture, which holds every record until the test's end.
    monkeypatch.setattr(logging.getLogger("mainspring.run"), "propagate", False)
    monkeypatch.setattr(logging.getLogger("mainspring.run"), "handlers", [logging.NullHandler()])
    store = MemoryStore()
    scheduler = Scheduler(store, workers=50)
    ran = 0
    all_ran = asyncio.Event()
    home = asyncio.get_running_loop()

    def count() -> None:
        nonlocal ran
        ran += 1
        if ran % BATCH == 0:
            home.call_soon_threadsafe(all_ran.set)

    async def work(ctx: RunContext) -> None:
        count()
        if kind == "failing":
            ctx.log.info("about to fail")
            ctx.progress(1)
            raise ValueError

    def work_in_thread() -> None:
        count()

    # A timeout far longer than the test: its timer must go with its run, not after an hour.
    scheduler.job(id="work", timeout="1h" if kind == "timeout" else None)(
        work_in_thread if kind == "thread" else work
    )
    if kind == "listening":
        scheduler.on("*", lambda event: None)

    async def burst() -> None:
        all_ran.clear()
        await scheduler.enqueue_many("work", [None] * BATCH)
        await asyncio.wait_for(all_ran.wait(), 60)
        while (await scheduler.stats()).runs["pending"] + (await scheduler.stats()).runs["running"]:
            await asyncio.sleep(0.01)
        await _pruned(store)

    async with scheduler:
        await burst()
        before = await _census(scheduler)
        for _ in range(ROUNDS):
            await burst()
        for _ in range(100):  # the last batch may still be in somebody's hands
            after = await _census(scheduler)
            grown = {name: by for name in after if (by := after[name] - before[name]) > MOST}
            if not grown:
                break
    assert grown == {}


async def _pruned(store: MemoryStore) -> None:
    later = await store.now() + timedelta(days=1)
    while await store.maintain(later, 10_000):
        pass


async def _census(scheduler: Scheduler) -> Counter[str]:
    """Objects of the engine's kinds, and what both loops still have on their lists."""
    assert scheduler._engine_loop is not None
    for _ in range(3):
        await asyncio.sleep(0.02)
        gc.collect()
    found: Counter[str] = Counter(
        type(one).__name__ for one in gc.get_objects() if type(one) in WATCHED
    )
    loops: list[Any] = [asyncio.get_running_loop(), scheduler._engine_loop.loop]
    for name, loop in zip(("home", "engine"), loops, strict=True):
        found[f"{name} timers"] = sum(not timer.cancelled() for timer in loop._scheduled)
        found[f"{name} all timers"] = max(0, len(loop._scheduled) - 150)  # asyncio sweeps at 100
        found[f"{name} tasks"] = len(asyncio.all_tasks(loop))
    return found
