"""A preview keeps nobody waiting, whatever schedule it is asked about."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mainspring.schedules import Recurrence
from mainspring.service import planning
from tests.service.conftest import WEBHOOK, Api
from tests.service.test_jobs import refused

FREEZING = "FREQ=SECONDLY;INTERVAL=907;BYMINUTE=0;BYSECOND=0;COUNT=1000"


async def test_a_rule_that_would_take_seconds_is_refused(api: Api) -> None:
    for path, more in (("/api/schedules/preview", {}), ("/api/jobs", WEBHOOK)):
        told = await refused(api, "POST", path, 422, json={**more, "schedule": FREEZING})
        assert "too long to work out" in told["error"]


async def test_an_interval_that_would_flood_the_store_is_refused(api: Api) -> None:
    for path, more in (("/api/schedules/preview", {}), ("/api/jobs", WEBHOOK)):
        body = {**more, "schedule": None, "every": "1ms"}
        told = await refused(api, "POST", path, 422, json=body)
        assert "the shortest is 100 milliseconds" in told["error"]


async def test_other_requests_are_answered_while_a_preview_is_worked_out(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()
    real = Recurrence.next

    def slow(self: Recurrence, after: Any) -> Any:
        asked.set()
        answered.wait(30)
        return real(self, after)

    preview = api.ok("POST", "/api/schedules/preview", json={"schedule": "FREQ=DAILY", "count": 1})
    with monkeypatch.context() as patched:
        patched.setattr(Recurrence, "next", slow)
        asking = asyncio.ensure_future(preview)
        while not asked.is_set():
            await asyncio.sleep(0.01)
        await api.ok("GET", "/api/jobs")
        assert not asking.done()
        answered.set()
        assert len((await asking)["data"]["slots"]) == 1


async def test_a_preview_that_takes_long_shows_what_it_has_found(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LONGEST_SEARCH", 0.0)
    seen = await api.ok("POST", "/api/schedules/preview", json={"schedule": "* * * * *"})
    assert seen["data"]["slots"] == []
    assert "only the first 0 slots" in seen["data"]["warnings"][0]
