"""`/api/pause` and `/api/resume`, in both forms."""

from __future__ import annotations

import pytest

from tests.support.service import Api


@pytest.mark.parametrize("base", ["/api", "/api/v1"])
async def test_all_firing_is_paused_and_resumed(api: Api, base: str) -> None:
    answer = await api.ok("POST", f"{base}/pause")
    since = (answer["data"] if base == "/api" else answer)["pausedSince"]
    assert since is not None
    assert (await api.ok("GET", "/api/v1/health"))["pausedSince"] == since
    page = await api.ok("GET", "/api/observability/health")
    assert (page["scheduler"]["pausedSince"], page["status"]) == (since, "healthy")
    assert "mainspring_firing_paused 1.0" in (await api.get("/metrics")).text
    assert (await api.get("/readyz")).status_code == 200
    answer = await api.ok("POST", f"{base}/resume")
    assert (answer["data"] if base == "/api" else answer) == {"pausedSince": None}
    assert (await api.ok("GET", "/api/v1/health"))["pausedSince"] is None
