"""A run: the processes that a test session has started, and who still needs them.

    CACHE/runs/lock                      held while joining and sweeping
    CACHE/runs/RUN/state.json            users, processes, URLs of shared servers (state.lock)
    CACHE/runs/RUN/TOPOLOGY/SERVER/      a log; and `db`, removed when the server ends

All xdist workers of a session are users of one run. The last to leave ends its processes. Whoever
joins a run first sweeps: runs without a living user lose their processes, and all but the newest
few their logs.
"""

from __future__ import annotations

import atexit
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.support.servers.cache import cache, locked, write_whole
from tests.support.servers.processes import Process, end, this_process, where

KEPT = 3
"""Ended runs whose logs are kept."""
FOREIGN_AGE = 24 * 3600
"""Seconds after which a run of another boot or container is taken for ended."""


class State(msgspec.Struct):
    where: str
    users: list[Process] = []
    processes: list[Process] = []
    urls: dict[str, str] = {}

    def used(self) -> bool:
        return any(user.alive() for user in self.users)


class Run:
    def __init__(self, runs: Path, name: str) -> None:
        self.path = runs / name
        self._me = this_process()

    @classmethod
    def join(cls, name: str) -> Run:
        """Become a user of a run, which begins with its first user."""
        runs = cache() / "runs"
        runs.mkdir(exist_ok=True)
        with locked(runs / "lock"):
            sweep(runs, but=name)
            run = cls(runs, name)
            run.path.mkdir(exist_ok=True)
            with run.state() as state:
                state.users.append(run._me)
        return run

    def leave(self) -> None:
        """Stop being a user; the last one ends the run's processes."""
        if self._me != this_process():  # a fork of the user
            return
        with self.state() as state:
            if self._me in state.users:
                state.users.remove(self._me)
                if not state.used():
                    wind_up(self.path, state)

    @contextmanager
    def state(self) -> Iterator[State]:
        """The state, to read or change, under its lock."""
        file = self.path / "state.json"
        with locked(self.path / "state.lock"):
            if file.exists():
                state = msgspec.json.decode(file.read_bytes(), type=State)
            else:
                state = State(where())
            yield state
            write_whole(file, msgspec.json.encode(state))

    def record(self, process: Process) -> None:
        with self.state() as state:
            state.processes = [known for known in state.processes if known.alive()]
            state.processes.append(process)

    def shared(self, name: str, start: Callable[[], str]) -> str:
        """The URL of a server that all users share; the first to ask starts it."""
        with locked(self.path / f"{name}.lock"):
            with self.state() as state:
                url = state.urls.get(name)
            if url is None:
                url = start()
                with self.state() as state:
                    state.urls[name] = url
            return url

    def folder(self, name: str) -> Path:
        """A new folder for a topology."""
        path = self.path / f"{name}-{uuid.uuid4().hex[:6]}"
        path.mkdir()
        return path


_current: Run | None = None


def current_run() -> Run:
    """The run of this process: that of its pytest session, or one of its own."""
    global _current
    if _current is None:
        session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or uuid.uuid4().hex
        _current = Run.join(session[:12])
        atexit.register(leave_current_run)
    return _current


def leave_current_run() -> None:
    global _current
    if _current is not None:
        _current.leave()
        _current = None


def wind_up(path: Path, state: State) -> None:
    """End a run's processes and drop their data; the logs stay."""
    end(state.processes)
    state.processes, state.urls, state.users = [], {}, []
    for data in path.glob("*/*/db"):
        shutil.rmtree(data)
    for named in path.glob("*/data-folder"):  # one that is not in the run's folder
        shutil.rmtree(named.read_text(), ignore_errors=True)


def sweep(runs: Path, but: str) -> None:
    """End what crashed sessions left, and forget the oldest logs. The lock must be held."""
    idle: list[Path] = []
    here = where()
    for file in sorted(runs.glob("*/state.json"), key=lambda file: file.stat().st_mtime):
        path = file.parent
        with locked(path / "state.lock"):
            state = msgspec.json.decode(file.read_bytes(), type=State)
            if path.name == but:
                continue
            if state.where != here:  # its pids mean nothing here
                if time.time() - file.stat().st_mtime > FOREIGN_AGE:
                    idle.append(path)
            elif not state.used():
                idle.append(path)
                if state.processes or state.users:
                    wind_up(path, state)
                    write_whole(file, msgspec.json.encode(state))
    for path in idle[:-KEPT]:
        shutil.rmtree(path)
