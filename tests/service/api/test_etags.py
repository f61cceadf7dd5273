"""`If-Match`: an edit, a pause or a deletion of what was seen, and of nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mainspring.core.model import replace
from mainspring.testing.store_calls import put_job
from tests.support.service import Api
from tests.support.service_calls import created, job, refused


async def test_an_etag_guards_an_edit(api: Api) -> None:
    job_id = await created(api)
    path = f"/api/v1/jobs/{job_id}"
    tag = (await api.get(path)).headers["etag"]
    stored = await api.scheduler.get_job(job_id)
    # A firing moves the job on; that is no edit.
    assert stored.next_run_at is not None
    await put_job(api.scheduler.store, replace(stored, last_run_at=stored.next_run_at))
    assert (await api.get(path)).headers["etag"] == tag
    first = await api.patch(path, json={"priority": 7}, headers={"If-Match": tag})
    assert first.status_code == 200
    assert first.headers["etag"] != tag
    await refused(api, "PATCH", path, 412, json={"priority": 8}, headers={"If-Match": tag})
    await refused(api, "DELETE", path, 412, headers={"If-Match": tag})
    assert (await job(api, job_id))["priority"] == 7
    await api.ok("DELETE", path, headers={"If-Match": first.headers["etag"]})


async def test_an_etag_guards_pausing_and_resuming(api: Api) -> None:
    job_id = await created(api)
    path = f"/api/v1/jobs/{job_id}"
    old = {"If-Match": (await api.get(path)).headers["etag"]}
    edited = {"If-Match": (await api.patch(path, json={"priority": 7})).headers["etag"]}
    await refused(api, "POST", f"{path}/pause", 412, headers=old)
    assert (await job(api, job_id))["enabled"] is True
    paused = await api.post(f"{path}/pause", headers=edited)
    assert paused.json()["enabled"] is False
    await refused(api, "POST", f"{path}/resume", 412, headers=edited)
    seen = {"If-Match": paused.headers["etag"]}
    assert (await api.post(f"{path}/resume", headers=seen)).json()["enabled"] is True
    await refused(api, "POST", "/api/v1/jobs/nobody/pause", 404, headers=seen)


async def test_an_etag_guards_a_trigger(api: Api) -> None:
    job_id = await created(api)
    path = f"/api/v1/jobs/{job_id}"
    old = {"If-Match": (await api.get(path)).headers["etag"]}
    edited = {"If-Match": (await api.patch(path, json={"priority": 7})).headers["etag"]}
    await refused(api, "POST", f"{path}/trigger", 412, headers=old)
    assert (await api.ok("GET", "/api/v1/runs"))["items"] == []
    assert (await api.post(f"{path}/trigger", headers=edited)).status_code == 202


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/jobs/bulk", {"action": "pause", "ids": ["report"]}),
        ("/api/v1/runs/bulk", {"action": "delete", "match": {}}),
        ("/api/v1/jobs", {"id": "new", "handler": "greet"}),
    ],
)
async def test_a_condition_that_is_not_looked_at_is_refused(
    api: Api, path: str, body: dict[str, Any]
) -> None:
    told = await refused(api, "POST", path, 422, json=body, headers={"If-Match": '"x"'})
    assert "nothing was done" in told["detail"]
    assert (await job(api, "report"))["enabled"] is True


async def test_one_of_concurrent_edits_with_the_same_etag_wins(api: Api) -> None:
    job_id = await created(api)
    path = f"/api/v1/jobs/{job_id}"
    tag = (await api.get(path)).headers["etag"]
    edits = [
        api.patch(path, json={"description": f"edit {n}"}, headers={"If-Match": tag})
        for n in range(8)
    ]
    codes = sorted(answer.status_code for answer in await asyncio.gather(*edits))
    assert codes == [200, *[412] * 7]


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ({"name": "Mine"}, {"metadata": {"team": "x"}}),
        ({"metadata": {"team": "x"}}, {"name": "Mine"}),
        ({"retryDelay": 7000}, {"backoff": "linear"}),
        ({"backoff": "linear"}, {"retryDelay": 7000}),
        ({"timezone": "Europe/Berlin"}, {"schedule": "0 30 4 * * *"}),
        ({"schedule": "0 30 4 * * *"}, {"timezone": "Europe/Berlin"}),
        ({"jitter": None}, {"schedule": "0 30 4 * * *"}),
        ({"executionType": "AT_MOST_ONCE"}, {"headers": {"X-A": "b"}}),
    ],
)
async def test_concurrent_edits_of_different_fields_are_all_kept(
    api: Api, mine: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await created(api, jitter=1000)
    path = f"/api/v1/jobs/{job_id}"
    update = api.scheduler.update_job

    async def after_the_other(*given: Any, **changes: Any) -> Any:
        """The other edit is done between the look at the job and the edit that came of it."""
        monkeypatch.setattr(api.scheduler, "update_job", update)
        await api.ok("PATCH", path, json=other)
        return await update(*given, **changes)

    monkeypatch.setattr(api.scheduler, "update_job", after_the_other)
    await api.ok("PATCH", path, json=mine)
    stored = await job(api, job_id)
    for field, value in (mine | other).items():
        shown = stored[field]["kind"] if field == "backoff" else stored[field]
        assert shown == value, field
