"""The description of answers: the same names as the answers themselves have.

`Api.ok` holds every answer of the other tests against the description too.
"""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from mainspring import RunContext
from mainspring.core.model import State
from mainspring.engine.backfill import Backfill
from mainspring.service.schemas.backfill import backfill_document
from mainspring.service.schemas.health import CompatHealth, Probe, SchedulerHealth
from mainspring.service.schemas.job import BulkResult, ChangedJob, CompatJobPage, JobDocument
from mainspring.service.schemas.run import Attempt, Run
from tests.support.service import WEBHOOK, Api
from tests.support.service_calls import created, finished


def names(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


async def test_a_job_is_described_whole(api: Api) -> None:
    fields = {"breaker": 3, "misfire": "all", "retryOn": ["5xx"], "secretHeaders": ["X-A"]}
    await created(api, id="mine", **fields, headers={"X-A": "b"})
    answer = await api.ok("PUT", "/api/jobs/mine", json={"rotateSecret": True})
    assert answer["data"].keys() == names(ChangedJob)
    read = await api.ok("GET", "/api/jobs/mine")
    assert read["data"].keys() == names(JobDocument)


async def test_a_run_is_described_whole(working: Api) -> None:
    @working.scheduler.job()
    async def count(ctx: RunContext) -> int:
        ctx.progress(1, 2, "half")
        return 3

    run = (await working.ok("POST", "/api/jobs/count/trigger"))["data"]["id"]
    await working.scheduler.wait(run, 10)
    told = (await working.ok("GET", f"/api/runs/{run}"))["data"]
    assert told.keys() == names(Run)
    assert told["progress"] == {"done": 1, "total": 2, "message": "half"}
    assert told["attempts"][0].keys() == names(Attempt)
    await finished(working, name="nobody")
    for path in ("/api/runs", "/api/observability/failures", "/api/observability/stats"):
        await working.ok("GET", path)
    health = await working.ok("GET", "/api/observability/health")
    assert health.keys() == names(CompatHealth)
    assert health["scheduler"].keys() == names(SchedulerHealth)


async def test_what_is_done_with_many_is_described(api: Api) -> None:
    jobs = [{**WEBHOOK, "id": "a"}, {"handler": "greet", "schedule": None}, {}]
    made = await api.ok("POST", "/api/jobs/bulk", json={"jobs": jobs})
    ran = await api.ok("POST", "/api/jobs/bulk", json={"action": "trigger", "ids": ["a", "none"]})
    found: set[str] = set()
    for one in (*made["data"], *ran["data"]):
        found |= one.keys()
    assert found == names(BulkResult)


@pytest.mark.parametrize(
    ("model", "extra"),
    [(CompatJobPage, {"nothing": 1}), (Probe, {"status": "ok", "nothing": 1})],
)
def test_what_is_not_described_is_noticed(model: type[BaseModel], extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="nothing"):
        model.model_validate(extra)
    assert model.model_json_schema()["additionalProperties"] is False


def test_ids_of_runs_are_not_written_in_camel_case() -> None:
    existing = {"a_job@20260105T090000Z": State.PENDING}
    document = backfill_document(Backfill(job_id="a_job", slots=1, existing=existing))
    assert (document["jobId"], document["existing"]) == ("a_job", existing)
