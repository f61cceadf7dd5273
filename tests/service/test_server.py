"""`mainspring serve` as a process: sockets, signals, streams, two of them on one store."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from mainspring import Scheduler
from tests.support.command_line import Run
from tests.support.service import LONG, Serve, ServiceProcess
from tests.support.service_calls import until

APP = """
import asyncio
import os

from mainspring import Scheduler

scheduler = Scheduler("sqlite:///app.db", poll="50ms", lease="2s")


@scheduler.job()
async def linger(path: str) -> str:
    open(path + ".began", "w").close()
    while not os.path.exists(path):
        await asyncio.sleep(0.01)
    return "lingered"


@scheduler.job()
async def shout(text: str) -> str:
    return text.upper()
"""

LEAKY = """
from mainspring import Scheduler

scheduler = Scheduler("sqlite:///app.db", poll="50ms")
kept = []


@scheduler.job
def leak() -> None:
    kept.append(b"x" * 190_000_000)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def refusal(served: ServiceProcess) -> str:
    assert served.ends() == 2
    return "".join(served.err)


def test_any_other_address_needs_a_key(serve: Serve, run: Run, started: list[Scheduler]) -> None:
    refused = run("serve", "--host", "0.0.0.0", "--port", "0").refusal
    assert "mainspring keys create" in refused
    assert "started" not in refused  # no worker ran meanwhile
    made = run("keys", "create", "ops", "--scope", "admin", "--json").json
    served = serve("--host", "0.0.0.0")
    port = urlsplit(served.url).port
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=LONG) as client:
        assert client.get("/api/v1/jobs").status_code == 401
        headers = {"Authorization": f"Bearer {made['key']}"}
        assert client.get("/api/v1/jobs", headers=headers).status_code == 200
        assert [one["name"] for one in run("keys", "list", "--json").json["items"]] == ["ops"]
        assert run("keys", "revoke", made["id"], "--json").code == 0
        until(lambda: client.get("/api/v1/jobs", headers=headers).status_code == 401)
    message = run("serve", "--host", "0.0.0.0", "--port", "0").err
    assert "no API key is valid (all are expired or revoked): make one first" in message
    assert started == []


