"""The FastAPI example under a real `uvicorn --workers 2`, and what the helper promises."""

import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI, HTTPException, Request
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from mainspring import Client, RunContext, Scheduler, State
from mainspring.contrib.fastapi import Mainspring
from mainspring.errors import InvalidInput
from tests.support.web_server import WebServer

UVICORN = ("uvicorn", "fastapi_app:app", "--workers", "2", "--port", "{port}")


def wait_until(condition: Callable[[], Any], log: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, log()
        time.sleep(0.05)


def test_no_order_is_lost_and_no_slot_fires_twice_over_a_rolling_restart(tmp_path: Path) -> None:
    first, second = (WebServer(tmp_path, *UVICORN) for _ in range(2))
    accepted: list[int] = []

    def order_until_refused() -> None:
        try:
            for number in range(100_000):
                first.post(f"/orders/{number}")
                accepted.append(number)
        except OSError:  # the server has stopped
            return

    with first:
        with pytest.raises(OSError, match="403"):
            first.get("/jobs/api/v1/workers")
        wait_until(lambda: len(workers_of(first)) == 2, lambda: first.log)
        customers = threading.Thread(target=order_until_refused)
        customers.start()
        wait_until(lambda: len(first.get("/orders")) >= 5, lambda: first.log)
        assert first.terminate() == 0
        customers.join()
        assert "Traceback" not in first.log
    with second:
        wait_until(lambda: len(second.get("/orders")) >= len(accepted), lambda: second.log)
        counted = len(runs_of(tmp_path, "count_stock"))
        wait_until(lambda: len(runs_of(tmp_path, "count_stock")) > counted + 2)
        assert second.terminate() == 0

    shop = sqlite3.connect(tmp_path / "shop.db")
    shipped = [number for (number,) in shop.execute("select number from shipped order by number")]
    assert set(accepted) <= set(shipped)
    assert len(shipped) == len(set(shipped))
    slots = [slot for (slot,) in shop.execute("select slot from counted")]
    assert len(slots) == len(set(slots))
    succeeded = [r for r in runs_of(tmp_path, "count_stock") if r.state is State.SUCCEEDED]
    assert sorted(slots) == sorted(run.scheduled_at.isoformat() for run in succeeded)
    assert not [run for run in runs_of(tmp_path, "ship") if run.state is State.RUNNING]


def workers_of(server: WebServer) -> list[Any]:
    items: list[Any] = server.get("/jobs/api/v1/workers", x_admin="let-me-in")["items"]
    return items


def runs_of(folder: Path, job: str) -> list[Any]:
    with Client(f"sqlite:///{folder}/shop-jobs.db").blocking as client:
        return client.list_runs(job=job, limit=1000).items


def test_the_lifespan_goes_around_the_start_and_the_stop(tmp_path: Path) -> None:
    log: list[str] = []
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db")
    scheduler.on("scheduler.started", lambda event: log.append("started"))
    scheduler.on("scheduler.stopped", lambda event: log.append("stopped"))

    @asynccontextmanager
    async def own(app: Starlette) -> AsyncIterator[dict[str, str]]:
        log.append("open")
        yield {"color": "red"}
        log.append("close")

    def color(request: StarletteRequest) -> JSONResponse:
        return JSONResponse([request.state.color, scheduler.started])

    lifespan = Mainspring(scheduler).lifespan(own)
    app = Starlette(routes=[Route("/", color)], lifespan=lifespan)
    with TestClient(app) as web:
        assert web.get("/").json() == ["red", True]
    assert log == ["open", "started", "stopped", "close"]
    assert not scheduler.started


def test_a_client_enqueues_and_shows_the_dashboard(tmp_path: Path) -> None:
    """With workers of their own, web processes have a `Client`."""
    store = f"sqlite:///{tmp_path}/jobs.db"
    worker = Scheduler(store)

    @worker.job
    def greet(ctx: RunContext, name: str) -> str:
        return f"hello {name}"

    mainspring = Mainspring(Client(store))

    def guard(request: Request) -> None:
        if request.headers.get("x-user") != "ada":
            raise HTTPException(401, "log in first")

    app = FastAPI(lifespan=mainspring.lifespan())
    app.include_router(mainspring.router("/jobs", dependencies=[Depends(guard)]), prefix="/admin")

    @app.post("/greet/{name}")
    async def enqueue(name: str, jobs: Annotated[Client, Depends(mainspring)]) -> str:
        return (await jobs.enqueue("greet", {"name": name})).id

    with worker.blocking as running, TestClient(app, root_path="/behind") as web:
        run_id = web.post("/greet/ada").json()
        assert running.wait(run_id, timeout=60).result == "hello ada"
        for path in ("/", "/api/v1/jobs", "/assets/x", "/keys", "/livez"):
            refused = web.get(f"/admin/jobs{path}")
            assert (refused.status_code, refused.json()) == (401, {"detail": "log in first"})
        assert web.post("/admin/jobs/api/v1/jobs/greet/trigger").status_code == 401
        ada = {"x-user": "ada"}
        page = web.get("/admin/jobs", headers=ada)
        assert page.status_code == 200
        assert 'href="/behind/admin/jobs/runs"' in page.text
        evil = ada | {"origin": "https://evil.example"}
        trigger = "/admin/jobs/api/v1/jobs/greet/trigger"
        assert web.post(trigger, headers=evil, json={}).status_code == 403
        given = {"payload": {"name": "Bob"}}
        assert web.post(trigger, headers=ada, json=given).status_code == 202
    assert "/admin/jobs/{path}" not in app.openapi()["paths"]


def test_a_dashboard_without_a_guard_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"dependency.*Depends.*API key"):
        Mainspring(Client("memory://")).router("/jobs", dependencies=[])
