"""A client written from the page alone (what it shows and nothing else) works unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.recording_endpoint import Endpoint
from tests.support.recording_endpoint import endpoint as endpoint
from tests.support.service import Serve, ServiceProcess
from tests.support.service_calls import until

EXAMPLES = Path(__file__).parents[2] / "examples"


class PageClient:
    """Knows what the page shows: paths, fields, the envelope."""

    def __init__(self, base: str) -> None:
        self.base = base

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.base + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture
def served(serve: Serve) -> ServiceProcess:
    return serve("--allow-private", "127.0.0.1")


def moment(text: str) -> datetime:
    assert text.endswith("Z")
    return datetime.fromisoformat(text)


def test_every_request_of_the_page_works(served: ServiceProcess, endpoint: Endpoint) -> None:
    client = PageClient(served.url)
    before = datetime.now(UTC)
    status, answer = client.call(
        "POST",
        "/api/jobs",
        {
            "schedule": "*/1 * * * * *",
            "endpoint": endpoint.url,
            "method": "POST",
            "headers": {"Authorization": "Bearer YOUR_TOKEN", "Content-Type": "application/json"},
            "body": {"event": "scheduled_task", "timestamp": "{{timestamp}}"},
        },
    )
    assert (status, answer["success"]) == (201, True)
    made = answer["data"]
    assert made["schedule"] == "*/1 * * * * *"
    assert made["endpoint"] == endpoint.url
    # Theirs answered null; ours is the next slot.
    assert before < moment(made["nextRunAt"]) <= datetime.now(UTC) + timedelta(seconds=2)
    job_id = made["jobId"]

    until(lambda: len(endpoint.requests) >= 2)
    _, headers, body = endpoint.requests[0]
    assert headers["Authorization"] == "Bearer YOUR_TOKEN"
    sent = json.loads(body)
    assert sent["event"] == "scheduled_task"
    # Theirs sent the braces; ours is the time of sending.
    assert abs(moment(sent["timestamp"]) - datetime.now(UTC)) < timedelta(minutes=1)

    ended = until(
        lambda: [
            one
            for one in client.call("GET", f"/api/jobs/{job_id}/executions?limit=5")[1]["data"]
            if one["status"] != "running"
        ]
    )
    one = ended[0]
    assert (one["jobId"], one["status"], one["responseCode"]) == (job_id, "success", 200)
    assert (one["attempt"], one["responseBody"]) == (1, '{"status":"ok"}')
    assert moment(one["startedAt"]) <= moment(one["completedAt"])
    assert one["duration"] >= 0
    assert len(client.call("GET", f"/api/jobs/{job_id}/executions?limit=1")[1]["data"]) == 1

    status, answer = client.call(
        "PUT", f"/api/jobs/{job_id}", {"schedule": "0 */10 * * * *", "enabled": True}
    )
    assert (status, answer["success"]) == (200, True)
    assert answer["data"]["schedule"] == "0 */10 * * * *"
    assert moment(answer["data"]["nextRunAt"]).minute % 10 == 0

    status, answer = client.call("GET", f"/api/jobs/{job_id}")
    job = answer["data"]
    assert job["_id"] == job_id
    assert job["method"] == "POST"
    assert job["body"]["timestamp"] == "{{timestamp}}"
    assert (job["executionType"], job["enabled"]) == ("AT_LEAST_ONCE", True)
    assert (job["retryAttempts"], job["retryDelay"]) == (3, 5000)
    assert job["headers"]["Authorization"] != "Bearer YOUR_TOKEN"
    for name in ("nextRunAt", "lastRunAt", "createdAt", "updatedAt"):
        moment(job[name])

    status, answer = client.call("GET", "/api/jobs?page=1&limit=20")
    assert (answer["success"], answer["page"], answer["limit"]) == (True, 1, 20)
    assert [one["_id"] for one in answer["data"]] == [job_id]
    assert answer["total"] == 1

    status, answer = client.call("GET", "/api/observability/health")
    assert (answer["success"], answer["status"]) == (True, "healthy")
    moment(answer["timestamp"])
    assert answer["scheduler"]["isRunning"] is True
    assert answer["scheduler"]["maxConcurrentJobs"] == 10
    assert answer["scheduler"]["pollInterval"] == 1000
    assert isinstance(answer["scheduler"]["runningJobs"], int)

    executions = until(
        lambda: (
            (e := client.call("GET", "/api/observability/stats")[1]["data"]["executions"])["total"]
            >= 1
            and e
        )
    )
    assert executions["total"] == executions["successful"] + executions["failed"]
    assert executions["last24Hours"] == executions["total"]

    assert client.call("DELETE", f"/api/jobs/{job_id}")[1]["success"] is True
    status, answer = client.call("GET", f"/api/jobs/{job_id}")
    assert (status, answer["success"]) == (404, False)
    assert job_id in answer["error"]


def test_the_pages_sample_job(page_api: PageClient) -> None:
    sample = json.loads((EXAMPLES / "sample-job.json").read_text())
    status, answer = page_api.call("POST", "/api/jobs", sample)
    assert (status, answer["data"]["endpoint"]) == (201, sample["endpoint"])
    assert (
        page_api.call("GET", f"/api/jobs/{answer['data']['jobId']}")[1]["data"]["body"]
        == sample["body"]
    )


def test_a_limit_that_is_too_high_gives_the_most_there_is(page_api: PageClient) -> None:
    job = {"schedule": "0 0 0 1 1 *", "endpoint": "https://api.example.com/webhook"}
    job_id = page_api.call("POST", "/api/jobs", job)[1]["data"]["jobId"]
    status, answer = page_api.call("GET", "/api/jobs?limit=1000")
    assert (status, answer["limit"]) == (200, 200)
    assert page_api.call("GET", f"/api/jobs/{job_id}/executions?limit=10000")[0] == 200
    assert page_api.call("GET", f"/api/observability/failures?limit={10**30}")[0] == 200
    for wrong in (0, -1, "many"):
        assert page_api.call("GET", f"/api/jobs/{job_id}/executions?limit={wrong}")[0] == 422


@pytest.mark.parametrize(
    "schedule",
    [
        *("0 */5 * * * *", "*/30 * * * * *", "0 0 */2 * * *", "0 0 9 * * 1-5", "0 30 14 1 * *"),
        *("10-30/5 * * * * *", "1,3-5 * * * * *"),  # theirs took these and never fired
        "0 0 0 1 1 *",  # theirs searched for it second by second, for 16 s
    ],
)
def test_every_cron_expression_of_the_page_has_a_next_slot(
    page_api: PageClient, schedule: str
) -> None:
    job = {"schedule": schedule, "endpoint": "https://api.example.com/webhook"}
    before = datetime.now(UTC)
    status, answer = page_api.call("POST", "/api/jobs", job)
    assert status == 201
    assert moment(answer["data"]["nextRunAt"]) > before


@pytest.fixture(scope="module")
def page_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    served = ServiceProcess(tmp_path_factory.mktemp("page"), "--port", "0").wait_ready()
    yield PageClient(served.url)
    served.popen.kill()
    served.popen.wait()
