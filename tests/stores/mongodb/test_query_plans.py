"""Every hot query is a walk along an index that looks at about as many keys as it gives runs.

What is explained is what the store sent: the tests listen to the driver.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from mainspring.core import transitions
from mainspring.core.model import Job, Note, Run, Source, State, replace
from mainspring.core.policy import Policy
from mainspring.core.transitions import Failure
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.codec import LANE_PARTS
from mainspring.stores.mongodb.database import Document
from mainspring.stores.protocol import Claim, Firing, Held, JobWrite, RunQuery
from mainspring.testing.store_calls import (
    add_jobs,
    claim_runs,
    drop_job,
    drop_runs,
    get_runs,
    put_job,
    put_note,
)
from tests.support.mongodb.query_plans import Plan, SentCommands
from tests.support.records import a_firing, a_run
from tests.support.servers.mongodb import with_database

MANY = 2000
HOUR = timedelta(hours=1)
SEEKS = 12 * LANE_PARTS
"""One in each lane: ten priorities of a job, a job of another handler and one with slots."""


@pytest.fixture(scope="module")
def filled(replica_set_url: str) -> Iterator[str]:
    """A database with many runs, of which few are what a query wants."""
    name = f"test_{uuid.uuid4().hex[:16]}"
    url = with_database(replica_set_url, name)
    asyncio.run(_fill(MongoStore(url)))
    yield url
    with MongoClient[Document](replica_set_url) as client:
        client.drop_database(name)


async def _fill(store: MongoStore) -> None:
    await store.open()
    now = await store.now()

    def run(n: int, **fields: Any) -> Run:
        return a_run(now, f"r{n:06}", **fields)

    due = [run(n, priority=n % 10 if n < 100 else 5) for n in range(MANY)]
    later = now + timedelta(days=1)
    future = [run(n, priority=9, run_at=later) for n in range(MANY, 2 * MANY)]
    foreign = [run(n, handler="other", priority=9) for n in range(2 * MANY, 3 * MANY)]
    old = now - timedelta(days=9)
    ended = [
        run(n, state=State.SUCCEEDED, finished_at=old, job_id=f"j{n % 10}", failures=n % 2)
        for n in range(3 * MANY, 4 * MANY)
    ]
    slots = [
        run(n, source=Source.SCHEDULE, job_id="slotted", priority=0)
        for n in range(4 * MANY, 4 * MANY + 3)
    ]
    await store.add([*due, *future, *foreign, *ended, *slots])
    jobs = [Job(id=f"job{n}", handler="work", created_at=now, updated_at=now) for n in range(200)]
    await add_jobs(
        store,
        [
            replace(
                job,
                next_run_at=now if n < 5 else later,
                policy=Policy.make(concurrency=n or None),
                tags=(f"t{n % 20}",),
            )
            for n, job in enumerate(jobs)
        ],
    )
    for n in range(200):
        await put_note(store, Note(kind=f"kind{n % 10}", name=f"n{n}", value=n))
    await claim_runs(store, _claim(200, HOUR))
    await claim_runs(store, _claim(10, timedelta(milliseconds=1)))
    await store.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> SentCommands:
    return SentCommands.record(monkeypatch)


@pytest.fixture
async def store(filled: str, sent: SentCommands) -> AsyncIterator[MongoStore]:
    store = MongoStore(filled)
    await store.open()
    sent.commands.clear()
    yield store
    await store.close()


def _claim(limit: int, lease: timedelta, handler: str = "work") -> Claim:
    return Claim(worker="w", handlers=frozenset({handler}), limit=limit, lease=lease)


async def explained(store: MongoStore, sent: SentCommands) -> list[Plan]:
    """How what was sent is carried out: by no look at everything."""
    plans = await sent.plans(store._db)
    assert plans
    for plan in plans:
        assert "COLLSCAN" not in plan.stages, plan.command
    return plans


def of(plans: list[Plan], kind: str, collection: str = "runs") -> list[Plan]:
    return [plan for plan in plans if (plan.kind, plan.collection) == (kind, collection)]


@pytest.mark.parametrize(
    "query",
    [
        RunQuery(limit=50),
        RunQuery(limit=50, states=frozenset({State.SUCCEEDED})),
        RunQuery(limit=50, states=frozenset({State.SUCCEEDED, State.RUNNING}), job="job"),
        RunQuery(limit=50, job="j3"),
        RunQuery(limit=50, failing=True),
    ],
    ids=["all", "a state", "states of a job", "a job", "failing"],
)
async def test_lists_merge_index_walks_without_sorting(
    store: MongoStore, sent: SentCommands, query: RunQuery
) -> None:
    """Also behind a cursor, and though all these runs were made at one moment."""
    cursor = None
    for _ in range(4):
        page = await store.find(replace(query, cursor=cursor))
        cursor = page.cursor
        [plan] = await explained(store, sent)
        assert (plan.given, plan.documents) == (50, 50)
        assert plan.keys <= 50 + 2 * len(State)  # a walk knows its end by one key more
        assert "SORT" not in plan.stages


async def test_runs_that_were_tried_are_found_among_many_that_were_not(
    store: MongoStore, sent: SentCommands
) -> None:
    """Page by page, by a walk along each of two indexes."""
    [again] = await claim_runs(store, _claim(1, HOUR))
    now = await store.now()
    assert await store.commit([transitions.retrying(again, now, Failure("no"), now)]) == [True]
    found: set[str] = set()
    query = RunQuery(job="job", tried=True, limit=50)
    while True:
        sent.commands.clear()
        page = await store.find(query)
        found |= {run.id for run in page.items}
        plans = await explained(store, sent)
        assert len(plans) == 2
        assert sum(plan.keys for plan in plans) <= 51 + 2 * len(State)
        assert not any("SORT" in plan.stages for plan in plans)
        if page.cursor is None:
            break
        query = replace(query, cursor=page.cursor)
    assert again.id in found
    assert len(found) == 211
    [kept] = (await get_runs(store, [again.id])).values()
    assert await store.commit([transitions.cancelled(kept, now, "over")]) == [True]
    await drop_runs(store, [again.id])


async def some(store: MongoStore, name: str, count: int, **fields: Any) -> list[Run]:
    """Due runs of a job and a handler of their own."""
    now = await store.now()
    runs = [a_run(now, f"{name}{n:03}", job_id=name, handler=name, **fields) for n in range(count)]
    await store.add(runs)
    return runs


def by_ids(plans: list[Plan], count: int) -> None:
    """Updates and looks by ids are hinted: without that the planner may walk the whole index of a
    state. What they look at are those ids."""
    for plan in plans:
        ids = plan.condition.get("_id")
        if plan.collection != "runs" or not isinstance(ids, dict) or "$in" not in ids:
            continue
        if len(plan.condition) > 1:
            assert plan.hint == {"_id": 1}, plan.command
        assert plan.keys <= 2 * count, plan.command


async def test_a_claim_examines_about_as_many_keys_as_it_takes_runs(
    store: MongoStore, sent: SentCommands
) -> None:
    """Lanes are one key each, heads are walked as far as they are taken, the rest is by ids."""
    taken = await claim_runs(store, _claim(100, HOUR))
    plans = await explained(store, sent)
    [lanes] = (plan for plan in of(plans, "aggregate") if "$group" in str(plan.command))
    assert lanes.keys <= 2 * SEEKS
    assert "DISTINCT_SCAN" in lanes.stages
    [heads] = (plan for plan in of(plans, "aggregate") if "$sort" in str(plan.command))
    assert (heads.given, heads.documents) == (100, 100)
    assert heads.keys <= 100 + SEEKS
    assert "SORT" not in heads.stages
    [update] = of(plans, "update")
    assert update.condition["_id"]["$in"] == [run.id for run in taken]
    by_ids(plans, 100)
    now = await store.now()
    await store.commit([transitions.released(run, now, began=False) for run in taken])


async def test_outcomes_and_renewals_are_written_by_ids(
    store: MongoStore, sent: SentCommands
) -> None:
    await some(store, "mine", 40)
    held = await claim_runs(store, _claim(40, HOUR, "mine"))
    sent.commands.clear()
    assert len(await store.renew([Held(run.id, run.token) for run in held], HOUR)) == 40
    renewal = await explained(store, sent)
    assert [plan.kind for plan in renewal] == ["find", "update"]
    by_ids(renewal, 40)

    now = await store.now()
    alike = [transitions.succeeded(run, now, None) for run in held[:15]]
    unlike = [transitions.succeeded(run, now, run.id) for run in held[15:30]]
    mixed = [transitions.succeeded(run, now, 1) for run in held[30:35]]
    mixed += [transitions.failed(run, now, Failure("boom")) for run in held[35:]]
    for batch in (alike, unlike, mixed):
        sent.commands.clear()
        assert all(await store.commit(batch))
        plans = await explained(store, sent)
        assert {plan.kind for plan in plans} == {"update"}
        by_ids(plans, len(batch))
    sent.commands.clear()
    again = await store.commit([*alike[:5], transitions.succeeded(held[-1], now, 2)])
    assert again == [True] * 5 + [False]
    plans = await explained(store, sent)  # a short count: what is there is looked up
    assert max(plan.keys for plan in plans) <= 12


@pytest.mark.parametrize(("key", "most_keys"), [(None, 20), ("shared", 240)])
async def test_a_limit_counts_what_runs_and_no_more(
    store: MongoStore, sent: SentCommands, key: str | None, most_keys: int
) -> None:
    """A limit of one job reads its running runs, a shared one all running runs, which are 215: not
    the jobs that share it, of which there may be thousands."""
    now = await store.now()
    policy = Policy.make(concurrency=7, concurrency_key=key)
    job = Job(id="tight", handler="tight", created_at=now, updated_at=now, policy=policy)
    sharing = [replace(job, id=f"sharing{n}") for n in range(250)]
    await add_jobs(store, [job, *sharing])
    await some(store, "tight", 50)
    first = await claim_runs(store, _claim(5, HOUR, "tight"))
    sent.commands.clear()
    second = await claim_runs(store, _claim(50, HOUR, "tight"))
    assert (len(first), len(second)) == (5, 2)
    plans = await explained(store, sent)
    assert of(plans, "find", "jobs")
    assert of(plans, "update", "limits")
    [lanes] = (plan for plan in of(plans, "aggregate") if "$group" in str(plan.command))
    assert lanes.keys <= 2 * SEEKS
    assert max(plan.keys for plan in plans if plan is not lanes) <= most_keys
    by_ids(plans, 2)
    await store.commit([transitions.succeeded(run, now, None) for run in (*first, *second)])
    await store.put_jobs([JobWrite.drop(dropped.id) for dropped in (job, *sharing)])
    await drop_runs(store, [f"tight{n:03}" for n in range(50)])


async def test_followers_are_found_by_what_they_wait_for(
    store: MongoStore, sent: SentCommands
) -> None:
    now = await store.now()
    waiting = [
        a_run(now, f"w{n}", handler="w", after=(f"u{n % 50}",), state=State.WAITING)
        for n in range(200)
    ]
    await store.add(waiting)
    sent.commands.clear()
    page = await store.find(RunQuery(upstream=frozenset({"u7", "u8"})))
    assert len(page.items) == 8
    [plan] = await explained(store, sent)
    assert plan.hint == "upstream"
    assert plan.keys <= 11
    assert plan.documents == 8
    now = await store.now()
    await store.commit(
        [transitions.skipped(run, now, transitions.UPSTREAM_FAILED) for run in waiting]
    )
    sent.commands.clear()
    page = await store.find(RunQuery(upstream=frozenset({"u7", "u8"}), limit=5))
    rest = await store.find(RunQuery(upstream=frozenset({"u7", "u8"}), limit=5, cursor=page.cursor))
    assert (len(page.items), len(rest.items)) == (5, 3)
    for plan in await explained(store, sent):
        assert plan.hint == "upstream"
        assert plan.keys <= 11
    await drop_runs(store, [run.id for run in waiting])


def _counted(sent: SentCommands) -> list[Document]:
    """All commands but hints, and the renewals of sessions, which depend on the time alone."""
    rest = ("_wakeups", "_sessions")
    return [one for one in sent.commands if not str(next(iter(one.values()))).endswith(rest)]


@pytest.mark.parametrize("count", [1, 60])
@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
async def test_a_batch_of_slots_takes_the_same_few_commands_however_large_it_is(
    store: MongoStore, sent: SentCommands, count: int, overlap: str
) -> None:
    """One job after another was 4 commands a slot, and 80 slots a second the most there was."""
    now = await store.now()
    names = [f"batch{n:03}" for n in range(count)]
    policy = Policy.make(overlap=overlap)
    for name in names:
        job = Job(id=name, handler="work", created_at=now, updated_at=now, next_run_at=now)
        assert await put_job(store, replace(job, policy=policy))
    first = job.next_version()

    def slot(name: str, number: int) -> Firing:
        run = a_run(now, f"{name}@{number}", job_id=name, handler="batched", source=Source.SCHEDULE)
        return a_firing(job, run, job_id=name, version=first + number, overlap=policy.overlap)

    # The second firing reads the runs of the first; where it replaces them, it counts their end.
    for number, most in ((0, 6), (1, 8 if overlap == "replace" else 7)):
        sent.commands.clear()
        fired = await store.fire([slot(name, number) for name in names])
        assert all(one.done for one in fired)
        assert len(_counted(sent)) <= most
        plans = await explained(store, sent)
        assert max(plan.keys for plan in plans) <= 7 * count
        by_ids(plans, count)
    sent.commands.clear()
    chains = [slot(name, number) for name in names for number in (2, 3)]
    assert all(one.done for one in await store.fire(chains))
    assert len(_counted(sent)) <= 16
    for name in names:
        assert await drop_job(store, name)
    await store._db.runs.delete_many({"_id": {"$regex": "^batch"}})
