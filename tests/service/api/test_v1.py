"""`/api/v1`: one vocabulary, one way to page, one form of errors; and what its description says."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.service import WEBHOOK, Api, Make
from tests.support.service_calls import refused

JOB = {**WEBHOOK, "id": "mine"}


async def test_a_job_from_its_making_to_its_end(api: Api) -> None:
    made = await api.post("/api/v1/jobs", json=JOB)
    api.check_described(made)
    assert made.status_code == 201
    assert made.headers["location"] == "/api/v1/jobs/mine"
    assert made.json()["signingSecret"].startswith("whsec_")
    path = made.headers["location"]
    read = await api.get(path)
    assert read.headers["etag"] == made.headers["etag"]
    job = read.json()
    assert (job["id"], job["schedule"]) == ("mine", WEBHOOK["schedule"])
    assert not {"_id", "jobId", "success", "signingSecret"} & job.keys()
    changed = await api.ok("PATCH", path, json={"priority": 8})
    job["origins"]["priority"] = "job"
    assert changed == {**job, "priority": 8, "updatedAt": changed["updatedAt"]}
    assert (await api.ok("PATCH", path, json=changed))["priority"] == 8  # as it was read
    assert (await api.ok("POST", f"{path}/pause"))["enabled"] is False
    assert (await api.ok("POST", f"{path}/resume"))["enabled"] is True
    gone = await api.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    assert (await refused(api, "GET", "/api/v1/jobs/mine", 404))["code"] == "job_not_found"


async def test_both_forms_show_the_same_job(api: Api) -> None:
    await api.ok("POST", "/api/v1/jobs", json=JOB)
    old = (await api.ok("GET", "/api/jobs/mine"))["data"]
    new = await api.ok("GET", "/api/v1/jobs/mine")
    assert {"id": old.pop("_id"), **old} == new
    etags = [(await api.get(f"{form}/jobs/mine")).headers["etag"] for form in ("/api", "/api/v1")]
    assert etags[0] == etags[1]


async def test_jobs_are_listed_by_queue_and_in_another_order(api: Api) -> None:
    for n in range(3):
        schedule = f"{30 - n} 0 1 1 *"
        job = {**JOB, "id": f"job{n}", "queue": "q", "schedule": schedule}
        await api.ok("POST", "/api/v1/jobs", json=job)

    async def listed(**params: Any) -> list[str]:
        page = await api.ok("GET", "/api/v1/jobs", params={"queue": "q", **params})
        return [job["id"] for job in page["items"]]

    assert await listed() == ["job0", "job1", "job2"]
    assert await listed(descending=True) == ["job2", "job1", "job0"]
    assert await listed(order="nextRunAt") == ["job2", "job1", "job0"]
    assert await listed(order="nextRunAt", descending=True, limit=1, offset=1) == ["job1"]
    await refused(api, "GET", "/api/v1/jobs", 422, params={"order": "colour"})
    bulk = {"action": "pause", "match": {"queue": "q", "search": "job1"}}
    done = await api.ok("POST", "/api/v1/jobs/bulk", json=bulk)
    assert [one["id"] for one in done["items"]] == ["job1"]


@pytest.mark.parametrize("path", ["/jobs", "/runs"])
@pytest.mark.parametrize("limit", [0, 501, "many"])
async def test_a_limit_that_is_too_large_is_refused(api: Api, path: str, limit: Any) -> None:
    problem = await refused(api, "GET", f"/api/v1{path}", 422, params={"limit": limit})
    assert problem["code"] == "invalid_input"
    assert problem["errors"][0]["field"] == "limit"


async def test_problems_have_codes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    api: Api = await make(workers=0, loopback=False, settings={"rate_limit": 5})
    monkeypatch.setattr(api.app.state.service.clock, "monotonic", lambda: 1.0)
    assert (await refused(api, "GET", "/api/v1/jobs", 401))["code"] == "key_missing"
    wrong = {"X-Api-Key": "ms_000000000000_x"}
    assert (await refused(api, "GET", "/api/v1/jobs", 401, headers=wrong))["code"] == "key_unknown"
    _, text = await api.app.state.service.keys.create("reader", "read")
    read = {"X-Api-Key": text}
    small = await refused(api, "POST", "/api/v1/jobs", 403, json=JOB, headers=read)
    assert small["code"] == "scope_too_small"
    _, text = await api.app.state.service.keys.create("writer", "write")
    write = {"X-Api-Key": text, "Content-Type": "application/json"}
    broken = await refused(api, "POST", "/api/v1/jobs", 400, content=b"{", headers=write)
    assert broken["code"] == "invalid_json"
    await api.post("/api/v1/jobs", json=JOB, headers=write)
    stale = {**write, "If-Match": '"old"'}
    changed = await refused(api, "PATCH", "/api/v1/jobs/mine", 412, json={}, headers=stale)
    assert changed["code"] == "job_changed"
    for _ in range(20):
        answer = await api.get("/api/v1/jobs", headers=read)
    assert answer.json()["code"] == "rate_limited"


async def test_the_only_admin_key_is_revoked_only_by_force(api: Api) -> None:
    made = await api.ok("POST", "/api/v1/keys", json={"name": "ops", "scope": "admin"})
    key = {"Authorization": f"Bearer {made['key']}"}
    [listed] = (await api.ok("GET", "/api/v1/keys", headers=key))["items"]
    assert (listed["id"], listed["state"]) == (made["id"], "active")
    path = f"/api/v1/keys/{made['id']}"
    problem = await refused(api, "DELETE", path, 409, headers=key)
    assert "only valid key of the scope admin" in problem["detail"]
    assert (await api.delete(f"{path}?force=true", headers=key)).status_code == 204


# -- methods ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/api/v1/jobs", "GET, HEAD, POST"),
        ("/api/v1/jobs/report", "DELETE, GET, HEAD, PATCH"),
        ("/api/jobs/report", "DELETE, GET, HEAD, PUT"),
        ("/api/v1/jobs/report/trigger", "POST"),
        ("/api/v1/jobs/bulk", "POST"),
        ("/api/v1/runs/bulk", "POST"),
        ("/livez", "GET, HEAD"),
        ("/jobs/report", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_all_that_there_are(api: Api, path: str, allowed: str) -> None:
    answer = await api.request("LINK", path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.json()["detail"] == f"{path} does not take LINK; it takes {allowed}"


async def test_head_is_get_without_a_body(api: Api) -> None:
    described = (await api.get("/openapi.json")).json()
    paths = [path for path, methods in described["paths"].items() if "get" in methods]
    assert len(paths) > 15
    for path in paths:
        path = path.replace("{id}", "report")
        head = await api.head(path)
        assert head.content == b""
        if not path.endswith("/events"):  # whose GET does not end
            get = await api.get(path)
            assert head.status_code == get.status_code
            assert head.headers.get("etag") == get.headers.get("etag")


# -- the description ----------------------------------------------------------------------------


def operations(described: Any) -> list[tuple[str, str, Any]]:
    return [
        (path, method, operation)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]


async def test_operations_are_described_for_generators(api: Api) -> None:
    described = (await api.get("/openapi.json")).json()
    found = operations(described)
    ids = [operation["operationId"] for _, _, operation in found]
    assert len(set(ids)) == len(ids)
    assert {"createJob", "listJobs", "updateJob", "listRuns", "previewSchedule"} <= set(ids)
    text = str(described)
    assert "'const'" not in text
    assert "'ge'" not in text
    assert "'le'" not in text
    schemes = described["components"]["securitySchemes"].values()
    assert {scheme["type"] for scheme in schemes} == {"http", "apiKey"}
    for path, method, operation in found:
        responses = operation["responses"]
        assert "default" not in responses
        if path.startswith("/api/"):
            assert {"401", "403", "429", "503"} <= responses.keys(), path
            assert "Retry-After" in responses["429"]["headers"]
        if "{id}" in path:
            assert "404" in responses
        if path == "/api/v1/jobs/{id}" and method in ("get", "patch"):
            assert "ETag" in responses["200"]["headers"]


async def test_examples_of_bodies_are_accepted(api: Api) -> None:
    described = (await api.get("/openapi.json")).json()
    for path, method, operation in operations(described):
        if "{id}" in path or "requestBody" not in operation or path.endswith("/keys"):
            continue
        named = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = described["components"]["schemas"][named.rpartition("/")[2]]
        body = schema["examples"][0]  # the reference shows it, too
        if path.endswith("/chains"):  # of jobs that exist
            body = {"links": [{"jobId": "greet"} for _ in body["links"]]}
        answer = await api.request(method, path, json=body)
        assert answer.status_code in (200, 201, 202, 409), (path, answer.text)


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/audit"])
async def test_a_cursor_that_no_page_gave_is_named(api: Api, path: str) -> None:
    answer = await refused(api, "GET", path, 422, params={"cursor": "nonsense"})
    assert answer["errors"] == [
        {
            "field": "cursor",
            "message": "is not one that a page of results gave: 'nonsense'. Leave it out for the"
            " first page",
        }
    ]
