"""What is read can be sent back, and what is sent is done as it says or refused: never dropped."""

from __future__ import annotations

import pytest

from mainspring.service import shapes
from tests.service.conftest import Api
from tests.service.test_jobs import created, job


@pytest.mark.parametrize(
    "lines",
    [
        "DTSTART;TZID=America/New_York:20990101T090000\nRRULE:FREQ=DAILY;COUNT=3",
        "DTSTART:20990101T090000Z\nRRULE:FREQ=MONTHLY;BYDAY=1MO\nEXDATE:20990202T090000Z",
        "DTSTART:20990101T090000\nRRULE:FREQ=DAILY;COUNT=1\nRDATE:20990108T090000,20990109",
        "FREQ=DAILY;UNTIL=20990101",
    ],
)
async def test_a_rule_that_was_read_makes_the_same_job_when_it_is_sent(
    api: Api, lines: str
) -> None:
    first = await job(api, await created(api, schedule=lines, timezone="Europe/Berlin"))
    read = {name: first[name] for name in ("schedule", "timezone")}
    second = await job(api, await created(api, **read))
    stored = [await api.scheduler.get_job(one["_id"]) for one in (first, second)]
    slots = [one.schedule.upcoming(5) for one in stored if one.schedule]
    assert slots[0] == slots[1] != []
    seen = await api.ok("POST", "/api/schedules/preview", json={**read, "count": 5})
    assert seen["data"]["schedule"] == first["schedule"]
    assert [one["utc"] for one in seen["data"]["slots"]] == [shapes.when(one) for one in slots[0]]
