"""Runs that may kill their worker wait here until they can run alone.

Two workers have died with such a run. It may have killed them, or it was beside one that did. Where
nothing else runs in the process, the next death tells which:
docs/decisions/0012-who-killed-the-worker.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta

from mainspring.core.clock import CarriedClock
from mainspring.engine.attempt import Work

__all__ = ["Suspects"]

log = logging.getLogger("mainspring")

ALONE_AT_MOST = 60.0
"""Seconds that a suspect has the process to itself. One that lives longer goes on beside others:
a handler of an hour must not stop everything else for an hour."""

LEAST_WAIT, LONGEST_WAIT = 1.0, 300.0
WAITS_OF_ITS_AGE = 0.1
"""A suspect that finds others at work holds back what has not begun, for a tenth of the time that
it has been due, between `LEAST_WAIT` and `LONGEST_WAIT` seconds. Then it is given back for a while.
So a suspect that waits costs a busy worker a tenth of its time at most, and never stops it for
hours. It runs once the worker finds itself idle within such a wait."""

AWAY = 9
"""It is given back for so many times its wait."""


class Suspects:
    """Used on the engine's loop. `go_on()` is called when others may begin again, and
    `give_back(work, until)` for a suspect that found no moment to run alone."""

    def __init__(
        self,
        time: CarriedClock,
        *,
        go_on: Callable[[], None],
        give_back: Callable[[Work, datetime], None],
    ) -> None:
        self._time = time
        self._go_on = go_on
        self._give_back = give_back
        self._waiting: deque[Work] = deque()
        self._begun: Work | None = None
        self._alone = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> list[Work]:
        return list(self._waiting)

    @property
    def hold_back(self) -> bool:
        """Whether nothing else may begin: a suspect runs alone, or waits until it can."""
        return self._alone or bool(self._waiting)

    def add(self, work: Work) -> None:
        log.warning(
            "run %s of job %s was held by %d workers that died; it runs alone now, so that it can"
            " be seen whether it is to blame",
            work.run.id,
            work.run.job_id,
            work.run.lapses,
        )
        self._waiting.append(work)
        if not self._alone and len(self._waiting) == 1:
            # Also beside a suspect that has outlived its time alone: it may run for hours.
            self._set_timer(self._patience())

    def next(self, *, idle: bool) -> Work | None:
        """The suspect that is to begin now, if nothing else runs."""
        if not idle or self._begun is not None or not self._waiting:
            return None
        self._begun = self._waiting.popleft()
        self._alone = True
        self._set_timer(ALONE_AT_MOST)
        return self._begun

    def over(self, work: Work) -> None:
        """A work has ended, or was taken back before it began."""
        if work is self._begun:
            self._begun = None
            self._alone = False
        elif work in self._waiting:
            self._waiting.remove(work)
        else:
            return
        if self._begun is None:
            self._set_timer(self._patience() if self._waiting else None)

    def _patience(self) -> float:
        now = self._time.now()
        oldest = max((now - work.run.scheduled_at).total_seconds() for work in self._waiting)
        return min(max(oldest * WAITS_OF_ITS_AGE, LEAST_WAIT), LONGEST_WAIT)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._waited_enough, seconds)

    def _waited_enough(self, seconds: float) -> None:
        self._timer = None
        self._alone = False
        until = self._time.now() + timedelta(seconds=seconds * AWAY)
        while self._waiting:
            work = self._waiting.popleft()
            log.info("run %s could not run alone; it is tried again later", work.run.id)
            self._give_back(work, until)
        self._go_on()
