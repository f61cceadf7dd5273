"""The pages around the service: what they name is there, and what they tell to type works."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from mainspring.cli.program import app as program
from tests.deploy.test_files import KNOWN, ROOT
from tests.docs.test_http_api import run
from tests.support.service import *  # noqa: F403
from tests.support.service import Serve

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OURS = [ROOT / "docs" / "deploy.md", ROOT / "docs" / "security.md"]
ELSEWHERE = {"OTEL_EXPORTER_OTLP_ENDPOINT", "SIGTERM"}


def anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http:", "https:")):
            continue
        name, _, part = link.partition("#")
        target = (page.parent / name) if name else page
        assert target.exists(), link
        if part:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert part in map(anchor, headings), link


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.name)
def test_files_settings_and_commands_are_real(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"\bdeploy/[\w./-]*\w", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`(?:MAINSPRING_)?[A-Z]{3,}_[A-Z_]+(?==|`)", text):
        assert name[1:] in KNOWN | ELSEWHERE, name
    told = set(
        re.findall(r"mainspring((?: [a-z]+){1,2})((?: [A-Z]\w*| --[a-z-]+(?: \S+)?)*)", text)
    )
    names = {"serve", "keys", "runs", "store", "doctor"}
    for words, rest in told:
        command = words.split()
        if command[0] not in names:
            continue
        command = command[:1] if command[0] in ("serve", "doctor") else command
        shown = CliRunner().invoke(program, [*command, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, command
        for flag in re.findall(r"--[a-z-]+", rest):
            assert flag in shown.output, (command, flag)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the page speaks curl")
def test_the_readmes_commands_work(serve: Serve, tmp_path: Path) -> None:
    [script] = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    served = serve(MAINSPRING_ALLOW_PRIVATE="127.0.0.1")
    script = "curl() { command curl -sS --fail-with-body -w '\\n' \"$@\"; }\n" + script
    told = run(script.replace("http://127.0.0.1:3000", served.url), tmp_path)
    assert '"jobId":"ping"' in told.replace(" ", "")
    assert "--allow-private 127.0.0.1" in (ROOT / "README.md").read_text()
    calls: list[dict[str, Any]] = []
    while not calls or calls[-1]["status"] == "running":  # the trigger's; its slots come later
        calls = httpx.get(f"{served.url}/api/jobs/ping/executions").json()["data"]
    assert calls[-1]["status"] == "success", calls
