"""Each attempt expires when its time is up, not before, and not when it has ended: however many
share a timer."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mainspring.engine.attempt import Work
from mainspring.engine.executors.timeouts import Deadlines

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


def work_of(timeout: int | None) -> Any:
    allowed = None if timeout is None else timedelta(seconds=timeout)
    job: Any = SimpleNamespace(policy=SimpleNamespace(timeout=allowed))
    nothing: Any = None
    return Work(nothing, job, nothing, nothing, 0.0)


@given(st.lists(st.one_of(begin, end, wait), max_size=60))
def test_each_at_its_own_time(steps: list[tuple[str, int]]) -> None:
    loop: Any = Loop()
    expired: dict[Any, float] = {}
    deadlines = Deadlines(loop, loop, lambda work: expired.update({work: loop.now}))
    due: dict[Any, float] = {}
    ended: set[Any] = set()
    for step, number in steps:
        if step == "begin":
            work = work_of(number)
            due[work] = loop.now + number
            deadlines.watch(work)
        elif step == "end" and number < len(due):
            work = list(due)[number]
            if work not in expired:
                ended.add(work)
            deadlines.forget(work)
        else:
            loop.go_to(loop.now + number)
        up = {work: moment for work, moment in due.items() if moment <= loop.now}
        assert expired == {work: moment for work, moment in up.items() if work not in ended}
        going = {due[work] - loop.now for work in due.keys() - ended - expired.keys()}
        assert bool(loop.timers) == bool(going)
        assert loop.timers <= len(set(TIMEOUTS))
    for work in due:
        deadlines.forget(work)
    assert loop.timers == 0


def test_one_that_ends_another_while_both_are_up() -> None:
    loop: Any = Loop()
    first, second, third = work_of(1), work_of(1), work_of(1)
    expired = []

    def expire(work: Any) -> None:
        expired.append(work)
        deadlines.forget(second)
        if work is first:
            deadlines.watch(third)

    deadlines = Deadlines(loop, loop, expire)
    deadlines.watch(first)
    deadlines.watch(second)
    loop.go_to(1)
    assert expired == [first, second]  # that it has ended is for the one who expires it to see
    loop.go_to(2)
    assert expired == [first, second, third]
    assert loop.timers == 0


def test_without_a_timeout_there_is_no_timer() -> None:
    loop: Any = Loop()
    deadlines = Deadlines(loop, loop, lambda work: None)
    work = work_of(None)
    deadlines.watch(work)
    assert loop.timers == 0
    deadlines.forget(work)


def test_a_clock_that_stands_still_holds_up_nobody_for_ever() -> None:
    loop: Any = Loop()
    loop.stands_still = True
    expired: list[Any] = []
    deadlines = Deadlines(loop, loop, expired.append)
    works = [work_of(1), work_of(1), work_of(1)]
    for work in works:
        deadlines.watch(work)
    deadlines.forget(works[0])
    loop.go_to(10)
    assert expired == works[1:]
