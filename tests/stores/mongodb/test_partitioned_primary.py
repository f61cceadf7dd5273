"""A primary that is cut off from its majority: what it alone knows is not taken for certain.

On a cluster, where one shard may be cut off and the other is well. A primary that nobody follows
still reads and writes by itself until it notices; what it wrote meanwhile may be rolled back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
from pymongo.read_concern import ReadConcern

from mainspring import Scheduler
from mainspring.core import transitions
from mainspring.core.model import Job, Run, State, replace
from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import MongoStore, transaction
from mainspring.stores.mongodb.codec import LIVE_STATES
from mainspring.stores.mongodb.schema import SHARDED
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from mainspring.stores.protocol import JobQuery, RunQuery
from mainspring.testing.store_calls import add_jobs, claim_runs, drop_job, put_job
from tests.support.engine import LONG
from tests.support.mongodb.store import CLAIM
from tests.support.records import a_run
from tests.support.servers.mongodb import ReplicaSet, ShardedCluster, with_database

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def cluster() -> Iterator[ShardedCluster]:
    """Shards of two members: one that freezes takes the majority with it. Nobody is elected."""
    with ShardedCluster(members=2, election_timeout=60) as servers:
        yield servers


@pytest.fixture
async def store(cluster: ShardedCluster, database_name: str) -> AsyncIterator[MongoStore]:
    for name in SHARDED:
        cluster.shard(f"{database_name}.{DEFAULT_PREFIX}{name}")
    store = MongoStore(f"{with_database(cluster.url, database_name)}?timeoutMS=1500")
    await store.open()
    yield store
    await store.close()


@contextmanager
def cut_off(shards: Sequence[ReplicaSet]) -> Iterator[None]:
    """The primaries of these shards have nobody who follows them."""
    frozen = [member for shard in shards for member in shard.secondaries()]
    for member in frozen:
        member.freeze()
    try:
        yield
    finally:
        for member in frozen:
            member.resume()
        for shard in shards:
            shard.wait_until_healthy()


def away_from_home(cluster: ShardedCluster, database: str) -> list[ReplicaSet]:
    """The shards that do not hold what is unsharded."""
    with cluster.client() as client:
        known = client.config.databases.find_one({"_id": database})
    assert known is not None
    return [shard for shard in cluster.shards if shard.name != known["primary"]]


async def test_a_claim_that_a_shard_took_to_itself_is_found_again(
    cluster: ShardedCluster, store: MongoStore
) -> None:
    """What the other shard gave is given at once or with the rest; no run waits for a lapse."""
    now = await store.now()
    ids = {f"r{n:02}" for n in range(40)}
    await store.add([a_run(now, run_id) for run_id in ids])
    held: list[Run] = []
    with cut_off(away_from_home(cluster, store.mongo_url.database)):
        for _ in range(2):
            with suppress(StoreUnavailable):
                held += await claim_runs(store, CLAIM)
    held += await claim_runs(store, CLAIM)
    assert {(run.id, run.token) for run in held} == {(run_id, 1) for run_id in ids}


async def test_a_duplicate_of_what_may_be_rolled_back_is_not_acknowledged(
    cluster: ShardedCluster, store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Enqueue with a key, and try again: the cut falls before the commit."""
    now = await store.now()
    whole = transaction._commit
    with ExitStack() as cut:

        async def cut_here(*given: Any) -> Any:
            monkeypatch.setattr(transaction, "_commit", whole)
            cut.enter_context(cut_off(cluster.shards))
            return await whole(*given)

        monkeypatch.setattr(transaction, "_commit", cut_here)
        for n in range(4):
            with pytest.raises(StoreUnavailable):
                await store.add([a_run(now, f"r{n}", dedupe_key="welcome")])
    [added] = await store.add([a_run(now, "again", dedupe_key="welcome")])
    assert [one.id for one in (await store.find(RunQuery())).items] == [added.run.id]


async def test_what_is_sent_again_is_acknowledged_when_a_majority_has_it(
    cluster: ShardedCluster, store: MongoStore
) -> None:
    now = await store.now()
    known, new = a_run(now, "known", dedupe_key="k"), a_run(now, "new")
    await store.add([known])
    with cut_off(cluster.shards):
        for batch in ([new], [known, new], [known, new]):
            with pytest.raises(StoreUnavailable):
                await store.add(batch)
    added = await store.add([known, new])
    assert [(one.run, one.duplicate) for one in added] == [(known, False), (new, False)]


