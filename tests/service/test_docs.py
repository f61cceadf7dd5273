"""The commands of docs/http-api.md, run as they stand there against a live service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.conftest import Serve

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


def test_every_endpoint_is_on_the_page() -> None:
    from tests.service.test_schema import OPERATIONS

    page = PAGE.read_text()
    for operation in OPERATIONS:
        path = re.sub(r"\{id\}", "[^/'\"? ]+", operation.path)
        assert re.search(path, page), operation.label
