"""The front door: what `make` does before anything is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.deploy_files import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def make(goal: str, python: Path, checkout: Path) -> subprocess.CompletedProcess[str]:
    """As a user types it, also where these tests were started by a make."""
    outside = {n: v for n, v in os.environ.items() if n not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    command = ["make", goal, f"PYTHON={python}"]
    return subprocess.run(command, cwd=checkout, env=outside, capture_output=True, text=True)


@pytest.mark.parametrize("goal", ["run", "test"])
def test_an_old_python_is_refused_with_a_sentence(checkout: Path, goal: str) -> None:
    old = script(
        checkout / "old", 'case "$1" in --version) echo "Python 3.9.18";; *) exit 1;; esac'
    )
    done = make(goal, old, checkout)
    assert done.returncode != 0
    assert f"Mainspring needs Python 3.11 or newer, and {old} is Python 3.9.18." in done.stdout
    assert not (checkout / ".venv").exists()


def test_run_installs_what_serving_needs_and_says_so(checkout: Path) -> None:
    """With a Python that writes down what it is asked to do."""
    fake = script(
        checkout / "fake",
        f'echo "$@" >> {checkout}/asked\n'
        f'if [ "$2" = venv ]; then mkdir -p .venv/bin;'
        ' cp "$0" .venv/bin/python; cp "$0" .venv/bin/mainspring; fi',
    )
    done = make("run", fake, checkout)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Setting up .venv to serve")
    asked = (checkout / "asked").read_text()
    assert "--editable .[server,mongodb]" in asked
    assert "dev" not in asked
    assert asked.rstrip().endswith("serve")
    again = make("run", fake, checkout)
    assert (again.returncode, again.stdout) == (0, "")
