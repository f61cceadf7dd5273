"""A client that dies between two writes: whoever comes next finds things whole, or makes them so.

The death is an error raised in place of a step; nothing behind it is done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from pymongo.errors import NetworkTimeout

from mainspring.core import transitions
from mainspring.core.model import Job, Run, Source, State, replace, slot_run_id
from mainspring.core.policy import Overlap, Policy
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.stores.mongodb import (
    MongoStore,
    claim,
    collections,
    dedupe,
    insert,
    jobs,
    two_phase,
)
from mainspring.stores.protocol import Claim, Fired, Firing, Held, JobQuery, Renewed, RunQuery
from mainspring.testing import FakeClock
from mainspring.testing.store_calls import claim_runs, get_runs, put_job
from tests.support.servers.mongodb import with_database

CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=10, lease=timedelta(seconds=30))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(
    replica_set_url: str, database_name: str, clock: FakeClock
) -> AsyncIterator[MongoStore]:
    store = MongoStore(with_database(replica_set_url, database_name), clock)
    await store.open()
    yield store
    await store.close()


class Death:
    """Puts an error in place of a function, once."""

    def __init__(self, patch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        whole = getattr(module, name)
        self.met = False

        async def step(*given: Any, **more: Any) -> Any:
            if not self.met:
                self.met = True
                raise NetworkTimeout("the client died here")
            return await whole(*given, **more)

        patch.setattr(module, name, step)


def run(clock: FakeClock, run_id: str, **fields: Any) -> Run:
    given: Any = dict.fromkeys(("created_at", "scheduled_at", "run_at"), clock.now())
    return Run(**{"id": run_id, "job_id": "job", "handler": "work", **given, **fields})


async def job(store: MongoStore, clock: FakeClock, **policy: Any) -> Job:
    now = clock.now()
    made = Job(id="job", handler="work", created_at=now, updated_at=now, next_run_at=now)
    assert await put_job(store, replace(made, policy=Policy.make(**policy)))
    return (await store.jobs(JobQuery())).items[0]


# -- keys -----------------------------------------------------------------------------------


async def test_a_key_that_points_at_a_half_made_run(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Death(monkeypatch, dedupe, "carry_out")
    with pytest.raises(StoreUnavailable):
        await store.add([run(clock, "a", dedupe_key="k")])
    assert await get_runs(store, ["a"]) == {}
    [added] = await store.add([run(clock, "b", dedupe_key="k")])
    assert (added.run.id, added.duplicate) == ("a", True)
    assert [held.id for held in await claim_runs(store, CLAIM)] == ["a"]


async def test_a_reservation_left_by_a_crash_holds_no_dedupe_key(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Death(monkeypatch, dedupe, "_point")
    with pytest.raises(StoreUnavailable):
        await store.add([run(clock, "a", dedupe_key="k")])
    [added] = await store.add([run(clock, "b", dedupe_key="k")])
    assert (added.run.id, added.duplicate) == ("b", False)
    [again] = await store.add([run(clock, "a", dedupe_key="k")])
    assert (again.run.id, again.duplicate) == ("b", True)
    assert [found.id for found in (await store.find(RunQuery())).items] == ["b"]


async def test_an_abandoned_reservation_is_swept(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id, step in (("pointed", "carry_out"), ("reserved", "_point")):
        Death(monkeypatch, dedupe, step)
        with pytest.raises(StoreUnavailable):
            await store.add([run(clock, run_id, dedupe_key=run_id)])
    await store.maintain(None, 100)
    assert await get_runs(store, ["pointed", "reserved"]) == {
        "pointed": run(clock, "pointed", dedupe_key="pointed")
    }
    clock.advance(3600)
    await store.maintain(None, 100)
    assert await store._db.runs.count_documents({}) == 1


async def test_a_half_made_run_that_has_ended_is_not_counted(
    store: MongoStore, clock: FakeClock
) -> None:
    """A skipped run of a slot is written with its end while it is still half made: the counts of
    what has ended failed for as long as one was left (`'reserved' is not a valid State`)."""
    skipped = run(clock, "skipped", state=State.SKIPPED, finished_at=clock.now())
    await two_phase.reserve(store._db, await insert.documents(store._db, [skipped]))
    await store.add([run(clock, "over", state=State.SUCCEEDED, finished_at=clock.now())])
    counts = await store.counts(since=clock.now() - timedelta(hours=1))
    assert counts.ended == {State.SUCCEEDED: 1}
    assert counts.runs == {"job": {State.SUCCEEDED: 1}}


async def test_an_undecided_reservation_delays_no_other_run(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client died with a large batch in its hands, which may be junk in ten minutes."""
    monkeypatch.setattr(two_phase, "PAGE", 40)
    Death(monkeypatch, dedupe, "_point")
    with pytest.raises(StoreUnavailable):
        await store.add([run(clock, f"r{n}", dedupe_key=f"k{n}") for n in range(150)])
    for run_id in ("a", "s"):  # on both ends of any order
        Death(monkeypatch, dedupe, "carry_out")
        with pytest.raises(StoreUnavailable):
            await store.add([run(clock, run_id, dedupe_key=run_id)])
    await store.maintain(None, 100)
    assert (await get_runs(store, ["a", "s"])).keys() == {"a", "s"}


