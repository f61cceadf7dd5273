"""`/explain` of a job and of a run, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.service import Api
from tests.support.service_calls import finished


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
