"""A real server with an application of `examples/`, as an operator starts and stops it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tests.support.servers.server import free_port
from tests.support.startable import Startable

EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = 60.0


class WebServer(Startable):
    """`python -m uvicorn fastapi_app:app --workers 2 --port …` in a folder; `{port}` in the
    arguments is a free port."""

    def __init__(self, folder: Path, *arguments: str, environment: Mapping[str, str] = {}) -> None:
        self.port = free_port()
        self._folder = folder
        self._log = folder / f"server-{self.port}.log"
        self._arguments = [one.format(port=self.port) for one in arguments]
        self._environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), **environment}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self._arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + LONG
        while True:
            try:
                self.get("/orders")
            except OSError:
                assert self._process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)
            else:
                return self

    @property
    def log(self) -> str:
        return self._log.read_text()

    def terminate(self) -> int:
        """Send SIGTERM to the server alone, as a supervisor does; return its exit code."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=LONG)

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def get(self, path: str, **headers: str) -> Any:
        return self._send("GET", path, headers)

    def post(self, path: str, **headers: str) -> Any:
        return self._send("POST", path, headers)

    def _send(self, method: str, path: str, headers: Mapping[str, str]) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )
        with urllib.request.urlopen(request, timeout=LONG) as response:
            body = response.read()
        is_json = "json" in response.headers["content-type"]
        return json.loads(body) if is_json else body.decode()

    def status(self, method: str, path: str, **headers: str) -> int:
        """The status of a request, also of one that is refused."""
        try:
            self._send(method, path, headers)
        except urllib.error.HTTPError as error:
            return error.code
        return 200
