"""`/workers` lists the live workers."""

from __future__ import annotations

import pytest

from tests.support.service import Api


@pytest.mark.parametrize("base", ["/api", "/api/v1"])
async def test_workers_are_listed(working: Api, base: str) -> None:
    answer = await working.ok("GET", f"{base}/workers")
    [worker] = answer["data"] if base == "/api" else answer["items"]
    assert "report" in worker["handlers"]
    assert worker["capacity"] == working.scheduler.workers
    assert worker["id"].startswith(f"{worker['node']}:{worker['pid']}:")
