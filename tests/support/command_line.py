"""Fixtures for tests of the command: a folder with an app, the command in this process, and real
processes of it."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mainspring.cli.app_loader import load_scheduler
from mainspring.cli.program import app as program
from mainspring.cli.program import main

APP = '''
import os
import threading
import time

from mainspring import RunContext, Scheduler

scheduler = Scheduler("sqlite:///mainspring.db", workers=2, lease="5s", poll="100ms")
release = threading.Event()


@scheduler.job("0 9 * * 1-5", timezone="Asia/Kolkata", tags=["reports"], description="The numbers")
async def daily_report(ctx: RunContext) -> dict[str, int]:
    return {"rows": 42}


@scheduler.job()
def send_email(ctx: RunContext, to: str, subject: str = "hello") -> str:
    ctx.log.info("writing to %s", to)
    if to == "nobody":
        raise ValueError("no such address")
    return f"sent to {to}"


@scheduler.job()
def whoami() -> int:
    return os.getpid()


@scheduler.job()
def linger(ctx: RunContext, until: str) -> str:
    """Runs until a file appears."""
    open(until + ".began", "w").close()
    while not os.path.exists(until):
        time.sleep(0.01)
    return "lingered"


@scheduler.job(timeout="200ms")
def hang() -> None:
    release.wait()


def make() -> Scheduler:
    return scheduler


def make_nothing() -> None:
    return None


def needs(argument: int) -> Scheduler:
    return scheduler


def breaks() -> Scheduler:
    raise RuntimeError("no database today")


async def make_async() -> Scheduler:
    return scheduler


idle = Scheduler("sqlite:///idle.db", workers=0)
forgetful = Scheduler("memory://")
number = 42
'''


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def refusal(self) -> str:
        """What was written by a command that refused its input."""
        assert self.code == 2
        return self.err


Run = Callable[..., Answer]


def run_command(*words: str, stdin: str = "") -> Answer:
    """The command in this process, with the exit code and the output of a process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main(words)
    return Answer(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restores what a command changes in this process: it reads `.env` into the environment, and
    sets the levels of loggers."""
    before = dict(os.environ)
    loggers = [logging.getLogger(name) for name in ("mainspring", "uvicorn")]
    levels = [logger.level for logger in loggers]
    yield
    os.environ.clear()
    os.environ.update(before)
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with `app.py` in it and no database yet."""
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    for name in ("MAINSPRING_STORE", "MAINSPRING_APP", "MAINSPRING_DEBUG", "MONGODB_URI"):
        monkeypatch.delenv(name, raising=False)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("app", None)


@pytest.fixture
def run(folder: Path) -> Run:
    """`run("jobs", "list")`: the command in this process, its output as a pipe would get it."""

    return run_command


@pytest.fixture
def stored_runs(folder: Path, run: Run) -> dict[str, str]:
    """A database after some work: the ids of a run that succeeded and of one that failed."""
    scheduler = load_scheduler("app:scheduler")
    with scheduler.blocking as blocking:
        good = blocking.enqueue("send_email", {"to": "a@example.org"})
        bad = blocking.enqueue("send_email", {"to": "nobody"})
        for one in (good, bad):
            blocking.wait(one.id, 30)
    sys.modules.pop("app", None)
    return {"good": good.id, "bad": bad.id}


class Process:
    """`mainspring …` as a process of its own; what it writes is gathered line by line."""

    def __init__(self, words: tuple[str, ...], folder: Path) -> None:
        source = Path(__file__).parents[2] / "src"
        environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1"}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "mainspring", *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def output(self) -> str:
        return "".join(self._lines)

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()

    def wait_for_output(self, text: str, times: int = 1, timeout: float = 60) -> None:
        """Wait until a text has been written so many times."""
        with self._news:
            told = self._news.wait_for(lambda: self.output.count(text) >= times, timeout)
        assert told, f"{text!r} was not said {times} times in:\n{self.output}"

    def ends(self, timeout: float = 60) -> int:
        code = self.popen.wait(timeout)
        self._reader.join(timeout)
        return code


Start = Callable[..., Process]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """`start("worker", "app:scheduler")`: a real process, ended with the test."""
    started: list[Process] = []

    def begin(*words: str) -> Process:
        process = Process(words, folder)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.popen.kill()
        process.popen.wait()


def command_words() -> list[tuple[str, ...]]:
    """The words of every command of the program: ("worker",), ("jobs", "list") and so on."""

    def below(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if not hasattr(command, "commands"):
            yield words
            return
        for name, part in command.commands.items():
            yield from below(part, (*words, name))

    return list(below(typer.main.get_command(program), ()))


def until(condition: Callable[[], bool], timeout: float = 60) -> None:
    """Poll for what no event tells."""
    ends = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < ends, "it did not come true in time"
        time.sleep(0.02)
