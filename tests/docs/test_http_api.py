"""The commands of docs/how-to/use-the-http-api.md and README.md, run against a live service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from mainspring.dashboard.app import create_app
from mainspring.service.settings import ServiceSettings
from tests.support.doc_examples import DOCS, ROOT, Command, blocks, commands, differs
from tests.support.service import Serve, sample_scheduler
from tests.support.service import serve as serve

PAGE = DOCS / "how-to" / "use-the-http-api.md"


def texts(kind: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.language == kind]


def run(script: str, folder: Path) -> str:
    binaries = Path(sys.executable).parent
    source = ROOT / "src"
    environ = {
        **os.environ,
        "PATH": f"{binaries}:{os.environ['PATH']}",
        "PYTHONPATH": str(source),
    }
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page speaks curl")
def test_every_command_of_the_page_works(serve: Serve, tmp_path: Path) -> None:
    served = serve(MAX_CONCURRENT_JOBS="0")
    script = "curl() { command curl -sS --fail-with-body -w '\\n' \"$@\"; }\n" + "\n".join(
        texts("bash")
    )
    assert script.count("curl ") > 40
    run(script.replace("http://127.0.0.1:3000", served.url), tmp_path)


STREAMS = [
    command
    for page in (PAGE, DOCS / "how-to" / "react-to-events.md")
    for block in blocks(page)
    if block.kind == "stream"
    for command in commands(block)
]


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page speaks curl")
@pytest.mark.parametrize("command", STREAMS, ids=lambda command: command.line)
def test_event_stream_begins_as_shown(serve: Serve, tmp_path: Path, command: Command) -> None:
    """A stream does not end, so the test ends curl when it has printed what the page shows."""
    served = serve(MAX_CONCURRENT_JOBS="0")
    shown = command.output.removesuffix("…").splitlines()
    curl = command.line.replace("curl ", "curl -sS --fail-with-body ")
    script = f"""
        {curl.replace("http://127.0.0.1:3000", served.url)} > printed &
        until [ "$(wc -l < printed)" -ge {len(shown)} ] || ! kill -0 $!; do sleep 0.1; done
        kill $!
        cat printed
    """
    assert differs(command.output, run(script, tmp_path)) is None


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page speaks curl")
def test_readme_commands_work(serve: Serve, tmp_path: Path) -> None:
    [script] = [block.text for block in blocks(ROOT / "README.md") if block.language == "bash"]
    served = serve(MAINSPRING_ALLOW_PRIVATE="127.0.0.1")
    script = "curl() { command curl -sS --fail-with-body -w '\\n' \"$@\"; }\n" + script
    told = run(script.replace("http://127.0.0.1:3000", served.url), tmp_path)
    assert '"jobId":"ping"' in told.replace(" ", "")
    assert "--allow-private 127.0.0.1" in (ROOT / "README.md").read_text()
    calls: list[dict[str, Any]] = []
    while not calls or calls[-1]["status"] == "running":  # the trigger's; its slots come later
        calls = httpx.get(f"{served.url}/api/jobs/ping/executions", timeout=60).json()["data"]
    assert calls[-1]["status"] == "success", calls


def asked(script: str) -> set[tuple[str, str]]:
    """The method and the path of every curl in a script."""
    found = set()
    for words in re.split(r"\bcurl (?=-|['\"]?http)", script)[1:]:
        words = words.partition(" | ")[0]
        path = re.search(r"http://127\.0\.0\.1:3000(/[^\s'\"?]*)", words)
        assert path is not None, words
        method = re.search(r"-X ([A-Z]+)", words)
        body = re.search(r"\s-d\s", words)
        found.add((method[1] if method else "POST" if body else "GET", path[1]))
    return found


def missing(page: set[tuple[str, str]]) -> set[str]:
    """The endpoints that no curl asks."""
    app = create_app(sample_scheduler(workers=0), ServiceSettings.read(), without_keys=True)
    described = [(m.upper(), at) for at, one in app.openapi()["paths"].items() for m in one]
    return {
        f"{method} {path}"
        for method, path in described
        if not any(
            method == asked and re.fullmatch(re.sub(r"\{id\}", "[^/]+", path), at)
            for asked, at in page
        )
    }


def test_every_endpoint_is_on_the_page() -> None:
    page = {found for kind in ("bash", "console") for one in texts(kind) for found in asked(one)}
    assert len(page) > 25
    assert missing(page) == set()
