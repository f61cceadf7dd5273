"""Error messages for MongoDB servers that are missing, misconfigured or failing."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect

from mainspring.core import transitions
from mainspring.core.model import Job, Run, replace
from mainspring.core.policy import Policy
from mainspring.errors import InvalidInput, StoreError, StoreUnavailable
from mainspring.stores import open_store
from mainspring.stores.mongodb import MongoStore, claim, notifier, schema
from mainspring.stores.mongodb.collections import Database
from mainspring.stores.mongodb.concurrency import FreeCapacity
from mainspring.stores.mongodb.notifier import Notifier
from mainspring.stores.mongodb.url import MongoUrl
from mainspring.stores.protocol import JobQuery, RunQuery
from mainspring.testing.store_calls import claim_runs, get_runs, put_job
from tests.support.mongodb.query_plans import SentCommands
from tests.support.mongodb.store import CLAIM, opened
from tests.support.servers.mongodb import ReplicaSet, with_database
from tests.support.servers.server import Document


async def some_runs(store: MongoStore, *ids: str, **fields: Any) -> list[Run]:
    times: Any = dict.fromkeys(("created_at", "scheduled_at", "run_at"), await store.now())
    return [Run(id=i, job_id="job", handler="work", **times, **fields) for i in ids]


# -- URLs -----------------------------------------------------------------------------------


def test_a_url_names_database_and_prefix() -> None:
    plain = MongoUrl.of("mongodb://h")
    assert (plain.database, plain.prefix) == ("mainspring", "mainspring_")
    full = MongoUrl.of("mongodb://u:p@h1,h2/app%2Dx?tls=true&mainspringPrefix=jobs_&w=1")
    assert full == ("mongodb://u:p@h1,h2/app%2Dx?tls=true&w=1", "app-x", "jobs_")


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://",
        "mongodb:///db",
        "mongodb://h/a.b",
        "mongodb://h/$x",
        "mongodb://h/x?mainspringPrefix=",
        "mongodb://h/x?mainspringPrefix=$cmd",
        "mongodb://h/x?mainspringPrefix=a%00b",
    ],
)
def test_a_url_that_names_nothing_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://me:hush@h:port/db",
        "mongodb://me:hush/hush@h",
        "mongodb://me:hush/hush@h/db",
        "mongodb://me:hush?hush@h/db",
        "mongodb://me:hush@hush@h/db",
        "mongodb://me:hush:hush@h/db",
        "mongodb://me:hush%@h/db",
        "mongodb://h/db?tls=true&tlsCAFile=/nowhere&tlsCertificateKeyFilePassword=hush",
        "mongodb://h/$?authMechanismProperties=AWS_SESSION_TOKEN:hush",
    ],
)
async def test_a_password_is_never_told(url: str) -> None:
    """Least of all with the URLs that are refused because a password was not escaped."""
    with pytest.raises(InvalidInput) as told:
        await MongoStore(url).open()
    assert "hush" not in str(told.value)
    if "hush/hush@h/db" in url:
        assert "write / ? # @ : % as %2F" in str(told.value)


def test_a_store_shows_itself_without_its_secrets() -> None:
    options = "tls=true&tlsCertificateKeyFilePassword=hush&appName=x"
    shown = repr(MongoStore(f"mongodb://me:hush@h/db?{options}"))
    assert "hush" not in shown
    assert "mongodb://me:…@h/db?tls=true&tlsCertificateKeyFilePassword=…&appName=x" in shown
    with pytest.raises(InvalidInput) as told:
        open_store("me:hush@h")
    assert "hush" not in str(told.value)


@pytest.mark.parametrize("option", ["tlsCertificateKeyFile", "tlsCAFile"])
async def test_a_certificate_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(InvalidInput, match=r"cannot be used: .*/nowhere/key\.pem"):
        await MongoStore(f"mongodb://h/db?tls=true&{option}=/nowhere/key.pem").open()


async def test_reads_come_from_the_primary_whatever_the_url_says(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL that is shared with other programs may well ask for a secondary."""
    sent = SentCommands.record(monkeypatch)
    url = with_database(replica_set_url, database_name)
    async with opened(f"{url}&readPreference=secondary&readConcernLevel=available") as store:
        await store.add(await some_runs(store, "a", dedupe_key="k"))
        await claim_runs(store, CLAIM)
        await store.counts()
        await store.find(RunQuery())
        await store.jobs(JobQuery())
        await store.wait(0.05)
        told = await store._db.client.admin.command("hello")
    assert set(sent.places) == {told["primary"]}
    reads = [one for one in sent.commands if {"find", "aggregate", "distinct"} & one.keys()]
    outside = [one for one in reads if "autocommit" not in one]
    assert {one["readConcern"]["level"] for one in outside} <= {"local", "majority", "snapshot"}
    begun = [one for one in sent.commands if "startTransaction" in one]
    assert {one["readConcern"]["level"] for one in begun} == {"snapshot"}
    assert {one.get("$readPreference", {"mode": "primary"})["mode"] for one in reads} == {"primary"}


