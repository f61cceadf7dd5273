"""Runs that may kill their worker wait here until they can run alone.

Two workers have died with such a run. It may have killed them, or it was beside one that did. Where
nothing else runs in the process, the next death tells which:
docs/decisions/0012-who-killed-the-worker.md.

Suspects and the others take turns. In a turn of the suspects nothing else begins; however long it
took, the others then have nine times as long. A suspect that comes meanwhile is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from datetime import datetime, timedelta

from mainspring.clock import CarriedClock
from mainspring.engine.work import Work

__all__ = ["Suspects"]

log = logging.getLogger("mainspring")

ALONE_AT_MOST = 60.0
"""Seconds that a suspect has the process to itself. One that lives longer goes on beside others:
a handler of an hour must not stop everything else for an hour."""

LEAST_TURN = 1.0
"""Seconds that a turn goes on while there are more suspects, one after the other."""

WAITS_OF_ITS_AGE, LONGEST_WAIT = 0.1, 60.0
"""A suspect that finds others at work waits for a tenth of the time that it has been due, between
`LEAST_TURN` and `LONGEST_WAIT` seconds, for them to end."""

IN_COMPANY_AFTER = 3600.0
"""Seconds after which a suspect that has waited in vain once more begins beside others."""

OTHERS_SHARE = 9
"""The others have so many times the length of a turn."""

LEAST_AWAY = 0.05
"""Seconds that a suspect is given back for: not claimed and given back in a circle."""


class Suspects:
    """Used on the engine's loop. `go_on()` is called when others may begin again, and
    `give_back(work, until)` for a suspect that is to come again in a later turn."""

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
        self._in_company: deque[Work] = deque()  # they wait for a place only
        self._alone: Work | None = None
        self._turn_began: float | None = None
        self._next_turn = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> list[Work]:
        return [*self._waiting, *self._in_company]

    @property
    def hold_back(self) -> bool:
        """Whether nothing else may begin: a suspect runs alone, or waits until it can."""
        return self._turn_began is not None

    def add(self, work: Work) -> None:
        now = _monotonic()
        if self._turn_began is None and now < self._next_turn:
            self._give_back(work, self._until_next_turn())
            return
        self._waiting.append(work)
        if self._turn_began is None:
            self._turn_began = now
            patience = min(max(self._age(work) * WAITS_OF_ITS_AGE, LEAST_TURN), LONGEST_WAIT)
            self._set_timer(patience)

    def next(self, *, idle: bool, free: int) -> Work | None:
        """The suspect that is to begin now, if nothing else runs."""
        if self._in_company and free > 0:
            return self._in_company.popleft()
        if not idle or self._alone is not None or not self._waiting:
            return None
        work = self._alone = self._waiting.popleft()
        log.warning(
            "run %s of job %s was held by %d workers that died; it runs alone now, so that it can"
            " be seen whether it is to blame",
            work.run.id,
            work.run.job_id,
            work.run.lapses,
        )
        self._set_timer(ALONE_AT_MOST)
        return work

    def over(self, work: Work) -> None:
        """A work has ended, or was taken back before it began."""
        if work in self._in_company:
            self._in_company.remove(work)
        elif work in self._waiting:
            self._waiting.remove(work)
            if not self._waiting and self._alone is None:
                self._end_turn()
        elif work is self._alone:
            self._alone = None
            left = LEAST_TURN - self._turn_took()
            if self._waiting and left > 0:
                self._set_timer(left)
            else:
                self._end_turn()

    def _age(self, work: Work) -> float:
        return (self._time.now() - work.run.scheduled_at).total_seconds()

    def _until_next_turn(self) -> datetime:
        left = self._next_turn - _monotonic()
        return self._time.now() + timedelta(seconds=max(left, LEAST_AWAY))

    def _turn_took(self) -> float:
        return 0.0 if self._turn_began is None else _monotonic() - self._turn_began

    def _set_timer(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._alone is None and self._waiting:
            oldest = max(self._waiting, key=self._age)
            if self._age(oldest) > IN_COMPANY_AFTER:
                log.warning(
                    "run %s of job %s was held by %d workers that died, and found no moment to run"
                    " alone; it runs beside others now",
                    oldest.run.id,
                    oldest.run.job_id,
                    oldest.run.lapses,
                )
                self._waiting.remove(oldest)
                self._in_company.append(oldest)
        self._end_turn()
        self._go_on()

    def _end_turn(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        others_have = self._turn_took() * OTHERS_SHARE
        self._next_turn = _monotonic() + others_have
        self._turn_began = self._alone = None
        while self._waiting:
            work = self._waiting.popleft()
            log.info("run %s waits for its turn to run alone; it is tried again later", work.run.id)
            self._give_back(work, self._until_next_turn())


def _monotonic() -> float:
    return asyncio.get_running_loop().time()
