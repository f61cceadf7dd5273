"""Workflows and chains over HTTP."""

from __future__ import annotations

from mainspring import Scheduler
from tests.support.service import Make, sample_scheduler
from tests.support.service_calls import refused


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
    for path, name in (("/api/jobs", "data"), ("/api/v1/jobs", None)):
        answer = await api.ok("GET", f"{path}/load/workflow")
        shown = answer[name] if name else answer
        assert [node["jobId"] for node in shown["nodes"]] == ["extract", "load"]
        assert shown["edges"] == [{"from": "extract", "to": "load"}]
    run = await api.scheduler.trigger("extract")
    await api.scheduler.wait(f"load@{run.id}", 10)
    shown = await api.ok("GET", f"/api/v1/runs/{run.id}/workflow")
    assert shown["text"] == "extract  succeeded\n└─ load  failed  (OSError: disk full)"
    assert [node["state"] for node in shown["nodes"]] == ["succeeded", "failed"]
    compatible = await api.ok("GET", f"/api/runs/{run.id}/workflow")
    assert compatible["data"] == shown
    for path in ("/api/jobs/nowhere/workflow", "/api/runs/nowhere/workflow"):
        await refused(api, "GET", path, 404)


async def test_a_chain_is_queued_whole_or_not_at_all(make: Make) -> None:
    api = await make(with_workflow())
    body = {"links": [{"jobId": "extract"}, {"jobId": "greet", "payload": {"name": "Ada"}}]}
    answer = await api.ok("POST", "/api/v1/chains", json=body)
    first, second = answer["items"]
    assert second["after"] == [first["id"]]
    assert (await api.scheduler.wait(second["id"], 10)).state == "succeeded"
    assert len((await api.ok("POST", "/api/chains", json=body))["data"]) == 2
    before = len((await api.scheduler.list_runs(limit=500)).items)
    wrong = {"links": [{"jobId": "extract"}, {"jobId": "nobody"}]}
    await refused(api, "POST", "/api/chains", 422, json=wrong)
    await refused(api, "POST", "/api/chains", 422, json={"links": []})
    assert len((await api.scheduler.list_runs(limit=500)).items) == before
