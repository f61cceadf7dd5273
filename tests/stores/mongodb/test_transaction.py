"""What is written together is there as a whole or not at all, and of those that want the same only
one gets it. A client's death is an error raised in place of a step; nothing behind it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
from pymongo.errors import NetworkTimeout

from mainspring.core import transitions
from mainspring.core.model import Job, Run, Source, State, replace, slot_run_id
from mainspring.core.policy import Overlap, Policy
from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import (
    MongoStore,
    claim,
    commit,
    dedupe,
    jobs,
    limits,
    transaction,
)
from mainspring.stores.protocol import (
    Fired,
    Firing,
    Held,
    JobQuery,
    Renewed,
    RunQuery,
)
from mainspring.testing import FakeClock
from mainspring.testing.store_calls import claim_runs, get_runs, put_job
from tests.support.mongodb.store import CLAIM
from tests.support.records import a_firing, a_run

CLOCK = FakeClock()


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(database_url, CLOCK)
    await store.open()
    yield store
    await store.close()


def run(run_id: str, **fields: Any) -> Run:
    return a_run(CLOCK.now(), run_id, **fields)


class Death:
    """Puts an error in place of a function, or behind it, once."""

    def __init__(
        self, patch: pytest.MonkeyPatch, module: ModuleType, name: str, *, behind: bool = False
    ) -> None:
        whole = getattr(module, name)
        self.met = False

        async def step(*given: Any, **more: Any) -> Any:
            if not self.met:
                self.met = True
                if behind:
                    await whole(*given, **more)
                raise NetworkTimeout("the client died here")
            return await whole(*given, **more)

        patch.setattr(module, name, step)


async def job(store: MongoStore, id: str = "job", **policy: Any) -> Job:
    now = CLOCK.now()
    made = Job(id=id, handler="work", created_at=now, updated_at=now, next_run_at=now)
    assert await put_job(store, replace(made, policy=Policy.make(**policy)))
    return (await store.jobs(JobQuery(ids=frozenset({id})))).items[0]


async def seen(store: MongoStore) -> set[str]:
    return {run.id for run in (await store.find(RunQuery())).items}


# -- add ------------------------------------------------------------------------------------


def workflow(name: str, key: str | None) -> list[Run]:
    """Three runs, each after the one before."""
    first = run(name, dedupe_key=key)
    second = run(f"second@{name}", state=State.WAITING, after=(name,))
    return [first, second, run(f"a-third@{name}", state=State.WAITING, after=(second.id,))]


@pytest.mark.parametrize(
    ("key", "module", "step"),
    [
        ("k", dedupe, "_read"),
        ("k", dedupe, "take_keys"),
        ("k", transaction, "_commit"),
        (None, transaction, "_commit"),
    ],
)
async def test_a_workflow_that_was_cut_off_leaves_nothing(
    store: MongoStore,
    monkeypatch: pytest.MonkeyPatch,
    key: str | None,
    module: ModuleType,
    step: str,
) -> None:
    death = Death(monkeypatch, module, step)
    with pytest.raises(StoreUnavailable):
        await store.add(workflow("one", key))
    assert death.met
    assert await seen(store) == set()
    other = workflow("other", key)
    assert [(each.run, each.duplicate) for each in await store.add(other)] == [
        (each, False) for each in other
    ]
    assert await seen(store) == {each.id for each in other}


@pytest.mark.parametrize("key", ["k", None])
async def test_a_workflow_whose_answer_was_lost_is_there_once_when_sent_again(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    flow = workflow("flow", key)
    Death(monkeypatch, transaction, "_commit", behind=True)
    with pytest.raises(StoreUnavailable):
        await store.add(flow)
    assert [(each.run, each.duplicate) for each in await store.add(flow)] == [
        (each, False) for each in flow
    ]
    assert list((await get_runs(store, [each.id for each in flow])).values()) == flow


class Meanwhile:
    """Does something before a step, once."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self.work: Any = None
        self.answer: Any = None

    async def __call__(self, *given: Any, **more: Any) -> Any:
        if self.work is not None:
            work, self.work = self.work, None
            self.answer = await work()
        return await self._whole(*given, **more)


