"""The audit log: each change that was done, and nothing else."""

from __future__ import annotations

import pytest

from mainspring.service.audit import AuditEntry, AuditLog
from tests.support.service import WEBHOOK, Api, Make


def change(path: str) -> AuditEntry:
    return AuditEntry(
        key_id="", key_name="", address="127.0.0.1", method="POST", path=path, status=200
    )


async def entries(api: Api) -> list[tuple[str | None, str, str, int]]:
    await api.app.state.service.audit.flush()
    found = await api.ok("GET", "/api/v1/audit")
    return [(one["keyName"], one["method"], one["path"], one["status"]) for one in found["items"]]


async def test_a_change_is_logged_with_its_key_newest_first(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    _, text = await api.app.state.service.keys.create("ada", "admin")
    api.headers["Authorization"] = f"Bearer {text}"
    await api.ok("POST", "/api/v1/jobs/report/pause")
    await api.app.state.service.audit.flush()
    await api.ok("POST", "/api/v1/jobs/report/resume")
    assert await entries(api) == [
        ("ada", "POST", "/api/v1/jobs/report/resume", 200),
        ("ada", "POST", "/api/v1/jobs/report/pause", 200),
    ]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/jobs", None),
        ("POST", "/api/v1/jobs/nothing/pause", None),
        ("POST", "/api/v1/schedules/preview", {"schedule": "0 9 * * *"}),
        ("POST", "/api/v1/jobs?dryRun=true", WEBHOOK),
        ("POST", "/api/v1/jobs?dryRun=1", WEBHOOK),
    ],
)
async def test_what_changes_nothing_is_not_logged(
    api: Api, method: str, path: str, body: object
) -> None:
    await api.request(method, path, json=body)
    assert await entries(api) == []


@pytest.mark.parametrize("value", ["false", "False", "0"])
async def test_a_change_that_says_it_is_no_dry_run_is_logged(api: Api, value: str) -> None:
    await api.ok("POST", f"/api/v1/jobs/report/trigger?dryRun={value}")
    path = "/api/v1/jobs/report/trigger"
    assert await entries(api) == [(None, "POST", path, 202)]


async def test_what_a_request_created_is_logged(api: Api) -> None:
    job = (await api.ok("POST", "/api/v1/jobs", json=WEBHOOK))["id"]
    run = (await api.ok("POST", "/api/v1/jobs/report/trigger"))["id"]
    await api.ok("POST", "/api/v1/jobs/report/pause")
    key = await api.ok("POST", "/api/v1/keys", json={"name": "ada", "scope": "admin"})
    api.headers["Authorization"] = f"Bearer {key['key']}"
    await api.app.state.service.audit.flush()
    found = (await api.ok("GET", "/api/v1/audit"))["items"]
    created = {one["path"].removeprefix("/api/v1/"): one["createdId"] for one in found}
    assert created == {
        "jobs": job,
        "jobs/report/trigger": run,
        "jobs/report/pause": None,
        "keys": key["id"],
    }
    assert f"Create a job: {job}" in (await api.get("/audit")).text


async def test_what_was_done_is_logged_where_the_path_does_not_say_it(api: Api) -> None:
    jobs = [{**WEBHOOK, "id": name} for name in ("a", "b")]
    await api.ok("POST", "/api/v1/jobs/bulk", json={"jobs": [*jobs, {}]})
    run = await api.scheduler.enqueue("greet")
    for method, path, body in (
        ("PATCH", "jobs/a", {"schedule": "@daily", "enabled": False}),
        ("PATCH", "jobs/a", {"rotateSecret": True}),
        ("POST", "jobs/bulk", {"action": "delete", "ids": ["a", "b", "none"]}),
        ("POST", "runs/bulk", {"action": "cancel", "ids": [run.id]}),
        ("POST", "chains", {"links": [{"jobId": "greet"}, {"jobId": "report"}]}),
    ):
        await api.app.state.service.audit.flush()
        await api.ok(method, f"/api/v1/{path}", json=body)
    await api.app.state.service.audit.flush()
    found = (await api.ok("GET", "/api/v1/audit"))["items"]
    assert [entry["detail"] for entry in reversed(found)] == [
        "create 2 of 3 jobs: a, b",
        "enabled, schedule",
        "rotateSecret",
        "delete 2 of 3 jobs: a, b",
        f'cancel 1 of 1 run: {{"ids":["{run.id}"]}}',
        "greet, report",
    ]
    assert "Change many jobs: delete 2 of 3 jobs: a, b" in (await api.get("/audit")).text


async def test_only_an_admin_reads_it(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    _, text = await api.app.state.service.keys.create("ada", "write")
    answer = await api.get("/api/v1/audit", headers={"Authorization": f"Bearer {text}"})
    assert answer.json()["code"] == "scope_too_small"


async def test_pages_of_the_log_follow_each_other(api: Api) -> None:
    log: AuditLog = api.app.state.service.audit
    for number in range(5):
        log.record(change(f"/{number}"))
        await log.flush()
    first = await api.ok("GET", "/api/v1/audit?limit=3")
    rest = await api.ok("GET", f"/api/v1/audit?limit=3&cursor={first['nextCursor']}")
    paths = [one["path"] for page in (first, rest) for one in page["items"]]
    assert paths == ["/4", "/3", "/2", "/1", "/0"]
    assert (await api.get("/api/v1/audit?cursor=nonsense")).status_code == 422
