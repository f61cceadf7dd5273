"""Runs each suspect alone: a run that was held by two workers that died, so it may kill its worker.

A suspect may have killed those workers, or it ran beside a run that did. If nothing else runs in
the process, the next death shows which one it is: docs/decisions/0012-who-killed-the-worker.md.

A turn of suspects begins when one comes, and ends when one has run or none could. Then the other
runs have at least as long as the turn took: suspects that are left, or come meanwhile, are given
back until then. So many suspects that find the worker idle do not stop it one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta

from mainspring.core.clock import CarriedClock, Clock
from mainspring.engine.attempt import LocalAttempt

__all__ = ["Suspects"]

log = logging.getLogger("mainspring")

LONGEST_ALONE = 60.0
"""Seconds that a suspect has the process to itself. One that lives longer goes on beside others:
a handler of an hour must not stop everything else for an hour."""

SHORTEST_WAIT, LONGEST_WAIT = 1.0, 300.0
WAIT_PER_AGE = 0.1
"""A suspect that finds other attempts holds back what has not begun, for a tenth of the time that
it has been due, between `SHORTEST_WAIT` and `LONGEST_WAIT` seconds. It runs once the worker finds
itself idle within such a wait."""

PAUSE_FACTOR = 9
"""After a wait in which the worker did not become idle, it takes no suspect for this many times the
wait. So suspects that wait cost a busy worker a tenth of its time at most."""

SHORTEST_TURN = 1.0
"""Seconds for which short suspects run one after the other in the same turn."""

SHORTEST_PUT_OFF = 0.1
"""Seconds that a suspect is given back for. Without them it would be claimed and given back over
and over."""


class Suspects:
    """Used on the engine's loop. `resume_others()` is called when others may begin again, and
    `give_back(attempt, until)` for a suspect that is to come again in a later turn."""

    def __init__(
        self,
        time: CarriedClock,
        clock: Clock,
        *,
        resume_others: Callable[[], None],
        give_back: Callable[[LocalAttempt, datetime], None],
    ) -> None:
        self._time = time
        self._clock = clock
        self._resume_others = resume_others
        self._give_back = give_back
        self._waiting: deque[LocalAttempt] = deque()
        self._begun: LocalAttempt | None = None
        self._alone = False
        self._timer: asyncio.TimerHandle | None = None
        self._turn_began = 0.0
        self._next_turn = 0.0  # not before this time of the monotonic clock

    @property
    def waiting(self) -> list[LocalAttempt]:
        return list(self._waiting)

    @property
    def blocks_others(self) -> bool:
        """Whether no other attempt may begin: a suspect runs alone, or waits until it can."""
        return self._alone or bool(self._waiting)

    def add(self, attempt: LocalAttempt) -> None:
        begins_turn = not self.blocks_others
        if begins_turn and (left := self._next_turn - self._clock.monotonic()) > 0:
            self._put_off(attempt, left)
            return
        self._waiting.append(attempt)
        if begins_turn:
            # Also beside a suspect that has outlived its time alone: it may run for hours.
            self._turn_began = self._clock.monotonic()
            self._set_timer(self._seconds_to_wait())

    def next_to_begin(self, *, idle: bool) -> LocalAttempt | None:
        """The suspect that is to begin now, if nothing else runs."""
        if not idle or self._begun is not None or not self._waiting:
            return None
        attempt = self._begun = self._waiting.popleft()
        self._alone = True
        self._set_timer(LONGEST_ALONE)
        log.warning(
            "run %s of job %s was held by %d workers that died; it runs alone now, to find out"
            " whether it kills its worker",
            attempt.run.id,
            attempt.run.job_id,
            attempt.run.lapses,
        )
        return attempt

    def attempt_ended(self, attempt: LocalAttempt) -> None:
        """An attempt has ended, or was taken back before it began."""
        if attempt is self._begun:
            ran_alone, self._begun, self._alone = self._alone, None, False
            if ran_alone and (self._turn_took() >= SHORTEST_TURN or not self._waiting):
                self._end_turn(others_have=self._turn_took())
            elif self._waiting:
                self._set_timer(self._seconds_to_wait())
        elif attempt in self._waiting:
            self._waiting.remove(attempt)
            if not self.blocks_others:
                self._set_timer(None)

    def _seconds_to_wait(self) -> float:
        now = self._time.now()
        oldest = max((now - attempt.run.scheduled_at).total_seconds() for attempt in self._waiting)
        return min(max(oldest * WAIT_PER_AGE, SHORTEST_WAIT), LONGEST_WAIT)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        ran_alone, self._alone = self._alone, False
        self._end_turn(others_have=self._turn_took() * (1 if ran_alone else PAUSE_FACTOR))
        self._resume_others()

    def _turn_took(self) -> float:
        return self._clock.monotonic() - self._turn_began

    def _end_turn(self, *, others_have: float) -> None:
        self._set_timer(None)
        self._next_turn = self._clock.monotonic() + others_have
        while self._waiting:
            self._put_off(self._waiting.popleft(), others_have)

    def _put_off(self, attempt: LocalAttempt, seconds: float) -> None:
        log.info("run %s cannot run alone now; it is tried again later", attempt.run.id)
        until = self._time.now() + timedelta(seconds=max(seconds, SHORTEST_PUT_OFF))
        self._give_back(attempt, until)
