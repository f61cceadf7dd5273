"""What a user of the database may do, and what it needs: passwords, roles, indexes made by hand."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from mainspring import states
from mainspring.errors import StoreError, StoreUnavailable
from mainspring.model import Job, Note, Run, Source, State, replace
from mainspring.policy import Overlap, Policy
from mainspring.store import Claim, Firing, Held, JobQuery, NoteQuery, RunQuery, Store
from mainspring.stores.mongodb import MongoStore, schema
from tests.servers.mongodb import ReplicaSet, with_database
from tests.servers.server import Document

CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=100, lease=timedelta(seconds=30))
BY_HAND = ["find", "insert", "update", "remove", "listIndexes", "listCollections"]
"""What docs/mongodb.md says a program needs where somebody else makes the indexes."""


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def some_runs(store: Store, *ids: str, **fields: Any) -> list[Run]:
    times: Any = dict.fromkeys(("created_at", "scheduled_at", "run_at"), await store.now())
    return [Run(id=i, job_id="job", handler="work", **times, **fields) for i in ids]


@pytest.fixture(scope="module")
def guarded() -> Iterator[ReplicaSet]:
    """A server that asks for a password."""
    with ReplicaSet(1, auth=True) as servers:
        yield servers


async def test_a_wrong_password_is_no_reason_to_wait(guarded: ReplicaSet) -> None:
    url = guarded.add_user("user", "right", {"role": "readWrite", "db": "jobs"})
    with pytest.raises(StoreError, match="refused the user or the password") as told:
        await MongoStore(with_database(url, "jobs").replace(":right@", ":wrong@")).open()
    assert not isinstance(told.value, StoreUnavailable)


async def test_retention_needs_no_more_rights(guarded: ReplicaSet) -> None:
    """An index that expires runs would: to change its time takes `collMod`."""
    url = with_database(
        guarded.add_user("keeper", "k", {"role": "readWrite", "db": "kept"}), "kept"
    )
    async with opened(url) as store:
        await store.add(await some_runs(store, "a", "b", dedupe_key="k"))
        held = await store.claim(CLAIM)
        now = await store.now()
        await store.commit([states.succeeded(run, now, None) for run in held])
        assert await store.prune(now + timedelta(seconds=1), 10) == len(held)
    with MongoClient[Document](url) as client:
        index = {"name": "ended", "expireAfterSeconds": 60}
        with pytest.raises(OperationFailure, match="not authorized"):
            client["kept"].command("collMod", "mainspring_runs", index=index)
        assert list(client["kept"]["mainspring_keys"].find()) == []


async def test_a_user_who_may_not_write_is_told_so(guarded: ReplicaSet) -> None:
    url = guarded.add_user("reader", "r", {"role": "read", "db": "jobs"})
    with pytest.raises(StoreError, match="readWrite"):
        await MongoStore(with_database(url, "jobs")).open()


# -- everything -----------------------------------------------------------------------------


class Used:
    """A store that remembers what was asked of it."""

    def __init__(self, store: MongoStore) -> None:
        self._store = store
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.names.add(name)
        return getattr(self._store, name)


async def do_everything(url: str) -> None:
    """Ask for everything that a store does, and for all of it with limits and keys."""
    store: Any = Used(MongoStore(url))
    await store.open()
    try:
        await _work(store)
        await _keep_jobs(store)
        await _keep_notes(store)
        assert await store.elect("lead", "me", timedelta(seconds=5)) == 1
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
    assert await store.put_job(job)
    names = [f"r{n}" for n in range(8)]
    await store.add(await some_runs(store, *names, dedupe_key=None))
    await store.add(await some_runs(store, "keyed", dedupe_key="k"))
    [again] = await store.add(await some_runs(store, "again", dedupe_key="k"))
    assert again.duplicate
    held = await store.claim(CLAIM)
    assert len(held) == 6
    assert await store.next_due(CLAIM) is None
    assert len(await store.renew([Held(r.id, r.token) for r in held], CLAIM.lease)) == 6
    for run, blocking in zip(held[:2], (False, True), strict=True):
        handling = store.transaction(Held(run.id, run.token), CLAIM.lease, blocking=blocking)
        session = await handling.begin()
        written = session.client.get_default_database().effects.insert_one({}, session=session)
        if not blocking:
            await written
        assert await handling.commit(states.succeeded(run, now, None)) is True
    assert store.no_transactions is None
    ends = [states.succeeded(run, now, run.id) for run in held[2:5]]
    assert await store.commit([*ends, states.released(held[5], now, began=True)]) == [True] * 4
    assert len(await store.get(names)) == 8
    assert len((await store.find(RunQuery(states=frozenset({State.SUCCEEDED})))).items) == 5
    assert (await store.find(RunQuery(lapsed=True))).items == []
    assert (await store.counts(now - timedelta(days=1))).runs["job"][State.SUCCEEDED] == 5
    assert await store.prune(now + timedelta(seconds=1), 3) == 3
    assert await store.drop_runs(names) == 2


async def _keep_jobs(store: Any) -> None:
    now = await store.now()
    job = Job(id="slots", handler="work", created_at=now, updated_at=now, next_run_at=now)
    assert await store.add_jobs([job, replace(job, id="other")]) == [True, True]
    due = (await store.jobs(JobQuery(due=now, counted=True))).items
    assert [one.id for one in due] == ["other", "slots"]
    [slot] = await some_runs(store, "slot")
    firing = Firing(
        job_id="slots",
        version=due[1].version,
        runs=(replace(slot, job_id="slots", source=Source.SCHEDULE),),
        overlap=Overlap.REPLACE,
        next_run_at=None,
        last_run_at=now,
    )
    [fired] = await store.fire([firing])
    assert fired.done
    assert await store.drop_job("slots")
    assert await store.drop_job("other")


async def _keep_notes(store: Any) -> None:
    assert await store.put_note(Note(kind="k", name="n", value=1)) == 1
    assert await store.put_note(Note(kind="k", name="n", value=2, version=1)) == 2
    assert len((await store.notes(NoteQuery(kind="k"))).items) == 1
    assert await store.note_kinds() == ["k"]
    assert await store.drop_note("k", "n")


async def test_a_user_with_read_write_alone_can_do_everything(guarded: ReplicaSet) -> None:
    url = guarded.add_user("plain", "p/w:x@y", {"role": "readWrite", "db": "jobs"})
    await do_everything(with_database(url, "jobs"))


# -- indexes by hand ------------------------------------------------------------------------

_FILLER = re.compile(r"//.*|const mainspring = db\.getSiblingDB\(\"byhand\"\);|if \(.*|")
_MAKES = re.compile(r"\s*mainspring\.createCollection\((\".*?\"), \{capped: true, size: (\d+)\}\);")
_INDEX = re.compile(r"mainspring\.getCollection\((\".*?\")\)\.createIndex\((\{.*?\}), (\{.*\})\);")


def by_hand(servers: ReplicaSet, script: str, database: str) -> None:
    """Do what each line of the script says, as an operator with every right."""
    with servers.client() as client:
        for line in script.splitlines():
            if made := _MAKES.fullmatch(line):
                name, size = json.loads(made[1]), int(made[2])
                client[database].create_collection(name, capped=True, size=size)
            elif index := _INDEX.fullmatch(line):
                collection, keys, options = map(json.loads, index.groups())
                client[database][collection].create_index(list(keys.items()), **options)
            else:
                assert _FILLER.fullmatch(line), line


async def test_indexes_by_hand_and_a_role_that_may_make_none(guarded: ReplicaSet) -> None:
    url = "mongodb://h/byhand"
    by_hand(guarded, MongoStore(url).index_script(), "byhand")
    with guarded.client() as client:
        client["byhand"].create_collection("effects")
        where = {"db": "byhand", "collection": ""}
        client["byhand"].command(
            "createRole",
            "works",
            privileges=[{"resource": where, "actions": BY_HAND}],
            roles=[],
        )
    url = with_database(
        guarded.add_user("worker", "w", {"role": "works", "db": "byhand"}), "byhand"
    )
    await do_everything(url)
    with guarded.client() as client:
        for index in schema.INDEXES:
            made = client["byhand"][f"mainspring_{index.collection}"].index_information()
            assert made[index.name]["key"] == list(index.keys)
            assert made[index.name].get("partialFilterExpression") == index.only
        # Without the cap it cannot work, and this user cannot mend that.
        client["byhand"]["mainspring_wakeups"].drop()
        client["byhand"].create_collection("mainspring_wakeups")
        with pytest.raises(StoreError, match=r"should be capped.*mainspring store indexes"):
            await MongoStore(url).open()
        client["byhand"]["mainspring_runs"].drop_index("due")
        client["byhand"]["mainspring_wakeups"].drop()
        client["byhand"].create_collection("mainspring_wakeups", capped=True, size=65536)
        with pytest.raises(StoreError, match="may not do this"):
            await MongoStore(url).open()
