"""The collections of a database, its sessions, and the clock of the server that holds the data.

A router (mongos) replaces `$$NOW` by its own time in every write and aggregate. In a `find` the
shard uses its own time, and for `$currentDate` too. So there are three rules:

1. What is due and what has lapsed is decided by a `find`, with `now` in an `$expr`, or by the time
   that such a `find` has returned.
2. Leases are stamped by `$currentDate`; on a replica set also with a time that a `find` returned.
3. A write is guarded by values that were read (token, leased_at), never by time.

Times that clients write are whole microseconds. Those that a server stamps are dates, which MongoDB
keeps in milliseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, TypeVar

from pymongo import ASCENDING, AsyncMongoClient, DeleteOne, MongoClient, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from mainspring.core.clock import Clock, SystemClock, from_us, to_us
from mainspring.errors import StoreUnavailable

Document = dict[str, Any]
Collection = AsyncCollection[Document]
AnyClient = AsyncMongoClient[Any] | MongoClient[Any]
Expression = Any
Update = dict[str, Any]
T = TypeVar("T")

BY_ID = [("_id", ASCENDING)]
"""The hint for updates by ids. Without it the planner may walk the index of a whole state."""

MAJORITY = ReadConcern("majority")
SNAPSHOT = ReadConcern("snapshot")
CHUNK = 1000
"""Documents in one command. So it stays within the driver's limits and the time-out."""
RENEW_EVERY = 1.0
DEAD_AFTER = 4.0
"""Seconds without a renewal after which a session is ended."""
SEARCH_INTERVAL = 0.5
"""Seconds between two searches for dead sessions by a client that meets write conflicts."""


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

    async def now(self) -> int:
        """The time of the server that holds the unsharded collections, in microseconds."""
        asked_at = self.time.elapsed()
        shown = {"now": self.time.now}
        schema = await self.meta.find_one({"_id": "schema"}, shown, session=self.session)
        if schema is None:
            raise StoreUnavailable(
                "the database was dropped while this program used it: restart the program, which"
                " makes the database again"
            )
        now = int(schema["now"])
        self.time.record_now(now, asked_at)
        return now

    @property
    def sharded(self) -> bool:
        """Whether the client talks to a cluster's router."""
        return self.client.topology_description.topology_type_name == "Sharded"


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    listed = list(items)
    for start in range(0, len(listed), size):
        yield listed[start : start + size]


# -- sessions -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Entry:
    session: AsyncClientSession
    renewed: float = -inf

    @property
    def id(self) -> Any:
        return self.session.session_id["id"]


class SessionPool:
    """The registered sessions of one client; ends those of clients that are gone.

    A client that dies or freezes between the first write of a transaction and its commit leaves the
    documents locked until the server rolls the transaction back, after a minute. So every session
    has a document in the collection `sessions` before it runs a transaction:

        {_id: <id of the session>, user: <who may end it>, renewed_at: <by the server's clock>}

    The client renews it every second while a transaction is open. Any client that finds a document
    which was not renewed for a few seconds ends the session (`killSessions`). That rolls back its
    transaction and unlocks the documents. If the client is alive after all, no harm is done: it
    starts the transaction again.

    The pool keeps sessions that are not in use, so that most transactions find one that was renewed
    less than a second ago.
    """

    def __init__(
        self,
        client: AsyncMongoClient[Document],
        registrations: Collection,
        time: ServerTime,
    ) -> None:
        self._client = client
        # A failover may lose a renewal that a majority does not have. It ends transactions too.
        self._registrations = registrations.with_options(write_concern=WriteConcern(1))
        self._time = time
        self._idle: list[_Entry] = []
        self._user: Any = None
        self._searched = -inf

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncClientSession]:
        """A registered session. Its transaction is rolled back if it is still open at the end."""
        if self._idle:
            entry = self._idle.pop()
        else:
            entry = _Entry(self._client.start_session(causal_consistency=False))
        if self._time.elapsed() - entry.renewed > RENEW_EVERY:
            await self._renew(entry)
        renewing = asyncio.create_task(self._keep_renewing(entry))
        reusable = False
        try:
            yield entry.session
            reusable = True
        except PyMongoError:
            raise  # a server may still have the transaction open
        except Exception:
            reusable = True
            raise
        finally:
            renewing.cancel()
            if entry.session.in_transaction:
                await entry.session.abort_transaction()
            # Any other session is never used again, and nobody renews it: so it is ended soon. The
            # driver does not get it back, because it would use it for other commands.
            if reusable:
                self._idle.append(entry)

    async def end_dead_sessions(self) -> None:
        """End the sessions that nobody has renewed for a while.

        A user may end only sessions of the same user, so others are left to their own clients.
        """
        age = self._time.ago(int(DEAD_AFTER * 1_000_000))
        dead = {
            "user": {"$eq": await self._current_user()},
            "$expr": {"$lte": ["$renewed_at", age]},
        }
        sessions = await self._registrations.find(dead, {"renewed_at": 1}).to_list()
        if not sessions:
            return
        try:
            ids = [{"id": session["_id"]} for session in sessions]
            await self._client.admin.command("killSessions", ids)
        except OperationFailure:
            return  # the server refuses, and rolls the transactions back after a minute
        await self._registrations.bulk_write([DeleteOne(seen) for seen in sessions], ordered=False)

    async def resolve_conflict(self) -> None:
        """Call this after a write conflict: the client of the other transaction may have died."""
        if self._time.elapsed() - self._searched >= SEARCH_INTERVAL:
            self._searched = self._time.elapsed()
            with suppress(PyMongoError):
                await self.end_dead_sessions()

    async def close(self) -> None:
        entries, self._idle = self._idle, []
        with suppress(PyMongoError):
            if entries:
                ids = [entry.id for entry in entries]
                await self._registrations.delete_many({"_id": {"$in": ids}})

    async def _renew(self, entry: _Entry) -> None:
        at = self._time.elapsed()
        change = self._time.stamped({"$set": {"user": await self._current_user()}}, "renewed_at")
        await self._registrations.update_one({"_id": entry.id}, change, upsert=True)
        entry.renewed = at

    async def _keep_renewing(self, entry: _Entry) -> None:
        while True:
            await asyncio.sleep(RENEW_EVERY)
            with suppress(PyMongoError):
                await self._renew(entry)

    async def _current_user(self) -> Any:
        if self._user is None:
            status = await self._client.admin.command("connectionStatus")
            self._user = status["authInfo"]["authenticatedUsers"]
        return self._user


