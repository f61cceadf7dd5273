"""The options of one enqueue: when its run is due."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from mainspring.core.options import CheckedEnqueueOptions
from mainspring.errors import InvalidInput

NOW = datetime(2027, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("at", "due"),
    [
        # Skipped by the clocks: the first instant after the gap, as for schedules.
        (datetime(2027, 3, 28, 2, 30), datetime(2027, 3, 28, 1, 0, tzinfo=UTC)),
        # Repeated: the first pass.
        (datetime(2027, 10, 31, 2, 30), datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),
        (datetime(2027, 7, 1, 9), datetime(2027, 7, 1, 7, tzinfo=UTC)),
        (datetime(2027, 7, 1, 9, tzinfo=UTC), datetime(2027, 7, 1, 9, tzinfo=UTC)),
    ],
)
def test_a_time_without_a_zone_follows_the_rule_for_clock_changes(
    at: datetime, due: datetime
) -> None:
    assert CheckedEnqueueOptions(at=at).run_at(NOW, BERLIN) == due


@pytest.mark.parametrize("at", [datetime.min, datetime.max])
def test_a_time_outside_the_calendar_is_refused(at: datetime) -> None:
    zone = BERLIN if at == datetime.min else ZoneInfo("America/New_York")
    with pytest.raises(InvalidInput, match="lies outside the calendar"):
        CheckedEnqueueOptions(at=at).run_at(NOW, zone)
