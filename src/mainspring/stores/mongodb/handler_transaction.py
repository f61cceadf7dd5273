"""A handler's transaction: a session of a client that lives where the handler runs.

    fenced write of the session  →  the handler's writes  →  fenced update of the run  →  commit

Whoever changes the run's document after the first step (a cancel, a rescue) makes the update fail,
and everything with it. The update comes last, so that the document is locked for no longer than the
commit takes.

A worker that is killed in the middle leaves an open transaction, and MongoDB keeps what it has
written locked for a minute, the run's own document too: a rescue would wait for it, and so would
the handler's next attempt. So the run says which session its transaction belongs to, and who finds
the lease lapsed ends that session first (`end_orphans`).

The driver's async client belongs to one event loop, and handlers run on another than the store.
So each of their loops gets a client of its own, at its first transaction, and plain handlers, in
threads, share a plain one. Both kinds have the same methods, with and without `await`.
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
from mainspring.stores.mongodb.collections import BY_ID, Database, Document
from mainspring.stores.mongodb.commit import Written
from mainspring.stores.mongodb.counters import count_updates
from mainspring.stores.mongodb.errors import translating
from mainspring.stores.mongodb.url import Address, driver_defaults
from mainspring.stores.protocol import Held

__all__ = ["Clients", "MongoTransaction", "end_orphans"]

COMMITS = 3
"""How often a commit is sent whose answer does not come. The driver sends each twice."""

PATIENCE = 10.0
"""Seconds for a loop of handlers to close its client when the store closes."""


@dataclass(frozen=True, slots=True)
class _Lodger:
    """A client on a loop of handlers, and the event that ends its stay."""

    client: AsyncMongoClient[Document]
    leave: asyncio.Event
    left: Future[None]


class Clients:
    """The clients of handlers' transactions. `here` and `plain` are called from any thread."""

    def __init__(self, address: Address, db: Database) -> None:
        self._address = address
        self._db = db
        self._loop = asyncio.get_running_loop()
        self._guard = threading.Lock()
        self._lodgers: dict[asyncio.AbstractEventLoop, _Lodger] = {}
        self._plain: MongoClient[Document] | None = None

    def runs(self, client: Any) -> Any:
        return client[self._address.database][self._db.runs.name]

    def counters(self, client: Any) -> Any:
        return client[self._address.database][self._db.counters.name]

    def here(self) -> AsyncMongoClient[Document]:
        """The client of the running loop."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return self._db.client
        lodger = self._lodgers.get(loop)
        if lodger is None:
            url = self._address.url
            lodger = _Lodger(
                AsyncMongoClient(url, **driver_defaults(url)), asyncio.Event(), Future()
            )
            self._lodgers[loop] = lodger
            stay = loop.create_task(self._stay(loop, lodger))
            stay.add_done_callback(lambda _: lodger.left.set_result(None))
        return lodger.client

    def plain(self) -> MongoClient[Document]:
        with self._guard:
            if self._plain is None:
                url = self._address.url
                self._plain = MongoClient(url, **driver_defaults(url))
            return self._plain

    async def close(self) -> None:
        for loop, lodger in list(self._lodgers.items()):
            with contextlib.suppress(RuntimeError, TimeoutError):  # its loop may be gone
                loop.call_soon_threadsafe(lodger.leave.set)
                async with asyncio.timeout(PATIENCE):
                    await asyncio.shield(asyncio.wrap_future(lodger.left))
        with self._guard:
            plain, self._plain = self._plain, None
        if plain is not None:
            await asyncio.to_thread(plain.close)

    async def _stay(self, loop: asyncio.AbstractEventLoop, lodger: _Lodger) -> None:
        """A task, because a loop that ends cancels its tasks and lets them close what is theirs."""
        try:
            await lodger.leave.wait()
        finally:
            self._lodgers.pop(loop, None)
            await lodger.client.close()


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
        client: Any = self._clients.plain() if self._blocking else self._clients.here()
        self._runs = self._clients.runs(client)
        self._counters = self._clients.counters(client)
        self._session = client.start_session()
        told = {"transaction": {"session": self._session.session_id, "token": self._held.token}}
        mine = {
            "_id": self._held.id,
            "state": "running",
            "token": self._held.token,
            "cancel_requested": False,
        }
        with translating(), _aborting():
            # In the session, so that the snapshot is no older than this write.
            found = await _done(self._runs.update_one(mine, {"$set": told}, session=self._session))
            if not found.matched_count:
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
        item = Written.of(change)
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
        with contextlib.suppress(PyMongoError):  # the server undoes what nobody commits
            if session.in_transaction:
                await _done(session.abort_transaction())
        with contextlib.suppress(PyMongoError):
            await _done(session.end_session())

    def transient(self, error: BaseException) -> bool:
        return isinstance(error, PyMongoError) and _is_transient(error)

    async def _commit(self) -> None:
        for tries in range(1, COMMITS + 1):
            try:
                await _done(self._session.commit_transaction())
                return
            except PyMongoError as error:
                unknown = error.has_error_label("UnknownTransactionCommitResult")
                if not unknown or tries == COMMITS:
                    raise


async def end_orphans(db: Database, ids: Sequence[str]) -> None:
    """End the open transactions of these runs, whose leases have lapsed.

    A user of the database may end sessions of its own. Where that fails (a worker has another
    user), the server ends the transaction after a minute, and the rescue waits that long.
    """
    lapsed = {"_id": {"$in": list(ids)}, "state": "running", "transaction": {"$exists": True}}
    shown = {"transaction": 1, "token": 1}
    found = [run async for run in db.runs.find(lapsed, shown, hint=BY_ID)]
    open_ones = [run["transaction"] for run in found if run["transaction"]["token"] == run["token"]]
    if open_ones:
        with contextlib.suppress(OperationFailure):
            sessions = [one["session"] for one in open_ones]
            await db.client.admin.command("killSessions", sessions)


@contextlib.contextmanager
def _aborting() -> Any:
    """What undid the whole transaction is told as that."""
    try:
        yield
    except PyMongoError as error:
        if _is_transient(error):
            raise TransactionAborted(str(error).split(", full error: ", 1)[0][:300]) from error
        raise


def _is_transient(error: PyMongoError) -> bool:
    return error.has_error_label("TransientTransactionError")


async def _done(answer: Any) -> Any:
    """What a client's method gave: the async one's is awaited, the plain one's is there."""
    return await answer if inspect.isawaitable(answer) else answer
