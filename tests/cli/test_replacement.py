"""The pauses before a process at its memory limit is replaced."""

from __future__ import annotations

import logging

import pytest

from mainspring.cli.replacement import Replacements
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


def test_a_variable_that_is_no_number_counts_as_none() -> None:
    assert replaced({"MAINSPRING_QUICK_REPLACEMENTS": "many"}, 5) == 1


def test_the_log_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    environment: dict[str, str] = {}
    for _ in range(3):
        replaced(environment, 5)
    words = caplog.records[-1].getMessage()
    assert caplog.records[-1].levelno == logging.ERROR
    assert "5 s after its start, as the 2 before it did: it is replaced in 4 s" in words
    assert "Give it a higher limit" in words
