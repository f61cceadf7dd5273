"""Processes that are replaced, and the pauses before that."""

from __future__ import annotations

import signal

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


def test_signal_handlers_are_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Stopped), end_quietly_on_signals():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
