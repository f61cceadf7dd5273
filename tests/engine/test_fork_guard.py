"""A started scheduler raises an error in a fork of its process instead of hanging."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import asyncio, multiprocessing, os, sys, threading
from mainspring import Scheduler
from mainspring.errors import InvalidState

scheduler = Scheduler("sqlite:///jobs.db")

@scheduler.job
def work():
    return 42

def tell(name, call):
    try:
        call()
    except InvalidState as error:
        print(name, "refused:", error, flush=True)
    else:
        print(name, "returned", flush=True)

def decorate():
    @scheduler.job
    def more(): ...

def child():
    tell("enqueue", lambda: scheduler.blocking.enqueue("work"))
    tell("enqueue by the function", lambda: work.blocking.enqueue())
    tell("async enqueue", lambda: asyncio.run(scheduler.enqueue("work")))
    tell("health", lambda: scheduler.blocking.health())
    tell("decorate", decorate)
    tell("start", scheduler.blocking.start)
    tell("async start", lambda: asyncio.run(scheduler.start()))
    tell("stop", scheduler.blocking.stop)
    tell("async stop", lambda: asyncio.run(scheduler.stop()))

if __name__ == "__main__":
    with scheduler.blocking:
        if sys.argv[1] == "os.fork":
            pid = os.fork()
            if pid == 0:
                child()
                os._exit(0)
            os.waitpid(pid, 0)
        else:
            process = multiprocessing.get_context("fork").Process(target=child)
            process.start()
            process.join()
        run = scheduler.blocking.enqueue("work")
        print("the parent:", scheduler.blocking.wait(run.id, 30).result, flush=True)
"""


@pytest.mark.parametrize("way", ["os.fork", "multiprocessing"])
def test_a_started_scheduler_is_refused_in_a_fork(tmp_path: Path, way: str) -> None:
    (tmp_path / "app.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "app.py", way], cwd=tmp_path, capture_output=True, text=True, timeout=90
    )
    *told, parent = done.stdout.splitlines()
    assert parent == "the parent: 42", done.stderr
    refused = [line for line in told if "refused: this scheduler was started in process" in line]
    assert [line.split(" refused")[0] for line in refused] == [
        *("enqueue", "enqueue by the function", "async enqueue", "health", "decorate", "start"),
        "async start",
    ]
    assert all("Start a scheduler after the fork" in line for line in refused)
    assert [line for line in told if line.endswith("returned")] == [
        "stop returned",
        "async stop returned",
    ]
    assert "never awaited" not in done.stderr
