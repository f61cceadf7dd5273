"""The servers that tests start do what the MongoDB store needs of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from pymongo import CursorType, MongoClient, WriteConcern
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from tests.support.servers.mongodb import (
    TOPOLOGIES,
    ReplicaSet,
    ShardedCluster,
    Standalone,
    with_database,
)
from tests.support.servers.server import Client, Document, ServerFailed, wait_for

pytestmark = pytest.mark.thorough

MAJORITY = WriteConcern("majority", wtimeout=60_000)


@pytest.fixture(params=["standalone_url", "replica_set_url", "sharded_url"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with MongoClient[Document](request.getfixturevalue(request.param)) as client:
        yield client


def test_a_majority_write_is_read_at_majority(client: Client, database_name: str) -> None:
    things = client[database_name].get_collection(
        "things", write_concern=MAJORITY, read_concern=ReadConcern("majority")
    )
    things.insert_one({"_id": 1, "what": "spring"})
    assert things.find_one({"_id": 1}) == {"_id": 1, "what": "spring"}


def test_a_tailable_cursor_waits_for_what_comes(client: Client, database_name: str) -> None:
    hints = client[database_name].create_collection("hints", capped=True, size=4096)
    hints.insert_one({"n": 0})
    cursor = hints.find(cursor_type=CursorType.TAILABLE_AWAIT)
    assert next(cursor)["n"] == 0
    threading.Timer(0.1, hints.insert_one, [{"n": 1}]).start()
    while (hint := next(cursor, None)) is None:  # the server waits a second at a time
        assert cursor.alive
    assert hint["n"] == 1


@pytest.mark.parametrize("server", ["replica_set_url", "sharded_url"])
def test_a_transaction_is_whole_or_nothing(
    server: str, request: pytest.FixtureRequest, database_name: str
) -> None:
    with MongoClient[Document](request.getfixturevalue(server)) as client:
        things = client[database_name]["things"]
        things.insert_one({"_id": 0})
        with client.start_session() as session:
            with session.start_transaction():
                things.insert_many([{"_id": 1}, {"_id": 2}], session=session)
                assert things.count_documents({}) == 1
            session.start_transaction()
            things.insert_one({"_id": 3}, session=session)
            session.abort_transaction()
        assert things.count_documents({}) == 3


def test_a_database_goes_into_the_url(replica_set_url: str, database_name: str) -> None:
    with MongoClient[Document](with_database(replica_set_url, database_name)) as client:
        assert client.get_default_database().name == database_name
        client.get_default_database()["things"].insert_one({})


# What befalls a replica set


def test_a_replica_set_survives_what_befalls_it() -> None:
    with ReplicaSet() as servers, servers.client() as client:
        things = client.test.get_collection("things", write_concern=MAJORITY)

        def write(number: int) -> None:
            document = {"_id": number}  # written again if the answer was lost
            wait_for(
                "a write",
                lambda: things.replace_one(document, document, upsert=True),
                servers.members,
            )

        write(1)
        first = servers.primary()
        first.kill()
        assert servers.primary() is not first
        write(2)

        first.restart()
        servers.wait_until_healthy()
        servers.step_down()
        write(3)

        # No majority while both secondaries are frozen.
        servers.wait_until_healthy()
        for member in servers.secondaries():
            member.freeze()
        hasty = things.with_options(write_concern=WriteConcern("majority", wtimeout=500))
        with pytest.raises(PyMongoError):
            hasty.insert_one({"_id": 4})
        for member in servers.members:
            member.kill()
        servers.heal()
        write(5)
        assert {1, 2, 3, 5} <= {found["_id"] for found in things.find()}
        processes = [member.process for member in servers.members]
        data = [member.place / "db" for member in servers.members]
        assert all(process.alive() for process in processes)
    assert not any(process.alive() for process in processes)
    assert not any(path.exists() for path in data)
    assert all(member.log.stat().st_size for member in servers.members)


def test_a_frozen_primary_is_replaced_and_steps_back_into_line() -> None:
    with ReplicaSet() as servers:
        first = servers.primary()
        first.freeze()
        assert servers.primary() is not first
        servers.heal()
        assert len(servers.secondaries()) == 2


# A cluster


def test_chunks_move_with_their_documents() -> None:
    with ShardedCluster() as servers, servers.client() as client:
        servers.shard("test.things")
        things = client.test.things
        things.insert_many([{"_id": number} for number in range(100)])
        assert {chunk["shard"] for chunk in servers.chunks("test.things")} == {"shard0", "shard1"}

        servers.split_chunk("test.things", servers.chunks("test.things")[0])
        for chunk in servers.chunks("test.things"):
            if chunk["shard"] == "shard0":
                servers.move_chunk("test.things", chunk)
        assert {chunk["shard"] for chunk in servers.chunks("test.things")} == {"shard1"}
        assert things.count_documents({}) == 100

        servers.move_chunk("test.things", servers.chunks("test.things")[0], to=servers.shards[0])
        second = servers.add_router()
        assert second.client().test.things.count_documents({}) == 100
        processes = [server.process for server in servers.servers]
        assert len(processes) == 5
    assert not any(process.alive() for process in processes)


# Users


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_a_restricted_user_may_do_only_so_much(kind: str) -> None:
    with TOPOLOGIES[kind](auth=True) as servers:
        url = servers.add_user("wörker", "p@ss:/?", {"role": "readWrite", "db": "jobs"})
        with MongoClient[Document](url) as client:
            client.jobs.runs.insert_one({"_id": 1})
            client.jobs.runs.create_index("state")
            with pytest.raises(OperationFailure, match="not authorized"):
                client.other.runs.insert_one({"_id": 1})
        with (
            MongoClient[Document](servers.url) as stranger,
            pytest.raises(OperationFailure, match="authentication"),
        ):
            stranger.jobs.runs.find_one()


# When it does not go well


def test_a_server_that_ends_at_once_shows_its_log() -> None:
    with pytest.raises(ServerFailed, match="nonsense"), Standalone(parameters={"nonsense": 1}):
        pass


def test_waiting_has_an_end_and_shows_the_log() -> None:
    with Standalone() as servers:
        server = servers.server
        with pytest.raises(ServerFailed, match=r"in vain(?s:.*)Waiting for connections"):
            wait_for("a wonder", lambda: None, [server], timeout=0.1)
        server.shut_down()
        assert not server.alive()
