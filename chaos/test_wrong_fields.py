"""Every combination of wrong values in two fields of a request: the answer names both fields.

tests/service/schemas/test_wrong_fields.py sends each pair of fields once.
"""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.service.schemas.job import JobBody, JobUpdateBody
from mainspring.service.schemas.schedule import PreviewBody
from tests.support.service import Api, make, working  # noqa: F401
from tests.support.wrong_fields import WRONG, WRONG_IN_PREVIEW, fields_of, named, pairs, send

EDITED = {"endpoint": "https://example.org/"}, {"handler": "greet"}


@pytest.mark.parametrize("right", EDITED, ids=["endpoint", "handler"])
async def test_every_new_job_names_both(working: Api, right: dict[str, Any]) -> None:  # noqa: F811
    fields = fields_of(JobBody)
    for first in fields:
        documents = pairs(fields, first, WRONG, every=True)
        jobs = [{"schedule": None, **right, **document} for document in documents]
        answer = await send(working, "POST", "/api/v1/jobs/bulk", {"jobs": jobs})
        for document, item in zip(documents, answer.get("items", ()), strict=True):
            assert document.keys() <= named(item["problem"]["errors"]), (document, item["problem"])


@pytest.mark.parametrize("right", EDITED, ids=["endpoint", "handler"])
async def test_every_edit_names_both(working: Api, right: dict[str, Any]) -> None:  # noqa: F811
    await working.ok("POST", "/api/v1/jobs", json={"id": "edited", "schedule": None, **right})
    fields = ["id", *fields_of(JobUpdateBody)]
    for document in (one for first in fields for one in pairs(fields, first, WRONG, every=True)):
        problem = await send(working, "PATCH", "/api/v1/jobs/edited", document)
        assert document.keys() <= named(problem.get("errors", [])), (document, problem)


async def test_every_preview_names_both(working: Api) -> None:  # noqa: F811
    fields = fields_of(PreviewBody)
    for first in fields:
        for document in pairs(fields, first, WRONG_IN_PREVIEW, every=True):
            problem = await send(working, "POST", "/api/v1/schedules/preview", document)
            assert document.keys() <= named(problem.get("errors", [])), (document, problem)
