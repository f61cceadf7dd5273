"""How runs ended over time, and the circuit breakers that are open."""

from __future__ import annotations

import pytest

from mainspring import Breaker, Scheduler
from tests.support.service import Api, Make, sample_scheduler


@pytest.mark.parametrize(("window", "points"), [("1h", 60), ("24h", 96), ("7d", 84)])
async def test_history_has_a_point_for_each_part_of_the_window(
    working: Api, window: str, points: int
) -> None:
    good = await working.scheduler.enqueue("greet")
    bad = await working.scheduler.enqueue("greet", {"name": "nobody"})
    for run in (good, bad):
        await working.scheduler.wait(run.id, timeout="30s")
    found = await working.ok("GET", f"/api/v1/statistics/history?window={window}")
    assert len(found["points"]) == points
    assert sum(one["succeeded"] for one in found["points"]) == 1
    assert sum(one["failed"] for one in found["points"]) == 1
    assert sum(one["durationP95"] is not None for one in found["points"]) in (1, 2)
    assert (await working.get("/api/v1/statistics/history?window=2y")).status_code == 422


async def test_open_breakers_are_listed(make: Make) -> None:
    scheduler: Scheduler = sample_scheduler(workers=2)

    @scheduler.job(breaker=Breaker(failures=2, reset="1h"))
    async def broken() -> None:
        raise ValueError("away")

    @scheduler.job(breaker=Breaker(failures=2, reset="1h"))
    async def whole() -> None: ...

    api: Api = await make(scheduler)
    for job in ("broken", "broken", "whole"):
        run = await scheduler.enqueue(job)
        await scheduler.wait(run.id, timeout="30s")
    [found] = (await api.ok("GET", "/api/v1/breakers"))["items"]
    assert (found["jobId"], found["state"], found["failures"]) == ("broken", "open", 2)
    assert found["until"] is not None
    assert await scheduler.reset_breaker("broken")
    assert (await api.ok("GET", "/api/v1/breakers"))["items"] == []
