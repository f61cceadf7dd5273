"""While chunks move between shards, no run is claimed twice or lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest
from pymongo.errors import OperationFailure

from mainspring.core import transitions
from mainspring.core.model import State, replace
from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import MongoStore, commit
from mainspring.stores.mongodb.database import Database
from mainspring.stores.mongodb.schema import SHARDED
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from mainspring.stores.protocol import RunQuery
from mainspring.testing.store_calls import claim_runs, get_runs
from tests.support.mongodb.store import CLAIM
from tests.support.records import a_run
from tests.support.servers.mongodb import ShardedCluster, with_database

pytestmark = pytest.mark.thorough

RUNS = 2000
T = TypeVar("T")


@pytest.fixture(scope="module")
def cluster() -> Iterator[ShardedCluster]:
    with ShardedCluster() as servers:
        for name in SHARDED:
            servers.shard(f"jobs.{DEFAULT_PREFIX}{name}")
        for member in (member for shard in servers.shards for member in shard.members):
            member.command("setParameter", orphanCleanupDelaySecs=0)  # so that chunks may return
        yield servers


def move_chunks(cluster: ShardedCluster, ended: asyncio.Event) -> int:
    moved = 0
    while not ended.is_set():
        for name in ("runs", "keys"):
            chunks = cluster.chunks(f"jobs.{DEFAULT_PREFIX}{name}")
            with suppress(OperationFailure):  # what was left behind is not swept up yet
                cluster.move_chunk(f"jobs.{DEFAULT_PREFIX}{name}", chunks[moved % len(chunks)])
                moved += 1
    return moved


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """As the engine does: an update that a moving chunk cut off in the middle is sent again."""
    while True:
        try:
            return await call()
        except StoreUnavailable:
            await asyncio.sleep(0.05)


async def work(store: MongoStore, worker: str) -> Counter[str]:
    """Claim and complete until nothing is left; what this worker completed."""
    claim = replace(CLAIM, worker=worker, limit=50, lease=timedelta(seconds=60))
    done: Counter[str] = Counter()
    while held := await patiently(lambda: claim_runs(store, claim)):
        now = await store.now()
        outcomes = [transitions.succeeded(run, now, run.id) for run in held]
        kept = await patiently(partial(store.commit, outcomes))
        done.update(run.id for run, mine in zip(held, kept, strict=True) if mine)
    return done


async def test_chunks_that_move_under_load(cluster: ShardedCluster) -> None:
    stores = [MongoStore(with_database(cluster.url, "jobs")) for _ in range(2)]
    for store in stores:
        await store.open()
    now = await stores[0].now()
    ended = asyncio.Event()
    moving = asyncio.create_task(asyncio.to_thread(move_chunks, cluster, ended))
    try:
        for start in range(0, RUNS, 200):
            runs = [
                a_run(
                    now,
                    f"r{n:05}",
                    dedupe_key=f"k{n % (RUNS // 2)}" if n % 10 == 0 else None,
                )
                for n in range(start, start + 200)
            ]
            await patiently(partial(stores[0].add, runs))
            await patiently(partial(stores[1].add, runs))  # sent again: nothing may be doubled
        one, two = await asyncio.gather(*(work(s, f"w{n}") for n, s in enumerate(stores)))
    finally:
        ended.set()
        moved = await moving
    done = one + two
    found = (await stores[0].find(RunQuery(job="job", limit=2 * RUNS))).items
    assert moved > 0
    assert max(done.values()) == 1
    assert set(done) == {run.id for run in found}
    assert {(run.state, run.token, len(run.attempts)) for run in found} == {(State.SUCCEEDED, 1, 1)}
    keyed = [run.dedupe_key for run in found if run.dedupe_key]
    assert len(keyed) == len(set(keyed)) == 100
    assert len(found) == RUNS - 100
    for store in stores:
        await store.close()


@pytest.mark.parametrize("batch", ["alike", "unlike"])
async def test_a_part_that_an_update_passed_over_is_sent_again(
    cluster: ShardedCluster, monkeypatch: pytest.MonkeyPatch, batch: str
) -> None:
    """A moving chunk hides runs from an update for a moment. What is done, what is to be sent
    again and what is somebody else's by now are told apart by a look at them."""
    whole, sent = commit._send, list[int]()

    async def passing_over(db: Database, items: Sequence[commit.EncodedChange]) -> int:
        sent.append(len(items))
        if len(sent) > 2:
            return await whole(db, items)
        seen = items[::3]  # the first two times two of three are hidden
        if len(sent) == 1:  # and meanwhile three of those are claimed by another
            hidden = [item.id for item in items if item not in seen]
            taken = {"_id": {"$in": hidden[:3]}}
            await db.runs.update_many(taken, {"$inc": {"token": 1}, "$set": {"worker": "x"}})
        return await whole(db, seen)

    store = MongoStore(with_database(cluster.url, "jobs"))
    await store.open()
    now = await store.now()
    await store.add([a_run(now, f"{batch}{n}", handler=batch) for n in range(30)])
    held = await claim_runs(store, replace(CLAIM, handlers=frozenset({batch})))
    once = transitions.AttemptDetails(log=("once",))
    outcomes = [
        transitions.succeeded(run, now, None if batch == "alike" else run.id, once) for run in held
    ]
    monkeypatch.setattr(commit, "_send", passing_over)
    kept = await store.commit(outcomes)
    monkeypatch.undo()
    assert sent == [30, 17, 11]  # 10 of 30 done, 3 lost; 6 of 17 done; then the rest
    assert kept.count(True) == 27
    found = await get_runs(store, [run.id for run in held])
    await store.close()
    for run, mine in zip(held, kept, strict=True):
        state = State.SUCCEEDED if mine else State.RUNNING
        assert (found[run.id].state, found[run.id].worker == "x") == (state, not mine)
        assert len(found[run.id].attempts) == int(mine)


async def test_a_count_that_is_short_though_all_was_done(
    cluster: ShardedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver sends a write again whose answer was lost, and the second finds nothing to do."""
    whole, sent = commit._send, list[int]()

    async def unheard(db: Database, items: Sequence[commit.EncodedChange]) -> int:
        sent.append(await whole(db, items))
        return await whole(db, items)

    store = MongoStore(with_database(cluster.url, "jobs"))
    await store.open()
    now = await store.now()
    await store.add([a_run(now, f"u{n}", handler="u") for n in range(20)])
    held = await claim_runs(store, replace(CLAIM, handlers=frozenset({"u"})))
    monkeypatch.setattr(commit, "_send", unheard)
    assert await store.commit([transitions.succeeded(r, now, r.id) for r in held]) == [True] * 20
    assert sent == [20]
    await store.close()
