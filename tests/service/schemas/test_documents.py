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
from mainspring.service.schemas.health import Health, Probe
from mainspring.service.schemas.job import Job, JobBulkItem, JobList
from mainspring.service.schemas.run import Attempt, Run
from tests.support.service import WEBHOOK, Api
from tests.support.service_calls import created, finished


def names(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


async def test_a_job_is_described_whole(api: Api) -> None:
    fields = {"breaker": 3, "misfire": "all", "retryOn": ["5xx"], "secretHeaders": ["X-A"]}
    await created(api, id="mine", **fields, headers={"X-A": "b"})
    answer = await api.ok("PATCH", "/api/v1/jobs/mine", json={"rotateSecret": True})
    assert answer.keys() == names(Job)
    read = await api.ok("GET", "/api/v1/jobs/mine")
    assert read.keys() == names(Job) - {"signingSecret"}


async def test_a_run_is_described_whole(working: Api) -> None:
    @working.scheduler.job()
    async def count(ctx: RunContext) -> int:
        ctx.progress(1, 2, "half")
        return 3

    run = (await working.ok("POST", "/api/v1/jobs/count/trigger"))["id"]
    await working.scheduler.wait(run, 10)
    told = await working.ok("GET", f"/api/v1/runs/{run}")
    assert told.keys() == names(Run)
    assert told["progress"] == {"done": 1, "total": 2, "message": "half"}
    assert told["attempts"][0].keys() == names(Attempt)
    await finished(working, name="nobody")
    await working.ok("GET", "/api/v1/runs")
    assert (await working.ok("GET", "/api/v1/health")).keys() == names(Health)


async def test_what_is_done_with_many_is_described(api: Api) -> None:
    jobs = [{**WEBHOOK, "id": "a"}, {"handler": "greet", "schedule": None}, {}]
    made = await api.ok("POST", "/api/v1/jobs/bulk", json={"jobs": jobs})
    ran = await api.ok(
        "POST", "/api/v1/jobs/bulk", json={"action": "trigger", "ids": ["a", "none"]}
    )
    found: set[str] = set()
    for one in (*made["items"], *ran["items"]):
        found |= one.keys()
    assert found == names(JobBulkItem)


@pytest.mark.parametrize(
    ("model", "extra"),
    [(JobList, {"nothing": 1}), (Probe, {"status": "ok", "nothing": 1})],
)
def test_what_is_not_described_is_noticed(model: type[BaseModel], extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="nothing"):
        model.model_validate(extra)
    assert model.model_json_schema()["additionalProperties"] is False


def test_ids_of_runs_are_not_written_in_camel_case() -> None:
    existing = {"a_job@20260105T090000Z": State.PENDING}
    document = backfill_document(Backfill(job_id="a_job", slots=1, existing=existing))
    assert (document["jobId"], document["existing"]) == ("a_job", existing)