async def test_a_key_is_not_free_before_a_majority_has_its_holders_end(
    cluster: ShardedCluster, store: MongoStore
) -> None:
    """The end may be rolled back: then it would run beside the one that took its key."""
    now = await store.now()
    await store.add([a_run(now, f"r{n}", dedupe_key=f"k{n}") for n in range(40)])
    held = await claim_runs(store, CLAIM)

    async def next_one(n: int) -> None:
        with suppress(StoreUnavailable):
            await store.add([a_run(now, f"s{n}", dedupe_key=f"k{n}")])

    with cut_off(away_from_home(cluster, store.mongo_url.database)):
        with pytest.raises(StoreUnavailable):
            await store.commit([transitions.succeeded(one, now, None) for one in held])
        await asyncio.gather(*(next_one(n) for n in range(40)))
        certain = store._db.runs.with_options(read_concern=ReadConcern("majority"))
        live = [one["dedupe_key"] async for one in certain.find({"state": {"$in": LIVE_STATES}})]
    assert live
    assert len(live) == len(set(live))


async def test_a_workflow_is_there_as_a_whole_or_not_at_all(
    cluster: ShardedCluster, store: MongoStore
) -> None:
    """Its runs lie on both shards. Whoever sees a run finds the one that it waits for by its id,
    even while the list has only one of them: the shards show a transaction one after the other."""
    now = await store.now()

    async def seen() -> set[str]:
        runs = (await store.find(RunQuery(limit=1000))).items
        upstream = frozenset(one_id for one in runs for one_id in one.after)
        found = (await store.find(RunQuery(ids=upstream))).items
        assert {run.id for run in found} == upstream
        return {run.id for run in runs} | upstream

    async def enqueue(n: int) -> None:
        root = a_run(now, f"r{n}", dedupe_key=f"k{n}")
        after = a_run(now, f"f{n}", state=State.WAITING, after=(root.id,))
        with suppress(StoreUnavailable):
            await store.add([root, after])

    with cut_off(away_from_home(cluster, store.mongo_url.database)):
        await asyncio.gather(*(enqueue(n) for n in range(20)))
        await seen()
    await store.maintain(None, 100)

    async def whole() -> bool:
        there = await seen()
        roots, followers = ({one[1:] for one in there if one[0] == kind} for kind in "rf")
        return bool(there) and roots == followers

    async with asyncio.timeout(LONG):
        while not await whole():
            await asyncio.sleep(0.05)


async def test_an_end_is_told_when_a_majority_has_it(
    cluster: ShardedCluster, store: MongoStore
) -> None:
    """A cancel that failed may be undone: asked again, it does not say that the run had ended."""
    producer = Scheduler(store.mongo_url.url, workers=0)

    @producer.job(id="work")
    def work() -> None: ...

    async with producer:
        pending = await producer.enqueue("work", delay="1h")
        await producer.enqueue("work")
        [running] = await claim_runs(store, CLAIM)
        with cut_off(cluster.shards):
            for one in (pending, running):
                for _ in range(2):
                    with pytest.raises(StoreUnavailable):
                        await producer.cancel(one.id)
                now = await producer.get_run(one.id)
                assert (now.state, now.cancel_requested) == (one.state, False)
            with pytest.raises(TimeoutError):
                await producer.wait(pending.id, 0.5)
        assert await producer.cancel(running.id)
        assert not await producer.cancel(pending.id)
        assert (await producer.wait(pending.id, 10)).state is State.CANCELLED


async def test_a_job_that_may_be_rolled_back_refuses_nobody(
    cluster: ShardedCluster, store: MongoStore
) -> None:
    """Who is told that a job is there, or is another by now, does not try again: it has to last."""
    job = Job(id="new", handler="work", created_at=await store.now(), updated_at=await store.now())
    assert await put_job(store, replace(job, id="old"))
    [old] = (await store.jobs(JobQuery())).items
    with cut_off(cluster.shards):
        for _ in range(2):
            for write in (
                put_job(store, job),
                add_jobs(store, [replace(job, version=1)]),
                put_job(store, replace(old, description="changed")),
                drop_job(store, "gone"),
            ):
                with pytest.raises(StoreUnavailable):
                    await write
    assert not await put_job(store, job)
    assert await add_jobs(store, [replace(job, version=1)]) == [False]
    assert not await put_job(store, replace(old, description="too late"))
    assert not await drop_job(store, "gone")
    kept = {job.id: job.description for job in (await store.jobs(JobQuery())).items}
    assert kept == {"new": "", "old": "changed"}