# -- the clock of the servers ---------------------------------------------------------------


def microseconds(field: str) -> Expression:
    """A field that is a date or whole microseconds, as the latter."""
    number = {"$convert": {"input": field, "to": "long", "onError": _NEVER // 1000, "onNull": None}}
    return {"$cond": [{"$isNumber": field}, field, {"$multiply": [number, 1000]}]}


_NEVER = 2**60
"""The value of a damaged lease. It does not lapse, because its worker may be alive, and the next
renewal repairs it."""


def until(since: str, span: str) -> Expression:
    """The time `span` microseconds after `since`; both are names of fields."""
    length = {"$cond": [{"$isNumber": f"${span}"}, f"${span}", _NEVER]}
    return {"$add": [microseconds(f"${since}"), length]}


class ServerTime:
    """Each server's own clock."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: tuple[int, float] | None = None

    def record_now(self, now: int, asked_at: float) -> None:
        """The server's time, and the value of `elapsed` before it was asked for."""
        self._known = now, asked_at

    def expected_now(self) -> int | None:
        """The server's time in microseconds, as far as it is known without asking: too late by the
        time that the answer took, and a millisecond. So it finds what may be due. None: unknown."""
        if self._known is None:
            return None
        now, asked_at = self._known
        return now + round((self.elapsed() - asked_at) * 1e6) + 1000

    def elapsed(self) -> float:
        """Seconds by the clock of this process, to measure how long something lasts."""
        return self._clock.monotonic()

    @property
    def now(self) -> Expression:
        """An expression for `find`: the time in microseconds. The server computes it once for a
        query, so indexes can be used."""
        return {"$multiply": [{"$toLong": "$$NOW"}, 1000]}

    def ago(self, span: int) -> Expression:
        """An expression for `find`: the time `span` microseconds ago, or up to a millisecond later,
        comparable with what `stamped` writes."""
        return {"$subtract": ["$$NOW", span // 1000]}

    def stamped(self, update: Mapping[str, Any], *fields: str) -> Update:
        """The update, with these fields set to the time when it is applied."""
        return {**update, "$currentDate": dict.fromkeys(fields, True)}

    def stamp(self, now: int) -> datetime | int:
        """A `now` that a `find` has returned, in the form that `stamped` writes."""
        return from_us(now)


class GivenTime(ServerTime):
    """A clock that a test moves, in place of the servers' clocks. It is only for tests, because
    each client has its own."""

    def expected_now(self) -> int | None:
        return to_us(self._clock.now())

    @property
    def now(self) -> Expression:
        return {"$literal": to_us(self._clock.now())}

    def ago(self, span: int) -> Expression:
        return {"$literal": to_us(self._clock.now()) - span}

    def stamp(self, now: int) -> datetime | int:
        return now

    def stamped(self, update: Mapping[str, Any], *fields: str) -> Update:
        moment = to_us(self._clock.now())
        return {**update, "$set": {**update.get("$set", {}), **dict.fromkeys(fields, moment)}}


def read_moment(kept: datetime | int | None) -> datetime | None:
    """A time of a document: microseconds, or a date that a server stamped."""
    if kept is None:
        return None
    if isinstance(kept, datetime):
        return kept.replace(tzinfo=UTC) if kept.tzinfo is None else kept.astimezone(UTC)
    return from_us(kept)


def span_us(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