# -- revival --------------------------------------------------------------------------------


async def failed(store: MongoStore) -> Run:
    await store.add([run("a", dedupe_key="k")])
    [held] = await claim_runs(store, CLAIM)
    await store.commit([transitions.failed(held, CLOCK.now(), transitions.Failure("boom"))])
    return (await get_runs(store, ["a"]))["a"]


@pytest.mark.parametrize(("module", "step"), [(commit, "take_keys"), (transaction, "_commit")])
async def test_a_revival_that_was_cut_off_leaves_the_run_as_it_was(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    dead = await failed(store)
    Death(monkeypatch, module, step)
    revival = transitions.revived(dead, CLOCK.now())
    with pytest.raises(StoreUnavailable):
        await store.commit([revival])
    assert (await get_runs(store, ["a"]))["a"] == dead
    [added] = await store.add([run("b", dedupe_key="k")])
    assert (added.run.id, added.duplicate) == ("b", False)
    assert await store.commit([revival]) == [False]


async def test_a_newcomer_that_saw_the_run_dead_does_not_come_beside_its_revival(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = await failed(store)
    monkeypatch.setattr(dedupe, "take_keys", meanwhile := Meanwhile(dedupe.take_keys))
    meanwhile.work = lambda: store.commit([transitions.revived(dead, CLOCK.now())])
    [added] = await store.add([run("b", dedupe_key="k")])
    assert meanwhile.answer == [True]
    assert (added.run.id, added.duplicate) == ("a", True)
    assert await get_runs(store, ["b"]) == {}


async def test_a_revival_does_not_come_beside_a_newcomer(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = await failed(store)
    monkeypatch.setattr(commit, "take_keys", meanwhile := Meanwhile(dedupe.take_keys))
    meanwhile.work = lambda: store.add([run("b", dedupe_key="k")])
    assert await store.commit([transitions.revived(dead, CLOCK.now())]) == [False]
    assert [added.duplicate for added in meanwhile.answer] == [False]


# -- fire -----------------------------------------------------------------------------------


def firing_of(job: Job, overlap: Overlap = Overlap.SKIP) -> Firing:
    slot = run(slot_run_id("job", CLOCK.now()), source=Source.SCHEDULE)
    return a_firing(job, slot, overlap=overlap)


@pytest.mark.parametrize(
    ("module", "step"),
    [
        (jobs, "add_in_transaction"),
        (jobs, "_replace_earlier"),
        (jobs, "_advance"),
        (transaction, "_commit"),
    ],
)
async def test_a_batch_of_firings_that_was_cut_off_leaves_nothing(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    """Each with a follower, one job edited meanwhile."""
    at = CLOCK.now()
    names = [f"job{n}" for n in range(5)]
    for name in names:
        made = Job(id=name, handler="work", created_at=at, updated_at=at, next_run_at=at)
        assert await put_job(store, made)

    def slot(name: str) -> Firing:
        root = run(f"{name}@slot", job_id=name, source=Source.SCHEDULE)
        after = run(f"{name}-after", source=Source.AFTER, state=State.WAITING)
        return replace(
            firing_of(made),
            job_id=name,
            version=made.next_version(),
            runs=(root, replace(after, after=(root.id,))),
        )

    [edited] = (await store.jobs(JobQuery(ids=frozenset({"job4"})))).items
    assert await put_job(store, edited)
    firings = [slot(name) for name in names]
    death = Death(monkeypatch, module, step)
    before = (await store.jobs(JobQuery())).items
    with pytest.raises(StoreUnavailable):
        await store.fire(firings)
    assert death.met
    assert await seen(store) == set()
    assert (await store.jobs(JobQuery())).items == before
    assert [one.done for one in await store.fire(firings)] == [True] * 4 + [False]
    assert await seen(store) == {run.id for name in names[:4] for run in slot(name).runs}
    assert len(await claim_runs(store, CLAIM)) == 4


async def test_a_firing_whose_answer_was_lost_is_not_fired_again(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired = firing_of(await job(store))
    Death(monkeypatch, transaction, "_commit", behind=True)
    with pytest.raises(StoreUnavailable):
        await store.fire([fired])
    assert await store.fire([fired]) == [Fired(False)]
    assert [held.id for held in await claim_runs(store, CLAIM)] == [fired.runs[0].id]


async def test_a_firing_that_was_cut_off_cancels_nothing(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await job(store)
    first = firing_of(made, Overlap.REPLACE)
    await store.fire([first])
    CLOCK.advance(60)
    second = firing_of(replace(made, version=made.version + 1), Overlap.REPLACE)
    Death(monkeypatch, jobs, "_advance")
    with pytest.raises(StoreUnavailable):
        await store.fire([second])
    assert await get_runs(store, [first.runs[0].id]) == {first.runs[0].id: first.runs[0]}
    [again] = await store.fire([second])
    assert [run.id for run in again.replaced] == [first.runs[0].id]


async def test_a_firing_whose_plan_is_too_old_when_it_would_commit_is_not_done(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client freezes in the middle of its transaction."""
    made = await job(store)
    stale = replace(firing_of(made), valid_until=CLOCK.now() + timedelta(seconds=5))

    async def freeze() -> None:
        CLOCK.advance(3600)

    monkeypatch.setattr(jobs, "_advance", meanwhile := Meanwhile(jobs._advance))
    meanwhile.work = freeze
    assert await store.fire([stale]) == [Fired(False)]
    assert await seen(store) == set()
    assert (await store.jobs(JobQuery())).items == [made]
    [again] = await store.fire([firing_of(made)])
    assert again.done


# -- limits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("module", "step"), [(claim, "_send"), (transaction, "_commit")])
async def test_a_claim_that_was_cut_off_holds_no_place(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    await job(store, concurrency=1)
    await store.add([run("a"), run("b")])
    Death(monkeypatch, module, step)
    with pytest.raises(StoreUnavailable):
        await claim_runs(store, CLAIM)
    assert len(await claim_runs(store, replace(CLAIM, worker="other"))) == 1


async def test_an_owner_that_wakes_while_its_place_is_given_away(
    store: MongoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its renewal comes between the count and the claim."""
    await job(store, concurrency=1)
    await store.add([run("a"), run("b", priority=1)])
    [paused] = await claim_runs(store, CLAIM)
    held = [Held(paused.id, paused.token)]
    CLOCK.advance(31)
    whole = limits.FreeCapacity.lock
    renewed: list[Renewed] = []

    async def meanwhile(self: Any, db: Any, *given: Any) -> Any:
        monkeypatch.setattr(limits.FreeCapacity, "lock", whole)
        renewed.extend(await store.renew(held, CLAIM.lease))
        return await whole(self, db, *given)

    monkeypatch.setattr(limits.FreeCapacity, "lock", meanwhile)
    taken = await claim_runs(store, CLAIM)
    assert len(taken) + len(renewed) == 1
    assert len(await store.renew(held, CLAIM.lease)) == len(renewed)


# -- jobs -----------------------------------------------------------------------------------


# -- lost answers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "step", "concurrency"), [(claim, "_send", None), (transaction, "_commit", 5)]
)
async def test_a_claim_whose_answer_was_lost_is_found_by_the_workers_next_claim(
    store: MongoStore,
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    step: str,
    concurrency: int | None,
) -> None:
    """The runs need not wait until their leases lapse."""
    await job(store, concurrency=concurrency)
    await store.add([run(f"r{n}") for n in range(5)])
    Death(monkeypatch, module, step, behind=True)
    with pytest.raises(StoreUnavailable):
        await claim_runs(store, CLAIM)
    assert await claim_runs(store, replace(CLAIM, worker="other")) == []
    held = await claim_runs(store, CLAIM)
    assert sorted((run.id, run.token) for run in held) == [(f"r{n}", 1) for n in range(5)]
    assert await claim_runs(store, CLAIM) == []
    assert all(await store.commit([transitions.succeeded(r, CLOCK.now(), None) for r in held]))
