"""The API as an application: below a path of somebody else's, and without the extra `server`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import mainspring.service
from mainspring import Scheduler
from mainspring.core.clock import SystemClock
from mainspring.errors import InvalidInput
from mainspring.service.api_keys import ApiKeys
from tests.support.doc_examples import DOCS, blocks
from tests.support.service import WEBHOOK


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app.example")


@asynccontextmanager
async def mounted(timezone: str = "UTC", **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    scheduler = Scheduler("memory://", workers=0, timezone=timezone)
    app = FastAPI()
    app.mount("/jobs", scheduler.asgi(**options))
    async with scheduler, client(app) as made:
        yield made


async def test_a_mounted_api_is_guarded_unless_its_host_does_that() -> None:
    async with mounted(auth=None) as open_one:
        assert (await open_one.post("/jobs/api/v1/jobs", json=WEBHOOK)).status_code == 201
        assert (await open_one.get("/jobs/livez")).json() == {"status": "ok"}
    async with mounted() as guarded:
        assert (await guarded.get("/jobs/api/v1/jobs")).status_code == 401
        assert (await guarded.get("/jobs/livez")).status_code == 200


async def test_the_hosts_environment_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text("HEADER_TIMEOUT=soon\nJOB_RETRY_ATTEMPTS=7\n")
    theirs = {"RATE_LIMIT": "100/minute", "RETENTION": "30", "PORT": "tcp://10.0.0.1:80"}
    for name, text in {**theirs, "BODY_LIMIT": "1024"}.items():
        monkeypatch.setenv(name, text)
    async with mounted(auth=None) as api:
        made = await api.post("/jobs/api/v1/jobs", json={**WEBHOOK, "description": "x" * 2000})
        assert made.status_code == 201
        job = await api.get(made.headers["location"])
        assert job.json()["retryAttempts"] == 3


async def test_a_mounted_api_names_whole_paths_in_its_problems() -> None:
    async with mounted(auth=None) as open_one, mounted() as guarded:
        missing = (await open_one.get("/jobs/api/v1/nothing")).json()
        refused = (await guarded.get("/jobs/api/v1/jobs")).json()
    assert missing["instance"] == "/jobs/api/v1/nothing"
    assert missing["detail"] == (
        "there is nothing at /jobs/api/v1/nothing; /jobs/docs shows what there is"
    )
    assert refused["instance"] == "/jobs/api/v1/jobs"
    assert "success" not in refused  # the form of /api/v1


async def test_what_holds_for_a_mounted_one_is_said_in_code() -> None:
    async with mounted(auth=None, body_limit=1024, job_retry_attempts=1) as api:
        made = await api.post("/jobs/api/v1/jobs", json=WEBHOOK)
        job = await api.get(made.headers["location"])
        assert job.json()["retryAttempts"] == 1
        big = await api.post("/jobs/api/v1/jobs", json={**WEBHOOK, "description": "x" * 2000})
        assert big.status_code == 413
    with pytest.raises(InvalidInput, match=r"asgi\(\) takes auth, rate_limit, .*, not 'port'"):
        Scheduler("memory://").asgi(port=80)
    with pytest.raises(InvalidInput, match="BODY_LIMIT is 1024 or more, not 5"):
        Scheduler("memory://").asgi(body_limit=5)


async def test_what_it_points_to_is_below_that_path() -> None:
    async with mounted(auth=None) as api:
        for _ in range(2):  # the second is a replay
            headers = {"Idempotency-Key": "abc"}
            made = await api.post("/jobs/api/v1/jobs", json=WEBHOOK, headers=headers)
            where = made.headers["location"]
            assert where == f"/jobs/api/v1/jobs/{made.json()['id']}"
            assert (await api.get(where)).status_code == 200
        described = (await api.get("/jobs/openapi.json")).json()
        assert described["servers"] == [{"url": "/jobs"}]


@pytest.mark.parametrize("auth", [None, "keys"])
async def test_one_that_nobody_started_says_so(auth: str | None) -> None:
    scheduler = Scheduler("memory://", workers=0)
    app = FastAPI()
    app.mount("/jobs", scheduler.asgi(auth=auth))
    async with client(app) as api:
        answer = await api.get("/jobs/api/v1/jobs", headers={"X-Api-Key": "ms_x"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert "async with scheduler" in answer.json()["detail"]
        assert (await api.get("/jobs/readyz")).json() == {"status": "not started"}
        assert (await api.get("/jobs/livez")).status_code == 200


async def test_the_program_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / "how-to" / "use-the-http-api.md"
    [program] = [block.text for block in blocks(page) if block.kind == "mounted"]
    names: dict[str, Any] = {}
    exec(compile(program, "use-the-http-api.md", "exec"), names)
    app = names["app"]
    async with app.router.lifespan_context(app), client(app) as api:
        assert (await api.get("/jobs/api/v1/jobs")).status_code == 401
        _, text = await ApiKeys(names["scheduler"], SystemClock()).create("test", "write")
        headers = {"Authorization": f"Bearer {text}"}
        made = await api.post("/jobs/api/v1/jobs", json=WEBHOOK, headers=headers)
        assert made.status_code == 201


async def test_where_no_zone_is_sent_the_schedulers_holds() -> None:
    async with mounted("Europe/Berlin", auth=None) as api:

        async def job(address: str, **sent: Any) -> dict[str, Any]:
            if sent:
                changed = await api.patch(f"/jobs/api/v1/jobs/{address}", json=sent)
                assert changed.status_code == 200, changed.text
            read: dict[str, Any] = (await api.get(f"/jobs/api/v1/jobs/{address}")).json()
            return read

        async def made(**sent: Any) -> dict[str, Any]:
            body = {"endpoint": "https://api.example.com/", **sent}
            answer = await api.post("/jobs/api/v1/jobs", json=body)
            assert answer.status_code == 201, answer.text
            return await job(answer.headers["location"].rpartition("/")[2])

        assert (await made(schedule="0 9 * * *"))["timezone"] == "Europe/Berlin"
        assert (await made(schedule="0 9 * * *", timezone="UTC"))["timezone"] == "UTC"
        named = await made(schedule="CRON_TZ=Asia/Tokyo 0 9 * * *")
        assert named["timezone"] == "Asia/Tokyo"
        assert (await job(named["id"], schedule="0 8 * * *"))["timezone"] == "Asia/Tokyo"
        once = await made(runAt="2999-01-01T09:00:00")
        assert once["nextRunAt"] == "2999-01-01T08:00:00.000Z"
        triggered = await made(schedule=None)
        moved = await job(triggered["id"], schedule="0 9 * * *")
        assert moved["timezone"] == "Europe/Berlin"
        often = await made(every="1h")
        assert (await job(often["id"], schedule="0 9 * * *"))["timezone"] == "Europe/Berlin"


# -- without the extra ----------------------------------------------------------------------


def test_serve_without_the_extra_names_the_extra(monkeypatch: Any) -> None:
    monkeypatch.setattr(mainspring.service, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match=r"pip install '.*mainspring\[server\]'"):
        Scheduler("memory://").asgi()


def test_the_core_imports_nothing_of_the_server_extra() -> None:
    script = (
        "import sys, mainspring\n"
        "from mainspring import Scheduler\n"
        "import mainspring.cli.program\n"
        "Scheduler('memory://')\n"
        "heavy = {'fastapi', 'uvicorn', 'pydantic', 'starlette', 'aiohttp'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_an_unknown_auth_value_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'keys' or None"):
        Scheduler("memory://").asgi(auth="none")
