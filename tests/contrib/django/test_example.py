"""The Django example under real servers: gunicorn with two workers, and Django's own with its
reloader. Its jobs are run by `manage.py mainspring worker`."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mainspring import Client, State
from tests.support.web_server import EXAMPLES, LONG, WebServer

GUNICORN = ("gunicorn", "--workers", "2", "--bind", "127.0.0.1:{port}", "wsgi:application")
RUNSERVER = ("django", "runserver", "127.0.0.1:{port}")


def wait_until(condition: Callable[[], Any], log: Callable[[], str] = lambda: "") -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline, log()
        time.sleep(0.05)


class Shop:
    """A copy of the example, with a database and with workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        shutil.copytree(EXAMPLES / "django_project", self.folder)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "DJANGO_SETTINGS_MODULE": "settings",
            "SHOP_DB": str(folder / "shop.sqlite3"),
        }
        self.url = f"sqlite:///{folder}/shop.sqlite3"
        self.worker_log = folder / "worker.log"
        self.accepted: list[int] = []
        self._workers: list[subprocess.Popen[bytes]] = []
        self.manage("migrate", "--verbosity", "0")

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def server(self, *arguments: str) -> WebServer:
        return WebServer(self.folder, *arguments, environment=self.environment)

    def start_worker(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.worker_log, "ab") as log:
            worker = subprocess.Popen(
                [sys.executable, "manage.py", "mainspring", "worker", *words],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers.append(worker)
        return worker

    def kill(self) -> None:
        for worker in self._workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()

    def order(self, server: WebServer) -> None:
        number = len(self.accepted) + 1_000 * len(self._workers)
        try:
            server.post(f"/orders/{number}")
        except OSError:  # its process was replaced while it was asked
            return
        self.accepted.append(number)

    def shipped(self) -> list[int]:
        return [number for (number,) in self._rows("select number from shop_shipment")]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.folder.parent / "shop.sqlite3", timeout=LONG) as database:
            return database.execute(query).fetchall()

    def check(self) -> None:
        """Each order that was accepted is shipped once, each slot was counted once, and there is
        a run for exactly those orders that are stored."""
        shipped = self.shipped()
        assert len(shipped) == len(set(shipped))
        ordered = {number for (number,) in self._rows("select number from shop_order")}
        assert set(self.accepted) <= set(shipped) == ordered
        slots = [slot for (slot,) in self._rows("select slot from shop_stockcount")]
        with Client(self.url).blocking as client:
            runs = client.list_runs(job="count_stock", limit=1000).items
        succeeded = [run.scheduled_at.isoformat() for run in runs if run.state is State.SUCCEEDED]
        assert sorted(slots) == sorted(succeeded)
        assert len(slots) == len(set(slots)) > 1
        assert not [run for run in runs if run.state is State.FAILED]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.kill()


def test_no_order_is_lost_and_no_slot_fires_twice_over_restarts(shop: Shop) -> None:
    with shop.server(*GUNICORN) as server:
        for _ in range(10):  # before a worker was ever started: the web process stores the job
            shop.order(server)
        first = shop.start_worker("--processes", "2")
        wait_until(lambda: len(server.get("/orders")) == 10, shop.worker_log.read_text)
        server.send_signal(signal.SIGHUP)  # gunicorn replaces its processes one by one
        for _ in range(20):
            shop.order(server)
        first.terminate()
        shop.order(server)
        assert first.wait(timeout=LONG) == 0
        shop.order(server)
        second = shop.start_worker()
        wait_until(lambda: set(shop.shipped()) >= set(shop.accepted), shop.worker_log.read_text)
        ended = shop.manage("mainspring", "enqueue", "audit", "--wait")
        assert "succeeded" in ended, ended
        assert "count_stock" in shop.manage("mainspring", "jobs", "list")
        second.terminate()
        assert second.wait(timeout=LONG) == 0
        assert server.terminate() == 0
    assert "Traceback" not in server.log
    shop.check()


def test_no_order_is_lost_while_both_reloaders_start_again(shop: Shop) -> None:
    worker = shop.start_worker("--reload")
    with shop.server(*RUNSERVER) as server:
        shop.order(server)
        wait_until(lambda: set(shop.shipped()) >= set(shop.accepted), shop.worker_log.read_text)
        jobs = shop.folder / "shop" / "jobs.py"
        code = jobs.read_text()
        jobs.write_text(code + "\n!")  # does not load: the worker goes on with the former code
        wait_until(lambda: "SyntaxError" in shop.worker_log.read_text(), shop.worker_log.read_text)
        jobs.write_text(code.replace("os.getpid()", "-1"))
        wait_until(lambda: "starts again" in shop.worker_log.read_text(), shop.worker_log.read_text)
        wait_until(lambda: server.status("GET", "/orders") == 200, lambda: server.log)
        shop.order(server)
        wait_until(lambda: server.get("/orders")[-1][1] == -1, shop.worker_log.read_text)
        worker.terminate()
        assert worker.wait(timeout=LONG) == 0
        assert server.terminate() == 0
    shop.check()
