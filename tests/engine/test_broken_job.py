"""A job whose slots cannot be worked out harms no other."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring import Event, Scheduler
from mainspring.engine.firing import plan
from mainspring.model import Job


async def test_one_job_that_cannot_be_planned_does_not_stop_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planned(job: Job, *rest: Any) -> Any:
        if job.id == "bad":
            raise ZeroDivisionError("a schedule nobody can work out")
        return plan(job, *rest)

    monkeypatch.setattr("mainspring.engine.slot_firer.plan", planned)
    scheduler = Scheduler("memory://")
    ticked = asyncio.Event()
    told: list[Event] = []
    scheduler.on("scheduler.error", told.append)

    @scheduler.job("50ms")
    async def bad() -> None: ...

    @scheduler.job("100ms")
    async def good() -> None:
        ticked.set()

    async with scheduler:
        for _ in range(3):
            ticked.clear()
            async with asyncio.timeout(20):
                await ticked.wait()
    assert [(event.job_id, type(event.error)) for event in told] == [("bad", ZeroDivisionError)]
