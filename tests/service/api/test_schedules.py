"""Schedule previews do not block other requests, whatever the schedule."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from mainspring.core.schedules import Recurrence
from tests.support.service import WEBHOOK, Api
from tests.support.service_calls import refused

FREEZING = "FREQ=SECONDLY;INTERVAL=907;BYMINUTE=0;BYSECOND=0;COUNT=1000"


async def test_a_rule_that_would_take_seconds_is_refused(api: Api) -> None:
    for path, more in (("/api/v1/schedules/preview", {}), ("/api/v1/jobs", WEBHOOK)):
        told = await refused(api, "POST", path, 422, json={**more, "schedule": FREEZING})
        assert "too long to work out" in told["detail"]


async def test_an_interval_that_would_flood_the_store_is_refused(api: Api) -> None:
    for path, more in (("/api/v1/schedules/preview", {}), ("/api/v1/jobs", WEBHOOK)):
        body = {**more, "schedule": None, "every": "1ms"}
        told = await refused(api, "POST", path, 422, json=body)
        assert "the shortest is 100 milliseconds" in told["detail"]


async def test_other_requests_are_answered_while_a_preview_is_worked_out(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()
    real = Recurrence.next

    def slow(self: Recurrence, after: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():  # there a rule is only read
            asked.set()
            answered.wait(30)
        return real(self, after)

    preview = api.ok(
        "POST", "/api/v1/schedules/preview", json={"schedule": "FREQ=DAILY", "count": 1}
    )
    with monkeypatch.context() as patched:
        patched.setattr(Recurrence, "next", slow)
        asking = asyncio.ensure_future(preview)
        while not asked.is_set():
            await asyncio.sleep(0.01)
        await api.ok("GET", "/api/v1/jobs")
        assert not asking.done()
        answered.set()
        assert len((await asking)["slots"]) == 1


async def test_a_forecast_counts_the_runs_of_all_jobs(api: Api) -> None:
    path = "/api/v1/schedules/forecast"
    query = {"days": "7", "start": "2027-03-22T00:00:00Z", "timezone": "Asia/Tokyo"}
    others = (await api.ok("GET", path, params=query))["runs"]
    for name in ("one", "two"):
        await api.ok("POST", "/api/v1/jobs", json={**WEBHOOK, "id": name, "schedule": "3 2 * * *"})
    found = await api.ok("GET", path, params=query)
    assert (found["runs"], found["timezone"]) == (others + 14, "Asia/Tokyo")
    assert found["heat"][0][11] == 2.0
    assert found["collisions"] == [
        {"time": "11:03:00", "most": 2, "days": 7, "jobs": ["one", "two"]}
    ]
    assert found["jobs"][-1]["shortestGap"] == 86_400_000
    assert found["suggestions"][0]["schedules"] == {"one": "H 2 * * *", "two": "H 2 * * *"}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"days": "0"}, "days"),
        ({"start": "soon"}, "start"),
        ({"start": "9999-12-31T23:59:59Z"}, "start"),
        ({"timezone": "Mars/Base"}, "timezone"),
    ],
)
async def test_a_forecast_names_the_field_that_is_wrong(
    api: Api, query: dict[str, str], field: str
) -> None:
    told = await refused(api, "GET", "/api/v1/schedules/forecast", 422, params=query)
    assert field in str(told)


async def test_a_preview_for_a_job_names_the_slots_that_the_job_will_have(api: Api) -> None:
    schedule = "H H * * *"
    made = await api.ok(
        "POST", "/api/v1/jobs", json={**WEBHOOK, "id": "mine", "schedule": schedule}
    )
    slots = {}
    for name in ("mine", "other", None):
        body = {"schedule": schedule, "count": 1, "jobId": name}
        seen = await api.ok("POST", "/api/v1/schedules/preview", json=body)
        slots[name] = seen["slots"][0]["utc"]
    assert slots["mine"] == made["nextRunAt"]
    assert len(set(slots.values())) == 3


async def test_preview_lists_the_next_slots(api: Api) -> None:
    body = {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "after": "2027-03-27T00:00:00Z"}
    data = await api.ok("POST", "/api/v1/schedules/preview", json={**body, "count": 2})
    assert [slot["local"] for slot in data["slots"]] == [
        "2027-03-27T02:30:00.000+01:00",
        "2027-03-28T03:00:00.000+02:00",
    ]
    assert data["slots"][0]["utc"] == "2027-03-27T01:30:00.000Z"
    assert "does not exist" in data["warnings"][0]
    assert "02:30" in data["description"]
    every = await api.ok("POST", "/api/v1/schedules/preview", json={"every": 1500, "count": 3})
    assert len(every["slots"]) == 3
    for wrong in (
        {},
        {"schedule": "x"},
        {"schedule": "@daily", "every": 5},
        {"every": "9999999d"},
        {"runAt": "0001-01-01T00:00:00+14:00"},
        {"schedule": "@daily", "count": 1001},
    ):
        await refused(api, "POST", "/api/v1/schedules/preview", 422, json=wrong)
