"""Replaces a process by a new one, after a pause if that keeps happening after a start.

A limit a little above what a process holds when it starts is reached again by each new process,
within seconds. The number of such replacements in a row is passed on in an environment variable,
because nothing else of the old process survives.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from mainspring.cli.errors import Stopped
from mainspring.core.clock import Clock, SystemClock

__all__ = ["Replacements", "end_quietly_on_signals", "replace_process"]

log = logging.getLogger("mainspring.worker")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

VARIABLE = "MAINSPRING_QUICK_REPLACEMENTS"
STABLE_AFTER = 60.0
"""A process that worked this many seconds before it reached its limit is replaced at once."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Replacements:
    """Made when a process starts to work. `pause()` is for the moment when it has reached its limit
    and has drained: no run may grow on during the pause."""

    def __init__(
        self, clock: Clock | None = None, environment: MutableMapping[str, str] = os.environ
    ) -> None:
        self._clock = clock or SystemClock()
        self._environment = environment
        self._began = self._clock.monotonic()

    def pause(self) -> float:
        """Seconds to wait before this process is replaced. They double with each process in a row
        that reached its limit within a minute; the log then says what to do."""
        lasted = self._clock.monotonic() - self._began
        if lasted >= STABLE_AFTER:
            self._environment.pop(VARIABLE, None)
            log.warning("this process has reached its memory limit: it is replaced")
            return 0.0
        count = self._count() + 1
        self._environment[VARIABLE] = str(count)
        pause = min(FIRST_PAUSE * 2.0 ** min(count - 1, 10), LONGEST_PAUSE)
        log.error(
            "this process has reached its memory limit %.0f s after its start%s: it is replaced in"
            " %.0f s. Processes that reach it so soon do little work; the pauses grow to %.0f s."
            " Give it a higher limit (--memory-limit, MEMORY_LIMIT, or memory_limit= in the code),"
            " or find the job that takes so much memory",
            lasted,
            "" if count == 1 else f", as the {count - 1} before it did",
            pause,
            LONGEST_PAUSE,
        )
        return pause

    def _count(self) -> int:
        text = self._environment.get(VARIABLE, "")
        return int(text) if text.isascii() and text.isdigit() else 0


def replace_process(command: Sequence[str], folder: str) -> NoReturn:
    """Replace this process by one that runs the command: same pid, same supervisor, no threads.

    Signals are blocked meanwhile; the new process gets them when it can handle them, within
    `end_quietly_on_signals`.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(folder)
    os.execv(command[0], list(command))


@contextmanager
def end_quietly_on_signals() -> Iterator[None]:
    """Exit on a signal until the scheduler handles signals itself: there is no work to finish.
    Also lets signals through that the process before this one has blocked."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Stopped(0)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
