"""Process isolation inside whole programs: scripts, packages, threads, a parent that dies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.process_pool import alive

PRELUDE = """
import asyncio, os, subprocess, sys, time
from datetime import UTC, datetime
from mainspring.core.context import RunContext
from mainspring.engine.executors.process_pool import ProcessPool, Target
from mainspring.core.model import Run

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RUN = Run(id="r", job_id="j", handler="h", created_at=NOW, scheduled_at=NOW, run_at=NOW)

class Mine(Exception):
    pass

async def run(function, **arguments):
    pool = ProcessPool(size=1)
    try:
        return await pool.run(
            Target.of(function), RUN, takes_context=False, arguments=arguments,
            context=RunContext(RUN),
        )
    finally:
        await pool.close()
"""


def program(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_a_function_of_the_script_itself(script: Path) -> None:
    script.write_text(
        PRELUDE
        + """
def greet(name):
    return [f"hello {name}", __name__, sys.argv[1:]]

def fail():
    raise Mine("no")

if __name__ == "__main__":
    print(asyncio.run(run(greet, name="you")).result)
    error = asyncio.run(run(fail)).error
    print("__main__.Mine" in error.names, error.message, "__mainspring_main__" in error.traceback)
"""
    )
    done = program(str(script), "--flag", cwd=script.parent)
    assert done.stdout.splitlines() == [
        "['hello you', '__mainspring_main__', ['--flag']]",
        "True Mine: no False",
    ], done.stderr


def test_a_script_without_a_guard_fails_clearly_and_starts_no_more_processes(script: Path) -> None:
    script.write_text(
        PRELUDE
        + """
def greet():
    return "hello"

print(asyncio.run(run(greet)).error.message)
"""
    )
    done = program(str(script), cwd=script.parent)
    [line] = done.stdout.splitlines()
    assert "script.py:greet cannot be loaded in its process: MainspringError" in line
    assert 'if __name__ == "__main__":' in line


def test_a_module_started_by_its_name_keeps_its_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "words.py").write_text("HELLO = 'hello from the package'\n")
    (package / "tool.py").write_text(
        PRELUDE
        + """
from .words import HELLO

def greet():
    return HELLO

if __name__ == "__main__":
    print(asyncio.run(run(greet)).result)
"""
    )
    done = program("-m", "shop.tool", cwd=tmp_path)
    assert done.stdout == "hello from the package\n", done.stderr


def test_an_interactive_function_is_refused(tmp_path: Path) -> None:
    done = program(
        "-c",
        PRELUDE
        + """
def greet(): ...

for refuse in (Target.check, Target.of):  # when it is decorated, not at its first run
    try:
        refuse(greet)
    except ValueError as error:
        print(error)
""",
        cwd=tmp_path,
    )
    assert done.stdout.count("interactive session") == 2, done.stderr


def test_output_of_a_handler_is_the_programs_own(script: Path) -> None:
    script.write_text(
        PRELUDE
        + """
def speak():
    print("spoken")
    sys.stderr.write("muttered")

if __name__ == "__main__":
    asyncio.run(run(speak))
"""
    )
    done = program(str(script), cwd=script.parent)
    assert (done.stdout, done.stderr) == ("spoken\n", "muttered")


BLOCKED = """
def work():
    sleeper = subprocess.Popen(["sleep", "600"])
    print(os.getpid(), sleeper.pid, flush=True)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass
"""

HELD = """
import ctypes

def work():
    print(os.getpid(), flush=True)
    ctypes.PyDLL(None).sleep(600)  # a call into C that does not release the interpreter
"""

only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child that its parent died"
)


@pytest.mark.parametrize(
    "handler",
    [
        pytest.param(BLOCKED, id="it and its own child block"),
        pytest.param(HELD, id="no thread of it can notice", marks=only_linux),
    ],
)
def test_a_parent_that_is_killed_takes_its_processes_along(script: Path, handler: str) -> None:
    script.write_text(
        PRELUDE + handler + 'if __name__ == "__main__":\n    asyncio.run(run(work))\n'
    )
    with subprocess.Popen(
        [sys.executable, str(script)], env=environment(), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert pids
        assert all(map(alive, pids))
        parent.kill()
        # Its standard output ends when the last process that holds it is gone.
        assert parent.stdout.read() == ""
    deadline = time.monotonic() + 30
    while any(map(alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_that_starts_its_scheduler_on_import_has_no_workers_in_children(
    tmp_path: Path,
) -> None:
    """Each child imports the program's module; it must not become a worker by that."""
    (tmp_path / "app.py").write_text(
        """
import os
from mainspring import Scheduler

scheduler = Scheduler("sqlite:///jobs.db")

@scheduler.job(isolation="process")
def isolated() -> int:
    return os.getpid()

scheduler.blocking.start()
"""
    )
    (tmp_path / "main.py").write_text(
        """
from app import scheduler

run = scheduler.blocking.wait(scheduler.blocking.enqueue("isolated").id, timeout=60)
print(run.state, run.error)
print(len(scheduler.blocking.list_workers()))
scheduler.blocking.stop()
"""
    )
    done = program("main.py", cwd=tmp_path)
    ended, workers = done.stdout.splitlines()
    assert ended.startswith("failed"), done.stderr
    assert "importing it started a scheduler" in ended
    assert workers == "1"
