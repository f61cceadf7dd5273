"""Attempts expire when their timeout is over, however many share one timer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engine.attempt import LocalAttempt
from mainspring.engine.executors.timeouts import Timeouts

TIMEOUTS = (1, 3, 3, 10)

begin = st.tuples(st.just("begin"), st.sampled_from(TIMEOUTS))
end = st.tuples(st.just("end"), st.integers(0, 50))
wait = st.tuples(st.just("wait"), st.integers(1, 12))


class Loop:
    """A loop's timers and a clock, by a time of our own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stands_still = False
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []

    def monotonic(self) -> float:
        return 0.0 if self.stands_still else self.now

    def call_later(self, wait: float, call: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
        when = self.now + wait
        timer = asyncio.TimerHandle(when, call, args, self)  # type: ignore[arg-type]
        heapq.heappush(self._timers, (when, len(self._timers), timer))
        return timer

    def go_to(self, moment: float) -> None:
        while self._timers and self._timers[0][0] <= moment:
            when, _, timer = heapq.heappop(self._timers)
            self.now = when
            if not timer.cancelled():
                timer._run()
        self.now = moment

    @property
    def timers(self) -> int:
        return sum(not timer.cancelled() for _, _, timer in self._timers)

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None: ...


def attempt_of(timeout: int | None) -> Any:
    allowed = None if timeout is None else timedelta(seconds=timeout)
    job: Any = SimpleNamespace(policy=SimpleNamespace(timeout=allowed))
    nothing: Any = None
    return LocalAttempt(nothing, job, nothing, nothing, 0.0)


@given(st.lists(st.one_of(begin, end, wait), max_size=60))
def test_each_attempt_expires_at_its_own_time(steps: list[tuple[str, int]]) -> None:
    loop: Any = Loop()
    expired: dict[Any, float] = {}
    timeouts = Timeouts(loop, loop, lambda attempt: expired.update({attempt: loop.now}))
    due: dict[Any, float] = {}
    ended: set[Any] = set()
    for step, number in steps:
        if step == "begin":
            attempt = attempt_of(number)
            due[attempt] = loop.now + number
            timeouts.watch(attempt)
        elif step == "end" and number < len(due):
            attempt = list(due)[number]
            if attempt not in expired:
                ended.add(attempt)
            timeouts.forget(attempt)
        else:
            loop.go_to(loop.now + number)
        up = {attempt: moment for attempt, moment in due.items() if moment <= loop.now}
        assert expired == {
            attempt: moment for attempt, moment in up.items() if attempt not in ended
        }
        going = {due[attempt] - loop.now for attempt in due.keys() - ended - expired.keys()}
        assert bool(loop.timers) == bool(going)
        assert loop.timers <= len(set(TIMEOUTS))
    for attempt in due:
        timeouts.forget(attempt)
    assert loop.timers == 0


def test_an_expiry_that_ends_another_attempt_skips_its_expiry() -> None:
    loop: Any = Loop()
    first, second, third = attempt_of(1), attempt_of(1), attempt_of(1)
    expired = []

    def expire(attempt: Any) -> None:
        expired.append(attempt)
        timeouts.forget(second)
        if attempt is first:
            timeouts.watch(third)

    timeouts = Timeouts(loop, loop, expire)
    timeouts.watch(first)
    timeouts.watch(second)
    loop.go_to(1)
    assert expired == [first, second]  # that it has ended is for the one who expires it to see
    loop.go_to(2)
    assert expired == [first, second, third]
    assert loop.timers == 0


def test_without_a_timeout_there_is_no_timer() -> None:
    loop: Any = Loop()
    timeouts = Timeouts(loop, loop, lambda attempt: None)
    attempt = attempt_of(None)
    timeouts.watch(attempt)
    assert loop.timers == 0
    timeouts.forget(attempt)


def test_a_clock_that_stands_still_holds_up_nobody_for_ever() -> None:
    loop: Any = Loop()
    loop.stands_still = True
    expired: list[Any] = []
    timeouts = Timeouts(loop, loop, expired.append)
    attempts = [attempt_of(1), attempt_of(1), attempt_of(1)]
    for attempt in attempts:
        timeouts.watch(attempt)
    timeouts.forget(attempts[0])
    loop.go_to(10)
    assert expired == attempts[1:]
