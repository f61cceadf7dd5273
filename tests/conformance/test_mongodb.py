"""The suite on real servers: a replica set, a sharded cluster, a server alone.

Time is moved by a clock that takes the place of the servers' (so the suite need not sleep);
`TestServersClock` runs what depends on time with the servers' own.
"""

from __future__ import annotations

import pytest
from pymongo import MongoClient

from mainspring.store import Store
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.address import DEFAULT_PREFIX
from mainspring.stores.mongodb.schema import SHARDED
from mainspring.testing import StoreConformance
from tests.servers.mongodb import with_database
from tests.servers.server import Client, Document


def shard_collections(client: Client, database: str) -> None:
    """As docs/mongodb.md tells an operator to."""
    for name in SHARDED:
        client.admin.command(
            "shardCollection", f"{database}.{DEFAULT_PREFIX}{name}", key={"_id": "hashed"}
        )


class OnMongo(StoreConformance):
    url: str

    def make_store(self) -> Store:
        return MongoStore(self.url, self.clock)


class TestReplicaSet(OnMongo):
    @pytest.fixture(autouse=True)
    def _servers(self, replica_set_url: str, database_name: str) -> None:
        self.url = with_database(replica_set_url, database_name)


class TestSharded(OnMongo):
    @pytest.fixture(autouse=True)
    def _servers(self, sharded_url: str, database_name: str) -> None:
        with MongoClient[Document](sharded_url) as client:
            shard_collections(client, database_name)
        self.url = with_database(sharded_url, database_name)


class TestStandalone(OnMongo):
    @pytest.fixture(autouse=True)
    def _servers(self, standalone_url: str, database_name: str) -> None:
        self.url = with_database(standalone_url, database_name)
