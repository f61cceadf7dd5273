"""`/api/v1/pause` and `/api/v1/resume`."""

from __future__ import annotations

from tests.support.service import Api


async def test_all_firing_is_paused_and_resumed(api: Api) -> None:
    since = (await api.ok("POST", "/api/v1/pause"))["pausedSince"]
    assert since is not None
    health = await api.ok("GET", "/api/v1/health")
    assert (health["pausedSince"], health["status"]) == (since, "healthy")
    assert "mainspring_firing_paused 1.0" in (await api.get("/metrics")).text
    assert (await api.get("/readyz")).status_code == 200
    assert await api.ok("POST", "/api/v1/resume") == {"pausedSince": None}
    assert (await api.ok("GET", "/api/v1/health"))["pausedSince"] is None
