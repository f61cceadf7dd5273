"""Edits are done as a whole or not at all; dry runs change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from mainspring.webhooks import WebhookSettings
from tests.support.service import WEBHOOK, Api, Make, sample_scheduler
from tests.support.service_calls import created, job, refused

PLAIN = {**WEBHOOK, "headers": {}}


async def shared(make: Make, monkeypatch: pytest.MonkeyPatch) -> Api:
    """On a store that keeps no key for secrets, as MongoDB does not."""
    monkeypatch.setattr("mainspring.webhooks.service._keys_of", lambda store: [])
    scheduler = sample_scheduler(webhooks=WebhookSettings(allow=["127.0.0.1"]), workers=0)
    api: Api = await make(scheduler)
    return api


async def test_an_edit_with_a_rotation_is_done_whole_or_not_at_all(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await shared(make, monkeypatch)
    job_id = await created(api, headers={}, priority=3)
    path, body = f"/api/v1/jobs/{job_id}", {"priority": 9, "rotateSecret": True}
    document = await refused(api, "PATCH", path, 422, json=body)
    assert "MAINSPRING_SECRET_KEY" in document["detail"]
    assert [one["field"] for one in document["errors"]] == ["rotateSecret"]
    assert (await job(api, job_id))["priority"] == 3


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/api/v1/jobs/mine?dryRun=true", {"priority": 9}),
        ("DELETE", "/api/v1/jobs/mine?dryRun=true", None),
        ("POST", "/api/v1/jobs/mine/pause?dryRun=true", None),
        ("POST", "/api/v1/jobs/bulk?dryRun=true", {"action": "delete", "ids": ["mine"]}),
    ],
)
async def test_a_dry_run_where_there_is_none_does_nothing(
    api: Api, method: str, path: str, body: Any
) -> None:
    await created(api, id="mine")
    before = await job(api, "mine")
    document = await refused(api, method, path, 422, json=body)
    assert document["errors"][0]["field"] == "dryRun"
    assert await job(api, "mine") == before


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"payload": {"a": 1}}, 422),
        ({"timeout": "3h"}, 422),
        ({"schedule": None, "runAt": "1999-01-01T00:00:00Z"}, 422),
        ({"concurrencyKey": "smtp"}, 422),
        ({"after": ["greet"]}, 422),
        ({"schedule": None, "after": ["nowhere"]}, 422),
        ({"id": "taken"}, 409),
        ({"name": "Taken"}, 409),
    ],
)
async def test_a_dry_run_refuses_what_would_be_refused(
    api: Api, wrong: dict[str, Any], status: int
) -> None:
    await created(api, id="taken")
    whole = {**PLAIN, "name": "Free", **wrong}
    shown = await refused(api, "POST", "/api/v1/jobs?dryRun=true", status, json=whole)
    assert shown == await refused(api, "POST", "/api/v1/jobs", status, json=whole)


@pytest.mark.parametrize(
    "payload",
    ['{"x": "{{nope}}"}', '{"x": NaN}', '"{{nope}}"', f'{{"x": "{"y" * 300_000}"}}'],
    ids=["template", "nan", "text", "large"],
)
async def test_a_dry_run_of_a_trigger_refuses_what_would_be_refused(api: Api, payload: str) -> None:
    await created(api, id="mine")
    sent = {"content": f'{{"payload": {payload}}}', "headers": {"content-type": "application/json"}}
    shown = await refused(api, "POST", "/api/v1/jobs/mine/trigger?dryRun=true", 422, **sent)
    assert shown == await refused(api, "POST", "/api/v1/jobs/mine/trigger", 422, **sent)
