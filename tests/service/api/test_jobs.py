"""`/api/v1/jobs` beyond the page."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from mainspring.core.model import Note, replace
from mainspring.errors import InvalidSchedule
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import JobWrite
from mainspring.testing import FaultyStore
from tests.support.engine import SwitchableFaults
from tests.support.service import WEBHOOK, Api, Make, sample_scheduler
from tests.support.service_calls import created, job, refused


async def test_every_field_is_kept_and_given_back(api: Api) -> None:
    fields = {
        "name": "Daily report (EU)",
        "description": "numbers",
        "tags": ["mail", "eu"],
        "timezone": "Europe/Berlin",
        "timeout": "45s",
        "priority": 8,
        "queue": "mail",
        "concurrency": 2,
        "concurrencyKey": "smtp",
        "overlap": "queue",
        "misfire": {"kind": "all", "grace": 5000, "limit": 7},
        "backoff": {"kind": "linear", "factor": 3, "cap": "10m", "jitter": False},
        "retryAttempts": 4,
        "retryDelay": "2s",
        "breaker": {"failures": 3, "reset": 30_000},
        "startDeadline": 60_000,
        "retention": 86_400_000,
        "history": 25,
        "successCodes": [200, "202-204"],
        "retryOn": ["5xx", 429],
        "jitter": 1500,
        "metadata": {"team": "x"},
    }
    assert await created(api, **fields) == "daily-report-eu"
    stored = await job(api, "daily-report-eu")
    assert stored["name"] == "Daily report (EU)"
    assert stored["misfire"] == {"kind": "all", "grace": 5000, "limit": 7}
    assert stored["backoff"] == {"kind": "linear", "factor": 3, "cap": 600_000, "jitter": 0}
    assert stored["breaker"] == {"failures": 3, "reset": 30_000}
    assert (stored["timeout"], stored["retryDelay"]) == (45_000, 2000)
    assert stored["successCodes"] == [200, "202-204"]
    assert stored["retryOn"] == [429, "500-599"]
    for name in (
        *("description", "tags", "timezone", "priority", "queue", "concurrency", "jitter"),
        *("concurrencyKey", "overlap", "retryAttempts", "startDeadline", "metadata"),
        *("retention", "history"),
    ):
        assert stored[name] == fields[name], name


async def test_what_was_read_can_be_sent_back_whole(api: Api) -> None:
    """Secrets are masked on the way out; the mask on the way in leaves them as they are."""
    job_id = await created(api, name="Mine", misfire="skip", successCodes=["2xx"])
    read = await job(api, job_id)
    stored = await api.scheduler.get_job(job_id)
    answer = await api.ok("PATCH", f"/api/v1/jobs/{job_id}", json={**read, "priority": 9})
    changed = {"priority": 9, "origins": {**read["origins"], "priority": "job"}}
    assert {**read, **changed, "updatedAt": answer["updatedAt"]} == answer
    after = await api.scheduler.get_job(job_id)
    assert stored.webhook is not None
    assert after.webhook == stored.webhook
    assert after.schedule == stored.schedule


async def test_an_edit_touches_what_it_names_and_nothing_else(api: Api) -> None:
    job_id = await created(api, priority=3, tags=["a"])
    before = await job(api, job_id)
    answer = await api.ok(
        "PATCH",
        f"/api/v1/jobs/{job_id}",
        json={
            "description": "new",
            "_id": job_id,
            "createdAt": "1999-01-01T00:00:00.000Z",
            "nextRunAt": "1999-01-01T00:00:00.000Z",
            "owner": "code",
        },
    )
    now = answer
    assert now["description"] == "new"
    assert {k: v for k, v in now.items() if k not in ("description", "updatedAt")} == {
        k: v for k, v in before.items() if k not in ("description", "updatedAt")
    }
    wrong = await refused(api, "PATCH", f"/api/v1/jobs/{job_id}", 422, json={"version_": 3})
    assert wrong["errors"][0]["field"] == "version_"


async def test_another_schedule_keeps_zone_and_jitter(api: Api) -> None:
    job_id = await created(api, timezone="Asia/Kolkata", jitter=500)
    path = f"/api/v1/jobs/{job_id}"
    data = await api.ok("PATCH", path, json={"schedule": "0 9 * * *"})
    assert (data["timezone"], data["jitter"]) == ("Asia/Kolkata", 500)
    assert data["nextRunAt"].endswith("03:30:00.000Z")
    data = await api.ok("PATCH", path, json={"timezone": "UTC"})
    assert (data["timezone"], data["jitter"]) == ("UTC", 500)
    assert data["nextRunAt"].endswith("09:00:00.000Z")
    data = await api.ok("PATCH", path, json={"jitter": None})
    assert (data["schedule"], data["jitter"]) == ("0 9 * * *", None)
    data = await api.ok("PATCH", path, json={"schedule": None, "timezone": "UTC"})
    assert (data["schedule"], data["nextRunAt"]) == (None, None)


async def test_a_job_that_moves_to_another_host_leaves_its_secrets_behind(api: Api) -> None:
    job_id = await created(api)
    moved = {"endpoint": "https://evil.example/steal"}
    answer = await api.ok("PATCH", f"/api/v1/jobs/{job_id}", json=moved)
    assert "Authorization" not in answer["headers"]
    read = await created(api)
    whole = {**await job(api, read), **moved}
    told = await refused(api, "PATCH", f"/api/v1/jobs/{read}", 422, json=whole)
    assert told["errors"][0]["field"] == "headers"
    assert "there is none for Authorization at this host" in told["detail"]


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("scheduel", "schedule"),
        ("methd", "method"),
        ("cron", "schedule"),
        ("url", "endpoint"),
        ("retries", "retryAttempts"),
        ("maxRetries", "retryAttempts"),
        ("action", "handler"),
    ],
)
async def test_an_unknown_field_is_refused_with_the_one_that_was_meant(
    api: Api, field: str, meant: str
) -> None:
    sent = {**WEBHOOK, field: "x"}
    document = await refused(api, "POST", "/api/v1/jobs", 422, json=sent)
    [message] = [one["message"] for one in document["errors"] if one["field"] == field]
    assert f"there is no such field (did you mean {meant!r}?)" in message


async def test_at_most_once_takes_no_retries(api: Api) -> None:
    job_id = await created(api, executionType="AT_MOST_ONCE")
    stored = await job(api, job_id)
    assert (stored["executionType"], stored["retryAttempts"]) == ("AT_MOST_ONCE", 0)
    other = await created(api, retryAttempts=3)
    changed = {"executionType": "AT_MOST_ONCE"}
    answer = await api.ok("PATCH", f"/api/v1/jobs/{other}", json=changed)
    assert answer["retryAttempts"] == 0
    whole = {**await job(api, await created(api, retryAttempts=3)), **changed}
    answer = await api.ok("PATCH", f"/api/v1/jobs/{whole['id']}", json=whole)
    assert answer["retryAttempts"] == 0


async def test_intervals_dates_and_no_schedule_at_all(api: Api) -> None:
    base = {"endpoint": "https://a.example/"}
    every = await api.ok("POST", "/api/v1/jobs", json={**base, "every": "90s"})
    stored = await job(api, every["id"])
    assert (stored["every"], stored["schedule"]) == (90_000, "90s")
    once = await api.ok("POST", "/api/v1/jobs", json={**base, "runAt": "2099-05-01T10:00:00+02:00"})
    assert once["nextRunAt"] == "2099-05-01T08:00:00.000Z"
    past = await refused(
        api, "POST", "/api/v1/jobs", 422, json={**base, "runAt": "1999-05-01T10:00:00Z"}
    )
    assert "is over" in past["detail"]
    assert "1999-05-01T10:00:00+00:00, has passed: give a later time" in past["detail"]
    manual = await api.ok("POST", "/api/v1/jobs", json={**base, "schedule": None})
    assert manual["nextRunAt"] is None
    changed = await api.ok(
        "PATCH", f"/api/v1/jobs/{manual['id']}", json={"schedule": "RRULE:FREQ=DAILY"}
    )
    assert changed["nextRunAt"] is not None
    again = await api.ok("PATCH", f"/api/v1/jobs/{manual['id']}", json={**changed, "priority": 1})
    assert again["nextRunAt"] == changed["nextRunAt"]


async def test_a_name_is_an_id_and_two_of_one_name_conflict(api: Api) -> None:
    assert await created(api, name="Über uns") == "uber-uns"
    document = await refused(api, "POST", "/api/v1/jobs", 409, json={**WEBHOOK, "name": "Uber Uns"})
    assert "uber-uns" in document["detail"]
    assert await created(api) != await created(api)


async def test_an_id_that_is_made_holds_nothing_of_the_path(api: Api) -> None:
    """Slack's and Discord's addresses hold their token there; ids are in metrics and logs."""
    made = await created(api, endpoint="https://hooks.example.com/services/T0K3N/s3cret?key=k")
    assert re.fullmatch(r"hooks\.example\.com-[0-9a-f]{8}", made)


async def test_pause_resume_and_trigger(working: Api) -> None:
    api = working
    await api.ok("POST", "/api/v1/jobs", json={"handler": "greet", "every": "1h", "id": "mine"})
    paused = await api.ok("POST", "/api/v1/jobs/mine/pause")
    assert (paused["enabled"], paused["nextRunAt"]) == (False, None)
    run = await api.ok("POST", "/api/v1/jobs/mine/trigger", json={"payload": {"name": "Ada"}})
    done = await api.scheduler.wait(run["id"], 10)
    assert done.result == "hello Ada"
    resumed = await api.ok("POST", "/api/v1/jobs/mine/resume")
    assert resumed["nextRunAt"] is not None
    wrong = await refused(
        api, "POST", "/api/v1/jobs/mine/trigger", 422, json={"payload": {"nme": "x"}}
    )
    assert "nme" in wrong["detail"]


async def test_an_open_breaker_is_reset(working: Api) -> None:
    api = working
    breaker = {"failures": 1, "reset": "1h"}
    body = {"handler": "greet", "id": "mine", "schedule": None, "breaker": breaker}
    await api.ok("POST", "/api/v1/jobs", json=body)
    run = await api.ok("POST", "/api/v1/jobs/mine/trigger", json={"payload": {"name": "nobody"}})
    await api.scheduler.wait(run["id"], 10)
    while (await api.scheduler.job_health("mine")).breaker != "open":
        await asyncio.sleep(0.01)
    await api.ok("POST", "/api/v1/jobs/mine/breaker/reset")
    assert (await api.scheduler.job_health("mine")).breaker == "closed"
    await api.ok("POST", "/api/v1/jobs", json={**body, "id": "plain", "breaker": None})
    without = await refused(api, "POST", "/api/v1/jobs/plain/breaker/reset", 409)
    assert "has no circuit breaker to reset" in without["detail"]
    await refused(api, "POST", "/api/v1/jobs/nobody/breaker/reset", 404)


async def test_handlers_by_name(api: Api) -> None:
    body = {"handler": "greet", "schedule": "@hourly", "payload": {"name": "Ada"}}
    job_id = (await api.ok("POST", "/api/v1/jobs", json=body))["id"]
    stored = await job(api, job_id)
    assert (stored["handler"], stored["payload"]) == ("greet", {"name": "Ada"})
    assert stored["retryAttempts"] == 0
    # An instance without workers cannot know which handlers the workers have.
    sent = {"id": "elsewhere", "handler": "of_a_worker", "schedule": None}
    await api.ok("POST", "/api/v1/jobs", json=sent)
    assert (await job(api, "elsewhere"))["handler"] == "of_a_worker"


async def test_a_worker_refuses_a_handler_that_it_does_not_have(working: Api) -> None:
    body = {"handler": "nobody", "schedule": None}
    unknown = await refused(working, "POST", "/api/v1/jobs", 422, json=body)
    assert "greet" in unknown["detail"]


async def test_what_code_owns_can_be_switched_and_run_but_not_edited(working: Api) -> None:
    api = working
    for method, options in (("PATCH", {"json": {"priority": 1}}), ("DELETE", {})):
        document = await refused(api, method, "/api/v1/jobs/report", 409, **options)
        assert "defined in code" in document["detail"]
    await api.ok("POST", "/api/v1/jobs/report/pause")
    run = await api.ok("POST", "/api/v1/jobs/report/trigger")
    assert (await api.scheduler.wait(run["id"], 10)).result == {"rows": 3}
    await api.ok("POST", "/api/v1/jobs/report/resume")
    paused = await api.ok("PATCH", "/api/v1/jobs/report", json={"enabled": False})
    assert paused["nextRunAt"] is None
    whole = {**await job(api, "report"), "enabled": True}
    assert (await api.ok("PATCH", "/api/v1/jobs/report", json=whole))["enabled"] is True
    more = {**whole, "enabled": False, "tags": ["x"]}
    await refused(api, "PATCH", "/api/v1/jobs/report", 409, json=more)


async def test_a_create_that_is_sent_again_makes_one_job(api: Api) -> None:
    headers = {"Idempotency-Key": "abc"}
    answers = await asyncio.gather(
        *(api.post("/api/v1/jobs", json=WEBHOOK, headers=headers) for _ in range(6))
    )
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len((await api.ok("GET", "/api/v1/jobs?search=example"))["items"]) == 1
    later = await api.post("/api/v1/jobs", json=WEBHOOK, headers=headers)
    assert later.headers["idempotency-replayed"] == "true"
    assert "signingSecret" not in later.json()
    other = {**WEBHOOK, "priority": 1}
    document = await refused(api, "POST", "/api/v1/jobs", 422, json=other, headers=headers)
    assert "another body" in document["detail"]


async def test_a_crash_between_the_key_and_the_job_is_harmless(api: Api) -> None:
    headers = {"Idempotency-Key": "abc"}
    await api.ok("POST", "/api/v1/jobs", json=WEBHOOK, headers=headers)
    [note] = (await api.scheduler.list_notes("idempotency")).items
    # As it would be had the process died before the job was made, and before it was finished.
    begun = {**note.value, "answer": None}
    await api.scheduler.put_note(
        Note(kind=note.kind, name=note.name, value=begun, version=note.version)
    )
    again = await api.ok("POST", "/api/v1/jobs", json=WEBHOOK, headers=headers)
    assert again["id"] == note.value["job"]
    assert len((await api.ok("GET", "/api/v1/jobs?search=example"))["items"]) == 1


PLAIN = {"every": "15m", "endpoint": "https://api.example.com/sync"}


@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("what", ["put_jobs", "put_notes"])
async def test_a_create_that_the_store_failed_is_safe_to_send_again(
    make: Make, what: str, lost: str
) -> None:
    """Also where the job was made, and only the answer was lost."""
    faults = SwitchableFaults()
    faults.error = lost
    api: Api = await make(sample_scheduler(FaultyStore(MemoryStore(), faults), workers=0))
    headers = {"Idempotency-Key": "abc"}
    faults.failing = {what}
    await refused(api, "POST", "/api/v1/jobs", 503, json=PLAIN, headers=headers)
    made = (await api.ok("GET", "/api/v1/jobs?search=example"))["items"]
    assert len(made) == (1 if (what, lost) == ("put_jobs", "after") else 0)
    faults.failing = set()
    again = [await api.ok("POST", "/api/v1/jobs", json=PLAIN, headers=headers) for _ in range(2)]
    [stored] = (await api.ok("GET", "/api/v1/jobs?search=example"))["items"]
    assert [one["id"] for one in again] == [stored["id"]] * 2


@pytest.mark.parametrize("given", [{}, {"id": "example"}])
async def test_a_create_that_was_done_is_not_refused_when_it_is_sent_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    """Its one time may be over by then."""
    faults = SwitchableFaults()
    faults.error = "after"
    api: Api = await make(sample_scheduler(FaultyStore(MemoryStore(), faults), workers=0))
    faults.failing = {"put_jobs"}
    sent = {"json": {**PLAIN, **given}, "headers": {"Idempotency-Key": "abc"}}
    await refused(api, "POST", "/api/v1/jobs", 503, **sent)
    faults.failing = set()

    async def over(*given: Any, **more: Any) -> None:
        raise InvalidSchedule("it is over")

    monkeypatch.setattr(api.scheduler, "add_job", over)
    again = await api.ok("POST", "/api/v1/jobs", **sent)
    [stored] = (await api.ok("GET", "/api/v1/jobs?search=example"))["items"]
    assert again["id"] == stored["id"]


async def test_a_dry_run_shows_the_request_and_keeps_nothing(api: Api) -> None:
    heard: list[Any] = []
    api.scheduler.on("job.created", heard.append)
    body = {**WEBHOOK, "name": "Try", "endpoint": "https://a.example/{{jobId}}"}
    shown = await api.ok("POST", "/api/v1/jobs?dryRun=true", json=body)
    assert (shown["method"], shown["url"]) == ("POST", "https://a.example/try")
    assert shown["headers"]["Authorization"] == "********"
    assert shown["headers"]["webhook-signature"].startswith("v1,")
    assert "{{" not in shown["body"]
    assert len((await api.ok("GET", "/api/v1/jobs?search=try"))["items"]) == 0
    assert heard == []
    made = await api.ok("POST", "/api/v1/jobs", json=body)
    assert made["nextRunAt"] == shown["nextRunAt"]
    path, payload = f"/api/v1/jobs/{made['id']}/trigger?dryRun=true", {"job": "{{jobId}}"}
    shown = await api.ok("POST", path, json={"payload": payload})
    assert (shown["url"], shown["body"]) == ("https://a.example/try", '{"job":"try"}')
    assert (await api.ok("GET", "/api/v1/runs"))["items"] == []
    await refused(api, "POST", "/api/v1/jobs/greet/trigger?dryRun=true", 422)


async def test_many_jobs_at_once(api: Api) -> None:
    jobs = [{**WEBHOOK, "id": "a", "tags": ["x"]}, {"schedule": "nope"}, {**WEBHOOK, "id": "b"}]
    made = await api.ok("POST", "/api/v1/jobs/bulk", json={"jobs": jobs})
    assert (made["succeeded"], made["failed"], made["matched"]) == (2, 1, 3)
    assert [one["succeeded"] for one in made["items"]] == [True, False, True]
    wrong = made["items"][1]["problem"]["errors"]
    assert {one["field"] for one in wrong} == {"endpoint", "schedule"}
    paused = await api.ok(
        "POST", "/api/v1/jobs/bulk", json={"action": "pause", "match": {"tag": "x"}}
    )
    assert [one["id"] for one in paused["items"]] == ["a"]
    assert (await job(api, "a"))["enabled"] is False
    run = await api.ok("POST", "/api/v1/jobs/bulk", json={"action": "trigger", "ids": ["a", "b"]})
    assert len((await api.ok("GET", "/api/v1/runs"))["items"]) == run["succeeded"] == 2
    gone = await api.ok(
        "POST", "/api/v1/jobs/bulk", json={"action": "delete", "ids": ["a", "b", "report", "none"]}
    )
    assert [one.get("problem", {}).get("status") for one in gone["items"]] == [
        *(None, None, 409, 404)
    ]
    await refused(api, "POST", "/api/v1/jobs/bulk", 422, json={"action": "delete"})


async def test_past_slots_are_backfilled_once(api: Api) -> None:
    path = "/api/v1/jobs/report/backfill"
    body = {"start": "2026-01-05T00:00:00", "end": "2026-01-08T00:00:00Z", "limit": 2}

    async def backfilled(**params: Any) -> Any:
        return await api.ok("POST", path, json=body, params=params)

    plan = await backfilled(dryRun=True)
    assert (plan["slots"], len(plan["added"])) == (3, 2)
    first = await backfilled()
    assert first["added"] == plan["added"] == ["report@20260105T090000Z", "report@20260106T090000Z"]
    assert (first["nextSlot"], first["mayHaveRun"]) == ("2026-01-07T09:00:00.000Z", 2)
    second = await backfilled()
    assert second["added"] == ["report@20260107T090000Z"]
    assert second["existing"] == dict.fromkeys(first["added"], "pending")
    wrong = {"start": "2026-01-05", "end": "2099-01-01", "limit": 2}
    answer = await api.request("POST", path, json=wrong)
    assert answer.status_code == 422
    assert "runs slots of the past" in answer.text
    assert (await api.request("POST", path, json={**body, "limit": 0})).status_code == 422


async def test_jobs_of_code_that_is_gone_are_removed(working: Api) -> None:
    path = "/api/v1/jobs/prune-orphans"

    async def pruned(**params: Any) -> Any:
        return await working.ok("POST", path, params=params)

    assert await pruned(dryRun=True) == {"jobs": [], "removed": False}
    [gone] = (await working.scheduler.list_jobs(ids=["report"])).items
    write = JobWrite.add(replace(gone, id="gone", handler="gone"))
    assert await working.scheduler.store.put_jobs([write]) == [True]
    assert await pruned(dryRun=True) == {"jobs": ["gone"], "removed": False}
    assert await pruned() == {"jobs": ["gone"], "removed": True}
    assert await pruned() == {"jobs": [], "removed": True}


async def test_origins_tell_what_was_sent_from_what_is_a_default(api: Api) -> None:
    one = await job(api, await created(api, timeout="45s"))
    origins = one["origins"]
    assert (one["retryAttempts"], origins["retryAttempts"]) == (3, "defaults")
    assert (origins["timeout"], origins["backoff"]) == ("job", "defaults")
    assert origins["priority"] == "built_in"
    path = f"/api/v1/jobs/{one['id']}"
    edited = await api.ok("PATCH", path, json={**one, "priority": 7})
    assert edited["origins"] == {**origins, "priority": "job"}


async def test_defaults_of_the_scheduler_come_before_those_of_the_service(make: Make) -> None:
    scheduler = sample_scheduler(defaults={"retries": 1, "backoff": "linear", "queue": "calls"})
    api: Api = await make(scheduler)
    one = await job(api, await created(api, queue="mail"))
    assert (one["retryAttempts"], one["backoff"]["kind"], one["queue"]) == (1, "linear", "mail")
    once = await job(api, await created(api, executionType="AT_MOST_ONCE"))
    assert (once["retryAttempts"], once["queue"]) == (0, "calls")


@pytest.mark.parametrize(
    "fields",
    [
        {**WEBHOOK, "headers": {"X-Team": "data"}},
        {"endpoint": "https://a.example/", "every": "90s", "breaker": None},
        {"endpoint": "https://a.example/", "runAt": "2099-05-01T10:00:00Z", "tags": ["a"]},
        {"handler": "greet", "schedule": None, "payload": {"name": "Ada"}},
        {"handler": "greet", "schedule": "RRULE:FREQ=DAILY", "timezone": "Asia/Tokyo"},
    ],
)
async def test_a_job_that_was_read_can_be_sent_as_a_copy(api: Api, fields: Any) -> None:
    await api.ok("POST", "/api/v1/jobs", json={**fields, "id": "first"})
    read = await job(api, "first")
    copy = await api.ok("POST", "/api/v1/jobs", json={**read, "id": "copy", "name": None})
    own = {"id", "name", "origins", "createdAt", "updatedAt", "nextRunAt", "signingSecret"}
    assert {name: copy[name] for name in copy if name not in own} == {
        name: read[name] for name in read if name not in own
    }


async def test_a_copy_of_a_job_with_secrets_needs_them_again(api: Api) -> None:
    read = await job(api, await created(api, id="first"))
    told = await refused(api, "POST", "/api/v1/jobs", 422, json={**read, "id": "copy"})
    assert "there is none for Authorization at this host" in told["detail"]
    two = {**read, "id": "copy", "headers": {}, "secretHeaders": [], "every": 7000}
    told = await refused(api, "POST", "/api/v1/jobs", 422, json=two)
    assert {one["field"] for one in told["errors"]} == {"schedule", "every"}


async def test_all_firing_is_paused_and_resumed(api: Api) -> None:
    since = (await api.ok("POST", "/api/v1/pause"))["pausedSince"]
    assert since is not None
    health = await api.ok("GET", "/api/v1/health")
    assert (health["pausedSince"], health["status"]) == (since, "healthy")
    assert "mainspring_firing_paused 1.0" in (await api.get("/metrics")).text
    assert (await api.get("/readyz")).status_code == 200
    assert await api.ok("POST", "/api/v1/resume") == {"pausedSince": None}
    assert (await api.ok("GET", "/api/v1/health"))["pausedSince"] is None


async def test_isolation_memory_limit_and_delivery_of_a_handler(api: Api) -> None:
    sent = {"id": "a", "handler": "elsewhere", "schedule": None}
    chosen = {"isolation": "process", "memoryLimit": "512MiB", "executionType": "AT_MOST_ONCE"}
    made = await api.ok("POST", "/api/v1/jobs", json={**sent, **chosen})
    assert (made["isolation"], made["memoryLimit"]) == ("process", 512 * 2**20)
    effects = {"executionType": "EFFECT_ONCE", "isolation": None, "memoryLimit": None}
    changed = await api.ok("PATCH", "/api/v1/jobs/a", json=effects)
    assert {name: changed[name] for name in effects} == {**effects, "isolation": "auto"}
    refused_fields = {"id": "b", "memoryLimit": "1GB"}
    document = await refused(api, "POST", "/api/v1/jobs", 422, json={**sent, **refused_fields})
    assert document["errors"][0]["field"] == "memoryLimit"
