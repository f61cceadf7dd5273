"""Relative times, local times and spans as the commands print them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mainspring.cli.time_format import local, relative, span

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "now"),
        (0.4, "now"),
        (1, "in 1 second"),
        (-59, "59 seconds ago"),
        (59.7, "in 1 minute"),
        (300, "in 5 minutes"),
        (3599, "in 1 hour"),
        (-7200, "2 hours ago"),
        (86_399, "in 1 day"),
        (10 * 86_400, "in 10 days"),
    ],
)
def test_a_relative_time_has_one_unit(seconds: float, words: str) -> None:
    assert relative(NOW + timedelta(seconds=seconds), NOW) == words


def test_local_times_are_no_longer_than_needed() -> None:
    assert local(NOW + timedelta(hours=1), NOW, UTC) == "13:00:00"
    assert local(NOW + timedelta(days=1), NOW, UTC) == "Mon 16 Nov 12:00:00"
    assert local(NOW + timedelta(days=365), NOW, UTC) == "Mon 15 Nov 2027 12:00"


def test_a_span_has_at_most_two_units() -> None:
    assert [span(s) for s in (0.004, 9.99, 12, 185, 7800)] == [
        "0.00s",
        "9.99s",
        "12s",
        "3m05s",
        "2h10m",
    ]
