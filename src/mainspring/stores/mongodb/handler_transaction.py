"""`ctx.transaction()`: the handler writes in a driver session that belongs to its event loop.

    fenced write of the session  →  the handler's writes  →  fenced update of the run  →  commit

If another client changes the run's document after the first step (a cancel, a rescue), the update
fails, and the whole transaction with it. The update comes last, so that the document is locked no
longer than the commit takes.

A worker that is killed halfway leaves an open transaction. MongoDB keeps the documents that
it wrote locked for a minute, and a rescue or the next attempt would wait for that. So the run's
document says which session its transaction belongs to. A client that finds the lease lapsed ends
that session first (`end_orphans`).

An async client of the driver belongs to one event loop, and handlers run on another loop than the
store. So each loop of handlers gets its own client at its first transaction. Sync handlers, which
run in threads, share one sync client. A client that the program gave to the store is used where it
fits. Both kinds of clients have the same methods, with and without `await`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pymongo import AsyncMongoClient, MongoClient, ReadPreference, WriteConcern
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from mainspring.core.transitions import Change
from mainspring.errors import TransactionAborted
from mainspring.stores.mongodb.codec import expecting
from mainspring.stores.mongodb.commit import EncodedChange
from mainspring.stores.mongodb.counters import count_updates
from mainspring.stores.mongodb.database import (
    BY_ID,
    AnyClient,
    Database,
    Document,
)
from mainspring.stores.mongodb.errors import translating
from mainspring.stores.protocol import Held

CLOSE_TIMEOUT = 10.0
"""Seconds for a loop of handlers to close its client when the store closes."""


@dataclass(frozen=True, slots=True)
class _LoopClient:
    """The client of a loop of handlers, and the event that makes it close."""

    client: AsyncMongoClient[Document]
    close: asyncio.Event
    closed: Future[None]


class Clients:
    """The clients of handlers' transactions. `of_loop` and `sync` are called from any thread."""

    def __init__(self, options: dict[str, Any], given: AnyClient | None, db: Database) -> None:
        self._options = options
        self._given = given
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._of_loops: dict[asyncio.AbstractEventLoop, _LoopClient] = {}
        self._sync: MongoClient[Document] | None = None

    def collections(self, client: Any, *names: str) -> list[Any]:
        """Collections of the store, as this client reaches them."""
        ours = self._db.handle
        database = client.get_database(ours.name, codec_options=ours.codec_options)
        return [database[self._db.prefix + name] for name in names]

    def of_loop(self) -> AsyncMongoClient[Document]:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if isinstance(self._given, AsyncMongoClient) and self._given._loop in (None, loop):
            return self._given
        if loop is self._loop:
            return self._db.client
        known = self._of_loops.get(loop)
        if known is None:
            known = _LoopClient(AsyncMongoClient(**self._options), asyncio.Event(), Future())
            self._of_loops[loop] = known
            closing = loop.create_task(self._close_in_time(loop, known))
            closing.add_done_callback(lambda _: known.closed.set_result(None))
        return known.client

    def sync(self) -> MongoClient[Document]:
        if isinstance(self._given, MongoClient):
            return self._given
        with self._guard:
            if self._sync is None:
                self._sync = MongoClient(**self._options)
            return self._sync

    async def close(self) -> None:
        for loop, known in list(self._of_loops.items()):
            with contextlib.suppress(RuntimeError, TimeoutError):  # the loop may have ended
                loop.call_soon_threadsafe(known.close.set)
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await asyncio.shield(asyncio.wrap_future(known.closed))
        with self._guard:
            sync, self._sync = self._sync, None
        if sync is not None:
            await asyncio.to_thread(sync.close)

    async def _close_in_time(self, loop: asyncio.AbstractEventLoop, known: _LoopClient) -> None:
        """Close the client with the store, or with its loop: a loop that ends cancels its tasks,
        and this one closes the client then."""
        try:
            await known.close.wait()
        finally:
            self._of_loops.pop(loop, None)
            await known.client.close()


