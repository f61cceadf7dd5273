"""The suite on real servers: a replica set, a sharded cluster.

Time is moved by a clock that takes the place of the servers' (so that the suite need not sleep);
`…ByTheServersClock` run what hangs on time most, on the servers' own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient

from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from mainspring.stores.protocol import Store
from mainspring.testing import StoreConformance
from mainspring.testing.conformance.base import Repair
from mainspring.testing.conformance.round_trip import NameTests
from tests.support.mongodb.store import SharedDatabase, shared_database
from tests.support.servers.server import Document
from tests.support.servers_clock import ByTheServersClock


class OnMongo(StoreConformance):
    url: str
    damages: Sequence[Any] = ("x", {"a": 1})
    """What is put in place of each field. How a document is read does not depend on the topology,
    so each topology has its own values."""
    every_damage = False
    """Whether each field of a run is damaged with every value in every state of the run. Otherwise
    the values take turns over fields and states: each field has each value in a state, and each
    state damages each field. Every way costs about 28 calls of the store. `make chaos` has all of
    them (chaos/test_damaged_fields.py)."""

    def make_store(self) -> Store:
        return MongoStore(self.url, self.clock)

    async def write_effect(self, session: Any, name: str) -> None:
        await session.client.get_default_database().effects.insert_one(
            {"name": name}, session=session
        )

    def write_effect_blocking(self, session: Any, name: str) -> None:
        session.client.get_default_database().effects.insert_one({"name": name}, session=session)

    async def effects(self, store: Store) -> list[str]:
        async with AsyncMongoClient[Document](self.url) as client:
            found = client.get_default_database().effects.find({}).sort("name")
            return [effect["name"] async for effect in found]

    @asynccontextmanager
    async def caller_transaction(self, store: Store) -> AsyncIterator[Any]:
        async with (
            AsyncMongoClient[Document](self.url) as client,
            client.start_session() as session,
            await session.start_transaction(),
        ):
            yield session

    async def damage_run(self, store: Store, run_id: str, part: str) -> Repair:
        return await self._damage("runs", run_id, part)

    async def damage_job(self, store: Store, job_id: str, part: str) -> Repair:
        return await self._damage("jobs", job_id, "created_at" if part == "definition" else part)

    async def damage_note(self, store: Store, kind: str, name: str) -> None:
        await self._damage("notes", json.dumps([kind, name]), "value")

    async def _damage(self, collection: str, id: str, field: str) -> Repair:
        """As a program other than the store would."""
        async with AsyncMongoClient[Document](self.url) as client:
            records = client.get_default_database()[DEFAULT_PREFIX + collection]
            found = await records.find_one({"_id": id}) or {}
            broken = '{"broken'
            await records.update_one({"_id": id}, {"$set": {field: broken}})

        async def repair() -> None:
            async with AsyncMongoClient[Document](self.url) as client:
                records = client.get_default_database()[DEFAULT_PREFIX + collection]
                still = {"_id": id, field: broken}  # what was overwritten stays so
                await records.update_one(still, {"$set": {field: found.get(field)}})

        return repair

    async def damage_every_field(
        self, store: Store, kind: str, record_id: str
    ) -> AsyncIterator[str]:
        async with AsyncMongoClient[Document](self.url) as client:
            records = client.get_default_database()[f"{DEFAULT_PREFIX}{kind}s"]
            whole = await records.find_one({"_id": record_id}) or {}
            inside = {
                "run": [f"lane.{part}" for part in "rgqhp"],
                "job": ["limit.key", "limit.most"],
            }
            fields = sorted({*whole, *inside[kind], "reason"} - {"_id"})
            for number, field in enumerate(fields):
                for value in self._damages(kind, number, whole):
                    change = {"$unset": {field: ""}} if value is None else {"$set": {field: value}}
                    await records.update_one({"_id": record_id}, change)
                    yield f"{field}: {value}"
                    await records.replace_one({"_id": record_id}, whole)

    def _damages(self, kind: str, number: int, whole: Document) -> Sequence[Any]:
        if kind == "job" or self.every_damage:
            return self.damages
        turn = number + ("pending", "running", "waiting").index(whole["state"])
        return [self.damages[turn % len(self.damages)]]

    @pytest.mark.parametrize(
        "test", [name for name in dir(NameTests) if name.startswith("test_odd_")]
    )
    def test_names_with_nul(self, tmp_path: Path, test: str) -> None:
        """BSON ends the names of fields and the patterns of expressions with one."""
        getattr(self, test)(tmp_path, odd="nu\0l.$\0")


@pytest.fixture(scope="module")
def shared_on_replica_set(replica_set_url: str) -> Iterator[SharedDatabase]:
    with shared_database(replica_set_url) as database:
        yield database


@pytest.fixture(scope="module")
def shared_on_shards(sharded_url: str) -> Iterator[SharedDatabase]:
    with shared_database(sharded_url) as database:
        database.shard()
        yield database


class TestReplicaSet(OnMongo):
    @pytest.fixture(autouse=True)
    def _servers(self, shared_on_replica_set: SharedDatabase) -> Iterator[None]:
        self.url = shared_on_replica_set.url
        yield
        shared_on_replica_set.empty()


@pytest.mark.thorough
class TestSharded(OnMongo):
    damages = (None, -7.5)

    @pytest.fixture(autouse=True)
    def _servers(self, shared_on_shards: SharedDatabase) -> Iterator[None]:
        self.url = shared_on_shards.url
        yield
        shared_on_shards.empty()


# A router passes values on as they are, so the replica set has these tests for both.
for _name in (
    "test_every_type_of_payload_and_result_is_stored",
    "test_unusual_text_is_stored_in_every_text_field",
    "test_an_invalid_cursor_is_refused_or_names_a_place_in_the_list",
):
    assert hasattr(TestSharded, _name), _name
    setattr(TestSharded, _name, None)


class OnTheServersClock(ByTheServersClock):
    shared: SharedDatabase

    def make_store(self) -> Store:
        return MongoStore(self.shared.url)


class TestReplicaSetByTheServersClock(OnTheServersClock):
    @pytest.fixture(autouse=True)
    def _servers(self, shared_on_replica_set: SharedDatabase) -> Iterator[None]:
        self.shared = shared_on_replica_set
        yield
        shared_on_replica_set.empty()


@pytest.mark.thorough
class TestShardedByTheServersClock(OnTheServersClock):
    @pytest.fixture(autouse=True)
    def _servers(self, shared_on_shards: SharedDatabase) -> Iterator[None]:
        self.shared = shared_on_shards
        yield
        shared_on_shards.empty()