def test_a_proxys_name_needs_a_key(
    serve: Serve, run: Run, started: list[Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLOWED_HOSTS", "jobs.example.org")
    refused = run("serve", "--port", "0").refusal
    assert "ALLOWED_HOSTS" in refused
    assert "mainspring keys create" in refused
    made = run("keys", "create", "ops", "--scope", "admin", "--json").json
    with serve().client() as client:
        asked = {"Host": "jobs.example.org"}
        assert client.get("/api/v1/jobs", headers=asked).status_code == 401
        asked["Authorization"] = f"Bearer {made['key']}"
        assert client.get("/api/v1/jobs", headers=asked).status_code == 200


def test_a_client_that_sends_all_before_it_listens_sees_why(serve: Serve) -> None:
    """urllib: where the connection was closed on it, it saw a reset."""
    served = serve()
    url, big = f"{served.url}/api/v1/jobs", b" " * 20_000_000
    request = urllib.request.Request(url, big, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=LONG)
    with refused.value as answer:
        assert (answer.code, "at most" in answer.read().decode()) == (413, True)


def test_a_port_that_is_taken(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "in use" in refusal(serve("--port", port, ready=False))


def test_the_first_signal_lets_work_end(serve: Serve, app: Path) -> None:
    served = serve("--app", "app:scheduler")
    flag = app / "flag"
    with served.client() as client:
        run_id = _begun(client, flag)
        later = client.post("/api/v1/jobs/shout/trigger", json={"payload": {"text": "first"}})
        until(lambda: _state(client, later.json()["id"]) == "succeeded")
        served.signal()
        until(lambda: client.get("/readyz").status_code == 503)
        # It answers still, and takes what is to be kept; but it begins nothing any more.
        assert client.get("/livez").status_code == 200
        health = client.get("/api/observability/health").json()
        assert (health["success"], health["status"]) == (False, "stopping")
        assert health["scheduler"]["isRunning"] is False
        kept = client.post("/api/v1/jobs/shout/trigger", json={"payload": {"text": "x"}})
        assert kept.status_code == 202
        assert _state(client, run_id) == "running"
        flag.touch()
    assert served.ends() == 0
    again = serve("--app", "app:scheduler")
    with again.client() as client:
        assert _state(client, run_id) == "succeeded"
        until(lambda: _state(client, kept.json()["id"]) == "succeeded")


def _begun(client: httpx.Client, flag: Path) -> str:
    """The id of a run that has begun, and that ends when the flag is there."""
    run = client.post("/api/v1/jobs/linger/trigger", json={"payload": {"path": str(flag)}})
    until(flag.with_name(f"{flag.name}.began").exists)
    return str(run.json()["id"])


def _state(client: httpx.Client, run_id: str) -> str:
    return str(client.get(f"/api/v1/runs/{run_id}").json()["state"])


def test_a_second_signal_ends_at_once_and_the_work_is_rescued(serve: Serve, app: Path) -> None:
    served = serve("--app", "app:scheduler")
    flag = app / "flag"
    with served.client() as client:
        run_id = _begun(client, flag)
        served.signal()
        until(lambda: client.get("/readyz").status_code == 503)
        served.signal(signal.SIGINT)
    assert served.ends() == 128 + signal.SIGINT
    flag.touch()
    again = serve("--app", "app:scheduler")
    with again.client() as client:
        until(lambda: _state(client, run_id) == "succeeded")
        attempts = client.get(f"/api/v1/runs/{run_id}").json()["attempts"]
    assert [one["outcome"] for one in attempts] == ["lost", "succeeded"]


def _at_its_limit(health: Any) -> Any:
    return health if health["memoryLimitReached"] else None


def test_a_service_at_its_memory_limit_says_so_and_is_replaced_and_loses_nothing(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY)
    served = serve("--app", "leaky:scheduler", "--memory-limit", "250MB")
    with served.client() as client:
        before = client.get("/api/v1/health").json()
        assert (before["status"], before["memoryLimitReached"]) == ("healthy", False)
        assert before["memory"] > 10**6
        assert before["cpuSeconds"] > 0
        run = client.post("/api/v1/jobs/leak/trigger").json()
        told = until(lambda: _at_its_limit(client.get("/api/v1/health").json()))
        assert told["status"] in ("degraded", "stopping")
        assert told["memory"] >= 250_000_000
    pid = served.told["pid"]
    served.wait_ready()  # the new process says where it is
    assert served.told["pid"] == pid
    with served.client() as client:
        after = client.get("/api/v1/health").json()
        assert (after["status"], after["memoryLimitReached"]) == ("healthy", False)
        [kept] = client.get("/api/v1/runs?job=leak").json()["items"]
        assert (kept["id"], kept["state"], kept["attempt"]) == (run["id"], "succeeded", 1)
    assert "it is replaced in 10 s" in "".join(served.err)


# -- events -----------------------------------------------------------------------------------


def test_events_are_told_as_they_happen_and_end_with_the_service(serve: Serve, app: Path) -> None:
    served = serve("--app", "app:scheduler")
    told: list[tuple[str, Any]] = []
    with served.client() as client, client.stream("GET", "/api/v1/events?event=run.*") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        assert next(lines) == "retry: 2000"
        with served.client() as other:
            other.post("/api/v1/jobs/shout/trigger", json={"payload": {"text": "x"}})
        name = ""
        for line in lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            if line.startswith("data: "):
                told.append((name, json.loads(line.removeprefix("data: "))))
                if name == "run.succeeded":
                    served.signal()
        # The loop ended: the service closed the stream in good order.
    assert [name for name, _ in told] == ["run.enqueued", "run.started", "run.succeeded"]
    assert told[-1][1]["jobId"] == "shout"
    assert told[-1][1]["run"]["state"] == "succeeded"
    assert served.ends() == 0
