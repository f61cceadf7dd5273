from __future__ import annotations

import logging
import os
import sys

import pytest

from mainspring.cli import log_format


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


def record(name: str, message: str) -> logging.LogRecord:
    return logging.LogRecord(name, logging.INFO, "", 0, message, (), None)


@pytest.mark.usefixtures("terminal")
def test_a_handlers_line_names_its_job_on_a_terminal() -> None:
    handler = log_format._handler(as_json=False)
    line = record("mainspring.run.send_email", "writing to ada")
    assert handler.format(line) == "job send_email: writing to ada"
    assert handler.format(line) == "job send_email: writing to ada"  # also for a second handler
    ours = record("mainspring.run", "job send_email: succeeded")
    assert handler.format(ours) == "job send_email: succeeded"


@pytest.mark.usefixtures("terminal")
def test_lines_of_several_processes_name_theirs_on_a_terminal() -> None:
    handler = log_format._handler(as_json=False, several_processes=True)
    line = record("mainspring.run.send_email", "writing to ada")
    assert handler.format(line) == f"[{os.getpid()}] job send_email: writing to ada"
    assert handler.format(record("mainspring", "started")) == f"[{os.getpid()}] started"
