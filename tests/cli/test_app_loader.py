"""`module:attribute`: which targets are loaded, and the errors for all others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from mainspring.cli.app_loader import load_scheduler
from mainspring.cli.errors import CommandError
from mainspring.scheduler import Scheduler


@pytest.mark.parametrize("spec", ["app:scheduler", "app:make"])
def test_a_scheduler_or_a_function_that_gives_one(folder: Path, spec: str) -> None:
    found = load_scheduler(spec)
    assert isinstance(found, Scheduler)
    assert found.url == "sqlite:///mainspring.db"
    assert sys.path[0] == os.getcwd()


@pytest.mark.parametrize(
    ("spec", "message", "advice"),
    [
        ("app", "'app' is not MODULE:ATTRIBUTE", "app:scheduler"),
        ("app:", "'app:' is not MODULE:ATTRIBUTE", "app:scheduler"),
        ("app.py:scheduler", "names a file", "write app:scheduler"),
        ("jobs/app.py", "names a file", "write jobs.app:scheduler"),
        ("nowhere:scheduler", "there is no module 'nowhere'", "spelling"),
        ("app.inner:scheduler", "'app.inner'", ""),
        ("app:schedule", "module 'app' has no 'schedule'", "scheduler"),
        ("app:number", "app:number is of type int, not a Scheduler", "name a Scheduler"),
        ("app:Scheduler", "the class Scheduler", "name a Scheduler"),
        ("app:make_nothing", "app:make_nothing() is of type NoneType", "name a Scheduler"),
        (
            "app:needs",
            "app:needs() failed: TypeError: needs() missing",
            "MAINSPRING_DEBUG",
        ),
        ("app:breaks", "failed: RuntimeError: no database today (", "MAINSPRING_DEBUG"),
        ("app:make_async", "async function", "plain"),
        ("app:send_email", "is the job 'send_email'", "scheduler it belongs to"),
    ],
)
def test_wrong_targets_are_refused(folder: Path, spec: str, message: str, advice: str) -> None:
    with pytest.raises(CommandError) as caught:
        load_scheduler(spec)
    assert message in str(caught.value)
    assert advice in caught.value.advice
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import nonexistent_thing\n", "No module named 'nonexistent_thing' ("),
        ("x = 1\n\n1 / 0\n", "ZeroDivisionError: division by zero ("),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "ended the program"),
    ],
)
def test_a_module_that_cannot_be_imported(folder: Path, source: str, message: str) -> None:
    (folder / "broken_app.py").write_text(source)
    with pytest.raises(CommandError) as caught:
        load_scheduler("broken_app:scheduler")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "broken_app" in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "1 / 0",
        "import json; json.loads('{')",  # raised in the standard library
        "Scheduler('memory://').job(retires=3)",  # raised in ours
        "import no_such_module",
        "def f(:",
    ],
)
def test_the_users_own_line_is_told(folder: Path, line: str) -> None:
    (folder / "broken_app.py").write_text(f"from mainspring import Scheduler\n\n{line}\n")
    with pytest.raises(CommandError) as caught:
        load_scheduler("broken_app:scheduler")
    assert f"({folder}/broken_app.py, line 3)" in str(caught.value)


def test_function_that_ends_the_program_is_an_error(folder: Path) -> None:
    (folder / "ending_app.py").write_text("def make():\n    raise SystemExit(0)\n")
    with pytest.raises(CommandError, match=r"ending_app:make\(\) ended the program: SystemExit: 0"):
        load_scheduler("ending_app:make")
