"""Whichever two fields of a request are wrong, the answer names both."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import pytest

from mainspring.service.schemas.job import JobBody, JobUpdateBody
from mainspring.service.schemas.preview import PreviewBody
from tests.support.service import Api

NAN = float("nan")
WRONG: dict[str, list[Any]] = {
    "id": [5, "a b"],
    "name": [5, ""],
    "description": [5],
    "schedule": [5, "61 * * * *"],
    "every": [[], "soon", "1ms"],
    "runAt": [5, "tomorrow"],
    "timezone": [5, "Mars/Base"],
    "jitter": [[], "soon"],
    "handler": [5, "nobody", "no body"],
    "payload": [NAN],
    "executionType": ["TWICE"],
    "enabled": ["yes"],
    "retryAttempts": [-1],
    "retryDelay": ["soon"],
    "backoff": ["never", {"factor": 0}],
    "timeout": ["long", 0],
    "startDeadline": ["soon", 0],
    "priority": [10],
    "queue": [5, ""],
    "concurrency": [0],
    "concurrencyKey": [5, ""],
    "overlap": ["maybe"],
    "misfire": ["twice", {"limit": 0}],
    "breaker": ["often", {"failures": 0}],
    "after": [5, [""]],
    "afterFailure": ["never"],
    "retention": ["long", -1],
    "history": [0, "all"],
    "tags": [5, ["a\0"]],
    "metadata": [5, {"name": "x"}, {"a": NAN}],
    "endpoint": [5, "ftp://example.org"],
    "method": [5, "CONNECT"],
    "headers": [5, {"Host": "example.org"}],
    "secretHeaders": [5, ["X-Missing"]],
    "body": [NAN, "{{nobody}}"],
    "successCodes": [5, ["9xx"]],
    "retryOn": [5, ["9xx"]],
    "rotateSecret": ["yes"],
}
"""Values of each field that are refused by their type, and then by a rule of the library. A field
that is not here is given an object with a strange name."""

STRANGE = [{"no such": "value"}]

WRONG_IN_PREVIEW = {**WRONG, "count": ["many", 0], "after": [5, "tomorrow"]}


def fields_of(body: Any) -> list[str]:
    return [field.alias for field in body.model_fields.values()]


def pairs(fields: list[str], first: str, wrong: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Documents with a wrong value in the first field and one in another field: not both of a wrong
    type, because pydantic reports those at once."""
    return [
        {first: one, second: other}
        for second in fields[fields.index(first) + 1 :]
        for ours, others in [(wrong.get(first, STRANGE), wrong.get(second, STRANGE))]
        for one, other in product(ours, others)
        if one is ours[-1] or other is others[-1]
    ]


def named(errors: list[dict[str, str]]) -> set[str]:
    return {error["field"].partition(".")[0] for error in errors}


async def send(api: Api, method: str, path: str, document: Any) -> Any:
    """As JSON with NaN, which a client may send and httpx would not."""
    headers = {"Content-Type": "application/json"}
    answer = await api.request(method, path, content=json.dumps(document), headers=headers)
    return answer.json()


@pytest.mark.parametrize("first", fields_of(JobBody))
@pytest.mark.parametrize(
    "right",
    [{"endpoint": "https://example.org/"}, {"handler": "greet"}],
    ids=["endpoint", "handler"],
)
async def test_a_new_job_names_both(working: Api, first: str, right: dict[str, Any]) -> None:
    documents = pairs(fields_of(JobBody), first, WRONG)
    for start in range(0, len(documents), 1000):
        sent = documents[start : start + 1000]
        jobs = [{"schedule": None, **right, **document} for document in sent]
        answer = await send(working, "POST", "/api/v1/jobs/bulk", {"jobs": jobs})
        assert answer["succeeded"] == 0
        for document, item in zip(sent, answer["items"], strict=True):
            assert document.keys() <= named(item["problem"]["errors"]), (document, item["problem"])


@pytest.mark.parametrize("first", ["id", *fields_of(JobUpdateBody)])
@pytest.mark.parametrize(
    "right",
    [{"endpoint": "https://example.org/"}, {"handler": "greet"}],
    ids=["endpoint", "handler"],
)
async def test_an_edit_names_both(working: Api, first: str, right: dict[str, Any]) -> None:
    await working.ok("POST", "/api/v1/jobs", json={"id": "edited", "schedule": None, **right})
    for document in pairs(["id", *fields_of(JobUpdateBody)], first, WRONG):
        problem = await send(working, "PATCH", "/api/v1/jobs/edited", document)
        assert document.keys() <= named(problem.get("errors", [])), (document, problem)


@pytest.mark.parametrize("first", fields_of(PreviewBody))
async def test_a_preview_names_both(working: Api, first: str) -> None:
    for document in pairs(fields_of(PreviewBody), first, WRONG_IN_PREVIEW):
        problem = await send(working, "POST", "/api/v1/schedules/preview", document)
        assert document.keys() <= named(problem.get("errors", [])), (document, problem)
