"""The Flask example under a real gunicorn with two workers, and what the extension promises."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, current_app

from mainspring import Client, RunContext, State
from mainspring.contrib import flask as extension
from mainspring.contrib.flask import Mainspring, app_context
from mainspring.errors import InvalidState
from tests.support.web_server import EXAMPLES, LONG, WebServer

GUNICORN = ("gunicorn", "--workers", "2", "--bind", "127.0.0.1:{port}", "flask_app:create_app()")
FLASK = [sys.executable, "-m", "flask", "--app", "flask_app", "mainspring"]


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    store = f"sqlite:///{tmp_path}/shop-jobs.db"
    return {**os.environ, "PYTHONPATH": str(EXAMPLES), "MAINSPRING_STORE": store}


@pytest.fixture
def workers(tmp_path: Path, environment: dict[str, str]) -> Iterator[Callable[[], Any]]:
    """Starts `flask mainspring worker --processes 2`."""
    started = []

    def start() -> Any:
        started.append(
            subprocess.Popen(
                [*FLASK, "worker", "--processes", "2"],
                cwd=tmp_path,
                env=environment,
                start_new_session=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_no_order_is_lost_and_no_slot_fires_twice_over_restarts(
    tmp_path: Path, environment: dict[str, str], workers: Callable[[], Any]
) -> None:
    def commands(*words: str) -> str:
        done = subprocess.run(
            [*FLASK, *words], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    accepted: list[int] = []
    numbers = iter(range(100_000))
    server = WebServer(tmp_path, *GUNICORN, environment=environment)

    def order() -> None:
        number = next(numbers)
        try:
            server.post(f"/orders/{number}")
        except OSError:  # its process was replaced while it was asked
            return
        accepted.append(number)

    with server:
        for _ in range(10):  # before a worker was ever started: the web process stores the job
            order()
        first = workers()
        wait_until(lambda: len(server.get("/orders")) == len(accepted))
        server.send_signal(signal.SIGHUP)  # gunicorn replaces its processes one by one
        for _ in range(20):
            order()
        first.terminate()
        order()
        assert first.wait(timeout=LONG) == 0
        order()
        second = workers()
        wait_until(lambda: {n for n, _ in server.get("/orders")} >= set(accepted))
        assert '"shop.db"' in commands("enqueue", "audit", "--wait")
        assert "count_stock" in commands("jobs", "list")
        second.terminate()
        assert second.wait(timeout=LONG) == 0
        assert server.terminate() == 0
    assert "Traceback" not in server.log

    shop = sqlite3.connect(tmp_path / "shop.db")
    shipped = [number for (number,) in shop.execute("select number from shipped")]
    assert len(shipped) == len(set(shipped))
    assert set(accepted) <= set(shipped)
    slots = [slot for (slot,) in shop.execute("select slot from counted")]
    with Client(environment["MAINSPRING_STORE"]).blocking as client:
        runs = client.list_runs(job="count_stock", limit=1000).items
    succeeded = [run.scheduled_at.isoformat() for run in runs if run.state is State.SUCCEEDED]
    assert sorted(slots) == sorted(succeeded)
    assert len(slots) == len(set(slots)) > 1


@pytest.fixture
def no_app(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "_apps", [])


@pytest.mark.usefixtures("no_app")
def test_handlers_run_inside_the_context_of_the_application(tmp_path: Path) -> None:
    mainspring = Mainspring(f"sqlite:///{tmp_path}/jobs.db")

    @mainspring.job
    def plain() -> str:
        return str(current_app.config["COLOR"])

    @mainspring.job
    async def on_loop(ctx: RunContext) -> str:
        return str(current_app.config["COLOR"])

    for color in ("red", "blue"):  # tests make the application again and again
        app = Flask("shop")
        app.config["COLOR"] = color
        mainspring.init_app(app)
        assert app.extensions["mainspring"] is mainspring
    with mainspring.blocking as jobs:
        for job in (plain, on_loop):
            assert jobs.wait(job.blocking.enqueue().id, timeout=60).result == "blue"


@pytest.mark.usefixtures("no_app")
def test_a_web_process_opens_at_its_first_use_and_runs_nothing(tmp_path: Path) -> None:
    mainspring = Mainspring(f"sqlite:///{tmp_path}/jobs.db", app=Flask("shop"))
    opened: list[str] = []

    @mainspring.job
    def work() -> None:
        opened.append("ran")

    run = work.blocking.enqueue()
    assert mainspring.workers == 0
    assert mainspring.blocking.get_run(run.id).state is State.PENDING
    mainspring.blocking.stop()
    assert opened == []


@pytest.mark.usefixtures("no_app")
def test_wrong_use_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Mainspring("memory://"), Mainspring("memory://")
    first.init_app(Flask("shop"))
    with pytest.raises(InvalidState, match=r"'shop' of this process has another Mainspring"):
        second.init_app(Flask("other"))
    monkeypatch.setattr(extension, "_apps", [Flask("bare")])
    with pytest.raises(InvalidState, match=r"'bare' has no Mainspring.*init_app"):
        extension.scheduler()
    assert app_context.__module__ == "mainspring.contrib.flask"  # a process finds it by its name
