"""Clients that are generated from `/openapi.json` work against a service that asks for a key."""

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

OPENAPI_PYTHON_CLIENT = """
import sys
from client import AuthenticatedClient
from client.api.jobs import create_job, delete_job, get_job, list_jobs, trigger_job, update_job
from client.api.runs import get_run
from client.models import Job, JobBody, JobUpdateBody, Problem

url, key = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=key)
body = JobBody.from_dict(
    {"id": "mine", "endpoint": "https://api.example.com/", "schedule": "@hourly"}
)
made = create_job.sync(client=client, body=body)
assert isinstance(made, Job) and made.id == "mine", made
assert [job.id for job in list_jobs.sync(client=client, limit=10).items] == ["mine"]
change = JobUpdateBody.from_dict({"priority": 7})
assert update_job.sync("mine", client=client, body=change).priority == 7
run = trigger_job.sync("mine", client=client)
assert get_run.sync(run.id, client=client).attempts == []
missing = get_job.sync("nobody", client=client)
assert isinstance(missing, Problem) and missing.code == "job_not_found", missing
assert delete_job.sync_detailed("mine", client=client).status_code == 204
print("worked")
"""

TYPESCRIPT = """
import createClient from "openapi-fetch";
import type { paths } from "./api";

declare const process: { argv: string[]; exit(code: number): never };
const [url, key] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url, headers: { "X-Api-Key": key } });

function check(condition: boolean, what: string): asserts condition {
  if (!condition) { console.error(what); process.exit(1); }
}

const made = await client.POST("/api/v1/jobs", {
  body: { id: "mine", endpoint: "https://api.example.com/", schedule: "@hourly" } as never,
});
check(made.data !== undefined && "id" in made.data && made.data.id === "mine", "create");
const page = await client.GET("/api/v1/jobs", { params: { query: { limit: 10 } } });
check(page.data?.items.map((job) => job.id).join() === "mine", "list");
const run = await client.POST("/api/v1/jobs/{id}/trigger", { params: { path: { id: "mine" } } });
check(run.data !== undefined && "state" in run.data && run.data.state === "pending", "trigger");
const missing = await client.GET("/api/v1/jobs/{id}", { params: { path: { id: "nobody" } } });
check(missing.error?.code === "job_not_found", "a missing job");
const gone = await client.DELETE("/api/v1/jobs/{id}", { params: { path: { id: "mine" } } });
check(gone.response.status === 204, "delete");
console.log("worked");
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


def test_client_of_openapi_python_client(service: tuple[str, str], tmp_path: Path) -> None:
    url, key = service
    options: list[str | Path] = [
        "--path",
        described(url, tmp_path),
        "--output-path",
        tmp_path / "client",
    ]
    generate = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    generator = str(client_generators.python_generator())
    said = client_generators.run([*generate, *options], tmp_path, PYTHONPATH=generator)
    assert "WARNING parsing" not in said, said
    command = [sys.executable, "-c", OPENAPI_PYTHON_CLIENT, url, key]
    assert client_generators.run(command, tmp_path, PYTHONPATH=str(tmp_path)) == "worked\n"


def test_types_of_openapi_typescript(service: tuple[str, str], tmp_path: Path) -> None:
    url, key = service
    node, modules = (
        client_generators.program("node", "the TypeScript client"),
        client_generators.node_modules(),
    )
    (tmp_path / "node_modules").symlink_to(modules / "node_modules")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "use.ts").write_text(TYPESCRIPT)
    generate = modules / "node_modules" / "openapi-typescript" / "bin" / "cli.js"
    client_generators.run([node, generate, described(url, tmp_path), "-o", "api.d.ts"], tmp_path)
    tsc = modules / "node_modules" / "typescript" / "bin" / "tsc"
    options = ["--strict", "--target", "es2022", "--module", "es2022", "--skipLibCheck"]
    resolution = ["--moduleResolution", "bundler", "--lib", "es2022,dom"]
    client_generators.run([node, tsc, *options, *resolution, "use.ts"], tmp_path)
    assert client_generators.run([node, "use.js", url, key], tmp_path) == "worked\n"
