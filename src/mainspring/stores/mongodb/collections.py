"""The collections and the clock, which every operation uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from bson import ObjectId
from pymongo import ASCENDING, AsyncMongoClient, MongoClient
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.read_concern import ReadConcern

from mainspring.core.clock import to_us
from mainspring.errors import StoreUnavailable
from mainspring.stores.mongodb.server_clock import ServerTime, read_moment
from mainspring.stores.mongodb.sessions import SessionPool

Document = dict[str, Any]
Collection = AsyncCollection[Document]
AnyClient = AsyncMongoClient[Any] | MongoClient[Any]
T = TypeVar("T")

BY_ID = [("_id", ASCENDING)]
"""The hint for updates by ids. Without it the planner may walk the index of a whole state."""

MAJORITY = ReadConcern("majority")
SNAPSHOT = ReadConcern("snapshot")
CHUNK = 1000
"""Documents in one command. So it stays within the driver's limits and the time-out."""


@dataclass(frozen=True, slots=True)
class Database:
    client: AsyncMongoClient[Document]
    handle: AsyncDatabase[Document]
    prefix: str
    time: ServerTime
    sessions: SessionPool
    session: AsyncClientSession | None = None
    """The transaction that the commands belong to, if any (transaction.py)."""

    @property
    def runs(self) -> Collection:
        return self._collection("runs")

    @property
    def jobs(self) -> Collection:
        return self._collection("jobs")

    @property
    def keys(self) -> Collection:
        return self._collection("keys")

    @property
    def limits(self) -> Collection:
        return self._collection("limits")

    @property
    def counters(self) -> Collection:
        return self._collection("counters")

    @property
    def notes(self) -> Collection:
        return self._collection("notes")

    @property
    def meta(self) -> Collection:
        return self._collection("meta")

    @property
    def wakeups(self) -> Collection:
        return self._collection("wakeups")

    def _collection(self, name: str) -> Collection:
        return self.handle[self.prefix + name]

    async def now(self) -> datetime:
        """The time of the server that holds the unsharded collections."""
        asked_at = self.time.elapsed()
        found = await self.meta.find_one(
            {"_id": "schema"}, {"now": self.time.now}, session=self.session
        )
        moment = None if found is None else read_moment(found["now"])
        if moment is None:
            raise StoreUnavailable(
                "the database was dropped while this program used it: restart the program, which"
                " makes the database again"
            )
        self.time.record_now(to_us(moment), asked_at)
        return moment

    @property
    def sharded(self) -> bool:
        """Whether the client talks to a cluster's router."""
        return self.client.topology_description.topology_type_name == "Sharded"

    async def settled(self, collection: Collection, ids: Iterable[str]) -> dict[str, Document]:
        """These documents as a majority has them, after every earlier write to them.

        It finds out whether a write was applied whose answer was lost, and whether what another
        client has just written can still be rolled back. It sends a write that changes nothing to
        the servers that hold the documents, and waits until a majority has it and so all writes
        before it. The read that follows is no older, even if the primary changes meanwhile.
        """
        majority = collection.with_options(read_concern=MAJORITY)
        found: dict[str, Document] = {}
        async with self.client.start_session() as session:
            for part in chunks(ids):
                wanted: Document = {"_id": {"$in": part}}
                none = {**wanted, "nonce": ObjectId()}
                put = {"$set": {"nonce": None}}
                await collection.update_many(none, put, hint=BY_ID, session=session)
                walk = majority.find(wanted, session=session)
                found |= {kept["_id"]: kept async for kept in walk}
        return found


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    listed = list(items)
    for start in range(0, len(listed), size):
        yield listed[start : start + size]
