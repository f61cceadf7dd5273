"""Counters of ended runs in MongoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from mainspring.core import transitions
from mainspring.core.model import Job, State, slot_run_id
from mainspring.core.statistics import WHOLE_STORE
from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import MongoStore, commit, jobs
from mainspring.stores.protocol import JobQuery
from mainspring.testing.store_calls import claim_runs, get_runs, put_job
from tests.support.mongodb.store import CLAIM, opened, some_runs
from tests.support.records import a_firing, a_run
from tests.support.servers.server import Document

BOTH = frozenset({"job", WHOLE_STORE})


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[MongoStore]:
    async with opened(database_url) as store:
        yield store


async def ended(store: MongoStore) -> dict[State, int]:
    counts = await store.counts(jobs=BOTH)
    assert counts.totals["job"] == counts.totals[WHOLE_STORE]
    return dict(counts.totals["job"].ended)


async def fails(*_: Any) -> Any:
    raise StoreUnavailable("the server is away")


async def test_ends_are_counted_though_a_later_part_of_the_commit_fails(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.add(await some_runs(store, "a", "b", "c"))
    held = {run.id: run for run in await claim_runs(store, CLAIM)}
    now = await store.now()
    await store.commit([transitions.failed(held["c"], now, transitions.Failure("x"))])
    dead = (await get_runs(store, ["c"]))["c"]
    ends = [transitions.succeeded(held[name], now, None) for name in ("a", "b")]
    batch = [*ends, transitions.revived(dead, now)]
    with monkeypatch.context() as patch:
        patch.setattr(commit, "_revive", fails)
        with pytest.raises(StoreUnavailable):
            await store.commit(batch)
    assert await store.commit(batch) == [True, True, True]
    assert await ended(store) == {State.SUCCEEDED: 2, State.FAILED: 1}


async def test_ends_are_counted_though_a_later_firing_fails(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = await store.now()
    await put_job(
        store, Job(id="job", handler="work", created_at=at, updated_at=at, next_run_at=at)
    )
    [job] = (await store.jobs(JobQuery())).items
    slots = [at + timedelta(microseconds=n) for n in range(3)]
    firings = [
        a_firing(
            job,
            a_run(slot, slot_run_id("job", slot), state=State.SKIPPED, finished_at=slot),
            version=job.version + n,
            next_run_at=slots[n + 1],
            valid_until=at + timedelta(seconds=60),
        )
        for n, slot in enumerate(slots[:2])
    ]
    whole, calls = jobs._fire_batch, []

    async def fires_once(*given: Any) -> Any:
        calls.append(given)
        return await (whole(*given) if len(calls) == 1 else fails())

    monkeypatch.setattr(jobs, "_fire_batch", fires_once)
    with pytest.raises(StoreUnavailable):
        await store.fire(firings)
    assert len(calls) == 2
    assert await ended(store) == {State.SKIPPED: 1}


@pytest.mark.parametrize(
    ("damage", "readable"),
    [({"ended.later": 3}, BOTH), ({"ended": 5}, {WHOLE_STORE}), ({"last": "x"}, {WHOLE_STORE})],
)
async def test_a_counter_that_cannot_be_read_hides_no_other(
    store: MongoStore,
    replica_set_url: str,
    database_name: str,
    damage: Document,
    readable: set[str],
) -> None:
    """A state that only a later version knows is left out, and its count is kept."""
    for name in ("a", "b"):
        await store.add(await some_runs(store, name))
        [run] = await claim_runs(store, CLAIM)
        await store.commit([transitions.failed(run, await store.now(), transitions.Failure("x"))])
        with MongoClient[Document](replica_set_url) as client:
            documents = client[database_name]["mainspring_counters"]
            if name == "b":
                assert documents.update_one({"_id": "job@0"}, {"$set": damage}).modified_count == 1
    counts = await store.counts(jobs=BOTH)
    assert counts.totals.keys() == readable
    assert all(total.ended == {State.FAILED: 2} for total in counts.totals.values())
