"""Documents with two wrong fields: values of each field of a job and a preview that are refused."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

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
    "history": [-1, "all"],
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


def pairs(fields: list[str], wrong: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Each field is in six documents, beside six others, with a wrong value in both: not both of a
    wrong type, because pydantic reports those at once."""
    documents = []
    others = [fields[step:] + fields[:step] for step in (1, 7, 12)]
    neighbours = [pair for shifted in others for pair in zip(fields, shifted, strict=True)]
    for number, (first, second) in enumerate(neighbours):
        ours, theirs = wrong.get(first, STRANGE), wrong.get(second, STRANGE)
        both = [
            {first: value, second: other}
            for value, other in product(ours, theirs)
            if value is ours[-1] or other is theirs[-1]
        ]
        documents.append(both[number % len(both)])
    return documents


def named(errors: list[dict[str, str]]) -> set[str]:
    return {error["field"].partition(".")[0] for error in errors}


async def send(api: Api, method: str, path: str, document: Any) -> Any:
    """As JSON with NaN, which a client may send and httpx would not."""
    headers = {"Content-Type": "application/json"}
    answer = await api.request(method, path, content=json.dumps(document), headers=headers)
    return answer.json()
