"""Lists are bounded by bytes as well as by items, and say where they go on."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.service import dependencies
from tests.support.service import WEBHOOK, Api
from tests.support.service_calls import refused

LARGE: dict[str, Any] = {
    "handler": "greet",
    "schedule": None,
    "payload": {"name": "x" * 100_000},
}


async def pages(api: Api, path: str, **params: Any) -> list[list[str]]:
    """The ids of each page, until there is none."""
    found: list[list[str]] = []
    cursor: str | None = None
    while not found or cursor is not None:
        more = {} if cursor is None else {"cursor": cursor}
        page = await api.ok("GET", path, params={**params, **more})
        found.append([item["id"] for item in page["items"]])
        cursor = page["nextCursor"]
    return found


async def with_large_jobs(api: Api, count: int) -> list[str]:
    names = [f"large-{number:03}" for number in range(count)]
    for name in names:
        await api.ok("POST", "/api/v1/jobs", json={**LARGE, "id": name})
    return names


async def test_a_page_that_is_large_ends_early_and_the_rest_follows(api: Api) -> None:
    names = await with_large_jobs(api, 60)
    answer = await api.get("/api/v1/jobs?limit=500&payloads=true")
    assert len(answer.content) < 2 * dependencies.PAGE_BYTES
    found = await pages(api, "/api/v1/jobs", limit=500, payloads=True, search="large")
    assert len(found) == 2
    assert [name for page in found for name in page] == names


async def test_payloads_and_bodies_are_listed_only_if_asked_for(api: Api) -> None:
    await api.ok("POST", "/api/v1/jobs", json={**WEBHOOK, "id": "calls"})
    await api.ok("POST", "/api/v1/jobs", json={**LARGE, "id": "runs"})
    brief = await api.ok("GET", "/api/v1/jobs?limit=500")
    assert not [job for job in brief["items"] if {"payload", "body"} & job.keys()]
    whole = {job["id"]: job for job in (await api.ok("GET", "/api/v1/jobs?payloads=true"))["items"]}
    assert whole["runs"]["payload"] == LARGE["payload"]
    assert whole["calls"]["body"] == WEBHOOK["body"]


@pytest.mark.parametrize("order", ["id", "nextRunAt", "updatedAt", "lastRunAt"])
@pytest.mark.parametrize("descending", [False, True])
async def test_every_order_says_that_more_follows(api: Api, order: str, descending: bool) -> None:
    for number in range(5):
        await api.ok("POST", "/api/v1/jobs", json={**WEBHOOK, "id": f"job{number}", "tags": ["t"]})
    chosen = {"tag": "t", "order": order, "descending": descending}
    found = await pages(api, "/api/v1/jobs", limit=2, **chosen)
    assert [len(page) for page in found] == [2, 2, 1]
    names = [name for page in found for name in page]
    assert sorted(names) == [f"job{number}" for number in range(5)]
    assert await pages(api, "/api/v1/jobs", limit=50, **chosen) == [names]


async def test_a_cursor_of_another_list_is_refused(api: Api) -> None:
    await refused(api, "GET", "/api/v1/jobs?order=updatedAt&cursor=x", 422)
