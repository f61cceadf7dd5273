"""`/api/runs`, previews and how things stand."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mainspring.core.model import Run
from mainspring.service.routes import health
from tests.service.routes.test_jobs import created, refused
from tests.support.service import Api, Make, until


async def finished(api: Api, **payload: Any) -> str:
    run = await api.ok("POST", "/api/jobs/greet/trigger", json={"payload": payload})
    run_id = str(run["data"]["id"])
    await api.scheduler.wait(run_id, 10)
    return run_id


async def test_a_run_is_told_with_its_attempts(working: Api) -> None:
    run_id = await finished(working, name="nobody")
    run = (await working.ok("GET", f"/api/runs/{run_id}"))["data"]
    assert (run["state"], run["jobId"], run["failures"]) == ("failed", "greet", 1)
    [attempt] = run["attempts"]
    assert attempt["outcome"] == "failed"
    assert "there is nobody" in attempt["error"]
    assert "Traceback" in attempt["traceback"]
    assert any("greeting nobody" in line for line in attempt["log"])
    for path in ("/api/runs/nowhere", "/api/runs/%00", "/api/runs/☃"):
        await refused(working, "GET", path, 404)


async def test_lists_of_runs(working: Api) -> None:
    good = [await finished(working, name=str(n)) for n in range(5)]
    bad = await finished(working, name="nobody")
    newest = [bad, *reversed(good)]
    found: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2, "job": "greet", **({"cursor": cursor} if cursor else {})}
        page = await working.ok("GET", "/api/runs", params=params)
        found += [run["id"] for run in page["data"]]
        if (cursor := page["cursor"]) is None:
            break
    assert found == newest

    async def listed(**params: Any) -> list[str]:
        answer = await working.ok("GET", "/api/runs", params=params)
        return [run["id"] for run in answer["data"]]

    assert await listed(state="failed") == [bad]
    assert await listed(state=["failed", "succeeded"]) == newest
    assert await listed(failing=True) == [bad]
    assert await listed(job="report") == []
    middle = (await working.ok("GET", f"/api/runs/{good[2]}"))["data"]["createdAt"]
    # Times are told in milliseconds and kept in microseconds.
    assert set(await listed(since=middle)) | {good[2]} == {bad, *good[2:]}
    assert await listed(until="2020-01-01") == []
    for wrong in (
        {"state": "lost"},
        {"since": "yesterday"},
        {"cursor": "x"},
        {"limit": 0},
    ):
        await refused(working, "GET", "/api/runs", 422, params=wrong)


async def test_cancel_and_retry(working: Api) -> None:
    api = working
    run = (await api.ok("POST", "/api/jobs/forever/trigger"))["data"]["id"]

    async def running() -> bool:
        return bool((await api.ok("GET", f"/api/runs/{run}"))["data"]["state"] == "running")

    await until(running)
    executions = await api.ok("GET", "/api/jobs/forever/executions")
    assert [one["status"] for one in executions["data"]] == ["running"]
    await api.ok("POST", f"/api/runs/{run}/cancel")
    assert (await api.scheduler.wait(run, 10)).state == "cancelled"
    document = await refused(api, "POST", f"/api/runs/{run}/cancel", 409)
    assert "cancelled" in document["error"]
    await api.ok("POST", f"/api/runs/{run}/retry")
    await until(running)
    await refused(api, "POST", f"/api/runs/{run}/retry", 409)
    await refused(api, "DELETE", f"/api/runs/{run}", 409)
    await api.ok("POST", f"/api/runs/{run}/cancel")
    await api.scheduler.wait(run, 10)
    await api.ok("DELETE", f"/api/runs/{run}")
    await refused(api, "GET", f"/api/runs/{run}", 404)


@pytest.mark.parametrize("taken", [False, True])
async def test_a_run_of_a_deleted_job_is_not_tried_again(api: Api, taken: bool) -> None:
    """Also where another job has its id by now: it has nothing to do with it."""
    job_id = await created(api, id="mine")
    run = (await api.ok("POST", f"/api/jobs/{job_id}/trigger"))["data"]["id"]
    await api.ok("DELETE", f"/api/jobs/{job_id}")
    if taken:
        await created(api, id="mine")
    told = await refused(api, "POST", f"/api/runs/{run}/retry", 409)
    assert told["error"] == f"run {run} cannot be tried again: its job 'mine' was removed"
    bulk = await api.ok("POST", "/api/runs/bulk", json={"action": "retry", "ids": [run]})
    assert bulk["data"] == {"matched": 1, "done": 0, "more": False}
    stands = (await api.ok("GET", f"/api/runs/{run}"))["data"]
    assert (stands["state"], stands["reason"]) == ("cancelled", "job removed")


async def test_all_that_match(api: Api) -> None:
    await api.scheduler.enqueue_many("greet", [{"name": str(n)} for n in range(30)])
    kept = await api.scheduler.enqueue("report")
    done = await api.ok(
        "POST",
        "/api/runs/bulk",
        json={"action": "cancel", "match": {"job": "greet", "state": "pending"}, "limit": 20},
    )
    assert done["data"] == {"matched": 20, "done": 20, "more": True}
    await api.ok("POST", "/api/runs/bulk", json={"action": "cancel", "match": {"job": "greet"}})
    match = {"job": "greet", "state": ["cancelled"], "since": "2020-01-01T00:00:00Z"}
    again = await api.ok("POST", "/api/runs/bulk", json={"action": "retry", "match": match})
    assert again["data"]["done"] == 30
    await api.ok("POST", "/api/runs/bulk", json={"action": "cancel", "match": {"job": "greet"}})
    gone = await api.ok("POST", "/api/runs/bulk", json={"action": "delete", "match": {}})
    assert gone["data"]["done"] == 30
    assert [run["id"] for run in (await api.ok("GET", "/api/runs"))["data"]] == [kept.id]
    one = await api.ok("POST", "/api/runs/bulk", json={"action": "cancel", "ids": [kept.id, "x"]})
    assert one["data"]["done"] == 1
    for wrong in (
        {"action": "cancel"},
        {"action": "shred", "match": {}},
        {"action": "cancel", "match": {"state": "lost"}},
        {"action": "cancel", "match": {"jobs": "x"}},
        {"action": "cancel", "ids": []},
    ):
        await refused(api, "POST", "/api/runs/bulk", 422, json=wrong)


async def test_preview_lists_the_next_slots(api: Api) -> None:
    body = {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "after": "2027-03-27T00:00:00Z"}
    data = (await api.ok("POST", "/api/schedules/preview", json={**body, "count": 2}))["data"]
    assert [slot["local"] for slot in data["slots"]] == [
        "2027-03-27T02:30:00.000+01:00",
        "2027-03-28T03:00:00.000+02:00",
    ]
    assert data["slots"][0]["utc"] == "2027-03-27T01:30:00.000Z"
    assert "does not exist" in data["warnings"][0]
    assert "02:30" in data["description"]
    every = await api.ok("POST", "/api/schedules/preview", json={"every": 1500, "count": 3})
    assert len(every["data"]["slots"]) == 3
    for wrong in (
        {},
        {"schedule": "x"},
        {"schedule": "@daily", "every": 5},
        {"every": "9999999d"},
        {"runAt": "0001-01-01T00:00:00+14:00"},
        {"schedule": "@daily", "count": 1001},
    ):
        await refused(api, "POST", "/api/schedules/preview", 422, json=wrong)


@pytest.mark.parametrize("after", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
async def test_previews_at_the_ends_of_the_calendar(api: Api, after: str) -> None:
    body = {"schedule": "@yearly", "after": after}
    answer = await api.post("/api/schedules/preview", json=body)
    assert answer.status_code == 200, answer.text


async def test_statistics_and_health(working: Api) -> None:
    api = working
    await finished(api, name="Ada")
    await finished(api, name="nobody")
    stats = (await api.ok("GET", "/api/observability/stats"))["data"]
    assert stats["executions"] == {"total": 2, "successful": 1, "failed": 1, "last24Hours": 2}
    assert stats["jobs"] == {"total": 3, "enabled": 3}
    failures = (await api.ok("GET", "/api/observability/failures"))["data"]
    assert [one["jobId"] for one in failures] == ["greet"]
    assert "there is nobody" in failures[0]["errorMessage"]


async def test_a_failed_attempt_is_told_while_its_run_goes_on(working: Api) -> None:
    api = working
    tries = []

    @api.scheduler.job(retries=1, retry_delay="10ms")
    async def shaky() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("the first time")

    run = (await api.ok("POST", "/api/jobs/shaky/trigger"))["data"]["id"]
    await api.scheduler.wait(run, 10)
    [failure] = (await api.ok("GET", "/api/observability/failures"))["data"]
    assert (failure["attempt"], failure["status"]) == (1, "failure")
    executions = (await api.ok("GET", "/api/jobs/shaky/executions"))["data"]
    assert [one["attempt"] for one in executions] == [2, 1]
    assert [one["status"] for one in executions] == ["success", "failure"]
    assert [one["_id"] for one in executions] == [f"{run}:2", f"{run}:1"]


async def test_probes(make: Make) -> None:
    from mainspring.stores.memory import MemoryStore
    from mainspring.testing import FaultyStore
    from tests.support.engine import SwitchableFaults
    from tests.support.service import sample_scheduler

    faults = SwitchableFaults()
    store: Any = FaultyStore(MemoryStore(), faults)
    api: Api = await make(sample_scheduler(store, workers=1))
    assert (await api.get("/readyz")).status_code == 200
    faults.failing.add("jobs")
    away = await api.get("/readyz")
    assert (away.status_code, away.json()) == (503, {"status": "the store is away"})
    health = (await api.get("/api/observability/health")).json()
    assert (health["success"], health["status"]) == (False, "degraded")
    listed = await api.get("/api/jobs")
    assert listed.status_code == 503
    assert "retry-after" in listed.headers
    faults.failing.clear()

    async def ready() -> bool:
        return (await api.get("/readyz")).status_code == 200

    await until(ready)
    api.app.state.service.draining.set()
    assert (await api.get("/readyz")).status_code == 503
    faults.failing.add("*")
    assert (await api.get("/livez")).status_code == 200


async def test_an_engine_that_does_not_answer_is_not_ready(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ENGINE_SECONDS", 0.2)
    api: Api = await make(workers=1)
    go = threading.Event()

    async def block() -> None:
        go.wait(10)

    blocked = asyncio.create_task(api.scheduler._call(block()))
    await asyncio.sleep(0)
    answer = await api.get("/readyz")
    assert (answer.status_code, "did not answer" in answer.json()["status"]) == (503, True)
    assert (await api.get("/livez")).status_code == 200
    go.set()
    await blocked
    assert (await api.get("/readyz")).status_code == 200


async def test_bulk_actions_can_be_bound_to_runs_with_a_failed_attempt(working: Api) -> None:
    scheduler = working.scheduler
    made = [await scheduler.enqueue("greet", {"name": name}) for name in ("nobody", "ada")]
    for run in made:
        await scheduler.wait(run.id)
    body = {"action": "delete", "match": {"failing": True}}
    done = await working.ok("POST", "/api/v1/runs/bulk", json=body)
    assert done == {"matched": 1, "done": 1, "more": False}
    assert [run.id for run in (await scheduler.list_runs()).items] == [made[1].id]
    for wrong in (None, "yes", 1):
        body = {"action": "delete", "match": {"failing": wrong}}
        await refused(working, "POST", "/api/runs/bulk", 422, json=body)


async def test_a_stopped_scheduler_is_told(make: Make) -> None:
    api: Api = await make(workers=0)
    await api.scheduler.stop()
    assert (await api.get("/api/jobs")).status_code == 503
    assert (await api.get("/readyz")).status_code == 503
    await asyncio.sleep(0)


async def test_the_runs_of_a_job_with_the_longest_id_can_be_named(api: Api) -> None:
    job = "j" * 200
    await api.ok("POST", "/api/jobs", json={"handler": "greet", "schedule": None, "id": job})
    run, slot = f"{job}@20990101T000000Z", datetime(2099, 1, 1, tzinfo=UTC)  # as slots name theirs
    times: dict[str, Any] = dict.fromkeys(("created_at", "scheduled_at", "run_at"), slot)
    await api.scheduler.store.add([Run(id=run, job_id=job, handler="greet", **times)])
    assert (await api.ok("GET", f"/api/runs/{run}"))["data"]["state"] == "pending"
    body = {"action": "cancel", "ids": [run]}
    done = await api.ok("POST", "/api/runs/bulk", json=body)
    assert done["data"] == {"matched": 1, "done": 1, "more": False}
    for wrong in ("", "two words", "☃", "r" * 401):
        document = await refused(
            api, "POST", "/api/runs/bulk", 422, json={"action": "cancel", "ids": [wrong]}
        )
        assert document["errors"][0]["field"] == "ids.0"


@pytest.mark.parametrize("cursor", ["9" * 30, "-" + "9" * 30, "1e9"])
async def test_an_odd_cursor_is_told_and_breaks_nothing(
    make: Make, tmp_path: Path, cursor: str
) -> None:
    api: Api = await make(store=f"sqlite:///{tmp_path}/jobs.db", workers=0)
    told = await refused(api, "GET", "/api/runs", 422, params={"cursor": cursor})
    assert told["errors"][0]["field"] == "cursor"


@pytest.mark.parametrize("base", ["/api", "/api/v1"])
async def test_why_a_job_or_a_run_did_not_run(working: Api, base: str) -> None:
    async def explained(path: str, **params: str) -> Any:
        answer = await working.ok("GET", f"{base}/{path}/explain", params=params)
        return answer["data"] if base == "/api" else answer

    run_id = await finished(working, name="you")
    assert (await explained(f"runs/{run_id}"))["code"] == "succeeded"
    found = await explained("jobs/report", at="2020-01-01T09:00:00Z")
    assert (found["code"], found["jobId"], found["runId"]) == ("not_created", "report", None)
    assert found["facts"]["createdAt"].endswith("Z")
    assert (await explained("jobs/report"))["code"] == "not_due"
    await working.scheduler.add_job("clean", handler="greet", schedule="1h")
    clean = await working.ok("GET", f"{base}/jobs/clean")
    shown = (clean["data"] if base == "/api" else clean)["nextRunAt"]
    found = await explained("jobs/clean", at=shown)  # the slot itself has microseconds
    assert (found["code"], found["at"]) == ("not_due", shown)
    for path, status in (
        (f"jobs/{run_id}/explain", 404),
        ("runs/report/explain", 404),
        ("jobs/report/explain?at=soon", 422),
    ):
        assert (await working.request("GET", f"{base}/{path}")).status_code == status


@pytest.mark.parametrize("base", ["/api", "/api/v1"])
async def test_workers_are_listed(working: Api, base: str) -> None:
    answer = await working.ok("GET", f"{base}/workers")
    [worker] = answer["data"] if base == "/api" else answer["items"]
    assert "report" in worker["handlers"]
    assert worker["capacity"] == working.scheduler.workers
    assert worker["id"].startswith(f"{worker['node']}:{worker['pid']}:")