# -- servers that refuse --------------------------------------------------------------------


async def test_an_unreachable_server_is_a_temporary_error() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    url = f"mongodb://127.0.0.1:{port}/db?timeoutMS=300"
    with pytest.raises(StoreUnavailable, match="no MongoDB server answers"):
        await MongoStore(url).open()


async def test_a_missing_primary_is_a_temporary_error() -> None:
    with ReplicaSet(3, election_timeout=10) as servers:
        url = with_database(servers.url, "jobs") + "&timeoutMS=1500"
        async with opened(url) as store:
            [run] = await some_runs(store, "a")
            servers.primary().kill()
            with pytest.raises(StoreUnavailable):
                await store.add([run])
            servers.primary()
            for _ in range(20):
                try:
                    await store.add([run])
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.2)
            assert [held.id for held in await claim_runs(store, CLAIM)] == ["a"]


async def test_an_older_server_is_named(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "OLDEST", (99, 0))
    with pytest.raises(StoreError, match=r"the MongoDB server is 8\.\d+\.\d+; .* or later"):
        await MongoStore(with_database(replica_set_url, database_name)).open()


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        (["colour"], {"name": "due"}),
        ([("state", 1), ("lease", 1), ("leased_at", 1)], {"name": "leases"}),
        ([("state", 1), ("created_at", -1), ("_id", -1)], {"name": "mine"}),
    ],
    ids=["the name for other keys", "the name with other options", "the keys by another name"],
)
async def test_an_index_in_the_way_is_named(
    replica_set_url: str, database_name: str, keys: list[Any], options: dict[str, Any]
) -> None:
    with MongoClient[Document](replica_set_url) as client:
        client[database_name]["mainspring_runs"].create_index(keys, **options)
    with pytest.raises(StoreError, match=r"an index .* other options.*mainspring store indexes"):
        await MongoStore(with_database(replica_set_url, database_name)).open()


