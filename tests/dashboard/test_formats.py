"""Times, durations and ids as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mainspring.core.model import Run, slot_run_id
from mainspring.dashboard.formats import short_id, span

NOW = datetime(2026, 11, 17, 14, 20, 0, 364235, tzinfo=UTC)


def run_of(run_id: str) -> Run:
    return Run(
        id=run_id, job_id="tick", handler="tick", created_at=NOW, scheduled_at=NOW, run_at=NOW
    )


@pytest.mark.parametrize(
    ("slot", "shown"),
    [
        (NOW, "20261117T142000.364Z"),
        (NOW + timedelta(seconds=7), "20261117T142007.364Z"),
        (NOW.replace(microsecond=0), "20261117T142000Z"),
        (NOW.replace(microsecond=100), "20261117T142000.000Z"),
    ],
)
def test_a_run_of_a_slot_is_named_by_its_time(slot: datetime, shown: str) -> None:
    assert short_id(run_of(slot_run_id("tick", slot))) == shown


def test_an_enqueued_run_is_named_by_the_end_of_its_id() -> None:
    assert short_id(run_of("01a1e9e90867fb4a165a1ccef76b36bd")) == "…f76b36bd"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 ms"), (0.00001, "0.1 ms"), (0.00042, "0.4 ms"), (0.00096, "1 ms"), (0.34, "340 ms")],
)
def test_a_duration_below_a_millisecond_is_not_zero(seconds: float, shown: str) -> None:
    assert span(seconds).replace("\N{NARROW NO-BREAK SPACE}", " ") == shown
