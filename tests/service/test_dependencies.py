"""Query parameters are used or refused, never ignored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from mainspring.stores.protocol import RunQuery
from tests.support.service import WEBHOOK, Api
from tests.support.service_calls import created, refused


@pytest.mark.parametrize(
    ("method", "path", "body", "known"),
    [
        ("GET", "/api/jobs", None, "page, limit"),
        ("GET", "/api/v1/runs", None, "job, state, failing, timedOut, since, until, limit, cursor"),
        ("GET", "/api/v1/events", None, "event, job"),
        ("GET", "/api/jobs/greet/executions", None, "limit"),
        ("GET", "/api/observability/failures", None, "limit"),
        ("POST", "/api/v1/jobs", WEBHOOK, "dryRun"),
        ("POST", "/api/v1/jobs/bulk", {"action": "delete", "match": {}}, None),
        ("POST", "/api/v1/runs/bulk", {"action": "delete", "match": {}}, None),
        ("DELETE", "/api/v1/jobs/mine", None, None),
    ],
)
async def test_an_unknown_name_is_told_with_the_known_ones(
    api: Api, method: str, path: str, body: Any, known: str | None
) -> None:
    await created(api, id="mine")
    told = await refused(api, method, f"{path}?jobId=nope&status=failed", 422, json=body)
    assert [one["field"] for one in told["errors"]] == ["jobId", "status"]
    those = f"allowed are {known}" if known else "none are allowed here"
    assert told["errors"][0]["message"] == f"there is no such parameter; {those}"
    await api.ok("GET", "/api/v1/jobs/mine")


async def test_several_values_are_for_those_that_take_them(api: Api) -> None:
    await api.ok("GET", "/api/v1/runs?state=failed&state=pending")
    told = await refused(api, "GET", "/api/v1/runs?job=a&job=b", 422)
    assert told["detail"] == "job is given 2 times: give it once"


async def test_probes_take_whatever_a_monitor_adds(api: Api) -> None:
    for path in ("/livez", "/readyz", "/metrics", "/docs", "/api/observability/health"):
        assert (await api.get(f"{path}?_=1&verbose")).status_code == 200


@pytest.mark.parametrize(
    ("since", "instant"),
    [
        ("2026-11-16T04:00:00+02:00", "2026-11-16T02:00:00Z"),
        ("2026-11-16T04:00:00.5+0200", "2026-11-16T02:00:00.5Z"),
        ("20261116T04+02", "2026-11-16T02:00:00Z"),
        ("2026-11-16+04:00:00+02:00", "2026-11-16T02:00:00Z"),
        ("2026-11-16T04:00:00-02:00", "2026-11-16T06:00:00Z"),
        ("2026-11-16+04:00", "2026-11-16T04:00:00Z"),  # a day and a time
    ],
)
async def test_a_plus_that_came_as_a_space_is_read_as_it_was_meant(
    api: Api, since: str, instant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    find = api.scheduler.store.find

    async def look(query: RunQuery) -> Any:
        asked.append(query)
        return await find(query)

    monkeypatch.setattr(api.scheduler.store, "find", look)
    await api.ok("GET", f"/api/v1/runs?since={since}")
    assert asked[0].since == datetime.fromisoformat(instant)
