"""The steps of the container file, done on this machine: what is copied is built and installed
into an environment of its own, and what is installed there serves, and drains."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from email.parser import Parser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.deploy_files import DOCKERFILE, ROOT, docker_steps

LONG = 60.0

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]


class Install:
    """A folder that stands for the container's file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.prefix = folder / "opt" / "mainspring"
        self.data = folder / "data"
        self.home = folder / "home"
        self.tmp = folder / "tmp"
        for made in (self.data, self.home, self.tmp, folder / "build"):
            made.mkdir(parents=True)

    def build(self) -> None:
        for line in docker_steps("COPY"):
            *names, _ = line.split()
            for name in names:
                if not name.startswith(("--from", "/opt")):
                    self._copy(name)
        for line in docker_steps("RUN"):
            if "/opt/mainspring" in line:
                self._run(line)

    def _copy(self, name: str) -> None:
        source, target = ROOT / name, self.folder / "build" / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)

    def _run(self, line: str) -> None:
        line = line.replace("/opt/mainspring", str(self.prefix))
        line = re.sub(r"^python ", f"{sys.executable} ", line)
        environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=self.folder / "build",
            env=environ,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def environ(self, **more: str) -> dict[str, str]:
        kept = {"PATH": f"{self.prefix / 'bin'}:{os.environ['PATH']}"}
        places = {"HOME": str(self.home), "TMPDIR": str(self.tmp)}
        return {**kept, **places, "PYTHONDONTWRITEBYTECODE": "1", "HOST": "127.0.0.1", **more}

    def files(self) -> dict[str, int]:
        """Everything outside of the data folder, and when it was last written."""
        found = [*self.prefix.rglob("*"), *self.home.rglob("*"), *self.tmp.rglob("*")]
        return {str(path): path.lstat().st_mtime_ns for path in found}


@pytest.fixture
def install(tmp_path: Path) -> Install:
    made = Install(tmp_path)
    made.build()
    return made


class Slow(ThreadingHTTPServer):
    """An endpoint that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.called = threading.Event()
        self.answer = threading.Event()


class _Answer(BaseHTTPRequestHandler):
    server: Slow

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.called.set()
        self.server.answer.wait(LONG)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def endpoint() -> Iterator[Slow]:
    with Slow() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.answer.set()
        server.shutdown()


def test_what_is_installed_serves_from_an_empty_folder_and_drains(
    install: Install, endpoint: Slow
) -> None:
    before = install.files()
    [command] = [json.loads(line) for line in docker_steps("CMD")]
    environ = install.environ(PORT="0", MAINSPRING_ALLOW_PRIVATE="127.0.0.1")
    served = subprocess.Popen(
        [install.prefix / "bin" / "mainspring", *command, "--json"],
        cwd=install.data,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        told = json.loads(greeting(served))
        with httpx.Client(base_url=told["url"], timeout=LONG) as client:
            assert client.get("/readyz").json() == {"status": "ok"}
            assert healthy(install, told["url"]) == 0
            url = f"http://127.0.0.1:{endpoint.server_port}/hook"
            body = {"name": "hook", "endpoint": url, "schedule": "0 0 1 1 *"}
            made = client.post("/api/v1/jobs", json=body)
            assert made.status_code == 201, made.text
            started = client.post(f"/api/v1/jobs/{made.json()['id']}/trigger")
            run_id = started.json()["id"]
            assert endpoint.called.wait(LONG)
            served.send_signal(signal.SIGTERM)
            while client.get("/readyz").status_code == 200:
                assert served.poll() is None
            assert client.get("/livez").status_code == 200
            assert healthy(install, told["url"]) != 0
        endpoint.answer.set()
        assert served.wait(LONG) == 0
    finally:
        served.kill()
        served.communicate()
    shown = mainspring(install, "runs", "show", run_id, "--json")
    assert json.loads(shown.stdout)["state"] == "succeeded"
    assert (install.data / "mainspring.db").exists()
    key_comes_first(install)
    describes_itself(install)
    assert install.files() == before


def key_comes_first(install: Install) -> None:
    """As compose and Kubernetes do it: the key is made by the same image, on the same store."""
    store = {"MAINSPRING_STORE": f"sqlite:///{install.data / 'keys.db'}", "HOST": "0.0.0.0"}
    refused = mainspring(install, "serve", PORT="0", **store)
    assert refused.returncode == 2
    assert "mainspring keys create" in refused.stderr
    made = mainspring(install, "keys", "create", "ops", "--scope", "admin", **store)
    assert made.returncode == 0
    assert made.stdout.startswith("ms_")


def describes_itself(install: Install) -> None:
    """What a package index shows: links that work there, and only extras that code uses."""
    [path] = install.prefix.rglob("mainspring-*.dist-info/METADATA")
    text = path.read_text()
    about = Parser().parsestr(text)
    assert set(about.get_all("Provides-Extra") or ()) == {
        *("server", "mongodb", "postgresql", "objects", "django", "otel", "all", "docs", "dev")
    }
    urls = dict(one.split(", ") for one in about.get_all("Project-URL") or ())
    assert {"Source", "Documentation", "Changelog", "Issues", "Security"} <= urls.keys()
    assert "maintainers" in (about["Author-email"] or "")
    links = re.findall(r"\]\(([^)\s]+)\)", str(about.get_payload()))
    assert f"{urls['Source']}/blob/main/docs/reference/index.md" in links
    assert [link for link in links if not link.startswith("https://")] == []


def greeting(served: subprocess.Popen[str]) -> str:
    assert served.stdout is not None
    text = ""
    for line in served.stdout:
        text += line
        if line.startswith("}"):
            break
    return text


def mainspring(install: Install, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [install.prefix / "bin" / "mainspring", *words],
        cwd=install.data,
        env=install.environ(**environ),
        capture_output=True,
        text=True,
        timeout=LONG,
    )


def healthy(install: Install, url: str) -> int:
    """The container's own check of itself."""
    [check] = re.findall(r"^HEALTHCHECK.*?CMD (\[.*?\])$", DOCKERFILE, re.MULTILINE | re.DOTALL)
    environ = install.environ(PORT=url.rpartition(":")[2])
    words = json.loads(check)
    words[0] = str(install.prefix / "bin" / words[0])
    return subprocess.run(words, env=environ, capture_output=True, timeout=LONG).returncode
