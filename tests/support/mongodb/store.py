"""Opens a MongoDB store for a test, and empties a database that several tests share."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

from pymongo import DeleteMany, MongoClient

from mainspring.core.model import Run
from mainspring.stores.mongodb import MongoStore
from mainspring.stores.mongodb.schema import SHARDED
from mainspring.stores.mongodb.url import DEFAULT_PREFIX
from mainspring.stores.protocol import Claim
from tests.support.records import a_run
from tests.support.servers.mongodb import with_database
from tests.support.servers.server import Document

__all__ = ["CLAIM", "SharedDatabase", "opened", "shared_database"]

CLAIM = Claim(worker="w", handlers=frozenset({"work"}), limit=100, lease=timedelta(seconds=30))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(url)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class SharedDatabase:
    """A database that several tests share. Each of them empties it at its end, because creating
    the collections and indexes of another database takes longer than most tests."""

    def __init__(self, client: MongoClient[Document], url: str) -> None:
        self._client = client
        self._name = f"test_{uuid.uuid4().hex[:16]}"
        self.url = with_database(url, self._name)

    def shard(self) -> None:
        """Shard the collections, as docs/how-to/use-mongodb.md tells an operator to."""
        for namespace in self._namespaces():
            self._client.admin.command("shardCollection", namespace, key={"_id": "hashed"})

    def empty(self) -> None:
        """Delete all documents, in one command."""
        self._client.bulk_write([DeleteMany({}, namespace=name) for name in self._namespaces()])

    def drop(self) -> None:
        self._client.drop_database(self._name)

    def _namespaces(self) -> list[str]:
        """The collections of the store, and `effects`, which handlers of the tests write: a
        transaction over several shards cannot create a collection."""
        names = [*(DEFAULT_PREFIX + name for name in SHARDED), "effects"]
        return [f"{self._name}.{name}" for name in names]


@contextmanager
def shared_database(url: str) -> Iterator[SharedDatabase]:
    with MongoClient[Document](url) as client:
        database = SharedDatabase(client, url)
        try:
            yield database
        finally:
            database.drop()


async def some_runs(store: MongoStore, *ids: str, **fields: Any) -> list[Run]:
    now = await store.now()
    return [a_run(now, run_id, **fields) for run_id in ids]
