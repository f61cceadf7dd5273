"""Error responses: what they say, and which secrets they never contain."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from tests.support.service import WEBHOOK, Api
from tests.support.service_calls import created, refused


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
async def test_errors_do_not_repeat_secrets(api: Api, wrong: Any) -> None:
    whole = {**WEBHOOK, **wrong}
    await created(api, id="mine")
    answers = [
        await api.post("/api/v1/jobs", json=whole),
        await api.post("/api/v1/jobs", json=[whole]),
        await api.post("/api/v1/jobs", json=f"s3cret {whole}"),
        await api.patch("/api/v1/jobs/mine", json=wrong),
    ]
    assert [one.status_code for one in answers] == [422] * 4
    answers.append(await api.post("/api/v1/jobs/bulk", json={"jobs": [whole, [whole], "s3cret"]}))
    assert [one.json().get("succeeded") for one in answers[4:]] == [0]
    for answer in answers:
        assert "s3cret" not in answer.text
    [field] = wrong
    told = {one["field"].partition(".")[0] for one in answers[3].json()["errors"]}
    assert told == {field}


async def test_errors_repeat_values_that_are_not_secret(api: Api) -> None:
    wrong = {**WEBHOOK, "priority": "high", "endpoint": "ftp://example.org/", "tags": {"a": 1}}
    document = await refused(api, "POST", "/api/v1/jobs", 422, json=wrong)
    told = {one["field"]: one["message"] for one in document["errors"]}
    assert told["priority"] == "is a whole number, not 'high'"
    assert told["endpoint"].endswith("not 'ftp://example.org/'")
    assert told["tags"] == "is a list, not an object"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"breaker": 0}, {"breaker": "is 1 or more, not 0"}),
        ({"breaker": "x"}, {"breaker": "is true or false or a whole number or an object, not 'x'"}),
        ({"breaker": {"failures": 0}}, {"breaker.failures": "is 1 or more, not 0"}),
        ({"timeout": {}}, {"timeout": "is a number or a text, not an object"}),
        ({"retryDelay": []}, {"retryDelay": "is a number or a text, not a list"}),
        ({"every": True}, {"every": "is a number or a text, not true"}),
        ({"successCodes": [None]}, {"successCodes.0": "is a whole number or a text, not null"}),
        ({"backoff": {"jitter": 5}}, {"backoff.jitter": "is at most 1.0, not 5"}),
        ({"backoff": {"cap": {}}}, {"backoff.cap": "is a number or a text, not an object"}),
        ({"misfire": {"grace": None}}, {"misfire.grace": "is a number or a text, not null"}),
        (
            {"misfire": 7},
            {"misfire": "is one of 'once', 'skip' or 'all', not 7"},
        ),
    ],
)
async def test_a_value_of_several_forms_is_told_by_its_field(
    api: Api, wrong: Any, told: dict[str, str]
) -> None:
    document = await refused(
        api, "POST", "/api/v1/jobs", 422, json={"id": "x", "handler": "greet", "after": [], **wrong}
    )
    assert {one["field"]: one["message"] for one in document["errors"]} == told


@pytest.mark.parametrize(
    ("body", "status", "told", "fields"),
    [
        (b"", 422, "send a JSON object, not nothing", []),
        (b"[]", 422, "send a JSON object, not a list", []),
        (b'"s3cret"', 422, "send a JSON object, not a text", []),
        (b"null", 422, "send a JSON object, not ", []),
        (b"{", 400, "JSON", []),
        (b'{"id": "\xff"}', 400, "it is not UTF-8, or it nests too deep", []),
        (b'{"id": ' + b"9" * 5000 + b"}", 400, "or a number in it has too many digits", []),
        (b"[" * 100_000, 400, "it is not UTF-8, or it nests too deep", []),
        (b'{"id": "\\ud800"}', 422, "the body holds text that is not Unicode", []),
        (b'{"id": "\xed\xa0\x80"}', 422, "the body holds text that is not Unicode", []),
        ('{"id": "\\ud800"}'.encode("utf-16"), 422, "the body holds text that is not Unicode", []),
        (b'{"handler": "greet", "schedule": null, "payload": NaN}', 422, "payload", ["payload"]),
        (
            b'{"handler": "greet", "schedule": null, "priority": 1e999}',
            *(422, "priority is a whole number, not inf", ["priority"]),
        ),
    ],
    ids=[
        "none",
        "list",
        "text",
        "null",
        "half",
        "latin",
        "digits",
        "deep",
        "odd",
        "raw",
        "wide",
        "nan",
        "inf",
    ],
)
async def test_a_body_that_is_wrong_as_a_whole_names_no_field(
    api: Api, body: bytes, status: int, told: str, fields: list[str]
) -> None:
    """A job has a field that is called body."""
    headers = {"Content-Type": "application/json"}
    document = await refused(api, "POST", "/api/v1/jobs", status, content=body, headers=headers)
    assert told in document["detail"]
    assert "s3cret" not in document["detail"]
    assert [one["field"] for one in document.get("errors", [])] == fields


FAULTS: list[tuple[dict[str, Any], set[str]]] = [
    ({**WEBHOOK, "handler": "greet"}, {"endpoint", "handler"}),
    ({**WEBHOOK, "id": "no spaces"}, {"id"}),
    ({**WEBHOOK, "id": ".."}, {"id"}),
    ({**WEBHOOK, "endpoint": "http://169.254.169.254/latest/meta-data"}, {"endpoint"}),
    ({**WEBHOOK, "schedule": None, "every": "1h", "timezone": "Q/Q"}, {"timezone"}),
    ({}, {"endpoint", "schedule"}),
    ({"schedule": "nope"}, {"endpoint", "schedule"}),
    ({"endpoint": "nope"}, {"endpoint", "schedule"}),
    ({"schedule": None, "handler": "webhook"}, {"handler"}),
    ({"name": "☃☃", "timeout": "2h", **WEBHOOK, "priority": 10}, {"name", "timeout", "priority"}),
    ({**WEBHOOK, "timeout": 0, "payload": {"a": 1}}, {"timeout", "payload"}),
    ({**WEBHOOK, "timeout": 3_600_001, "concurrencyKey": "smtp"}, {"timeout", "concurrencyKey"}),
    (
        {**WEBHOOK, "executionType": "AT_MOST_ONCE", "retryAttempts": 2, "colour": "red"},
        {"retryAttempts", "colour"},
    ),
    ({**WEBHOOK, "secretHeaders": ["X-A"], "every": "5m"}, {"secretHeaders", "schedule", "every"}),
    ({**WEBHOOK, "headers": {"Authorization": "********"}}, {"headers"}),
    ({**WEBHOOK, "headers": {"X-Plain": "********"}}, {"headers"}),
    ({**WEBHOOK, "tags": ["a", "b\0c"]}, {"tags.1"}),
    ({**WEBHOOK, "after": ["greet"], "enabled": 1}, {"after", "enabled"}),
    ({"handler": "greet", "schedule": None, "jitter": "5s"}, {"jitter"}),
    ({"handler": "greet", "schedule": None, "after": ["nowhere"]}, {"after"}),
    ({"handler": "greet", "every": "5m", "payload": {"nme": "x"}}, {"payload"}),
    ({"handler": "greet", "runAt": "1999-01-01T00:00:00Z"}, {"runAt"}),
    ({"handler": "greet", "schedule": "0 0 0 1 1 * 1999"}, {"schedule"}),
    ({"handler": "greet", "schedule": None, "metadata": {"a": "b" * 900_000}}, {"metadata"}),
]
PYTHON = ("concurrency_key", "None", "True", "payload=", "webhook=", "update_job", "1:00:00")
"""Words of the library that mean nothing to a client of the API."""


@pytest.mark.parametrize(("body", "fields"), FAULTS)
async def test_every_wrong_field_is_told_at_once(
    api: Api, body: dict[str, Any], fields: set[str]
) -> None:
    document = await refused(api, "POST", "/api/v1/jobs", 422, json=body)
    assert {one["field"] for one in document["errors"]} == fields
    assert all(one["message"] in document["detail"] for one in document["errors"])
    assert not [word for word in PYTHON if word in document["detail"]]
    bulk = await api.ok("POST", "/api/v1/jobs/bulk", json={"jobs": [body]})
    assert {one["field"] for one in bulk["items"][0]["problem"]["errors"]} == fields


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/jobs/"),
        ("GET", "/api/v1/jobs/"),
        ("DELETE", "/api/v1/jobs/mine/"),
        ("GET", "/docs/"),
    ],
)
async def test_a_slash_too_many_is_refused_and_sends_nobody_elsewhere(
    api: Api, method: str, path: str
) -> None:
    await created(api, id="mine")
    body = WEBHOOK if method == "POST" else None
    answer = await api.request(method, path, json=body)
    assert "location" not in answer.headers
    document = await refused(api, method, path, 404, json=body)
    assert document["detail"].startswith(f"there is nothing at {path}")
    assert [one["id"] for one in (await api.ok("GET", "/api/v1/jobs?search=mine"))["items"]] == [
        "mine"
    ]


async def test_compressed_body_is_refused_by_name(api: Api) -> None:
    """Else the client is told that its JSON is none."""
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = await api.post("/api/v1/jobs", content=gzip.compress(b"{}"), headers=headers)
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert "Content-Encoding 'gzip'" in answer.json()["detail"]
    headers["Content-Encoding"] = "identity"
    await refused(api, "POST", "/api/v1/jobs", 422, content=b"{}", headers=headers)
