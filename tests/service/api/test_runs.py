"""`/api/v1/runs`: one run, lists of runs, what is done with many, chains and workflows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mainspring import Scheduler
from tests.support.service import Api, Make, sample_scheduler, until
from tests.support.service_calls import created, finished, refused


async def test_a_run_is_told_with_its_attempts(working: Api) -> None:
    run_id = await finished(working, name="nobody")
    run = await working.ok("GET", f"/api/v1/runs/{run_id}")
    assert (run["state"], run["jobId"], run["failures"]) == ("failed", "greet", 1)
    [attempt] = run["attempts"]
    assert attempt["outcome"] == "failed"
    assert "there is nobody" in attempt["error"]
    assert "Traceback" in attempt["traceback"]
    assert any("greeting nobody" in line for line in attempt["log"])
    for path in ("/api/v1/runs/nowhere", "/api/v1/runs/%00", "/api/v1/runs/☃"):
        await refused(working, "GET", path, 404)


async def test_lists_of_runs(working: Api) -> None:
    good = [await finished(working, name=str(n)) for n in range(5)]
    bad = await finished(working, name="nobody")
    newest = [bad, *reversed(good)]
    found: list[str] = []
    cursor = None
    while True:
        params = {"limit": 2, "job": "greet", **({"cursor": cursor} if cursor else {})}
        page = await working.ok("GET", "/api/v1/runs", params=params)
        found += [run["id"] for run in page["items"]]
        if (cursor := page["nextCursor"]) is None:
            break
    assert found == newest

    async def listed(**params: Any) -> list[str]:
        answer = await working.ok("GET", "/api/v1/runs", params=params)
        return [run["id"] for run in answer["items"]]

    assert await listed(state="failed") == [bad]
    assert await listed(state=["failed", "succeeded"]) == newest
    assert await listed(failing=True) == [bad]
    assert await listed(timedOut=True) == []
    assert await listed(job="report") == []
    middle = (await working.ok("GET", f"/api/v1/runs/{good[2]}"))["createdAt"]
    # Times are told in milliseconds and kept in microseconds.
    assert set(await listed(since=middle)) | {good[2]} == {bad, *good[2:]}
    assert await listed(until="2020-01-01") == []
    for wrong in (
        {"state": "lost"},
        {"since": "yesterday"},
        {"cursor": "x"},
        {"limit": 0},
    ):
        await refused(working, "GET", "/api/v1/runs", 422, params=wrong)


async def test_cancel_and_retry(working: Api) -> None:
    api = working
    triggered = await api.post("/api/v1/jobs/forever/trigger")
    run = triggered.json()["id"]
    assert triggered.headers["location"] == f"/api/v1/runs/{run}"

    async def running() -> bool:
        return bool((await api.ok("GET", f"/api/v1/runs/{run}"))["state"] == "running")

    await until(running)
    await api.ok("POST", f"/api/v1/runs/{run}/cancel")
    assert (await api.scheduler.wait(run, 10)).state == "cancelled"
    document = await refused(api, "POST", f"/api/v1/runs/{run}/cancel", 409)
    assert (document["code"], "cancelled" in document["detail"]) == ("invalid_state", True)
    await api.ok("POST", f"/api/v1/runs/{run}/retry")
    await until(running)
    await refused(api, "POST", f"/api/v1/runs/{run}/retry", 409)
    await refused(api, "DELETE", f"/api/v1/runs/{run}", 409)
    await api.ok("POST", f"/api/v1/runs/{run}/cancel")
    await api.scheduler.wait(run, 10)
    await api.ok("DELETE", f"/api/v1/runs/{run}")
    assert (await refused(api, "GET", f"/api/v1/runs/{run}", 404))["code"] == "run_not_found"


@pytest.mark.parametrize("taken", [False, True])
async def test_a_run_of_a_deleted_job_is_not_tried_again(api: Api, taken: bool) -> None:
    """Also where another job has its id by now: it has nothing to do with it."""
    job_id = await created(api, id="mine")
    run = (await api.ok("POST", f"/api/v1/jobs/{job_id}/trigger"))["id"]
    await api.ok("DELETE", f"/api/v1/jobs/{job_id}")
    if taken:
        await created(api, id="mine")
    told = await refused(api, "POST", f"/api/v1/runs/{run}/retry", 409)
    assert told["detail"] == f"run {run} cannot be tried again: its job 'mine' was removed"
    bulk = await api.ok("POST", "/api/v1/runs/bulk", json={"action": "retry", "ids": [run]})
    assert bulk == {"matched": 1, "done": 0, "more": False}
    stands = await api.ok("GET", f"/api/v1/runs/{run}")
    assert (stands["state"], stands["reason"]) == ("cancelled", "job removed")


async def test_all_that_match(api: Api) -> None:
    await api.scheduler.enqueue_many("greet", [{"name": str(n)} for n in range(30)])
    kept = await api.scheduler.enqueue("report")
    done = await api.ok(
        "POST",
        "/api/v1/runs/bulk",
        json={"action": "cancel", "match": {"job": "greet", "state": "pending"}, "limit": 20},
    )
    assert done == {"matched": 20, "done": 20, "more": True}
    await api.ok("POST", "/api/v1/runs/bulk", json={"action": "cancel", "match": {"job": "greet"}})
    match = {"job": "greet", "state": ["cancelled"], "since": "2020-01-01T00:00:00Z"}
    again = await api.ok("POST", "/api/v1/runs/bulk", json={"action": "retry", "match": match})
    assert again["done"] == 30
    await api.ok("POST", "/api/v1/runs/bulk", json={"action": "cancel", "match": {"job": "greet"}})
    gone = await api.ok("POST", "/api/v1/runs/bulk", json={"action": "delete", "match": {}})
    assert gone["done"] == 30
    assert [run["id"] for run in (await api.ok("GET", "/api/v1/runs"))["items"]] == [kept.id]
    one = await api.ok(
        "POST", "/api/v1/runs/bulk", json={"action": "cancel", "ids": [kept.id, "x"]}
    )
    assert one["done"] == 1
    for wrong in (
        {"action": "cancel"},
        {"action": "shred", "match": {}},
        {"action": "cancel", "match": {"state": "lost"}},
        {"action": "cancel", "match": {"jobs": "x"}},
        {"action": "cancel", "ids": []},
    ):
        await refused(api, "POST", "/api/v1/runs/bulk", 422, json=wrong)


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
        await refused(working, "POST", "/api/v1/runs/bulk", 422, json=body)


@pytest.mark.parametrize("cursor", ["9" * 30, "-" + "9" * 30, "1e9"])
async def test_an_odd_cursor_is_told_and_breaks_nothing(
    make: Make, tmp_path: Path, cursor: str
) -> None:
    api: Api = await make(store=f"sqlite:///{tmp_path}/jobs.db", workers=0)
    told = await refused(api, "GET", "/api/v1/runs", 422, params={"cursor": cursor})
    assert told["errors"][0]["field"] == "cursor"


async def test_why_a_job_or_a_run_did_not_run(working: Api) -> None:
    async def explained(path: str, **params: str) -> Any:
        return await working.ok("GET", f"/api/v1/{path}/explain", params=params)

    run_id = await finished(working, name="you")
    assert (await explained(f"runs/{run_id}"))["code"] == "succeeded"
    found = await explained("jobs/report", at="2020-01-01T09:00:00Z")
    assert (found["code"], found["jobId"], found["runId"]) == ("not_created", "report", None)
    assert found["facts"]["createdAt"].endswith("Z")
    assert (await explained("jobs/report"))["code"] == "not_due"
    await working.scheduler.add_job("clean", handler="greet", schedule="1h")
    clean = await working.ok("GET", "/api/v1/jobs/clean")
    shown = clean["nextRunAt"]
    found = await explained("jobs/clean", at=shown)  # the slot itself has microseconds
    assert (found["code"], found["at"]) == ("not_due", shown)
    for path, status in (
        (f"jobs/{run_id}/explain", 404),
        ("runs/report/explain", 404),
        ("jobs/report/explain?at=soon", 422),
    ):
        assert (await working.request("GET", f"/api/v1/{path}")).status_code == status


def with_workflow() -> Scheduler:
    scheduler = sample_scheduler(workers=2)

    @scheduler.job
    async def extract() -> int:
        return 3

    @scheduler.job(after=extract)
    async def load() -> None:
        raise OSError("disk full")

    return scheduler


async def test_the_workflow_of_a_job_and_of_a_run(make: Make) -> None:
    api = await make(with_workflow())
    shown = await api.ok("GET", "/api/v1/jobs/load/workflow")
    assert [node["jobId"] for node in shown["nodes"]] == ["extract", "load"]
    assert shown["edges"] == [{"from": "extract", "to": "load"}]
    run = await api.scheduler.trigger("extract")
    await api.scheduler.wait(f"load@{run.id}", 10)
    shown = await api.ok("GET", f"/api/v1/runs/{run.id}/workflow")
    assert shown["text"] == "extract  succeeded\n└─ load  failed  (OSError: disk full)"
    assert [node["state"] for node in shown["nodes"]] == ["succeeded", "failed"]
    for path in ("/api/v1/jobs/nowhere/workflow", "/api/v1/runs/nowhere/workflow"):
        await refused(api, "GET", path, 404)


async def test_a_chain_is_queued_whole_or_not_at_all(make: Make) -> None:
    api = await make(with_workflow())
    body = {"links": [{"jobId": "extract"}, {"jobId": "greet", "payload": {"name": "Ada"}}]}
    answer = await api.ok("POST", "/api/v1/chains", json=body)
    first, second = answer["items"]
    assert second["after"] == [first["id"]]
    assert (await api.scheduler.wait(second["id"], 10)).state == "succeeded"
    before = len((await api.scheduler.list_runs(limit=500)).items)
    wrong = {"links": [{"jobId": "extract"}, {"jobId": "nobody"}]}
    await refused(api, "POST", "/api/v1/chains", 422, json=wrong)
    await refused(api, "POST", "/api/v1/chains", 422, json={"links": []})
    assert len((await api.scheduler.list_runs(limit=500)).items) == before
