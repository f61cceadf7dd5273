"""How a slot affects unfinished earlier slots of its job."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from mainspring.core.model import Run, State, replace
from mainspring.core.overlap import resolve_overlap
from mainspring.core.policy import Overlap

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def run(run_id: str, **fields: Any) -> Run:
    times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), NOW)
    return Run(**{"id": run_id, "job_id": "j", "handler": "h", **times, **fields})


SLOT = run("slot")
EARLIER = [
    run("waiting", state=State.WAITING, scheduled_at=NOW - timedelta(seconds=3)),
    run("pending", token=1, scheduled_at=NOW - timedelta(seconds=2)),
    run(
        "running",
        state=State.RUNNING,
        token=2,
        lease_until=NOW + timedelta(seconds=9),
        scheduled_at=NOW - timedelta(seconds=1),
    ),
]


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("state", [State.SKIPPED, State.WAITING])
def test_a_slot_that_will_not_run_now_overlaps_nothing(overlap: Overlap, state: State) -> None:
    slot = replace(SLOT, state=state)
    assert resolve_overlap(overlap, [slot], EARLIER, NOW) == ((slot,), [])


@pytest.mark.parametrize("overlap", list(Overlap))
def test_a_run_of_the_slot_itself_is_not_earlier(overlap: Overlap) -> None:
    """A store that adds first and advances second may have crashed in between."""
    there = replace(SLOT, state=State.RUNNING, token=1)
    assert resolve_overlap(overlap, [SLOT], [there], NOW) == ((SLOT,), [])
