"""Notebooks, `run()`, and how long a stop may take."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mainspring import Scheduler, State
from mainspring.errors import InvalidInput, InvalidState, JobExists
from mainspring.scheduler.run_forever import summary
from tests.support.engine import ended

SRC = str(Path(__file__).parents[2] / "src")

CELL = """
@scheduler.job()
def add(a: int, b: int) -> int:
    return {body}
"""


def run_cell(scheduler: Scheduler, body: str, module: str = "__main__") -> Any:
    """Run the text as a notebook does: in the main module's names, compiled anew each time."""
    names: dict[str, Any] = {"scheduler": scheduler, "__name__": module}
    exec(compile(CELL.format(body=body), "<cell>", "exec"), names)
    return names["add"]


async def test_a_notebook_cell_may_be_run_twice() -> None:
    scheduler = Scheduler("memory://")
    run_cell(scheduler, "0")
    add = run_cell(scheduler, "a + b")
    async with scheduler:
        assert (await ended(scheduler, await add.enqueue(a=1, b=2))).result == 3
        add = run_cell(scheduler, "a * b")  # also while it runs
        assert (await ended(scheduler, await add.enqueue(a=2, b=3))).result == 6


def test_two_functions_of_one_name_in_another_module_are_refused() -> None:
    scheduler = Scheduler("memory://")
    run_cell(scheduler, "a + b", "some_module")
    for module in ("some_module", "__main__"):
        with pytest.raises(JobExists, match=r"some_module\.add"):
            run_cell(scheduler, "a * b", module)


def test_a_script_that_defines_a_job_twice_is_refused(tmp_path: Path) -> None:
    """There it is most often a mistake of copying."""
    script = tmp_path / "twice.py"
    cell = CELL.format(body="a + b")
    script.write_text(
        "from mainspring import Scheduler\nscheduler = Scheduler('memory://')\n" + cell + cell
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": SRC},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "'add' is already the name of __main__.add" in done.stderr


async def test_run_inside_a_loop_says_what_to_write_instead() -> None:
    scheduler = Scheduler("memory://")
    with pytest.raises(InvalidState, match=r"await scheduler\.start\(\)"):
        scheduler.run()
    async with scheduler:
        pass


def test_a_wrong_drain_timeout_is_refused_before_the_start() -> None:
    with pytest.raises(InvalidInput, match="drain_timeout 'soon'"):
        Scheduler("memory://").run(drain_timeout="soon")


SCRIPT = """
import asyncio, sys
from mainspring import Scheduler
scheduler = Scheduler(sys.argv[1])

@scheduler.job(run_on_start=True)
async def work():
    print("began", flush=True)
    await asyncio.sleep(600)

scheduler.run(drain_timeout="100ms")
print("stopped", flush=True)
"""


async def test_run_gives_back_what_does_not_end_within_the_drain_timeout(file: str) -> None:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, file),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SRC},
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"began\n"
    child.send_signal(signal.SIGTERM)
    out, _ = await child.communicate()
    assert (child.returncode, out) == (0, b"stopped\n")
    async with Scheduler(file, workers=0) as producer:
        [run] = (await producer.list_runs()).items
        assert run.state is State.PENDING


# The line that `run()` prints at the start


def test_the_line_shows_no_password() -> None:
    line = summary(["a"], "mongodb://me:secret@host/db", 1, frozenset({"mail"}))
    assert "secret" not in line
    assert "of the queues mail" in line
