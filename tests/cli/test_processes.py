"""Processes that are replaced, and the pauses before that."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.cli.errors import Stopped
from mainspring.cli.processes import Replacements, end_quietly_on_signals
from mainspring.testing import FakeClock


def replaced(environment: dict[str, str], lasted: float) -> float:
    """The pause before a process is replaced that worked so many seconds."""
    clock = FakeClock()
    process = Replacements(clock, environment)
    clock.advance(lasted)
    return process.pause()


def test_pauses_double_up_to_a_minute_while_processes_last_less_than_one() -> None:
    environment: dict[str, str] = {}
    pauses = [replaced(environment, 5) for _ in range(9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_process_that_lasted_is_replaced_at_once_and_ends_the_row() -> None:
    environment: dict[str, str] = {}
    assert [replaced(environment, lasted) for lasted in (5, 5, 60, 5)] == [1, 2, 0, 1]


def test_the_log_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    environment: dict[str, str] = {}
    for _ in range(3):
        replaced(environment, 5)
    words = caplog.records[-1].getMessage()
    assert caplog.records[-1].levelno == logging.ERROR
    assert "5 s after its start, as the 2 before it did: it is replaced in 4 s" in words
    assert "Give it a higher limit" in words


def test_a_replaced_process_loses_no_output_and_no_signal(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "from mainspring.cli.processes import end_quietly_on_signals, replace_process\n"
        "print('pid', os.getpid())\n"  # held in the buffer of a pipe
        "next = '''\n"
        "import os, signal\n"
        "from mainspring.cli.processes import end_quietly_on_signals\n"
        "print('pid', os.getpid(), 'in', os.getcwd(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('blocked', flush=True)\n"
        "with end_quietly_on_signals():\n"
        "    print('not reached')\n"
        "'''\n"
        f"replace_process({str(tmp_path)!r}, command=[sys.executable, '-c', next])\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    pid = done.stdout.split()[1]
    assert done.stdout == f"pid {pid}\npid {pid} in {tmp_path}\nblocked\n", done.stderr
    assert done.returncode == 0


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped), end_quietly_on_signals():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