class MongoTransaction:
    def __init__(
        self, clients: Clients, held: Held, *, blocking: bool, committed: Callable[[], None]
    ) -> None:
        self._clients = clients
        self._held = held
        self._blocking = blocking
        self._committed = committed
        self._session: Any = None
        self._runs: Any = None
        self._counters: Any = None

    async def begin(self) -> Any:
        client: Any = self._clients.sync() if self._blocking else self._clients.of_loop()
        self._runs, self._counters = self._clients.collections(client, "runs", "counters")
        self._session = client.start_session()
        session = {"transaction": {"session": self._session.session_id, "token": self._held.token}}
        mine = {
            "_id": self._held.id,
            "state": "running",
            "token": self._held.token,
            "cancel_requested": False,
        }
        with translating(), _aborting():
            # In the session, so that the snapshot is no older than this write.
            update = self._runs.update_one(mine, {"$set": session}, session=self._session)
            if not (await _done(update)).matched_count:
                raise TransactionAborted(
                    "the run is no longer this worker's, or is to be cancelled"
                )
            await _done(
                self._session.start_transaction(
                    read_concern=ReadConcern("snapshot"),
                    write_concern=WriteConcern("majority"),
                    read_preference=ReadPreference.PRIMARY,
                )
            )
        return self._session

    async def commit(self, change: Change) -> bool:
        item = EncodedChange.of(change)
        where = {"_id": item.id, **expecting(item.expect)}
        with translating(), _aborting():
            update = self._runs.update_one(where, {"$set": item.put}, session=self._session)
            if (await _done(update)).matched_count != 1:
                await self.rollback()
                return False
            await self._commit()
        await self.rollback()  # only the session is left to end
        with contextlib.suppress(PyMongoError):  # then it stays uncounted
            if updates := count_updates([change.ending]):
                await _done(self._counters.bulk_write(updates, ordered=False))
        self._committed()
        return True

    async def rollback(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        with contextlib.suppress(PyMongoError):  # the server rolls it back later
            if session.in_transaction:
                await _done(session.abort_transaction())
        with contextlib.suppress(PyMongoError):
            await _done(session.end_session())

    def transient(self, error: BaseException) -> bool:
        return isinstance(error, PyMongoError) and _is_transient(error)

    async def _commit(self) -> None:
        """The driver sends it again if the response is lost. If the result stays unknown, the run
        tells it."""
        await _done(self._session.commit_transaction())


async def end_orphans(db: Database, ids: Sequence[str]) -> None:
    """End the open transactions of these runs, whose leases have lapsed.

    A user of the database may end only sessions of the same user. If a worker had another user, the
    server ends the transaction after a minute, and the rescue waits that long.
    """
    lapsed = {"_id": {"$in": list(ids)}, "state": "running", "transaction": {"$exists": True}}
    shown = {"transaction": 1, "token": 1}
    sessions = [
        run["transaction"]["session"]
        async for run in db.runs.find(lapsed, shown, hint=BY_ID)
        if run["transaction"]["token"] == run["token"]
    ]
    if sessions:
        with contextlib.suppress(OperationFailure):
            await db.client.admin.command("killSessions", sessions)


@contextlib.contextmanager
def _aborting() -> Any:
    """Raise `TransactionAborted` for errors that roll back the whole transaction."""
    try:
        yield
    except PyMongoError as error:
        if _is_transient(error):
            raise TransactionAborted(str(error).split(", full error: ", 1)[0][:300]) from error
        raise


def _is_transient(error: PyMongoError) -> bool:
    return error.has_error_label("TransientTransactionError")


async def _done(answer: Any) -> Any:
    """The result of a client's method: an async client's is awaited, a sync client's is here."""
    return await answer if inspect.isawaitable(answer) else answer
