"""Probes, statistics, history and health over HTTP, and the circuit breakers that are open."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mainspring import Breaker, Scheduler
from mainspring.service.api import health
from mainspring.stores.memory import MemoryStore
from mainspring.testing import FaultyStore
from tests.support.engine import SwitchableFaults
from tests.support.service import Api, Make, sample_scheduler, until
from tests.support.service_calls import finished, refused


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


async def test_statistics_and_health(working: Api) -> None:
    api = working
    await finished(api, name="Ada")
    await finished(api, name="nobody")
    statistics = await api.ok("GET", "/api/v1/statistics")
    assert statistics["lastDay"] == {"succeeded": 1, "failed": 1}
    assert statistics["jobs"] == {"total": 3, "enabled": 3}
    stats = (await api.ok("GET", "/api/observability/stats"))["data"]
    assert stats["executions"] == {"total": 2, "successful": 1, "failed": 1, "last24Hours": 2}
    failures = (await api.ok("GET", "/api/observability/failures"))["data"]
    assert [one["jobId"] for one in failures] == ["greet"]
    assert "there is nobody" in failures[0]["errorMessage"]


async def test_a_failed_attempt_is_told_while_its_run_goes_on(working: Api) -> None:
    api = working
    tries = []

    @api.scheduler.job(retries=1, retry_delay="10ms")
    async def shaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("the first time")

    run = (await api.ok("POST", "/api/v1/jobs/shaky/trigger"))["id"]
    await api.scheduler.wait(run, 10)
    [failure] = (await api.ok("GET", "/api/observability/failures"))["data"]
    assert (failure["attempt"], failure["status"]) == (1, "failure")
    executions = (await api.ok("GET", "/api/jobs/shaky/executions"))["data"]
    assert [one["attempt"] for one in executions] == [2, 1]
    assert [one["status"] for one in executions] == ["success", "failure"]
    assert [one["_id"] for one in executions] == [f"{run}:2", f"{run}:1"]


async def test_an_instance_is_ready_while_the_store_answers_and_it_does_not_drain(
    make: Make,
) -> None:
    faults = SwitchableFaults()
    store: Any = FaultyStore(MemoryStore(), faults)
    api: Api = await make(sample_scheduler(store, workers=1))
    assert (await api.get("/readyz")).status_code == 200
    faults.failing.add("jobs")
    away = await api.get("/readyz")
    # The scheduler may have met the fault first: then the answer names what it could not do.
    said = away.json()["status"]
    assert away.status_code == 503
    assert said in ("the store is away", "the store fails these calls: fire")
    health = (await api.get("/api/observability/health")).json()
    assert (health["success"], health["status"]) == (False, "degraded")
    listed = await api.get("/api/v1/jobs")
    assert listed.status_code == 503
    assert "retry-after" in listed.headers
    faults.failing.clear()

    async def ready() -> bool:
        return (await api.get("/readyz")).status_code == 200

    await until(ready)
    api.app.state.service.draining.set()
    assert (await api.get("/readyz")).status_code == 503
    faults.failing.add("*")
    assert (await api.get("/livez")).status_code == 200


async def test_an_engine_that_does_not_answer_is_not_ready(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ENGINE_SECONDS", 0.2)
    api: Api = await make(workers=1)
    go = threading.Event()

    async def block() -> None:
        go.wait(10)

    blocked = asyncio.create_task(api.scheduler._call(block()))
    await asyncio.sleep(0)
    answer = await api.get("/readyz")
    assert (answer.status_code, "did not answer" in answer.json()["status"]) == (503, True)
    assert (await api.get("/livez")).status_code == 200
    go.set()
    await blocked
    assert (await api.get("/readyz")).status_code == 200


async def test_a_stopped_scheduler_is_told(make: Make) -> None:
    api: Api = await make(workers=0)
    await api.scheduler.stop()
    assert (await api.get("/api/v1/jobs")).status_code == 503
    assert (await api.get("/readyz")).status_code == 503
    await asyncio.sleep(0)


async def test_workers_are_listed(working: Api) -> None:
    answer = await working.ok("GET", "/api/v1/workers")
    [worker] = answer["items"]
    assert "report" in worker["handlers"]
    assert worker["capacity"] == working.scheduler.workers
    assert worker["id"].startswith(f"{worker['node']}:{worker['pid']}:")


def with_failures() -> Scheduler:
    scheduler = sample_scheduler(workers=2)

    @scheduler.job
    async def flaky(ok: bool) -> None:
        if not ok:
            raise OSError("disk full")

    return scheduler


async def test_the_health_and_the_metrics_of_a_job(make: Make) -> None:
    api = await make(with_failures())
    for ok in (True, True, True, False):
        run = await api.scheduler.enqueue("flaky", {"ok": ok})
        await api.scheduler.wait(run.id, 10)
    health = await api.ok("GET", "/api/v1/jobs/flaky/health")
    assert (health["status"], health["successRate"]) == ("unhealthy", 0.75)
    assert health["consecutiveFailures"] == 1
    assert health["lastRun"]["id"] == run.id
    assert (health["lastRun"]["state"], health["lastRun"]["source"]) == ("failed", "enqueue")
    assert health["lastRun"]["error"] == "OSError: disk full"
    assert health["breaker"] == "none"
    assert (await api.ok("GET", "/api/v1/jobs/flaky/health")) == health
    metrics = await api.ok("GET", "/api/v1/jobs/flaky/metrics")
    assert (metrics["total"], metrics["succeeded"], metrics["failed"]) == (4, 3, 1)
    assert metrics["failureRate"] == 0.25
    assert 0 <= metrics["duration"]["p50"] <= metrics["duration"]["max"]
    assert metrics["lateness"]["average"] >= 0
    assert metrics["ended"] == {"succeeded": 3, "failed": 1, "cancelled": 0, "skipped": 0}
    assert [one["error"] for one in metrics["recentFailures"]] == ["OSError: disk full"]
    week = await api.ok("GET", "/api/v1/jobs/flaky/metrics?window=7d")
    assert week["total"] == 4
    assert week["since"] < metrics["since"]


async def test_a_window_that_cannot_be_used_is_refused(make: Make) -> None:
    api = await make(with_failures())
    for window in ("9d", "1m", "soon"):
        told = await refused(api, "GET", f"/api/v1/jobs/flaky/metrics?window={window}", 422)
        assert "window" in told["detail"]
        assert told["errors"][0]["field"] == "window"
    for what in ("metrics", "health"):
        await refused(api, "GET", f"/api/v1/jobs/nowhere/{what}", 404)
