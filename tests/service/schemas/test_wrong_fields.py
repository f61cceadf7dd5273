"""When two fields of a request are wrong, the answer names both."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.service.api.schedules import PreviewBody
from mainspring.service.schemas.job import JobBody, JobUpdateBody
from tests.support.service import Api
from tests.support.wrong_fields import WRONG, WRONG_IN_PREVIEW, fields_of, named, pairs, send

KINDS = pytest.mark.parametrize(
    "right",
    [{"endpoint": "https://example.org/"}, {"handler": "greet"}],
    ids=["endpoint", "handler"],
)


@KINDS
async def test_a_new_job_names_both(working: Api, right: dict[str, Any]) -> None:
    fields = fields_of(JobBody)
    documents = pairs(fields, WRONG)
    jobs = [{"schedule": None, **right, **document} for document in documents]
    answer = await send(working, "POST", "/api/v1/jobs/bulk", {"jobs": jobs})
    assert answer["succeeded"] == 0
    for document, item in zip(documents, answer["items"], strict=True):
        assert document.keys() <= named(item["problem"]["errors"]), (document, item["problem"])


@KINDS
async def test_an_edit_names_both(working: Api, right: dict[str, Any]) -> None:
    await working.ok("POST", "/api/v1/jobs", json={"id": "edited", "schedule": None, **right})
    fields = ["id", *fields_of(JobUpdateBody)]
    for document in pairs(fields, WRONG):
        problem = await send(working, "PATCH", "/api/v1/jobs/edited", document)
        assert document.keys() <= named(problem.get("errors", [])), (document, problem)


async def test_a_preview_names_both(working: Api) -> None:
    fields = fields_of(PreviewBody)
    for document in pairs(fields, WRONG_IN_PREVIEW):
        problem = await send(working, "POST", "/api/v1/schedules/preview", document)
        assert document.keys() <= named(problem.get("errors", [])), (document, problem)
