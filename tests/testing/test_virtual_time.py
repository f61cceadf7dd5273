"""The virtual event loop: time passes at once, a seed replays exactly, a deadlock is named."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from mainspring.testing import (
    Deadlock,
    FakeClock,
    SimulationLimit,
    VirtualClock,
    run_virtual,
)


class TestVirtualTime:
    def test_a_day_passes_at_once_and_timers_keep_their_order(self) -> None:
        seen: list[tuple[str, float]] = []

        async def sleeper(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, asyncio.get_running_loop().time()))

        async def main() -> float:
            await asyncio.gather(sleeper("day", 86400), sleeper("minute", 60), sleeper("now", 0))
            return asyncio.get_running_loop().time()

        assert run_virtual(main) == 86400
        assert seen == [("now", 0), ("minute", 60), ("day", 86400)]

    def test_a_seed_replays_exactly_and_seeds_differ(self) -> None:
        def interleaving(seed: int) -> str:
            trace = []

            async def worker(name: str) -> None:
                for _ in range(4):
                    trace.append(name)
                    await asyncio.sleep(random.Random(name).random())
                    await asyncio.sleep(0)

            async def main() -> None:
                async with asyncio.TaskGroup() as group:
                    for name in "abcdef":
                        group.create_task(worker(name))

            run_virtual(main, seed=seed)
            return "".join(trace)

        assert interleaving(7) == interleaving(7)
        assert len({interleaving(seed) for seed in range(20)}) > 10

    def test_deadlock_names_who_waits(self) -> None:
        async def main() -> None:
            task = asyncio.create_task(asyncio.Event().wait(), name="stuck-one")
            await task

        with pytest.raises(Deadlock, match="stuck-one"):
            run_virtual(main)

    def test_bounds_of_time_and_steps(self) -> None:
        async def forever(pause: float) -> None:
            while await asyncio.sleep(pause, True):
                pass

        with pytest.raises(SimulationLimit, match="60 virtual seconds"):
            run_virtual(lambda: forever(1), until=60)
        with pytest.raises(SimulationLimit, match="1,000 steps"):
            run_virtual(lambda: forever(0), steps=1000)

    def test_tasks_left_behind_are_cancelled_and_cleaned_up(self) -> None:
        ended: list[str] = []
        kept: list[object] = []

        async def background() -> None:
            try:
                await asyncio.sleep(1e9)
            finally:
                await asyncio.sleep(1)
                ended.append("background")

        async def numbers() -> AsyncIterator[int]:
            try:
                yield 1
            finally:
                ended.append("generator")

        async def main() -> None:
            generator = numbers()
            kept.extend([asyncio.create_task(background()), generator])
            await anext(generator)

        run_virtual(main)
        assert ended == ["background", "generator"]

    def test_timeouts_and_threads_work_on_virtual_time(self) -> None:
        async def main() -> tuple[bool, int]:
            try:
                async with asyncio.timeout(30):
                    await asyncio.sleep(31)
            except TimeoutError:
                late = True
            return late, await asyncio.to_thread(sum, [1, 2])

        assert run_virtual(main) == (True, 3)

    def test_clocks_of_simulated_machines_may_be_wrong(self) -> None:
        async def main() -> None:
            right, ahead, fast = VirtualClock(), VirtualClock(offset=3600), VirtualClock(rate=1.5)
            begin = right.now()
            await asyncio.sleep(100)
            assert right.now() - begin == timedelta(seconds=100)
            assert ahead.now() - right.now() == timedelta(hours=1)
            assert ahead.monotonic() == right.monotonic() == 100
            assert fast.monotonic() == 150
            ahead.offset = -60  # an operator sets it back
            assert right.now() - ahead.now() == timedelta(minutes=1)

        run_virtual(main)


NOON = datetime(2031, 5, 1, 12, tzinfo=UTC)


class TestFakeClock:
    def test_fake_clock_stands_still_until_it_is_moved(self) -> None:
        clock = FakeClock(NOON)
        assert clock.now() == clock.now() == NOON
        assert clock.advance(90) == NOON + timedelta(seconds=90)
        clock.advance(timedelta(minutes=1))
        assert clock.now() == NOON + timedelta(seconds=150)
        assert clock.monotonic() == 150

    def test_monotonic_time_never_steps_back_with_the_wall(self) -> None:
        clock = FakeClock(NOON)
        clock.advance(10)
        clock.set(NOON - timedelta(hours=1))
        assert clock.now() == NOON - timedelta(hours=1)
        assert clock.monotonic() == 10
        clock.set(NOON)
        assert clock.monotonic() == 3610

    def test_refuses_to_go_back_and_naive_times(self) -> None:
        with pytest.raises(ValueError, match="forwards only"):
            FakeClock().advance(-1)
        with pytest.raises(ValueError, match="time zone"):
            FakeClock().set(datetime(2031, 1, 1))
