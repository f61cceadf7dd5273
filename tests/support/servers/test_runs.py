"""A test session ends servers that a dead session has left, and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.servers.cache import write_whole
from tests.support.servers.processes import Process, end, spawn, this_process
from tests.support.servers.runs import Run, State, sweep_now

pytestmark = pytest.mark.thorough


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = spawn(["sleep", "600"], dict(os.environ), tmp_path / "log")
    yield process
    end([process])


def test_a_pid_that_is_used_again_is_not_signalled(sleeper: Process) -> None:
    earlier = Process(sleeper.pid, sleeper.start - 1)
    assert not earlier.alive()
    assert not earlier.signal(signal.SIGKILL)
    assert earlier.wait(0) is True
    assert sleeper.alive()
    assert sleeper.wait(0) is False


def left(runs: Path, state: State, name: str = "left") -> Path:
    data = runs / name / "standalone" / "mongod" / "db"
    data.mkdir(parents=True)
    write_whole(runs / name / "state.json", msgspec.json.encode(state))
    return data


def test_what_a_dead_session_left_is_swept(tmp_path: Path, sleeper: Process) -> None:
    run = Run.join("mine", tmp_path)
    with run.state() as state:
        here = state.where
    data = left(tmp_path, State(here, [Process(this_process().pid, 1)], [sleeper]))
    assert sweep_now(tmp_path) == [sleeper]
    assert not sleeper.alive()
    assert not data.exists()
    assert run.path.exists()


def test_what_a_living_session_uses_is_left_alone(tmp_path: Path, sleeper: Process) -> None:
    with Run.join("mine", tmp_path).state() as state:
        here = state.where
    alive = left(tmp_path, State(here, [this_process()], [sleeper]), "alive")
    foreign = left(tmp_path, State("another machine", [], [sleeper]), "foreign")
    assert sweep_now(tmp_path) == []
    assert sleeper.alive()
    assert alive.exists()
    assert foreign.exists()
