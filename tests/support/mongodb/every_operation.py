"""Calls every operation of a store once, for tests of what all of them need: permissions,
clocks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.model import Job, Note, Run, Source, State, replace
from mainspring.core.policy import Overlap, Policy
from mainspring.stores.election import elect
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.protocol import (
    Claim,
    Held,
    JobQuery,
    JobWrite,
    NoteQuery,
    RunQuery,
    Store,
)
from mainspring.testing.store_calls import (
    add_jobs,
    claim_runs,
    drop_job,
    drop_note,
    drop_runs,
    get_runs,
    put_job,
    put_note,
)
from tests.support.records import a_firing

__all__ = ["do_everything", "some_runs"]

CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=100, lease=timedelta(seconds=30))


async def some_runs(store: Store, *ids: str, **fields: Any) -> list[Run]:
    times: Any = dict.fromkeys(("created_at", "scheduled_at", "run_at"), await store.now())
    return [Run(id=i, job_id="job", handler="work", **times, **fields) for i in ids]


class RecordingStore:
    """A store that remembers what was asked of it."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._store, name)


async def do_everything(url: str) -> None:
    """Ask for everything that the protocol has. Where collections cannot be made in passing, there
    must be one named `effects`."""
    store: Any = RecordingStore(MongoStore(url))
    await store.open()
    try:
        await _work(store)
        await _keep_jobs(store)
        await _keep_notes(store)
        assert await elect(store, "lead", "me", timedelta(seconds=5)) == 1
        await store.wait(0.3)
        await store.add(await some_runs(store, "heard"))
        assert await store.wait(10) is True
    finally:
        await store.close()
    assert {name for name in dir(Store) if not name.startswith("_")} <= store.names


async def _work(store: Any) -> None:
    limited = Policy(concurrency=6)
    now = await store.now()
    job = Job(id="job", handler="work", created_at=now, updated_at=now, policy=limited)
    assert await put_job(store, job)
    names = [f"r{n}" for n in range(8)]
    await store.add(await some_runs(store, *names, dedupe_key=None))
    await store.add(await some_runs(store, "keyed", dedupe_key="k"))
    [again] = await store.add(await some_runs(store, "again", dedupe_key="k"))
    assert again.duplicate
    held = await claim_runs(store, CLAIM)
    assert len(held) == 6
    assert (await store.claim(CLAIM)).next_due is None
    assert len(await store.renew([Held(r.id, r.token) for r in held], CLAIM.lease)) == 6
    for run, blocking in zip(held[:2], (False, True), strict=True):
        handling = store.transaction(Held(run.id, run.token), CLAIM.lease, blocking=blocking)
        session = await handling.begin()
        written = session.client.get_default_database().effects.insert_one({}, session=session)
        if not blocking:
            await written
        assert await handling.commit(transitions.succeeded(run, now, None)) is True
    assert store.info().no_transactions is None
    ends = [transitions.succeeded(run, now, run.id) for run in held[2:5]]
    assert await store.commit([*ends, transitions.released(held[5], now, began=True)]) == [True] * 4
    assert len(await get_runs(store, names)) == 8
    assert len((await store.find(RunQuery(states=frozenset({State.SUCCEEDED})))).items) == 5
    assert (await store.find(RunQuery(lapsed=True))).items == []
    assert (await store.counts(now - timedelta(days=1))).ended[State.SUCCEEDED] == 5
    counted = await store.counts(now - timedelta(days=1), frozenset({"job"}))
    assert counted.totals["job"].ended[State.SUCCEEDED] == 5
    assert await store.maintain(now + timedelta(seconds=1), 3) == 3
    assert await drop_runs(store, names) == 2


async def _keep_jobs(store: Any) -> None:
    now = await store.now()
    job = Job(id="slots", handler="work", created_at=now, updated_at=now, next_run_at=now)
    assert await add_jobs(store, [job, replace(job, id="other")]) == [True, True]
    due = (await store.jobs(JobQuery(due=now, with_total=True))).items
    assert [run.id for run in due] == ["other", "slots"]
    [slot] = await some_runs(store, "slot")
    slot = replace(slot, job_id="slots", source=Source.SCHEDULE)
    firing = a_firing(due[1], slot, overlap=Overlap.REPLACE, next_run_at=None)
    [fired] = await store.fire([firing])
    assert fired.done
    assert await drop_job(store, "slots")
    made = JobWrite.put(replace(job, id="many"))
    assert await store.put_jobs([made, JobWrite.drop("many")]) == [True, True]
    assert await drop_job(store, "other")


async def _keep_notes(store: Any) -> None:
    assert await put_note(store, Note(kind="k", name="n", value=1)) == 1
    assert await put_note(store, Note(kind="k", name="n", value=2, version=1)) == 2
    assert len((await store.notes(NoteQuery(kind="k"))).items) == 1
    assert len((await store.notes(NoteQuery())).items) == 1
    assert await drop_note(store, "k", "n")
