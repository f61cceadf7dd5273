"""Calls of the HTTP API that many tests of the service make."""

from __future__ import annotations

import time
from typing import Any

from mainspring.service.problems import CODES
from tests.support.service import LONG, WEBHOOK, Api


async def created(api: Api, **fields: Any) -> str:
    answer = await api.ok("POST", "/api/v1/jobs", json={**WEBHOOK, **fields})
    return str(answer["id"])


async def job(api: Api, job_id: str) -> Any:
    return await api.ok("GET", f"/api/v1/jobs/{job_id}")


async def refused(api: Api, method: str, path: str, status: int, **options: Any) -> Any:
    answer = await api.request(method, path, **options)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document = answer.json()
    assert document["code"] in CODES
    assert document["status"] == status
    assert document["title"]
    if path.startswith("/api/v1/"):
        assert document["type"] == f"urn:mainspring:problem:{document['code']}"
        assert not {"success", "error"} & document.keys()
    return document


async def finished(api: Api, **payload: Any) -> str:
    run = await api.ok("POST", "/api/v1/jobs/greet/trigger", json={"payload": payload})
    run_id = str(run["id"])
    await api.scheduler.wait(run_id, LONG)
    return run_id


async def key(api: Api, scope: str = "read", **options: Any) -> dict[str, str]:
    """A key's header."""
    _, text = await api.app.state.service.keys.create("test", scope, **options)
    return {"Authorization": f"Bearer {text}"}


async def code(api: Api, method: str = "GET", path: str = "/api/v1/jobs", **options: Any) -> int:
    return (await api.request(method, path, **options)).status_code


def until(condition: Any) -> Any:
    ends = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < ends, "it did not come true in time"
        time.sleep(0.02)
    return found
