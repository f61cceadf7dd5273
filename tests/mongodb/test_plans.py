"""Every hot query is a walk along an index that looks at about as many keys as it gives runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from mainspring import states
from mainspring.model import Job, Run, Source, State, replace
from mainspring.policy import Policy
from mainspring.store import Claim, JobQuery, RunQuery
from mainspring.stores.mongodb import MongoStore, claims, firing, reads, upkeep
from mainspring.stores.mongodb.database import Database, Document
from mainspring.stores.mongodb.times import ServerTime
from tests.servers.mongodb import with_database

MANY = 2000
HERE = {"q": "default", "h": "work", "g": ""}


@pytest.fixture
async def store(replica_set_url: str, database_name: str) -> AsyncIterator[MongoStore]:
    """Many runs, of which few are what a query wants."""
    store = MongoStore(with_database(replica_set_url, database_name))
    await store.open()
    now = await store.now()

    def run(n: int, **fields: Any) -> Run:
        times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), now)
        given: dict[str, Any] = {"id": f"r{n:06}", "job_id": "job", "handler": "work", **times}
        return Run(**{**given, **fields})

    due = [run(n, priority=n % 10) for n in range(MANY)]
    later = now + timedelta(days=1)
    future = [run(n, priority=9, run_at=later) for n in range(MANY, 2 * MANY)]
    foreign = [run(n, handler="other", priority=9) for n in range(2 * MANY, 3 * MANY)]
    old = now - timedelta(days=9)
    over = [
        run(n, state=State.SUCCEEDED, finished_at=old, job_id=f"j{n % 10}")
        for n in range(3 * MANY, 4 * MANY)
    ]
    slots = [
        run(n, source=Source.SCHEDULE, job_id="slotted") for n in range(4 * MANY, 4 * MANY + 3)
    ]
    await store.add([*due, *future, *foreign, *over, *slots])
    for n in range(200):
        job = Job(id=f"job{n}", handler="work", created_at=now, updated_at=now)
        soon = now if n < 5 else later
        await store.put_job(
            replace(job, next_run_at=soon, policy=Policy.make(concurrency=n or None))
        )
    await store.claim(_claim(200, timedelta(seconds=30)))
    await store.claim(_claim(10, timedelta(milliseconds=1)))
    yield store
    await store.close()


def _claim(limit: int, lease: timedelta) -> Claim:
    return Claim(worker="w", handlers=frozenset({"work"}), limit=limit, lease=lease)


class Plan:
    def __init__(self, explained: Document) -> None:
        stats = explained["executionStats"]
        self.keys: int = stats["totalKeysExamined"]
        self.documents: int = stats["totalDocsExamined"]
        self.given: int = stats["nReturned"]
        self.stages = set(_stages(stats)) | set(_stages(explained.get("queryPlanner", {})))


def _stages(found: Any) -> Iterator[str]:
    if isinstance(found, dict):
        if "stage" in found:
            yield found["stage"]
        for key, inner in found.items():
            if key != "rejectedPlans":
                yield from _stages(inner)
    elif isinstance(found, list):
        for inner in found:
            yield from _stages(inner)


async def explain(db: Database, command: Document) -> Plan:
    told = await db.handle.command("explain", command, verbosity="executionStats")
    if "stages" in told:  # an aggregate's first stage reads
        told = told["stages"][0]["$cursor"]
    plan = Plan(told)
    assert "COLLSCAN" not in plan.stages
    return plan


async def found(
    db: Database, collection: str, where: Document, limit: int, sort: Document | None = None
) -> Plan:
    command = {"find": db.prefix + collection, "filter": where, "limit": limit}
    return await explain(db, command | ({"sort": sort} if sort else {}))


async def test_the_claim_looks_at_what_it_takes(store: MongoStore) -> None:
    db = store._db
    order = dict(claims.ORDER)
    plan = await found(db, "runs", claims.due_runs(db, [HERE]), 100, order)
    assert (plan.given, plan.documents) == (100, 100)
    assert plan.keys <= 112  # ten priorities: one seek past the future of each
    assert "SORT" not in plan.stages
    lanes = [HERE, *({**HERE, "h": f"h{n}"} for n in range(claims.WALKS - 1))]
    plan = await found(db, "runs", claims.due_runs(db, lanes), 100, order)
    assert plan.keys <= 112 + claims.WALKS
    assert "SORT" not in plan.stages


async def test_lanes_are_one_key_each(store: MongoStore) -> None:
    db = store._db
    command = {"distinct": db.runs.name, "key": "lane", "query": {"state": "pending"}}
    plan = await explain(db, command)
    assert plan.keys <= 4
    assert "DISTINCT_SCAN" in plan.stages


async def test_the_next_due_run_is_a_seek_for_each_priority(store: MongoStore) -> None:
    db = store._db
    plan = await found(db, "runs", claims.coming_runs(db, [HERE]), 1, {"run_at": 1})
    assert plan.given == 1
    assert plan.keys <= 11


async def test_lapsed_leases_are_a_range(store: MongoStore) -> None:
    db = store._db
    where = reads.over(db, [30_000_000, 1000], RunQuery(lapsed=True))
    plan = await found(db, "runs", where, 100, {"created_at": -1, "_id": -1})
    assert plan.given == 10
    assert plan.keys <= 14
    command = {"distinct": db.runs.name, "key": "lease", "query": {"state": "running"}}
    assert (await explain(db, command)).keys <= 3


@pytest.mark.parametrize(
    "query",
    [
        RunQuery(limit=50),
        RunQuery(limit=50, states=frozenset({State.SUCCEEDED})),
        RunQuery(limit=50, states=frozenset({State.SUCCEEDED, State.RUNNING}), job="job"),
        RunQuery(limit=50, job="j3"),
    ],
    ids=["all", "a state", "states of a job", "a job"],
)
async def test_lists_are_walks_merged(store: MongoStore, query: RunQuery) -> None:
    db = store._db
    page = await store.find(query)
    for cursor in (None, page.cursor):
        where = reads.listed(replace(query, cursor=cursor))
        plan = await found(db, "runs", where, query.limit, {"created_at": -1, "_id": -1})
        assert plan.given == 50
        # Runs that were made at the same moment as the last of a page are passed over.
        assert plan.documents <= 60 or cursor is not None
        assert "SORT" not in plan.stages


async def test_runs_that_were_tried_are_found_among_many_that_were_not(store: MongoStore) -> None:
    db = store._db
    [again] = await store.claim(_claim(1, timedelta(seconds=30)))
    now = await store.now()
    assert await store.commit([states.retrying(again, now, states.Failure("no"), now)]) == [True]
    query = RunQuery(job="job", tried=True, limit=1000)
    found_ids = {run.id for run in (await store.find(query)).items}
    assert again.id in found_ids
    assert len(found_ids) == 211
    keys = 0
    for where, hint in reads.walks(query):
        command = {"find": db.runs.name, "filter": where, "hint": hint, "limit": 1000}
        plan = await explain(db, command | {"sort": {"created_at": -1, "_id": -1}})
        assert "SORT" not in plan.stages
        keys += plan.keys
    assert keys <= 211 + 2 * len(State)


async def test_overlap_sees_only_slots(store: MongoStore) -> None:
    plan = await found(store._db, "runs", firing.live_slots(["slotted"]), 100)
    assert plan.given == 3
    assert plan.keys <= 6


async def test_pruning_walks_what_is_old(store: MongoStore) -> None:
    db = store._db
    before = await store.now() - timedelta(days=1)
    plan = await found(db, "runs", upkeep.prunable(db, before), 100, {"finished_at": 1})
    assert (plan.given, plan.keys) == (100, 100)


async def test_counts_never_look_at_documents(store: MongoStore) -> None:
    db = store._db
    for pipeline, hint in ((reads.counted(), "newest_of_job"), (reads.counted_due(1 << 60), "due")):
        command = {"aggregate": db.runs.name, "pipeline": pipeline, "cursor": {}, "hint": hint}
        assert (await explain(db, command)).documents == 0


async def test_due_jobs_are_a_range(store: MongoStore) -> None:
    due = reads.listed_jobs(JobQuery(due=await store.now()))
    plan = await found(store._db, "jobs", due, 100, {"next_run_at": 1, "_id": 1})
    assert (plan.given, plan.keys) == (5, 5)


async def test_a_claim_writes_by_ids(store: MongoStore) -> None:
    """Without the hint the planner may walk the whole index of a state."""
    db = store._db
    where = {"_id": {"$in": ["r001000", "r001001"]}, "state": "pending"}
    update = {"q": where, "u": {"$set": {"nonce": 1}}, "multi": True, "hint": {"_id": 1}}
    plan = await explain(db, {"update": db.runs.name, "updates": [update]})
    assert plan.keys <= 4


def test_the_servers_clock_is_a_constant_to_the_planner() -> None:
    assert "$$NOW" in str(ServerTime().now)
