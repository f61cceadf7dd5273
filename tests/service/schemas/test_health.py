"""The health and the metrics of a job over HTTP."""

from __future__ import annotations

from mainspring import Scheduler
from tests.support.service import Make, sample_scheduler
from tests.support.service_calls import refused


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
