"""A client that is generated from `/openapi.json` works against a service that asks for a key."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx
import pytest

from tests.support import client_generators
from tests.support.service import LONG, Serve, ServiceProcess, serve

pytestmark = pytest.mark.thorough

__all__ = ["serve"]

OPENAPI_GENERATOR = """
import sys
import mainspring_client as client_of

url, key = sys.argv[1:]
settings = client_of.Configuration(host=url, access_token=key)
with client_of.ApiClient(settings) as client:
    jobs, runs = client_of.JobsApi(client), client_of.RunsApi(client)
    body = client_of.JobBody(
        id="mine", endpoint="https://api.example.com/", schedule="@hourly", tags=["a"]
    )
    made = jobs.create_job_with_http_info(body)
    assert made.status_code == 201 and made.headers["etag"], made
    assert made.data.id == "mine" and made.data.signing_secret.startswith("whsec_")
    assert [job.id for job in jobs.list_jobs(limit=10).items] == ["mine"]
    change = client_of.JobUpdateBody(priority=7)
    assert jobs.update_job("mine", change).priority == 7
    assert jobs.pause_job("mine").enabled is False
    run = jobs.trigger_job("mine")
    assert run.state == "pending" and run.job_id == "mine"
    assert runs.get_run(run.id).attempts == []
    assert runs.list_runs(job="mine").next_cursor is None
    health = client_of.HealthApi(client).get_health()
    assert health.status == "healthy", health
    page = client_of.CompatibilityApi(client).compat_get_job("mine")
    assert page.success is True and page.data.id == "mine"
    try:
        jobs.get_job("nobody")
    except client_of.exceptions.NotFoundException as error:
        assert error.data.code == "job_not_found", error
    else:
        raise AssertionError("nobody was found")
    jobs.delete_job("mine")
print("worked")
"""


@pytest.fixture
def service(serve: Serve) -> tuple[str, str]:
    """The URL of a service, and a key that it asks for."""
    served: ServiceProcess = serve(MAX_CONCURRENT_JOBS="0")
    with served.client() as client:
        key = client.post("/api/v1/keys", json={"name": "test", "scope": "write"}).json()["key"]
    return served.url, key


def described(url: str, folder: Path) -> Path:
    path = folder / "openapi.json"
    path.write_text(json.dumps(httpx.get(f"{url}/openapi.json", timeout=LONG).json()))
    return path


def test_client_of_openapi_generator(service: tuple[str, str], tmp_path: Path) -> None:
    url, key = service
    java = client_generators.program("java", "openapi-generator")
    options: list[str | Path] = [
        "-i",
        described(url, tmp_path),
        "-g",
        "python",
        "-o",
        tmp_path / "made",
    ]
    name = "--additional-properties=packageName=mainspring_client"
    code_only = "--global-property=apis,models,supportingFiles,apiDocs=false,modelDocs=false"
    client_generators.run(
        [
            *(java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),  # it runs for seconds only
            *("-jar", client_generators.generator_jar(), "generate"),
            *(*options, name, f"{code_only},apiTests=false,modelTests=false"),
        ],
        tmp_path,
    )
    command = [sys.executable, "-W", "error::SyntaxWarning", "-c", OPENAPI_GENERATOR, url, key]
    made = str(tmp_path / "made")
    assert client_generators.run(command, tmp_path, PYTHONPATH=made) == "worked\n"
