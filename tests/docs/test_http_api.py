"""The commands of docs/http-api.md, run as they stand there against a live service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service import Serve
from tests.support.service import serve as serve

PAGE = Path(__file__).parents[2] / "docs" / "http-api.md"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def run(script: str, folder: Path) -> str:
    binaries = Path(sys.executable).parent
    source = PAGE.parents[1] / "src"
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
        blocks("bash")
    )
    assert script.count("curl ") > 40
    run(script.replace("http://127.0.0.1:3000", served.url), tmp_path)


def test_keys_by_command(tmp_path: Path) -> None:
    [script] = blocks("sh")
    told = run(script, tmp_path)
    assert told.count("ms_") == 2
    assert "ops" in told
    assert "write" in told


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page speaks curl")
@pytest.mark.parametrize("form", [0, 1])
def test_the_stream_of_events_begins(serve: Serve, tmp_path: Path, form: int) -> None:
    """It has no end of its own, so it is cut off: curl says 28 then."""
    script = (
        blocks("console")[form].strip().replace("curl ", "curl -sS --fail-with-body --max-time 2 ")
    )
    served = serve(MAX_CONCURRENT_JOBS="0")
    script = script.replace("http://127.0.0.1:3000", served.url) + " || [ $? = 28 ]"
    assert run(script, tmp_path).startswith("retry: 2000")


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
    from tests.service.test_openapi import OPERATIONS

    return {
        str(one.label)
        for one in OPERATIONS
        if not any(
            method == one.method.upper()
            and re.fullmatch(re.sub(r"\{id\}", "[^/]+", one.path), path)
            for method, path in page
        )
    }


def test_every_endpoint_is_on_the_page() -> None:
    page = {
        found
        for kind in ("bash", "console", "text")
        for one in blocks(kind)
        for found in asked(one)
    }
    assert len(page) > 25
    assert missing(page) == set()
    assert missing(page - {("DELETE", "/api/v1/jobs/b")}) == {"DELETE /api/v1/jobs/{id}"}
