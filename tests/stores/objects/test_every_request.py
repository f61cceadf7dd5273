"""Every request of every call, once with each fault: a client that dies there, an answer that is
lost, a write that is done late, storage that refuses.

Each test counts the requests that a call makes, and repeats the call from the same bucket with the
fault at the first, the second, … of them. Then another client looks: the call was done completely
or not at all. When the call is sent again, the bucket holds what it holds without the fault.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from mainspring.core import transitions
from mainspring.core.model import Job, Note, Run, Source, State, replace, slot_run_id
from mainspring.core.policy import Overlap
from mainspring.core.transitions import Failure
from mainspring.errors import StoreError
from mainspring.stores.objects import ObjectStore
from mainspring.stores.protocol import (
    Claim,
    Firing,
    Held,
    JobQuery,
    JobWrite,
    NoteQuery,
    NoteWrite,
    RunQuery,
)
from mainspring.testing import FakeClock
from tests.support.objects.memory_bucket import BucketFault, Effect, MemoryBucket, Objects

Call = Callable[[ObjectStore], Awaitable[Any]]

CLOCK = FakeClock()
START = CLOCK.now()
MINUTE = timedelta(minutes=1)
LEASE = timedelta(seconds=30)


def run(run_id: str, **fields: Any) -> Run:
    times = dict.fromkeys(("created_at", "scheduled_at", "run_at"), START)
    return Run(**{"id": run_id, "job_id": "job", "handler": "work", **times, **fields})


def job(job_id: str, **fields: Any) -> Job:
    return Job(id=job_id, handler="work", created_at=START, updated_at=START, **fields)


def client(objects: Objects, plan: Any = None) -> ObjectStore:
    """With limits so small that most calls write parts, too."""
    return ObjectStore(MemoryBucket(objects, plan), tail_bytes=400, most_finished=2)


async def contents(objects: Objects) -> dict[str, Any]:
    """All that a new client finds. Tokens and versions tell what was done twice."""
    store = client(objects)
    await store.open()
    runs = (await store.find(RunQuery(limit=1000))).items
    looked_up = (await store.find(RunQuery(ids=frozenset(one.id for one in runs)))).items
    assert sorted(one.id for one in looked_up) == sorted({one.id for one in runs})
    counts = await store.counts(since=START - timedelta(days=1))
    found = {
        "runs": {one.id: one for one in runs},
        "jobs": (await store.jobs(JobQuery())).items,
        "notes": (await store.notes(NoteQuery())).items,
        "totals": counts.totals,
        "periods": counts.periods,
    }
    assert len(found["runs"]) == len(runs)
    await store.close()
    return found


async def prepared() -> Objects:
    """A bucket with live and finished runs, in the live state and in segments, and a job."""
    objects = Objects(CLOCK)
    store = client(objects)
    await store.open()
    await store.put_jobs([JobWrite.put(job("job", next_run_at=START))])
    old = START - 60 * MINUTE
    for n in range(3):
        await store.add([run(f"old{n}", run_at=old), run(f"bad{n}", run_at=old)])
        for held in (await store.claim(claim("past"))).runs:
            end = transitions.failed(held, old, Failure("no"))
            if held.id.startswith("old"):
                end = transitions.succeeded(held, old, n)
            assert await store.commit([end]) == [True]
    await store.add([run("held", priority=9), run("due")])
    await store.claim(claim("w1", limit=1))
    await store.close()
    assert [key for key in objects.stored if key.startswith("history/")]
    return objects


def claim(worker: str, limit: int = 10) -> Claim:
    return Claim(worker=worker, handlers=frozenset({"work"}), limit=limit, lease=LEASE)


async def one(store: ObjectStore, run_id: str) -> Run:
    [found] = (await store.find(RunQuery(ids=frozenset({run_id})))).items
    return found


async def add(store: ObjectStore) -> Any:
    last = run("last", state=State.WAITING, after=("first",))
    return await store.add([run("first", dedupe_key="k"), last, run("old0"), run("new")])


async def claim_due(store: ObjectStore) -> Any:
    return await store.claim(claim("w2"))


async def renew(store: ObjectStore) -> Any:
    return await store.renew([Held("held", 1)], 2 * LEASE)


def change(make: Callable[[Run], transitions.Change], run_id: str) -> Call:
    made: list[transitions.Change] = []

    async def commit(store: ObjectStore) -> Any:
        """The same change each time, as a caller sends it again."""
        if not made:
            made.append(make(await one(store, run_id)))
        return await store.commit(made)

    return commit


def succeeded(held: Run) -> transitions.Change:
    return transitions.succeeded(held, START, "x" * 500)


async def put_jobs(store: ObjectStore) -> Any:
    removed = JobWrite.drop("job")
    return await store.put_jobs([removed, JobWrite.add(job("other", version=7))])


async def put_notes(store: ObjectStore) -> Any:
    note = Note(kind="k", name="n", value={"n": 1})
    return await store.put_notes([NoteWrite(note.kind, note.name, 0, note, LEASE)])


async def fire(store: ObjectStore) -> Any:
    [found] = (await store.jobs(JobQuery(ids=frozenset({"job"})))).items
    at = START
    slot = replace(run(slot_run_id("job", at)), source=Source.SCHEDULE)
    firing = Firing(
        job_id="job",
        version=found.version if found.next_run_at == START else 0,
        runs=(slot,),
        overlap=Overlap.ALLOW,
        next_run_at=START + MINUTE,
        last_run_at=START,
    )
    return await store.fire([firing])


async def maintain(store: ObjectStore) -> Any:
    while await store.maintain(START, 4) == 4:
        pass


async def open_only(store: ObjectStore) -> Any:
    return await store.now()


CALLS: dict[str, Callable[[], Call]] = {
    "open": lambda: open_only,
    "add": lambda: add,
    "claim": lambda: claim_due,
    "renew": lambda: renew,
    "commit": lambda: change(succeeded, "held"),
    "revive": lambda: change(lambda found: transitions.revived(found, START), "bad0"),
    "delete": lambda: change(transitions.deleted, "old0"),
    "put_jobs": lambda: put_jobs,
    "put_notes": lambda: put_notes,
    "fire": lambda: fire,
    "maintain": lambda: maintain,
}
ONE_STEP = CALLS.keys() - {"maintain"}
"""Calls that are done completely or not at all. `maintain` may be done in part."""

EFFECTS: tuple[Effect, ...] = (
    *("killed before", "killed after"),
    *("lost answer", "throttled", "late"),
)
LATE = 0.02


FAILED = object()


async def attempt(
    objects: Objects, call: Call, effect: Effect = "none", at: int = 0
) -> tuple[int, Any]:
    """Open a client and make the call, with the fault at that request. Gives how many requests
    there were, and the answer."""
    made = 0

    def plan(kind: str, key: str) -> BucketFault:
        nonlocal made
        made += 1
        if made != at:
            return BucketFault()
        return BucketFault(effect, delay=LATE) if effect == "late" else BucketFault(effect)

    store = client(objects, plan)
    answer = FAILED
    try:
        await store.open()
        answer = await call(store)
        await store.close()
    except StoreError:
        pass
    return made, answer


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("name", CALLS)
async def test_a_fault_at_any_request_loses_nothing_and_does_nothing_twice(
    name: str, effect: Effect
) -> None:
    base = await prepared()
    before = await contents(base)
    done_in = copy.deepcopy(base)
    _, right = await attempt(done_in, CALLS[name]())
    done = await contents(done_in)
    at = 1
    while True:
        objects, call = copy.deepcopy(base), CALLS[name]()
        objects.clock = CLOCK
        made, answer = await attempt(objects, call, effect, at)
        if made < at:
            break
        assert answer in (right, FAILED), f"request {at}"
        if answer is not FAILED:
            assert await contents(objects) == done, f"request {at}, answered"
        found = await contents(objects)
        if name in ONE_STEP:
            assert found in (before, done), f"request {at}"
        await asyncio.sleep(LATE * 1.5 if effect == "late" else 0)
        found = await contents(objects)
        if name in ONE_STEP:
            assert found in (before, done), f"request {at}, later"
        if found == before or name not in ("claim", "put_jobs"):
            await attempt(objects, call)
        assert await contents(objects) == done, f"request {at}, sent again"
        at += 1
    assert at > (1 if name == "open" else 2)


@pytest.mark.parametrize("effect", EFFECTS)
async def test_a_fault_while_the_store_is_made(effect: Effect) -> None:
    for at in range(1, 5):
        objects = Objects(CLOCK)
        await attempt(objects, add, effect, at)
        await asyncio.sleep(LATE * 1.5 if effect == "late" else 0)
        await attempt(objects, add)
        found = await contents(objects)
        assert sorted(found["runs"]) == ["first", "last", "new", "old0"]
