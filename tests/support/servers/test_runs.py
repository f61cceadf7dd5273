"""Test sessions share servers, and end them when the last session ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.support.servers.binaries import binaries
from tests.support.servers.cache import CHECKOUT, cache, write_whole
from tests.support.servers.processes import Process, end, spawn, this_process
from tests.support.servers.runs import KEPT, Run, State, sweep_now

pytestmark = pytest.mark.thorough


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = spawn(["sleep", "600"], dict(os.environ), tmp_path / "log")
    yield process
    end([process])


@pytest.fixture
def other_cache(tmp_path: Path) -> Path:
    """A cache of its own that has the programs of ours."""
    binaries()
    for found in cache().glob("mongodb-*"):
        (tmp_path / found.name).symlink_to(found)
    return tmp_path


def python(place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env |= {"MAINSPRING_TEST_CACHE": str(place), "MAINSPRING_TEST_MONGODB": ""}
    return subprocess.run(
        [sys.executable, *arguments],
        env=env,
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


def states(place: Path) -> list[State]:
    files = place.glob("runs/*/state.json")
    return [msgspec.json.decode(file.read_bytes(), type=State) for file in files]


# Processes


def test_a_pid_that_is_used_again_is_not_signalled(sleeper: Process) -> None:
    earlier = Process(sleeper.pid, sleeper.start - 1)
    assert not earlier.alive()
    assert not earlier.signal(signal.SIGKILL)
    assert earlier.wait(0) is True
    assert sleeper.alive()
    assert sleeper.wait(0) is False


def test_a_frozen_process_can_be_ended(sleeper: Process) -> None:
    sleeper.signal(signal.SIGSTOP)
    end([sleeper])
    assert not sleeper.alive()
    end([sleeper])


# Runs


def test_the_last_user_ends_the_processes(tmp_path: Path, sleeper: Process) -> None:
    run = Run.join("run", tmp_path)
    run.record(sleeper)
    with run.state() as state:
        state.users.append(Process(os.getppid(), 1))  # a user that died
    other = Run.join("run", tmp_path)
    other.leave()
    assert sleeper.alive()
    run.leave()
    assert not sleeper.alive()
    with run.state() as state:
        assert (state.users, state.processes, state.urls) == ([], [], {})


def test_a_shared_server_starts_once(tmp_path: Path) -> None:
    run = Run.join("run", tmp_path)
    assert run.shared("it", lambda: "first") == "first"
    assert Run.join("run", tmp_path).shared("it", lambda: "second") == "first"


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


def test_only_the_newest_logs_are_kept(tmp_path: Path) -> None:
    for number in range(KEPT + 3):
        run = Run.join(f"run{number}", tmp_path)
        run.leave()
        os.utime(run.path / "state.json", (number, number))
    sweep_now(tmp_path)
    assert sorted(path.parent.name for path in tmp_path.glob("*/state.json")) == [
        f"run{number}" for number in range(3, KEPT + 3)
    ]


# Whole sessions


def test_a_session_that_is_killed_leaves_its_server_to_the_next(other_cache: Path) -> None:
    killed = python(
        other_cache,
        "-c",
        "import os, signal\n"
        "from tests.support.servers.mongodb import Standalone\n"
        "Standalone().start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    [state] = states(other_cache)
    [mongod] = state.processes
    assert mongod.alive()
    assert sweep_now(other_cache / "runs") == [mongod]
    assert not mongod.alive()


def test_the_workers_of_a_session_share_their_servers(other_cache: Path) -> None:
    suite = other_cache / "suite"
    suite.mkdir()
    (suite / "conftest.py").write_text("from tests.support.servers.fixtures import *\n")
    (suite / "test_it.py").write_text(
        "import os, pathlib, pytest\n"
        "@pytest.mark.parametrize('n', range(4))\n"
        "def test_it(n, standalone_url, servers_run, database_name):\n"
        f"    here = pathlib.Path({str(suite)!r})\n"
        "    with servers_run.state() as state:\n"
        "        [mongod] = state.processes\n"
        "    (here / f'saw-{n}').write_text(f'{standalone_url} {mongod.pid} {mongod.start}')\n"
    )
    done = python(
        other_cache,
        *("-m", "pytest", "-n2", f"--rootdir={suite}", "-c", os.devnull, "-p", "no:cacheprovider"),
        *("--import-mode=importlib", "-o", f"pythonpath={CHECKOUT}", str(suite)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [seen] = {file.read_text() for file in suite.glob("saw-*")}
    url, pid, start = seen.split()
    assert url.startswith("mongodb://127.0.0.1:")
    assert not Process(int(pid), int(start)).alive()
    [state] = states(other_cache)
    assert (state.users, state.processes, state.urls) == ([], [], {})


def test_a_test_without_its_server_fails_with_advice(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.support.servers.fixtures import *\n")
    (tmp_path / "test_it.py").write_text("def test_it(standalone_url): pass\n")
    done = python(
        tmp_path / "empty",
        "-c",
        "import os, sys, pytest\n"
        "os.environ['PATH'] = ''\n"
        f"sys.exit(pytest.main(['--rootdir={tmp_path}', '-c', '{os.devnull}', '-p',"
        f" 'no:cacheprovider', '--import-mode=importlib', {str(tmp_path)!r}]))",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 error" in done.stdout
    assert "npm comes with Node.js" in done.stdout
    assert "MAINSPRING_TEST_MONGODB" in done.stdout


def test_a_server_started_by_hand_in_the_background_ends_on_ctrl_c(other_cache: Path) -> None:
    """A shell starts `command &` with SIGINT ignored."""
    env = {**os.environ, "MAINSPRING_TEST_CACHE": str(other_cache)}
    quiet = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN);"
    main = (
        "import sys; from tests.support.servers.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", quiet + main, "run", "standalone"]
    with subprocess.Popen(
        words, cwd=CHECKOUT, env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready"):
                process.send_signal(signal.SIGINT)
                break
        assert "stopping" in process.stdout.read()
        assert process.wait(30) == 0
