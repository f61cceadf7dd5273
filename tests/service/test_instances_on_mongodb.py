"""Several instances of the service on one MongoDB see each other's changes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.recording_endpoint import Endpoint
from tests.support.recording_endpoint import endpoint as endpoint
from tests.support.servers.fixtures import *  # noqa: F403
from tests.support.servers.mongodb import with_database
from tests.support.servers.server import free_port
from tests.support.service import WEBHOOK, Serve, ServiceProcess
from tests.support.service_calls import until


def test_the_pages_six_variables_from_the_file(
    tmp_path: Path, replica_set_url: str, database_name: str
) -> None:
    """As the page has them: in `.env`, and nothing said anywhere else."""
    port = free_port()
    url = with_database(replica_set_url, database_name)
    (tmp_path / ".env").write_text(
        f"PORT={port}\nMONGODB_URI={url}\nSCHEDULER_POLL_INTERVAL=500\nMAX_CONCURRENT_JOBS=7\n"
        "JOB_RETRY_ATTEMPTS=5\nJOB_RETRY_DELAY=1234\n"
    )
    served = ServiceProcess(tmp_path).wait_ready()
    try:
        assert served.url == f"http://127.0.0.1:{port}"
        assert served.told["store"] == url
        with served.client() as client:
            scheduler = client.get("/api/observability/health").json()["scheduler"]
            assert (scheduler["pollInterval"], scheduler["maxConcurrentJobs"]) == (500, 7)
            job = {"schedule": "0 0 9 * * 1-5", "endpoint": "https://api.example.com/webhook"}
            job_id = client.post("/api/v1/jobs", json=job).json()["id"]
            stored = client.get(f"/api/v1/jobs/{job_id}").json()
            assert (stored["retryAttempts"], stored["retryDelay"]) == (5, 1234)

            # The page's own example: the store keeps the key for its secret header.
            created = client.post("/api/jobs", json=WEBHOOK)
            assert created.status_code == 201
            assert created.json()["data"]["signingSecret"].startswith("whsec_")
            stored = client.get(f"/api/jobs/{created.json()['data']['jobId']}")
            assert stored.json()["data"]["headers"]["Authorization"] == "********"
    finally:
        served.popen.kill()
        served.popen.wait()


def test_two_instances_on_a_replica_set(
    serve: Serve, replica_set_url: str, database_name: str, endpoint: Endpoint
) -> None:
    url = with_database(replica_set_url, database_name)
    secret = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
    environ = {"MONGODB_URI": url, "MAINSPRING_SECRET_KEY": secret}
    one, two = [serve("--allow-private", "127.0.0.1", **environ) for _ in range(2)]
    assert "mongodb://" in one.told["store"]
    with one.client() as first, two.client() as second:
        # The same create at both at once makes one job.
        headers = {"Idempotency-Key": "same"}

        def create(client: Any) -> Any:
            return client.post("/api/v1/jobs", json=WEBHOOK, headers=headers)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(create, [first, second] * 4))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.json()["id"] for answer in answers}) == 1

        # What one stores the other lists, runs and tells.
        job = {"every": "1h", "endpoint": endpoint.url, "id": "call", "headers": {"Cookie": "x=1"}}
        assert first.post("/api/v1/jobs", json=job).status_code == 201
        listed = second.get("/api/jobs?page=2&limit=1").json()
        assert (listed["total"], listed["data"][0]["_id"]) == (2, "call")
        assert listed["data"][0]["headers"] == {"Cookie": "********"}
        run = second.post("/api/v1/jobs/call/trigger").json()["id"]
        until(lambda: first.get(f"/api/v1/runs/{run}").json()["state"] == "succeeded")
        assert endpoint.requests[0][1]["Cookie"] == "x=1"
        endpoint.status = 500
        first.patch("/api/v1/jobs/call", json={"retryAttempts": 0})
        bad = first.post("/api/v1/jobs/call/trigger").json()["id"]
        failures = until(lambda: second.get("/api/observability/failures").json()["data"])
        assert failures[0]["_id"] == f"{bad}:1"
        failing = second.get("/api/v1/runs?failing=true&since=2020-01-01").json()["items"]
        assert [one["id"] for one in failing] == [bad]
        stats = second.get("/api/observability/stats").json()["data"]
        assert stats["executions"] == {"total": 2, "successful": 1, "failed": 1, "last24Hours": 2}
        gone = second.post("/api/v1/runs/bulk", json={"action": "delete", "match": {"job": "call"}})
        assert gone.json()["done"] == 2
        assert first.get("/api/v1/runs?job=call").json()["items"] == []

        # A key made at one shuts the other.
        key = first.post("/api/v1/keys", json={"name": "ops"}).json()["key"]
        until(lambda: second.get("/api/v1/jobs").status_code == 401)
        good = {"Authorization": f"Bearer {key}"}
        assert second.get("/api/v1/jobs", headers=good).status_code == 200
