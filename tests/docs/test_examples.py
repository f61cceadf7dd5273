"""Every example runs as a user would run it, in a folder of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import Process

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
QUICK_START = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("workflow.py", "[1, 2, 3] make 6"),
        ("plain_code.py", "2.jpg at 200 px"),
        ("webhooks.py", 'attempt 2: 200 {"try": 2}'),
    ],
)
def test_example_prints_what_it_should(name: str, says: str, tmp_path: Path) -> None:
    assert says in run([str(EXAMPLES / name)], tmp_path)


def test_a_producer_hands_work_to_the_quick_starts_worker(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "quickstart.py", tmp_path)
    worker = Process(("worker", "quickstart:scheduler"), tmp_path)
    try:
        worker.wait_for_output("Press Ctrl+C to stop")
        assert "sent 'hello' to a@example.org" in run([str(EXAMPLES / "producer.py")], tmp_path)
        worker.popen.terminate()
        assert worker.ends() == 0
    finally:
        worker.popen.kill()


def test_the_readmes_quick_start_does_what_the_page_shows(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text()
    code = QUICK_START.findall(page)[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    [output] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    (tmp_path / "app.py").write_text(code)
    process = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        shown = "".join(process.stdout.readline() for _ in output.splitlines())
        assert re.sub(r"process \d+", "process 4711", shown) == output
        arguments = ["-m", "mainspring", "enqueue", "send_email", '{"to": "a@example.org"}']
        answer = run([*arguments, "--store", "sqlite:///jobs.db", "--wait"], tmp_path)
        assert "state:    succeeded" in answer
        assert "result:   \"sent 'hello' to a@example.org\"" in answer
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()
