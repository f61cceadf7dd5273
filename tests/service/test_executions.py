"""`/api/jobs/:id/executions` lists attempts, whatever state the job's other runs are in."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.core.model import Attempt, Outcome, Page, Run, replace
from mainspring.service.compat import executions_of
from mainspring.stores.protocol import RunQuery
from tests.support.service import Api, until
from tests.support.service_calls import created, finished
from tests.support.webhook_endpoint import endpoint, response

BODIES = [
    (b"short", "short", False, None),
    (b"a" * 20_000, "a" * 16_384, True, None),
    (b"\xff\x00", "/wA=", False, "base64"),
    (b"\xff" * 20_000, None, True, "base64"),
]


async def ids(api: Api, job: str, **params: Any) -> list[str]:
    answer = await api.ok("GET", f"/api/jobs/{job}/executions", params=params)
    return [one["_id"] for one in answer["data"]]


@pytest.mark.parametrize("others", ["pending", "cancelled"])
async def test_a_try_behind_a_long_backlog_is_told(working: Api, others: str) -> None:
    """More runs that were never tried than anybody would want to read for it."""
    api = working
    body = {"handler": "greet", "schedule": None, "id": "mine", "retryAttempts": 1}
    await api.ok("POST", "/api/jobs", json={**body, "retryDelay": "1h"})
    run = await api.scheduler.trigger("mine", {"name": "nobody"})

    async def tried() -> list[str]:
        return await ids(api, "mine")

    assert await until(tried) == [f"{run.id}:1"]
    if others == "cancelled":
        await api.scheduler.cancel(run.id)
    behind = await api.scheduler.enqueue_many("mine", [None] * 1200, delay="1d")
    if others == "cancelled":
        assert (await api.scheduler.cancel_runs([one.id for one in behind])).done == 1200
    asked: list[RunQuery] = []
    find = api.scheduler.store.find

    async def watched(query: RunQuery) -> Page[Run]:
        asked.append(query)
        return await find(query)

    api.scheduler.store.find = watched  # type: ignore[method-assign]
    assert await ids(api, "mine") == [f"{run.id}:1"]
    pages = [query for query in asked if query.job == "mine" and query.limit > 1]
    assert len(pages) == 1


@pytest.mark.parametrize(("sent", "kept", "truncated", "encoding"), BODIES)
async def test_a_cut_or_coded_body_says_so(
    working: Api, sent: bytes, kept: str | None, truncated: bool, encoding: str | None
) -> None:
    async with endpoint(lambda request: response(500, sent)) as target:
        await created(working, id="mine", endpoint=target.url, schedule=None, retryAttempts=0)
        run = await working.scheduler.trigger("mine")
        await working.scheduler.wait(run.id, 10)
    for path in ("/api/jobs/mine/executions", "/api/observability/failures"):
        [told] = (await working.ok("GET", path))["data"]
        assert (told["truncated"], told["encoding"]) == (truncated, encoding)
        assert kept is None or told["responseBody"] == kept


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.SUCCEEDED])
async def test_an_attempt_without_an_error_says_how_it_ended(api: Api, outcome: Outcome) -> None:
    run = await api.scheduler.enqueue("greet")
    attempt = Attempt(1, "w", run.run_at, run.run_at, outcome)
    [told] = executions_of(replace(run, attempts=(attempt,)))
    assert told.error_message
    if outcome is Outcome.LOST:
        assert told.error_message == "the worker died or lost its lease"


async def test_a_duration_is_in_whole_milliseconds(working: Api) -> None:
    await finished(working, name="nobody")
    for path in ("/api/jobs/greet/executions", "/api/observability/failures"):
        [one] = (await working.ok("GET", path))["data"]
        assert type(one["duration"]) is int
    began = (await working.scheduler.list_runs()).items[0]
    attempt = began.attempts[0]
    for span, shown in ((2000, 2000), (3.111, 3), (0.6, 1)):
        ended = attempt.started_at + timedelta(milliseconds=span)
        run = replace(began, attempts=(replace(attempt, finished_at=ended),))
        assert executions_of(run)[0].duration == shown


async def test_jobs_are_listed_by_page_with_their_number(api: Api) -> None:
    for number in range(25):
        await created(api, id=f"job-{number:02}")
    second = await api.ok("GET", "/api/jobs", params={"page": 2, "limit": 10})
    assert (second["page"], second["limit"], second["total"]) == (2, 10, 28)
    beyond = await api.ok("GET", "/api/jobs", params={"page": 9, "limit": 10})
    assert beyond["data"] == []
    for wrong in ({"page": 0}, {"limit": 0}, {"limit": "x"}):
        refused = await api.get("/api/jobs", params=wrong)
        assert (refused.status_code, refused.json()["success"]) == (422, False)
