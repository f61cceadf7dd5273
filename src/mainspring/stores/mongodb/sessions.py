"""Sessions of the store's own transactions; ends those whose client is gone.

A client that dies or freezes between the first write of a transaction and its commit leaves the
documents locked until the server rolls the transaction back, after a minute. So every session has
a document in the collection `sessions` before it runs a transaction:

    {_id: <id of the session>, user: <who may end it>, renewed_at: <by the server's clock>}

The client renews it every second while a transaction is open. Any client that finds a document
which was not renewed for a few seconds ends the session (`killSessions`). That rolls back its
transaction and unlocks the documents. If the client is alive after all, no harm is done: it starts
the transaction again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from pymongo import AsyncMongoClient, DeleteOne, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure, PyMongoError

from mainspring.stores.mongodb.server_clock import ServerTime

RENEW_EVERY = 1.0
DEAD_AFTER = 4.0
"""Seconds without a renewal after which a session is ended."""
SEARCH_INTERVAL = 0.5
"""Seconds between two searches for dead sessions by a client that meets write conflicts."""


@dataclass(slots=True)
class _Entry:
    session: AsyncClientSession
    renewed: float = -inf

    @property
    def id(self) -> Any:
        return self.session.session_id["id"]


class SessionPool:
    """The registered sessions of one client. It keeps those that are not in use, so that most
    transactions find one that was renewed less than a second ago."""

    def __init__(
        self,
        client: AsyncMongoClient[dict[str, Any]],
        registrations: AsyncCollection[dict[str, Any]],
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
        found = await self._registrations.find(dead).to_list()
        if not found:
            return
        try:
            ids = [{"id": one["_id"]} for one in found]
            await self._client.admin.command("killSessions", ids)
        except OperationFailure:
            return  # the server refuses, and rolls the transactions back after a minute
        seen = [{"_id": one["_id"], "renewed_at": one["renewed_at"]} for one in found]
        await self._registrations.bulk_write([DeleteOne(one) for one in seen], ordered=False)

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
