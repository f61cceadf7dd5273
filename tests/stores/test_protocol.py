"""How a slot affects unfinished earlier slots of its job."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mainspring
from mainspring.core.model import Run, State, replace
from mainspring.core.policy import Overlap
from mainspring.stores.memory import MemoryStore
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import Firing, Store, resolve_overlap
from mainspring.stores.sqlite import SqliteStore
from mainspring.testing import FaultyStore

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


def firing(overlap: Overlap, *runs: Run) -> Firing:
    return Firing(
        job_id="j", version=1, runs=runs, overlap=overlap, next_run_at=None, last_run_at=None
    )


@pytest.mark.parametrize("overlap", list(Overlap))
@pytest.mark.parametrize("state", [State.SKIPPED, State.WAITING])
def test_a_slot_that_will_not_run_now_overlaps_nothing(overlap: Overlap, state: State) -> None:
    slot = replace(SLOT, state=state)
    assert resolve_overlap(firing(overlap, slot), EARLIER, NOW) == ((slot,), [])


@pytest.mark.parametrize("overlap", list(Overlap))
def test_a_run_of_the_slot_itself_is_not_earlier(overlap: Overlap) -> None:
    """A store that adds first and advances second may have crashed in between."""
    there = replace(SLOT, state=State.RUNNING, token=1)
    assert resolve_overlap(firing(overlap, SLOT), [there], NOW) == ((SLOT,), [])


MEMBERS = {
    "open", "close", "info", "now", "add", "claim", "renew", "commit", "find", "counts",
    "maintain", "jobs", "put_jobs", "fire", "notes", "put_notes", "wait", "transaction",
}  # fmt: skip


@pytest.mark.parametrize("store", [Store, MemoryStore, SqliteStore, MongoStore, FaultyStore])
def test_a_store_has_the_18_members_of_the_protocol_and_no_others(store: type) -> None:
    public = {name for name in vars(store) if not name.startswith("_")}
    assert public == MEMBERS


def test_nothing_above_the_stores_asks_which_store_it_has() -> None:
    source = Path(mainspring.__file__).parent
    for file in source.rglob("*.py"):
        if file.relative_to(source).parts[0] in ("stores", "testing"):  # FaultyStore wraps a store
            continue
        found = re.findall(r"isinstance\([^()]*Store\b|getattr\([a-z_.]*store\b", file.read_text())
        assert found == [], file
