"""What only the memory store does; the conformance suite tests the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import Run, State
from mainspring.errors import InvalidInput, InvalidPayload
from mainspring.stores import open_store
from mainspring.stores.memory import MemoryStore
from mainspring.stores.protocol import Claim, RunQuery
from mainspring.testing import FakeClock, VirtualClock
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.records import a_run


def make(clock: FakeClock | VirtualClock, run_id: str, **fields: Any) -> Run:
    return a_run(clock.now(), run_id, handler="h", **fields)


async def test_values_changed_by_the_caller_do_not_change_the_store() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    payload = {"items": [1]}
    [added] = await store.add([make(clock, "a", payload=payload)])
    payload["items"].append(2)
    added.run.payload["items"].append(3)
    found = (await store.find(RunQuery())).items[0]
    found.payload["items"].append(4)
    (await get_runs(store, ["a"]))["a"].payload["items"].append(5)
    claim = Claim(worker="w", handlers=frozenset({"h"}), limit=1, lease=timedelta(seconds=9))
    [held] = await claim_runs(store, claim)
    assert held.payload == {"items": [1]}
    result = {"n": [1]}
    await store.commit([transitions.succeeded(held, clock.now(), result)])
    result["n"].append(2)
    assert (await get_runs(store, ["a"]))["a"].result == {"n": [1]}


async def test_a_refused_result_leaves_its_whole_batch_undone() -> None:
    clock = FakeClock()
    store = MemoryStore(clock)
    await store.add([make(clock, "a"), make(clock, "b")])
    claim = Claim(worker="w", handlers=frozenset({"h"}), limit=2, lease=timedelta(seconds=9))
    a, b = await claim_runs(store, claim)
    with pytest.raises(InvalidPayload):
        await store.commit(
            [
                transitions.succeeded(a, clock.now(), 1),
                transitions.succeeded(b, clock.now(), object()),
            ]
        )
    assert {run.state for run in (await get_runs(store, "ab")).values()} == {State.RUNNING}


def test_a_store_by_its_url() -> None:
    assert isinstance(open_store("memory://"), MemoryStore)
    for url in ("jobs.db", "redis://x", ""):
        with pytest.raises(InvalidInput, match="sqlite:///path"):
            open_store(url)
