"""A client that dies or freezes in a transaction of the store delays other clients only briefly."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.errors import AutoReconnect, NetworkTimeout

from mainspring.core import transitions
from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb import MongoStore, database, schema
from mainspring.stores.mongodb.database import Database
from mainspring.stores.mongodb.transaction import in_transaction
from mainspring.stores.protocol import RunQuery
from tests.support.dead_clients import (
    add,
    check_that_all_is_ours,
    claim,
    fire,
    other_client,
    prepare,
)
from tests.support.mongodb.store import opened
from tests.support.servers.mongodb import with_database
from tests.support.servers.server import Document

LESS_THAN_THE_SERVERS_LIMIT = 30
"""Seconds. The server itself rolls back an open transaction after 60 and more."""


@pytest.fixture(params=["replica set", pytest.param("sharded", marks=pytest.mark.thorough)])
def url(request: pytest.FixtureRequest, database_name: str) -> str:
    """A database, spread over the shards where there are some."""
    url: str = request.getfixturevalue(request.param.replace(" ", "_") + "_url")
    if request.param == "sharded":
        with MongoClient[Document](url) as client:
            for name in schema.SHARDED:
                place = f"{database_name}.mainspring_{name}"
                client.admin.command("shardCollection", place, key={"_id": "hashed"})
    return with_database(url, database_name)


async def claim_soon(store: MongoStore, name: str) -> bool:
    """Claim as a worker does: a claim that meets conflicts takes nothing, and is sent again."""
    while not await claim(store, name):
        await asyncio.sleep(0.2)
    return True


_OTHER_CLIENT = """
import asyncio, json, os, signal, sys
from mainspring.stores.mongodb import MongoStore, transaction
from tests.support.dead_clients import add, claim, fire

commit, arrived, resumed = transaction._commit, [], asyncio.Event()

async def stop_before_commit(session):
    arrived.append(session)
    if len(arrived) == 3:
        print("locked", flush=True)
        if sys.argv[2] == "SIGSTOP":
            os.kill(os.getpid(), signal.SIGSTOP)
            resumed.set()
    await resumed.wait()
    await commit(session)

async def main():
    store = MongoStore(sys.argv[1])
    await store.open()
    transaction._commit = stop_before_commit
    calls = (operation(store, "theirs") for operation in (add, fire, claim))
    print(json.dumps(await asyncio.gather(*calls)), flush=True)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["SIGKILL", "SIGSTOP"])
async def test_a_client_that_ends_or_freezes_in_its_transactions_holds_up_nobody_for_long(
    url: str, end: str
) -> None:
    async with opened(url) as store:
        before = await prepare(store)
        async with (
            other_client(_OTHER_CLIENT, url, end) as other,
            asyncio.timeout(LESS_THAN_THE_SERVERS_LIMIT),
        ):
            if end == "SIGKILL":
                other.kill()
            ours = (operation(store, "ours") for operation in (add, fire, claim_soon))
            assert await asyncio.gather(*ours) == [True, True, True]
            if end == "SIGSTOP":
                other.send_signal(signal.SIGCONT)
                assert other.stdout is not None
                assert json.loads(await other.stdout.readline()) == [False, False, False]
        await check_that_all_is_ours(store, before)


async def test_maintain_unlocks_what_a_dead_client_has_locked_for_writes_without_transactions(
    url: str,
) -> None:
    """Such a write does not meet a conflict. It waits for the lock."""
    async with opened(url) as store, opened(url) as sweeping:
        await prepare(store)
        async with other_client(_OTHER_CLIENT, url, "SIGKILL") as other:
            other.kill()
        async with asyncio.timeout(LESS_THAN_THE_SERVERS_LIMIT):
            cancelled = asyncio.create_task(cancel_pending(store))
            while not cancelled.done():
                await sweeping.maintain(None, 100)
                await asyncio.sleep(0.2)
        assert await cancelled == [True, True]


async def cancel_pending(store: MongoStore) -> list[bool]:
    """Cancel both runs of the limited job. The other client has claimed one of them."""
    now = await store.now()
    runs = (await store.find(RunQuery(job="limited"))).items
    while True:
        try:
            return await store.commit([transitions.cancelled(run, now, "no") for run in runs])
        except StoreUnavailable:
            await asyncio.sleep(0.1)


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RENEW_EVERY", 0.1)
    monkeypatch.setattr(database, "DEAD_AFTER", 1.0)


async def note_session(db: Database) -> Any:
    await db.keys.insert_one({"_id": "k", "run": "r", "version": 1}, session=db.session)
    assert db.session is not None
    return db.session.session_id["id"]


@pytest.mark.usefixtures("short_times")
async def test_a_long_transaction_of_a_live_client_is_not_ended(url: str) -> None:
    tries = 0

    async def slow(db: Database) -> Any:
        nonlocal tries
        tries += 1
        session = await note_session(db)
        for _ in range(10):
            await asyncio.sleep(0.2)
            await other.maintain(None, 100)
        return session

    async with opened(url) as store, opened(url) as other:
        await in_transaction(store._db, slow)
    assert tries == 1


@pytest.mark.usefixtures("short_times")
async def test_a_transaction_whose_session_others_end_is_started_again(url: str) -> None:
    """They ended it by mistake, for instance because this client was frozen for a while."""
    tries: list[Any] = []

    async def work(db: Database) -> None:
        session = await note_session(db)
        tries.append(session)
        if len(tries) == 1:
            await store._db.client.admin.command("killSessions", [{"id": session}])

    async with opened(url) as store:
        await in_transaction(store._db, work)
        assert len(tries) == 2
        assert await store._db.keys.count_documents({}) == 1


@pytest.mark.usefixtures("short_times")
async def test_a_session_whose_connection_failed_is_not_used_again_and_is_ended(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router or the network may have failed, and the servers know nothing of it."""
    used: list[Any] = []

    async def fail(db: Database) -> None:
        await work(db)
        raise NetworkTimeout("the connection failed here")

    async def work(db: Database) -> None:
        assert db.session is not None
        used.append(db.session.session_id["id"])
        await note_session(db)

    async def lost(session: Any, command: str) -> None:
        """The abort does not arrive either."""
        raise AutoReconnect(f"the connection failed before {command}")

    async with opened(url) as store:
        with monkeypatch.context() as network:
            network.setattr(AsyncClientSession, "_finish_transaction_with_retry", lost)
            with pytest.raises(NetworkTimeout):
                await in_transaction(store._db, fail)
        await in_transaction(store._db, work)
    assert len(used) > 2
    assert used[0] not in used[1:]
