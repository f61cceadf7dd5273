"""Processes that are replaced, and the pauses before that."""

from __future__ import annotations

import logging
import os
import signal
import sys

import pytest

from mainspring.cli import processes
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


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped), end_quietly_on_signals():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def record(name: str, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "", 0, message, (), None)


@pytest.mark.usefixtures("terminal")
def test_a_handlers_line_names_its_job_on_a_terminal() -> None:
    handler = processes._log_handler(as_json=False)
    line = record("mainspring.run.send_email", "writing to ada")
    assert handler.format(line) == "job send_email: writing to ada"
    assert handler.format(line) == "job send_email: writing to ada"  # also for a second handler
    ours = record("mainspring.run", "job send_email: succeeded")
    assert handler.format(ours) == "job send_email: succeeded"


@pytest.mark.usefixtures("terminal")
def test_lines_of_several_processes_name_theirs_on_a_terminal() -> None:
    handler = processes._log_handler(as_json=False, several_processes=True)
    line = record("mainspring.run.send_email", "writing to ada")
    assert handler.format(line) == f"[{os.getpid()}] job send_email: writing to ada"
    assert handler.format(record("mainspring", "started")) == f"[{os.getpid()}] started"
