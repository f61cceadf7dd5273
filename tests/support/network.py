"""A scheduler that works while its connection to the store breaks, again and again."""

from __future__ import annotations

import asyncio
from collections import Counter

from mainspring import Event, Run, RunContext, Scheduler
from mainspring.errors import StoreUnavailable
from tests.support.engine import LONG, until
from tests.support.servers.proxy import Line, Proxy


async def work_through_outages(
    scheduler: Scheduler, proxy: Proxy, line: Line, outages: int
) -> list[Run]:
    """Each outage begins in the middle of 40 runs. Every run is done once, and the scheduler says
    that something is wrong."""
    done: Counter[str] = Counter()
    errors: list[str] = []

    @scheduler.job()
    async def work(ctx: RunContext) -> None:
        done[ctx.run_id] += 1
        await asyncio.sleep(0.05)

    def note_error(event: Event) -> None:
        errors.append(str(event.error))

    scheduler.on("scheduler.error", note_error)
    runs: list[Run] = []

    def some_are_done() -> bool:
        return len(done) >= len(runs) - 30

    async with scheduler:
        for _ in range(outages):
            runs += await work.enqueue_many([{}] * 40)
            await until(some_are_done, "some of the new runs")
            proxy.turn(line)
            await _wait_until_store(scheduler, answers=False)
            await until(lambda: errors, "an error that is told")
            proxy.turn(Line.WELL)
            await _wait_until_store(scheduler, answers=True)
        ended = [await scheduler.wait(run.id, 60) for run in runs]
    assert set(done.values()) == {1}
    return ended


async def _wait_until_store(scheduler: Scheduler, *, answers: bool) -> None:
    answered = not answers
    async with asyncio.timeout(LONG):
        while answered is not answers:
            await asyncio.sleep(0.05)
            try:
                await scheduler.stats()
                answered = True
            except StoreUnavailable:
                answered = False