async def test_opening_again_changes_nothing(replica_set_url: str, database_name: str) -> None:
    url = with_database(replica_set_url, database_name)
    stores = [MongoStore(url) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    names = sorted(await stores[0]._db.runs.index_information())
    runs = [index.name for index in schema.INDEXES if index.collection == "runs"]
    assert names == sorted(["_id_", *runs])
    await asyncio.gather(*(store.close() for store in stores))


# -- values ---------------------------------------------------------------------------------


async def test_text_is_never_taken_for_an_operator(
    replica_set_url: str, database_name: str
) -> None:
    async with opened(with_database(replica_set_url, database_name)) as store:
        odd: list[Any] = [{"$ne": None}, {"$gt": 0}]
        await store.add(await some_runs(store, "a", payload={"$where": "1", "a.b": {"$gt": ""}}))
        [held] = await claim_runs(store, CLAIM)
        assert held.payload == {"$where": "1", "a.b": {"$gt": ""}}
        assert await get_runs(store, ["$ne", "a.b"]) == {}
        for wrong in odd:
            with pytest.raises((InvalidInput, StoreError, TypeError)):
                await get_runs(store, [wrong])


async def test_an_id_that_is_no_unicode_is_refused(
    replica_set_url: str, database_name: str
) -> None:
    async with opened(with_database(replica_set_url, database_name)) as store:
        with pytest.raises(InvalidInput, match="cannot keep"):
            await store.add(await some_runs(store, "caf\udce9"))


async def test_a_standalone_server_is_refused_with_the_way_to_a_replica_set(
    standalone_url: str, database_name: str
) -> None:
    store = MongoStore(with_database(standalone_url, database_name))
    with pytest.raises(StoreError, match=r"--replSet rs0.*rs\.initiate\(\)"):
        await store.open()
    with MongoClient[Document](standalone_url) as client:
        assert client[database_name].list_collection_names() == []


# -- wake-ups -------------------------------------------------------------------------------


@pytest.fixture(params=["replica_set_url", pytest.param("sharded_url", marks=pytest.mark.thorough)])
def any_url(request: pytest.FixtureRequest, database_name: str) -> str:
    return with_database(request.getfixturevalue(request.param), database_name)


async def test_one_client_wakes_another(any_url: str) -> None:
    async with opened(any_url) as one, opened(any_url) as two:
        await one.wait(0.3)  # until it listens
        for _ in range(3):
            waiting = asyncio.create_task(one.wait(20))
            await asyncio.sleep(0.05)
            await two.add(await some_runs(two, "a"))
            assert await waiting is True


async def test_wakeups_that_lost_their_cap_are_given_it_again(any_url: str) -> None:
    """By a drop under those who follow it, and the hint that makes it again; or by a restore."""
    async with opened(any_url) as one, opened(any_url) as two:
        await one.wait(0.3)  # until it listens
        await two._db.wakeups.drop()
        await two._db.wakeups.insert_one({"new": True})
        assert await two._db.wakeups.options() == {}
        async with asyncio.timeout(30):
            while not (await two._db.wakeups.options()).get("capped"):
                await one.wait(0.2)
            while await one.wait(0.3):
                pass  # until it listens again
        waiting = asyncio.create_task(one.wait(20))
        await two.add(await some_runs(two, "a"))
        assert await waiting is True
        await two._db.wakeups.drop()
        await two._db.wakeups.insert_one({"new": True})
    async with opened(any_url) as again:
        options = await again._db.wakeups.options()
        assert (options["capped"], options["size"]) == (True, schema.WAKEUPS_BYTES)


async def test_hints_that_runs_have_ended_are_passed_on_less_often(
    any_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all who are shut out by a limit would come running at every end, to find it taken."""
    monkeypatch.setattr(notifier, "PAUSE_BETWEEN_ENDS", 30.0)
    async with opened(any_url) as one, opened(any_url) as two:
        await two.add(await some_runs(two, "a", "b"))
        first, second = await claim_runs(two, CLAIM)
        await asyncio.sleep(0.2)  # the hint of it is over
        await one.wait(0.3)  # until it listens
        assert await two.commit([transitions.succeeded(first, await two.now(), None)]) == [True]
        assert await one.wait(20) is True
        assert await two.commit([transitions.succeeded(second, await two.now(), None)]) == [True]
        assert await one.wait(0.5) is False
        await two.add(await some_runs(two, "c"))
        assert await one.wait(20) is True


async def test_a_cancelled_claim_gives_its_runs_back(
    replica_set_url: str, database_name: str
) -> None:
    async with opened(with_database(replica_set_url, database_name)) as store:
        await store.add(await some_runs(store, *(f"r{n}" for n in range(50))))
        for delay in (0, 0.001, 0.003, 0.006, 0.01, 0.02):
            claiming = asyncio.create_task(claim_runs(store, CLAIM))
            await asyncio.sleep(delay)
            claiming.cancel()
            await asyncio.gather(claiming, return_exceptions=True)
        await store.close()
        await store.open()
        held = await claim_runs(store, CLAIM)
        done = claiming.result() if not claiming.cancelled() else []
        assert len(held) + len(done) == 50
        assert {run.attempt for run in held} <= {1}


@pytest.mark.parametrize("locks", [True, False])
async def test_a_limit_that_is_only_counted_would_be_passed(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """Two clients count at the same moment; if neither wrote the limit's document, both would
    claim."""
    both, count, counted = asyncio.Event(), FreeCapacity.count, 0

    async def at_once(self: FreeCapacity, db: Database) -> None:
        nonlocal counted
        await count(self, db)
        if db.session is not None:
            counted += 1
            if counted == 2:
                both.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await both.wait()

    async def nothing(*_: Any) -> None: ...

    url = with_database(replica_set_url, database_name)
    async with opened(url) as one, opened(url) as two:
        now = await one.now()
        policy = Policy(concurrency=1)
        job = Job(id="job", handler="work", created_at=now, updated_at=now, policy=policy)
        assert await put_job(one, job)
        await one.add(await some_runs(one, "a", queue="x"))
        await one.add(await some_runs(one, "b", queue="y"))
        monkeypatch.setattr(FreeCapacity, "count", at_once)
        if not locks:
            monkeypatch.setattr(FreeCapacity, "lock", nothing)
        taken = await asyncio.gather(
            claim_runs(one, replace(CLAIM, queues=frozenset({"x"}))),
            claim_runs(two, replace(CLAIM, queues=frozenset({"y"}))),
        )
    assert sum(map(len, taken)) == (1 if locks else 2)


async def test_a_claim_that_others_cut_short_is_soon_made_again(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody tells of what was there before: a worker would sleep beside it until its poll."""
    url = with_database(replica_set_url, database_name)
    async with opened(url) as one, opened(url) as two:
        await one.add(await some_runs(one, *(f"r{n}" for n in range(10))))
        while await one.wait(0.2):
            pass
        whole = claim._send

        async def later(*given: Any) -> Any:
            monkeypatch.setattr(claim, "_send", whole)
            assert len(await claim_runs(two, replace(CLAIM, worker="two", limit=3))) == 3
            return await whole(*given)

        monkeypatch.setattr(claim, "_send", later)
        assert len(await claim_runs(one, replace(CLAIM, limit=5))) == 2
        assert await one.wait(5)
        assert len(await claim_runs(one, CLAIM)) == 5
        assert not await one.wait(0.2)


async def test_runs_of_a_claim_under_way_are_not_claimed_again(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even its own worker's, whose next claim looks for those that went astray."""
    sent, go = asyncio.Event(), asyncio.Event()
    send = claim._send

    async def held_up(*given: Any) -> int:
        matched = await send(*given)
        if not sent.is_set():
            sent.set()
            await go.wait()
        return matched

    async with opened(with_database(replica_set_url, database_name)) as store:
        await store.add(await some_runs(store, *(f"r{n}" for n in range(50))))
        monkeypatch.setattr(claim, "_send", held_up)
        first = asyncio.create_task(claim_runs(store, CLAIM))
        await sent.wait()
        assert await claim_runs(store, CLAIM) == []
        go.set()
        assert len(await first) == 50


async def test_store_closes_although_the_driver_turns_a_cancellation_into_an_error(
    replica_set_url: str, database_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    swallowed = 0

    async def swallow_cancellation(self: Notifier) -> None:
        nonlocal swallowed
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            swallowed += 1
            raise AutoReconnect("operation cancelled") from None

    monkeypatch.setattr(Notifier, "_follow_once", swallow_cancellation)
    before = asyncio.all_tasks()
    async with asyncio.timeout(30), opened(with_database(replica_set_url, database_name)) as store:
        assert not await store.wait(0.05)
    assert swallowed > 0
    with pytest.raises(StoreError, match="the store is closed"):
        await store.now()
    assert asyncio.all_tasks() == before  # the one that followed the hints has ended