@pytest.mark.parametrize("step", ["_point", "carry_out"])
async def test_a_revival_that_was_cut_off(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The key is still the run's: whoever wants it finishes the revival first."""
    dead = await failed(store, clock)
    Death(monkeypatch, dedupe, step)
    revival = transitions.revived(dead, clock.now())
    with pytest.raises(StoreUnavailable):
        await store.commit([revival])
    assert (await get_runs(store, ["a"]))["a"] == dead
    [added] = await store.add([run(clock, "b", dedupe_key="k")])
    assert (added.run.id, added.duplicate) == ("a", True)
    assert await store.commit([revival]) == [True]
    live = (await store.find(RunQuery(states=frozenset({State.PENDING})))).items
    assert [r.id for r in live] == ["a"]


async def failed(store: MongoStore, clock: FakeClock) -> Run:
    await store.add([run(clock, "a", dedupe_key="k")])
    [held] = await claim_runs(store, CLAIM)
    await store.commit([transitions.failed(held, clock.now(), transitions.Failure("boom"))])
    return (await get_runs(store, ["a"]))["a"]


async def test_a_newcomer_that_saw_the_run_dead_does_not_come_beside_its_revival(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks, the run is revived (by a helper, say), and then it takes the key."""
    dead = await failed(store, clock)
    whole = dedupe._point
    revival = transitions.revived(dead, clock.now())
    done: list[bool] = []

    async def meanwhile(*given: Any) -> Any:
        if not done:
            done.append(True)
            assert await store.commit([revival]) == [True]
        return await whole(*given)

    monkeypatch.setattr(dedupe, "_point", meanwhile)
    [added] = await store.add([run(clock, "b", dedupe_key="k")])
    assert (added.run.id, added.duplicate) == ("a", True)
    assert await get_runs(store, ["b"]) == {}


# -- add ------------------------------------------------------------------------------------


async def test_a_batch_that_was_cut_off_is_there_in_part_and_whole_when_sent_again(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a crash leaves are whole runs, none that is half made; none is doubled."""
    batch = [run(clock, f"r{n}", dedupe_key=f"k{n}" if n % 5 == 0 else None) for n in range(50)]
    whole = collections.chunks

    def cut_off(items: Any, size: int = 10) -> Any:
        for number, part in enumerate(whole(items, size)):
            if number == 2:
                raise NetworkTimeout("the client died here")
            yield part

    with monkeypatch.context() as crash:
        crash.setattr(two_phase, "chunks", cut_off)
        with pytest.raises(StoreUnavailable):
            await store.add(batch)
    there = (await store.find(RunQuery(limit=100))).items
    assert {one.state for one in there} == {State.PENDING}
    assert 0 < len(there) < 50
    early = await claim_runs(store, CLAIM)
    assert [added.duplicate for added in await store.add(batch)] == [False] * 50
    late = await claim_runs(store, replace(CLAIM, limit=100))
    assert sorted(one.id for one in [*early, *late]) == sorted(one.id for one in batch)


def workflow(clock: FakeClock, name: str, key: str | None) -> list[Run]:
    """Three runs, each after the one before."""
    first = run(clock, name, dedupe_key=key)
    second = run(clock, f"second@{name}", state=State.WAITING, after=(name,))
    return [first, second, run(clock, f"a-third@{name}", state=State.WAITING, after=(second.id,))]


async def sweep(store: MongoStore) -> set[str]:
    """What can be seen after three repairs; after none is a run there before what it waits for,
    which would count as ended long ago."""
    for _ in range(3):
        await store.maintain(None, 100)
        seen = {one.id: one for one in (await store.find(RunQuery())).items}
        assert all(seen.keys() >= set(one.after) for one in seen.values())
    return set(seen)


STEPS = [(insert, "insert"), (dedupe, "reserve"), (dedupe, "_point"), (dedupe, "carry_out")]
STEPS += [(insert, "_insert"), (insert, "carry_out")]


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize(("module", "step"), STEPS)
@pytest.mark.parametrize("late", [0, 3600])
async def test_a_workflow_that_was_cut_off_is_there_as_a_whole_or_not_at_all(
    store: MongoStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    module: ModuleType,
    step: str,
    late: float,
) -> None:
    """Also where nobody swept for an hour. Sent again by those who got no answer, a keyed one is
    there once."""
    one, other = (workflow(clock, name, key) for name in ("one", "other"))
    death = Death(monkeypatch, module, step)
    with suppress(StoreUnavailable):
        await store.add(one)
        assert not death.met
    clock.advance(late)
    seen = await sweep(store)
    assert seen in (set(), {each.id for each in one})
    [root, *_] = await store.add(other)
    assert root.duplicate is bool(seen and key)
    expected = [*(one if seen else []), *([] if root.duplicate else other)]
    assert await sweep(store) == {each.id for each in expected}
    clock.advance(3600)
    await sweep(store)
    assert await store._db.runs.count_documents({}) == len(expected)


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize(("module", "step"), STEPS)
async def test_a_workflow_that_was_cut_off_is_whole_when_sent_again(
    store: MongoStore,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    module: ModuleType,
    step: str,
) -> None:
    flow = workflow(clock, "flow", key)
    Death(monkeypatch, module, step)
    with suppress(StoreUnavailable):
        await store.add(flow)
    assert [(each.run, each.duplicate) for each in await store.add(flow)] == [
        (each, False) for each in flow
    ]
    found = await get_runs(store, [each.id for each in flow])
    assert list(found.values()) == flow


# -- fire -----------------------------------------------------------------------------------


def firing_of(job: Job, clock: FakeClock, overlap: Overlap = Overlap.SKIP) -> Firing:
    at = clock.now()
    slot = run(clock, slot_run_id("job", at), source=Source.SCHEDULE)
    return Firing(
        job_id="job",
        version=job.version,
        runs=(slot,),
        overlap=overlap,
        next_run_at=at + timedelta(seconds=60),
        last_run_at=at,
    )


@pytest.mark.parametrize("step", ["_advance", "_bring_to_life"])
async def test_a_firing_that_was_cut_off(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made = await job(store, clock)
    fired = firing_of(made, clock)
    Death(monkeypatch, jobs, step)
    with pytest.raises(StoreUnavailable):
        await store.fire([fired])
    assert await get_runs(store, [fired.runs[0].id]) == {}
    [again] = await store.fire([fired])
    advanced = step == "_bring_to_life"
    assert again.done is not advanced
    await store.maintain(None, 100)
    assert [held.id for held in await claim_runs(store, CLAIM)] == [fired.runs[0].id]


@pytest.mark.parametrize("overlap", list(Overlap))
async def test_the_next_slot_meets_the_one_that_was_cut_off(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, overlap: Overlap
) -> None:
    made = await job(store, clock)
    first = firing_of(made, clock, overlap)
    Death(monkeypatch, jobs, "_bring_to_life")
    with pytest.raises(StoreUnavailable):
        await store.fire([first])
    clock.advance(60)
    [second] = await store.fire(
        [firing_of(replace(made, version=made.version + 1), clock, overlap)]
    )
    expected = {
        Overlap.SKIP: (State.PENDING, State.SKIPPED),
        Overlap.QUEUE: (State.PENDING, State.WAITING),
        Overlap.REPLACE: (State.CANCELLED, State.PENDING),
        Overlap.ALLOW: (State.PENDING, State.PENDING),
    }
    earlier = (await get_runs(store, [first.runs[0].id]))[first.runs[0].id]
    assert (earlier.state, second.runs[0].state) == expected[overlap]


@pytest.mark.parametrize("step", ["_advance", "_replace_earlier", "_bring_to_life", "add"])
async def test_a_batch_of_firings_that_was_cut_off_gives_each_slot_its_run_once(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Each with a follower, one of them left reserved by another plan, one edited meanwhile."""
    at = clock.now()
    names = [f"job{n}" for n in range(5)]
    for name in names:
        made = Job(id=name, handler="work", created_at=at, updated_at=at, next_run_at=at)
        assert await put_job(store, made)
    left = {"intent": two_phase.intent({"state": "skipped"}), "state": "reserved"}
    [other] = await insert.documents(store._db, [run(clock, "job1@slot", job_id="job1")])
    await store._db.runs.insert_one({**other, **left})

    def slot(name: str) -> Firing:
        root = run(clock, f"{name}@slot", job_id=name, source=Source.SCHEDULE)
        after = run(clock, f"{name}-after", source=Source.AFTER, state=State.WAITING)
        return replace(
            firing_of(made, clock),
            job_id=name,
            version=made.next_version(),
            runs=(root, replace(after, after=(root.id,))),
        )

    [edited] = (await store.jobs(JobQuery(ids=frozenset({"job4"})))).items
    assert await put_job(store, edited)
    firings = [slot(name) for name in names]
    death = Death(monkeypatch, jobs, step)
    with pytest.raises(StoreUnavailable):
        await store.fire(firings)
    assert death.met
    seen = {one.id for one in (await store.find(RunQuery())).items}
    assert step == "add" or not seen
    again = await store.fire(firings)
    assert [one.done for one in again] == [step == "_advance"] * 4 + [False]
    expected = {one.id for name in names[:4] for one in slot(name).runs}
    assert await sweep(store) == expected
    assert len(await claim_runs(store, CLAIM)) == 4


async def test_what_a_plan_left_that_never_came_true_does_not_count(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot's run is reserved as pending; then its maker dies. Until another fires the slot it is
    part of a gap: the record of that gap is what must be there."""
    made = await job(store, clock)
    never = firing_of(made, clock)
    Death(monkeypatch, jobs, "_advance")
    with pytest.raises(StoreUnavailable):
        await store.fire([never])
    missed = {"first": clock.now(), "last": clock.now() + timedelta(seconds=60), "count": 2}
    gap = replace(
        never.runs[0],
        state=State.SKIPPED,
        finished_at=clock.now(),
        reason="misfire",
        result=missed,
    )
    [fired] = await store.fire([replace(never, runs=(gap,))])
    assert fired == Fired(True, (gap,))
    assert (await store.find(RunQuery())).items == [gap]
    assert await claim_runs(store, CLAIM) == []


async def test_a_sweep_also_cancels_what_a_slot_replaces(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await job(store, clock)
    first = firing_of(made, clock, Overlap.REPLACE)
    await store.fire([first])
    clock.advance(60)
    second = firing_of(replace(made, version=made.version + 1), clock, Overlap.REPLACE)
    Death(monkeypatch, jobs, "commit")
    with pytest.raises(StoreUnavailable):
        await store.fire([second])
    await store.maintain(None, 100)
    found = await get_runs(store, [first.runs[0].id, second.runs[0].id])
    assert [found[one.runs[0].id].state for one in (first, second)] == [
        State.CANCELLED,
        State.PENDING,
    ]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_firing_that_arrives_when_its_plan_is_too_old_is_taken_back(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The client freezes with the write in its hands (and perhaps never hears of it)."""
    made = await job(store, clock)
    stale = replace(firing_of(made, clock), valid_until=clock.now() + timedelta(seconds=5))
    whole = jobs._advance

    async def frozen(*given: Any) -> Any:
        clock.advance(3600)
        return await whole(*given)

    monkeypatch.setattr(jobs, "_advance", frozen)
    if dies:
        Death(monkeypatch, jobs, "_take_back")
        with pytest.raises(StoreUnavailable):
            await store.fire([stale])
        await store.maintain(None, 100)
    else:
        assert await store.fire([stale]) == [Fired(False)]
    assert (await store.find(RunQuery())).items == []
    [after] = (await store.jobs(JobQuery())).items
    assert (after.next_run_at, after.last_run_at) == (made.next_run_at, made.last_run_at)
    monkeypatch.setattr(jobs, "_advance", whole)
    [again] = await store.fire([firing_of(after, clock)])
    assert again.done
    assert [held.id for held in await claim_runs(store, CLAIM)] == [again.runs[0].id]


async def test_a_job_paused_in_the_middle_of_a_firing_does_not_run(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await job(store, clock)
    whole = two_phase.reserve

    async def reserve(*given: Any) -> Any:
        assert await put_job(store, replace(made, enabled=False))
        return await whole(*given)

    monkeypatch.setattr(jobs, "reserve", reserve)
    [fired] = await store.fire([firing_of(made, clock)])
    assert fired.done is False
    await store.maintain(None, 100)
    assert (await store.find(RunQuery())).items == []


async def test_what_follows_a_slots_run_is_not_seen_before_it(
    store: MongoStore, clock: FakeClock
) -> None:
    """A run that is gone counts as ended long ago: who waits for it would begin."""
    fired = firing_of(await job(store, clock), clock)
    [slot] = fired.runs
    after = run(clock, "after", source=Source.AFTER, state=State.WAITING, after=(slot.id,))
    runs = store._db.runs.name
    stuck = {"$or": [{"_id": {"$ne": slot.id}}, {"state": "reserved"}]}
    await store._db.handle.command("collMod", runs, validator=stuck)
    with pytest.raises(StoreError):
        await store.fire([replace(fired, runs=(slot, after))])
    assert (await store.find(RunQuery())).items == []
    await store._db.handle.command("collMod", runs, validator={})
    assert await sweep(store) == {slot.id, "after"}


# -- limits ---------------------------------------------------------------------------------


async def test_a_slot_reserved_by_a_dead_claim_becomes_free(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await job(store, clock, concurrency=1)
    await store.add([run(clock, "a"), run(clock, "b")])
    Death(monkeypatch, claim, "_take")
    with pytest.raises(StoreUnavailable):
        await claim_runs(store, CLAIM)
    assert await claim_runs(store, CLAIM) == []
    clock.advance(11)
    assert len(await claim_runs(store, CLAIM)) == 1


async def test_a_place_reserved_for_a_run_that_was_cancelled_is_free_at_once(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await job(store, clock, concurrency=1)
    await store.add([run(clock, "a"), run(clock, "b", priority=1)])
    whole = claim._take

    async def too_late(*given: Any) -> Any:
        monkeypatch.setattr(claim, "_take", whole)
        [first] = (await get_runs(store, ["a"])).values()
        assert await store.commit([transitions.cancelled(first, clock.now(), "no")]) == [True]
        return await whole(*given)

    monkeypatch.setattr(claim, "_take", too_late)
    held = await claim_runs(store, CLAIM) or await claim_runs(store, CLAIM)
    assert [one.id for one in held] == ["b"]


async def test_a_write_that_comes_too_late_is_fenced_off(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await job(store, clock, concurrency=1)
    await store.add([run(clock, "a"), run(clock, "b", priority=1)])
    late: list[Any] = []
    whole = claim._take

    async def slow(*given: Any) -> Any:
        if not late:
            late.append(given)
            raise NetworkTimeout("stalled here")
        return await whole(*given)

    monkeypatch.setattr(claim, "_take", slow)
    with pytest.raises(StoreUnavailable):
        await claim_runs(store, CLAIM)
    assert await claim_runs(store, CLAIM) == []
    clock.advance(11)
    [held] = await claim_runs(store, CLAIM)
    assert await whole(*late[0]) == []
    running = (await store.find(RunQuery(states=frozenset({State.RUNNING})))).items
    assert running == [held]


async def test_an_owner_that_wakes_while_its_place_is_given_away(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its renewal comes between the count and the claim: it is no longer plain to renew."""
    await job(store, clock, concurrency=1)
    await store.add([run(clock, "a"), run(clock, "b", priority=1)])
    [paused] = await claim_runs(store, CLAIM)
    clock.advance(31)
    whole = claim._take
    renewed: list[Renewed] = []

    async def meanwhile(*given: Any) -> Any:
        renewed.extend(await store.renew([Held(paused.id, paused.token)], CLAIM.lease))
        return await whole(*given)

    monkeypatch.setattr(claim, "_take", meanwhile)
    taken = await claim_runs(store, CLAIM)
    assert len(taken) + len(renewed) == 1


# -- lost answers ---------------------------------------------------------------------------


def lose_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims arrive at the server; what it says to them does not come back."""
    whole = claim._send

    async def unheard(*given: Any) -> Any:
        await whole(*given)
        raise NetworkTimeout("the answer was lost")

    monkeypatch.setattr(claim, "_send", unheard)


async def test_a_claim_whose_answer_was_lost_is_found_by_its_nonce(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.add([run(clock, f"r{n}") for n in range(5)])
    lose_answers(monkeypatch)
    held = await claim_runs(store, CLAIM)
    assert len(held) == 5
    assert all(await store.commit([transitions.succeeded(r, clock.now(), None) for r in held]))


async def test_a_claim_whose_answer_was_lost_in_an_outage_is_found_by_the_next(
    store: MongoStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the answer nor the question after it comes through: the runs wait for no lapse."""
    await store.add([run(clock, f"r{n}") for n in range(5)])
    with monkeypatch.context() as outage:
        lose_answers(outage)
        Death(outage, claim, "_bearing")
        with pytest.raises(StoreUnavailable):
            await claim_runs(store, CLAIM)
    other = replace(CLAIM, worker="other")
    assert await claim_runs(store, other) == []
    held = await claim_runs(store, CLAIM)
    assert sorted((one.id, one.token) for one in held) == [(f"r{n}", 1) for n in range(5)]
    assert await claim_runs(store, CLAIM) == []
