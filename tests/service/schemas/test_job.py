"""A job document that was read can be sent back; unknown or contradicting fields are refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from mainspring import RunContext
from mainspring.core import schedules
from mainspring.core.model import replace
from mainspring.service.schemas.documents import to_iso
from mainspring.testing.store_calls import put_job
from tests.support.service import WEBHOOK, Api, Make, sample_scheduler
from tests.support.service_calls import created, job, refused


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
    zone = {} if "TZID" in lines else {"timezone": "Europe/Berlin"}
    first = await job(api, await created(api, schedule=lines, **zone))
    read = {name: first[name] for name in ("schedule", "timezone")}
    second = await job(api, await created(api, **read))
    stored = [await api.scheduler.get_job(one["id"]) for one in (first, second)]
    slots = [one.schedule.upcoming(5) for one in stored if one.schedule]
    assert slots[0] == slots[1] != []
    seen = await api.ok("POST", "/api/v1/schedules/preview", json={**read, "count": 5})
    assert seen["schedule"] == first["schedule"]
    assert [one["utc"] for one in seen["slots"]] == [to_iso(one) for one in slots[0]]


@pytest.mark.parametrize(
    "lines",
    [
        "CRON_TZ=Asia/Tokyo 0 9 * * *",
        "DTSTART;TZID=Asia/Tokyo:20990101T090000\nRRULE:FREQ=DAILY",
    ],
)
async def test_a_schedule_that_names_a_zone_beside_another_is_refused(api: Api, lines: str) -> None:
    made = await created(api, schedule=lines)
    assert (await job(api, made))["timezone"] == "Asia/Tokyo"
    assert (await job(api, await created(api, schedule=lines, timezone="Asia/Tokyo")))[
        "every"
    ] is None
    sent = {"schedule": lines, "timezone": "Europe/Berlin"}
    for method, path in (
        ("POST", "/api/v1/jobs"),
        ("PATCH", f"/api/v1/jobs/{made}"),
        ("POST", "/api/v1/schedules/preview"),
    ):
        body = {**WEBHOOK, **sent} if path == "/api/v1/jobs" else sent
        told = await refused(api, method, path, 422, json=body)
        assert "Asia/Tokyo" in told["detail"]
        assert "Europe/Berlin" in told["detail"]
    for path in ("/api/v1/schedules/preview",):
        seen = await api.ok("POST", path, json={"schedule": lines, "count": 1})
        assert seen["timezone"] == "Asia/Tokyo"
        assert seen["slots"][0]["local"].endswith("T09:00:00.000+09:00")


async def test_a_moment_without_an_offset_is_in_the_zone_that_was_sent(api: Api) -> None:
    sent = {"schedule": None, "runAt": "2099-01-01T09:00:00", "timezone": "Asia/Kolkata"}
    made = await job(api, await created(api, **sent))
    assert made["nextRunAt"] == "2099-01-01T03:30:00.000Z"
    body = {"runAt": sent["runAt"], "timezone": sent["timezone"]}
    seen = await api.ok("POST", "/api/v1/schedules/preview", json=body)
    assert seen["slots"][0]["utc"] == "2099-01-01T03:30:00.000Z"


@pytest.mark.parametrize(
    ("what", "name"),
    [
        *(("jobs", name) for name in ("tag", "enabled", "search")),
        *(("runs", name) for name in ("job", "state", "since", "until")),
    ],
)
async def test_a_condition_that_was_not_filled_in_matches_nothing(
    api: Api, what: str, name: str
) -> None:
    """It meant everything: `{"action": "delete", "match": {"tag": null}}` deleted every job."""
    job_id = await created(api)
    run = (await api.ok("POST", f"/api/v1/jobs/{job_id}/trigger"))["id"]
    await api.ok("POST", f"/api/v1/runs/{run}/cancel")
    sent = {"action": "delete", "match": {name: None}}
    told = await refused(api, "POST", f"/api/v1/{what}/bulk", 422, json=sent)
    assert told["detail"] == f"match.{name} is null: leave it out where it does not matter"
    wrong = {"action": "delete", "match": {name: {}}}
    told = await refused(api, "POST", f"/api/v1/{what}/bulk", 422, json=wrong)
    assert [one["field"] for one in told["errors"]] == [f"match.{name}"]
    assert (await job(api, job_id))["id"] == job_id
    assert (await api.ok("GET", f"/api/v1/runs/{run}"))["id"] == run


async def test_a_name_in_the_metadata_is_not_taken_for_the_jobs(api: Api) -> None:
    job_id = await created(api, name="Mine")
    sent = {"metadata": {"name": "evil", "team": "x"}}
    told = await refused(api, "PATCH", f"/api/v1/jobs/{job_id}", 422, json=sent)
    assert told["errors"] == [
        {
            "field": "metadata",
            "message": "name is a field of its own: give it next to metadata, not in it",
        }
    ]
    assert (await job(api, job_id))["name"] == "Mine"
    await refused(api, "POST", "/api/v1/jobs", 422, json={**WEBHOOK, **sent})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "GET"),
        ("headers", {"X-A": "1"}),
        ("body", {}),
        ("successCodes", [200]),
        ("retryOn", [503]),
    ],
)
async def test_what_is_of_a_request_is_refused_for_a_handler(
    api: Api, field: str, value: object
) -> None:
    sent = {"id": "hello", "handler": "greet", "schedule": None}
    told = await refused(api, "POST", "/api/v1/jobs", 422, json={**sent, field: value})
    words = "is for a job that calls an endpoint, and this job runs a handler"
    assert told["detail"] == f"{field} {words}"
    await api.ok("POST", "/api/v1/jobs", json={**sent, field: None})
    await refused(api, "PATCH", "/api/v1/jobs/hello", 422, json={field: value})


async def test_a_timezone_without_a_schedule_is_refused(api: Api) -> None:
    words = "timezone is for a schedule, and this job has none"
    sent = {**WEBHOOK, "id": "never", "schedule": None, "timezone": "Asia/Tokyo"}
    assert (await refused(api, "POST", "/api/v1/jobs", 422, json=sent))["detail"] == words
    path = f"/api/v1/jobs/{await created(api, schedule='@daily', timezone='Asia/Tokyo')}"
    whole = {**(await api.ok("GET", path)), "schedule": None}
    assert (await api.ok("PATCH", path, json=whole))["timezone"] == "UTC"
    told = await refused(api, "PATCH", path, 422, json={"timezone": "Asia/Tokyo"})
    assert told["detail"] == words
    await api.ok("PATCH", path, json={"schedule": "@daily", "timezone": "Asia/Tokyo"})


async def test_a_null_timeout_is_none_for_a_handler_and_the_default_for_a_call(api: Api) -> None:
    """In a new job and in an edit alike."""
    handler = {"handler": "greet", "schedule": None}
    for job_id, body, timeout in (("runs", handler, None), ("calls", WEBHOOK, 30_000)):
        await api.ok("POST", "/api/v1/jobs", json={**body, "id": job_id, "timeout": None})
        assert (await job(api, job_id))["timeout"] == timeout
        await api.ok("PATCH", f"/api/v1/jobs/{job_id}", json={"timeout": "7s"})
        assert (await job(api, job_id))["timeout"] == 7000
        await api.ok("PATCH", f"/api/v1/jobs/{job_id}", json={"timeout": None})
        assert (await job(api, job_id))["timeout"] == timeout


async def test_enabled_null_does_not_resume_a_job(api: Api) -> None:
    path = (
        f"/api/v1/jobs/{await created(api, enabled=False, retryAttempts=2, timezone='Asia/Tokyo')}"
    )
    before = await api.ok("GET", path)
    sent = {"description": "x", "enabled": None}
    told = await refused(api, "PATCH", path, 422, json=sent)
    assert told["detail"] == "enabled is true or false, not null"
    assert (await api.ok("GET", path)) == before
    kept = ("timezone", "executionType", "retryAttempts", "retryDelay", "handler")
    after = await api.ok("PATCH", path, json=dict.fromkeys(kept))
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


async def test_a_finished_job_cannot_be_resumed(api: Api) -> None:
    """One that fires once, fired, and was paused: to switch it on says the same either way."""
    job_id = await created(api, schedule="2999-01-01T00:00:00Z", enabled=False)
    stored = await api.scheduler.get_job(job_id)
    past = schedules.at("2001-01-01T00:00:00Z").bind(job_id, stored.created_at)
    await put_job(api.scheduler.store, replace(stored, schedule=past))
    path = f"/api/v1/jobs/{job_id}"
    edit = await refused(api, "PATCH", path, 422, json={"enabled": True})
    resume = await refused(api, "POST", f"{path}/resume", 422)
    assert edit["detail"] == resume["detail"]
    assert "is over: it would never fire" in resume["detail"]
    bulk = await api.ok("POST", "/api/v1/jobs/bulk", json={"action": "resume", "ids": [job_id]})
    assert bulk["items"][0]["problem"]["detail"] == resume["detail"]
    assert (await job(api, job_id))["enabled"] is False


async def test_a_header_that_is_there_can_be_marked_by_its_name(api: Api) -> None:
    headers = {"X-P": "s3cret", "X-Q": "plain", "Authorization": "Bearer me"}
    job_id = await created(api, headers=headers)
    path = f"/api/v1/jobs/{job_id}"
    edited = await api.ok("PATCH", path, json={"secretHeaders": ["x-p"]})
    masked = {"X-P": "********", "Authorization": "********"}
    assert edited["headers"] == {"X-Q": "plain", **masked}
    assert sorted(edited["secretHeaders"]) == ["Authorization", "X-P"]
    stored = await api.scheduler.get_job(job_id)
    made = api.scheduler.webhooks.preview(stored, await api.scheduler.now())
    assert {name: made.headers.get(name) for name in headers} == headers
    marked = edited["secretHeaders"]
    again = await api.ok("PATCH", path, json={"secretHeaders": marked, "priority": 3})
    assert (again["priority"], again["headers"]) == (3, edited["headers"])
    await refused(api, "PATCH", path, 422, json={"secretHeaders": ["X-Nowhere"]})


@pytest.mark.parametrize("name", ["id", "_id", "jobId"])
@pytest.mark.parametrize(("method", "base"), [("PUT", "/api/jobs"), ("PATCH", "/api/v1/jobs")])
async def test_a_job_cannot_be_moved_to_another_id(
    api: Api, method: str, base: str, name: str
) -> None:
    job_id = await created(api)
    sent = {name: "other", "priority": 9}
    answer = await api.request(method, f"{base}/{job_id}", json=sent)
    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["errors"]] == [name]
    assert (await job(api, job_id))["priority"] == 5
    await api.ok(method, f"{base}/{job_id}", json={**sent, name: job_id})
    assert (await job(api, job_id))["priority"] == 9


async def test_a_job_that_calls_an_endpoint_keeps_one(api: Api) -> None:
    path = f"/api/v1/jobs/{await created(api)}"
    told = await refused(api, "PATCH", path, 422, json={"endpoint": None, "priority": 99})
    assert [one["field"] for one in told["errors"]] == ["priority", "endpoint"]
    assert "endpoint cannot be null: this job calls an endpoint" in told["detail"]


TYPED: dict[str, Any] = {
    "day": date(2030, 1, 2),
    "at": datetime(2030, 1, 2, 9, tzinfo=UTC),
    "price": Decimal("1.50"),
    "label": {"$date": "x"},
    "filter": {"$gt": 5},
    "n": 1.0,
}
"""A payload of Python, with values that JSON lacks and names that look like their tags."""


async def make_api_with_any_payload(make: Make) -> Api:
    scheduler = sample_scheduler(workers=0)

    @scheduler.job()
    async def keep(ctx: RunContext) -> None: ...

    api: Api = await make(scheduler)
    return api


@pytest.mark.parametrize("payload", [TYPED, {"name": {"$date": "x"}}, {"$date": "x"}, [b"x"]])
async def test_a_job_that_is_sent_back_as_it_was_read_keeps_its_payload(
    make: Make, payload: Any
) -> None:
    api = await make_api_with_any_payload(make)
    await api.scheduler.add_job("mine", handler="keep", payload=payload, metadata=TYPED)
    for _ in range(2):
        await api.ok("PATCH", "/api/v1/jobs/mine", json=await job(api, "mine"))
        read = await api.ok("GET", "/api/v1/jobs/mine")
        await api.ok("PATCH", "/api/v1/jobs/mine", json={"payload": read["payload"]})
        metadata = {"metadata": {**read["metadata"], "new": 1}}
        await api.ok("PATCH", "/api/v1/jobs/mine", json=metadata)
    stored = await api.scheduler.get_job("mine")
    assert stored.payload == payload
    assert stored.metadata == {**TYPED, "new": 1}


async def test_a_wrong_tagged_value_is_refused(make: Make) -> None:
    api = await make_api_with_any_payload(make)
    body = {"schedule": None, "handler": "keep", "payload": {"day": {"$date": "someday"}}}
    found = await refused(api, "POST", "/api/v1/jobs", 422, json=body)
    assert found["errors"] == [
        {
            "field": "payload",
            "message": 'holds a wrong tagged value: {"$date": "someday"} is not a date. Write a'
            " second $ for an object that has such a name itself",
        }
    ]
    run = await api.ok("POST", "/api/v1/jobs/keep/trigger", json={"payload": {"$$date": "x"}})
    assert run["payload"] == {"$$date": "x"}
    assert (await api.scheduler.get_run(run["id"])).payload == {"$date": "x"}


async def test_the_body_of_a_webhook_is_taken_and_answered_as_it_is(api: Api) -> None:
    body = {"name": {"$date": "x"}, "filter": {"$$gt": 5}}
    name = await created(api, **{**WEBHOOK, "body": body})
    await api.ok("PATCH", f"/api/v1/jobs/{name}", json=await job(api, name))
    assert (await job(api, name))["body"] == body


@pytest.mark.parametrize(
    ("body", "field", "message"),
    [
        ({"retryAttempts": 10**9 + 1}, "retryAttempts", "is at most 1000000000"),
        ({"misfire": {"limit": 0}}, "misfire.limit", "is 1 or more, not 0"),
        ({"backoff": {"factor": 0.5}}, "backoff.factor", "is 1 or more, not 0.5"),
        ({"priority": 10}, "priority", "is 0 to 9, not 10"),
        ({"tags": [""]}, "tags.0", "has 1 to 200 characters, not 0"),
        ({"tags": ["x"] * 1001}, "tags", "has at most 1000 items, not 1,001"),
        ({"description": "x" * 65_537}, "description", "has at most 65,536 characters"),
        ({"after": ["x"] * 1001}, "after", "names at most 1,000 jobs, not 1,001"),
        ({"successCodes": [200] * 501}, "successCodes", "has at most 500 items"),
    ],
)
async def test_the_library_refuses_values_beyond_its_bounds(
    api: Api, body: dict[str, Any], field: str, message: str
) -> None:
    sent = {**WEBHOOK, **body, **({"schedule": None} if "after" in body else {})}
    found = await refused(api, "POST", "/api/v1/jobs", 422, json=sent)
    assert [one["field"] for one in found["errors"]] == [field]
    assert message in found["errors"][0]["message"]
