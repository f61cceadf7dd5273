"""Processes that are replaced, and the pauses before that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mainspring.cli.errors import Stopped
from mainspring.cli.processes import Replacements, end_quietly_on_signals
from mainspring.testing import FakeClock


@pytest.mark.parametrize(("lasted", "pause"), [(5, 10), (59, 10), (60, 0)])
def test_a_process_that_reaches_its_limit_at_once_is_replaced_after_a_pause(
    lasted: float, pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    process = Replacements(clock)
    clock.advance(lasted)
    assert process.pause() == pause
    assert ("Give it a higher limit" in caplog.records[-1].getMessage()) == (pause > 0)


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
