"""Refusals: what they tell, and what they never tell."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.conftest import WEBHOOK, Api
from tests.service.test_jobs import created, refused


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": ["Bearer s3cret"]},
        {"headers": "Authorization: Bearer s3cret"},
        {"headers": {"Authorization": ["Bearer s3cret"]}},
        {"headers": {"Authorization": {"s3cret": "s3cret"}}},
        {"headers": {"Authorization: Bearer s3cret": "x"}},
        {"headers": {"Authorization: Bearer s3cret": 1}},
        {"headers": {"Authorization": "Bearer s3cret\n"}},
        {"secretHeaders": "Bearer s3cret"},
        {"rotateSecret": "whsec_s3cret"},
        {"endpoint": "ftp://u:s3cret@example.org/"},
        {"endpoint": "https://u:s3cret@example.org:99999/"},
        {"endpoint": "https://u:s3cret@example.org:port/"},
        {"endpoint": "https://u:s3cret@[::1/"},
        {"endpoint": "https:u:s3cret@example.org/"},
        {"endpoint": "https://u:s3cret/9@example.org/"},
        {"endpoint": "https://u:s3cret@example.org/#x"},
        {"endpoint": ["https://u:s3cret@example.org/"]},
        {"method": {"Authorization": "Bearer s3cret"}},
    ],
)
async def test_no_secret_is_told_back(api: Api, wrong: Any) -> None:
    whole = {**WEBHOOK, **wrong}
    await created(api, id="mine")
    answers = [
        await api.post("/api/jobs", json=whole),
        await api.post("/api/jobs", json=[whole]),
        await api.post("/api/jobs", json=f"s3cret {whole}"),
        await api.put("/api/jobs/mine", json=wrong),
    ]
    assert [one.status_code for one in answers] == [422] * 4
    answers.append(await api.post("/api/jobs/bulk", json={"jobs": [whole, [whole], "s3cret"]}))
    assert [one.json().get("done") for one in answers[4:]] == [0]
    for answer in answers:
        assert "s3cret" not in answer.text
    [field] = wrong
    told = {one["field"].partition(".")[0] for one in answers[3].json()["errors"]}
    assert told == {field}


async def test_what_is_no_secret_is_told_back(api: Api) -> None:
    wrong = {**WEBHOOK, "priority": "high", "endpoint": "ftp://example.org/", "tags": {"a": 1}}
    document = await refused(api, "POST", "/api/jobs", 422, json=wrong)
    told = {one["field"]: one["message"] for one in document["errors"]}
    assert told["priority"] == "is a whole number, not 'high'"
    assert told["endpoint"].endswith("not 'ftp://example.org/'")
    assert told["tags"] == "is a list, not an object"
