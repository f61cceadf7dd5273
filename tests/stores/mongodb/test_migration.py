"""A database of layout 1, in which clients that wrote without transactions died half-way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from mainspring.core import transitions
from mainspring.core.model import Job, Run, Source, State, replace
from mainspring.core.policy import Policy
from mainspring.stores.mongodb import MongoStore, insert
from mainspring.stores.mongodb.codec import to_us
from mainspring.stores.mongodb.schema import VERSION
from mainspring.stores.protocol import JobQuery, RunQuery
from mainspring.testing import FakeClock
from mainspring.testing.store_calls import claim_runs, get_runs, put_job
from tests.support.mongodb.clocked_store import CLAIM, run
from tests.support.mongodb.clocked_store import clock as clock
from tests.support.mongodb.clocked_store import store as store


async def reserve(store: MongoStore, *runs: Run, by: ObjectId | None = None, **more: Any) -> None:
    """As clients of layout 1 wrote runs first."""
    for made in insert.documents(runs):
        wish = {"by": by or ObjectId(), "put": {"state": made["state"]}, **more}
        await store._db.runs.insert_one({**made, "state": "reserved", "intent": wish})


async def open_again(store: MongoStore) -> None:
    await store._db.meta.update_one({"_id": "schema"}, {"$set": {"version": 1}})
    await store.close()
    await store.open()
    found = await store._db.meta.find_one({"_id": "schema"})
    assert found is not None
    assert found["version"] == VERSION
    assert await store._db.runs.count_documents({"intent": {"$exists": True}}) == 0


async def seen(store: MongoStore) -> set[str]:
    return {one.id for one in (await store.find(RunQuery())).items}


async def test_a_run_that_its_key_names_comes_to_life_and_another_is_dropped(
    store: MongoStore, clock: FakeClock
) -> None:
    named, unnamed = (run(clock, name, dedupe_key=name) for name in ("named", "unnamed"))
    await reserve(store, named, unnamed)
    await store._db.keys.insert_one({"_id": "named", "run": "named", "version": 1})
    await open_again(store)
    assert await get_runs(store, ["named", "unnamed"]) == {"named": named}
    [added] = await store.add([run(clock, "again", dedupe_key="named")])
    assert (added.run.id, added.duplicate) == ("named", True)


async def test_followers_come_to_life_if_what_they_wait_for_has(
    store: MongoStore, clock: FakeClock
) -> None:
    await store.add([run(clock, "root")])
    for name, upstream in (("b", "root"), ("a", "b"), ("lost", "nothing")):
        after = run(clock, name, state=State.WAITING, after=(upstream,))
        await reserve(store, after, after=[upstream])
    await open_again(store)
    assert await seen(store) == {"root", "a", "b"}
    assert (await get_runs(store, ["a"]))["a"].state is State.WAITING


@pytest.mark.parametrize("late", [False, True])
async def test_a_firing_is_completed_or_taken_back_if_it_came_too_late(
    store: MongoStore, clock: FakeClock, late: bool
) -> None:
    now = clock.now()
    made = Job(id="job", handler="work", created_at=now, updated_at=now, next_run_at=now)
    assert await put_job(store, made)
    slot = run(clock, "slot", source=Source.SCHEDULE)
    gap = run(clock, "gap", source=Source.SCHEDULE, state=State.SKIPPED, finished_at=now)
    after = run(clock, "after", state=State.WAITING, after=("slot",))
    await store.add([run(clock, "earlier", source=Source.SCHEDULE)])
    by = ObjectId()
    await reserve(store, slot, after, by=by)
    await reserve(store, replace(gap, state=State.PENDING, finished_at=None))
    firing = {
        "by": by,
        "runs": ["slot", "after", "gap"],
        "replaces": ["earlier"],
        "made": insert.documents([gap]),
        "before": {"next_run_at": to_us(now)},
        "until": to_us(now + timedelta(seconds=5)),
    }
    moved = {"firing": firing, "fired_at": to_us(now + timedelta(seconds=9 if late else 1))}
    put = {**moved, "next_run_at": to_us(now + timedelta(seconds=60))}
    await store._db.jobs.update_one({"_id": "job"}, {"$set": put, "$inc": {"version": 1}})
    await open_again(store)
    [job] = (await store.jobs(JobQuery())).items
    [earlier] = (await get_runs(store, ["earlier"])).values()
    if late:
        assert (job.next_run_at, earlier.state) == (now, State.PENDING)
        assert await seen(store) == {"earlier"}
    else:
        assert job.next_run_at == now + timedelta(seconds=60)
        assert earlier.state is State.CANCELLED
        assert await get_runs(store, ["slot", "after", "gap"]) == {
            one.id: one for one in (slot, after, gap)
        }
    kept = await store._db.jobs.find_one({"_id": "job"})
    assert kept is not None
    assert "firing" not in kept


async def test_a_revival_that_was_not_finished_is_dropped_and_reservations_hold_nothing(
    store: MongoStore, clock: FakeClock
) -> None:
    now = clock.now()
    policy = Policy(concurrency=1)
    made = Job(id="job", handler="work", created_at=now, updated_at=now, policy=policy)
    assert await put_job(store, made)
    await store.add([run(clock, "dead", dedupe_key="k")])
    [held] = await claim_runs(store, CLAIM)
    await store.commit([transitions.failed(held, now, transitions.Failure("boom"))])
    wish = {"by": ObjectId(), "put": {"state": "pending"}}
    await store._db.runs.update_one({"_id": "dead"}, {"$set": {"intent": wish}})
    await store.add([run(clock, "other")])
    reserved = {"run": "other", "token": 0, "fence": 0, "by": ObjectId()}
    await store._db.limits.update_one({"_id": "job:job"}, {"$set": {"reserved": [reserved]}})
    await open_again(store)
    [dead] = (await get_runs(store, ["dead"])).values()
    assert dead.state is State.FAILED
    assert [one.id for one in await claim_runs(store, CLAIM)] == ["other"]
