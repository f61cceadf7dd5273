"""The pytest plugin, in pytest processes of its own: with and without a plugin for asyncio."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = "mainspring.testing.pytest_plugin"

APP = """
import pytest
from mainspring import Scheduler

scheduler = Scheduler("sqlite:////no-such-folder/jobs.db")

@scheduler.job("@hourly")
async def hourly(): ...

@pytest.fixture
def mainspring_scheduler():
    return scheduler
"""
PLAIN = """
import pytest

@pytest.mark.mainspring(start="2026-06-01T00:30Z")
def test_plain(mainspring_test):
    mainspring_test.blocking.tick("2h")
    runs = mainspring_test.assert_succeeded("hourly", times=2)
    assert [run.scheduled_at.hour for run in runs] == [1, 2]
"""
ASYNC = """
async def test_async(mainspring_test):
    await mainspring_test.tick("1h")
    mainspring_test.assert_succeeded("hourly", times=1)
"""


def run_pytest(folder: Path, test: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(APP)
    (folder / "test_app.py").write_text(test)
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"),
            *("-p", PLUGIN, *options),
        ],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("test", "options"),
    [
        (PLAIN, ()),
        (PLAIN + ASYNC, ("-p", "pytest_asyncio.plugin", "-o", "asyncio_mode=auto")),
        (f"{PLAIN}\npytestmark = pytest.mark.anyio\n{ASYNC}", ("-p", "anyio.pytest_plugin")),
    ],
    ids=["no plugin for asyncio", "pytest-asyncio", "anyio"],
)
def test_the_fixture_works_with_and_without_an_asyncio_plugin(
    tmp_path: Path, test: str, options: tuple[str, ...]
) -> None:
    backend = "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    done = run_pytest(tmp_path, f"import pytest\n{backend}\n{test}", *options)
    assert done.returncode == 0, done.stdout
    assert f"{test.count('def test_')} passed" in done.stdout


def test_the_report_of_a_failed_test_lists_the_runs(tmp_path: Path) -> None:
    failing = PLAIN + '\n    mainspring_test.assert_failed("hourly")\n'
    done = run_pytest(tmp_path, failing)
    assert done.returncode == 1
    assert "expected at least 1 failed of 'hourly', found 0" in done.stdout
    assert "Mainspring runs" in done.stdout
    assert "hourly succeeded: for 2026-06-01 01:00:00 UTC, 1 attempt" in done.stdout
    assert "virtual_scheduler.py" not in done.stdout  # the frames of the asserts are hidden


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"mainspring": PLUGIN}


def test_the_plugin_imports_none_of_the_engine() -> None:
    """pytest imports it in every program that has Mainspring installed."""
    code = f"import sys, {PLUGIN}; print([m for m in sys.modules if m.startswith('mainspring')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version = ["mainspring.core", "mainspring.core.version"]
    assert sorted(eval(done.stdout)) == ["mainspring", *version, "mainspring.testing", PLUGIN]


def test_the_kit_needs_no_pytest() -> None:
    program = """
import sys
sys.modules["pytest"] = None
import mainspring.testing
mainspring.testing.FakeClock()
try:
    mainspring.testing.StoreConformance
except ImportError:
    print("only the suite")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "only the suite", done.stderr
