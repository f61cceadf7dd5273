"""`FakeClock` stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mainspring.testing import (
    FakeClock,
)

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
