"""What `open` makes and checks: versions of servers, replica sets, indexes."""

from __future__ import annotations

import pytest
from pymongo import MongoClient

from mainspring.errors import StoreError, StoreTooNew
from mainspring.stores.mongodb import MongoStore, schema
from mainspring.stores.mongodb.database import Database
from tests.support.servers.mongodb import with_database
from tests.support.servers.server import Document


async def test_an_older_server_is_named(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "OLDEST", (99, 0))
    with pytest.raises(StoreError, match=r"the MongoDB server is 8\.\d+\.\d+; .* or later"):
        await MongoStore(database_url).open()


async def test_a_sharded_cluster_needs_a_newer_server_than_a_replica_set(
    sharded_url: str, database_name: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "OLDEST_SHARDED", (99, 0))
    store = MongoStore(database_url)
    await store.open()
    await store.close()
    with pytest.raises(StoreError, match=r"the MongoDB server is 8\.\d+\.\d+; .* or later"):
        await MongoStore(with_database(sharded_url, database_name)).open()


async def test_a_standalone_server_is_refused_with_the_way_to_a_replica_set(
    standalone_url: str, database_name: str
) -> None:
    store = MongoStore(with_database(standalone_url, database_name))
    with pytest.raises(StoreError, match=r"--replSet rs0.*rs\.initiate\(\)"):
        await store.open()
    with MongoClient[Document](standalone_url) as client:
        assert client[database_name].list_collection_names() == []


async def test_a_newer_database_is_refused(
    replica_set_url: str, database_name: str, database_url: str
) -> None:
    with MongoClient[Document](replica_set_url) as client:
        client[database_name]["mainspring_meta"].insert_one({"_id": "schema", "version": 999})
        with pytest.raises(StoreTooNew, match="schema 999; this one knows up to 1"):
            await MongoStore(database_url).open()
        assert client[database_name].list_collection_names() == ["mainspring_meta"]


async def test_a_step_of_a_migration_is_applied_to_an_existing_database_once(
    replica_set_url: str, database_name: str, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MongoStore(database_url)
    applied = 0

    async def step(database: Database) -> None:
        nonlocal applied
        applied += 1
        await database.meta.update_one({"_id": "schema"}, {"$set": {"colour": "red"}})

    await store.open()
    await store.close()
    monkeypatch.setattr(schema, "MIGRATIONS", [step])
    for _ in range(2):
        await store.open()
        kept = await store._db.meta.find_one({"_id": "schema"})
        assert kept == {"_id": "schema", "version": 2, "colour": "red"}
        await store.close()
    assert applied == 1
    new = MongoStore(with_database(replica_set_url, f"{database_name}_new"))
    await new.open()
    await new._db.client.drop_database(f"{database_name}_new")
    await new.close()
    assert applied == 1
    monkeypatch.setattr(schema, "MIGRATIONS", [])
    with pytest.raises(StoreTooNew, match="schema 2; this one knows up to 1"):
        await store.open()
