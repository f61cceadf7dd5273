"""The MongoDB store: the methods of the protocol. Errors of the driver become errors of Mainspring.

It belongs to the event loop that opened it, as the driver's client does. If it is opened again
after `close`, it belongs to the loop that opens it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast

from bson import CodecOptions
from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from mainspring.core import transitions
from mainspring.core.clock import Clock
from mainspring.core.model import FINISHED, Job, Note, Page, Run, replace
from mainspring.core.statistics import WHOLE_STORE, ending_of
from mainspring.core.transitions import Change
from mainspring.errors import InvalidInput, MainspringError, StoreError, StoreMissing
from mainspring.stores.caller_connection import call_on_loop
from mainspring.stores.codec import from_us
from mainspring.stores.mongodb import counters, dedupe, notes, queries, schema
from mainspring.stores.mongodb.claim import (
    ClaimPartition,
    Taken,
    UnansweredClaims,
    claim_runs,
    next_due,
    release_set_aside,
    renew_leases,
)
from mainspring.stores.mongodb.commit import commit_changes, prune_runs
from mainspring.stores.mongodb.database import (
    AnyClient,
    Database,
    Document,
    GivenTime,
    ServerTime,
    SessionPool,
)
from mainspring.stores.mongodb.errors import translating
from mainspring.stores.mongodb.handler_transaction import Clients, MongoTransaction, end_orphans
from mainspring.stores.mongodb.jobs import fire, put_jobs
from mainspring.stores.mongodb.notifier import Notifier
from mainspring.stores.mongodb.url import (
    DEFAULT_DATABASE,
    DEFAULT_PREFIX,
    MongoUrl,
    client_options,
    driver_defaults,
)
from mainspring.stores.mongodb.within import ACCEPTED, Callers, identity
from mainspring.stores.paging import pages
from mainspring.stores.protocol import (
    Added,
    Claim,
    Claimed,
    Counts,
    Fired,
    Firing,
    Held,
    JobQuery,
    JobWrite,
    NoteQuery,
    NoteWrite,
    Renewed,
    RunQuery,
    StoreInfo,
)
from mainspring.stores.url import without_password


@dataclass(slots=True)
class _Session:
    """What exists between `open` and `close`."""

    db: Database
    notifier: Notifier
    clients: Clients
    loop: asyncio.AbstractEventLoop
    partition: ClaimPartition
    callers: Callers = field(default_factory=Callers)
    unanswered: UnansweredClaims = field(default_factory=dict)
    releases: set[asyncio.Task[list[Run]]] = field(default_factory=set)
    """Claims whose caller was cancelled."""


class MongoStore:
    """The store in a database: that of a `url`, or the `database` of a client that you have made.

    An async client belongs to one event loop, and a scheduler has a loop of its own. So the store
    makes its own connections, as your client would make them; your client stays yours, and the
    store never closes it. `ctx.transaction()` gives a session of your client.

    `clock` replaces the servers' clocks, in tests of one client at a time.
    """

    def __init__(
        self,
        url: str | None = None,
        clock: Clock | None = None,
        *,
        client: AnyClient | None = None,
        database: str = DEFAULT_DATABASE,
        prefix: str = DEFAULT_PREFIX,
    ) -> None:
        if (url is None) == (client is None):
            raise InvalidInput("give MongoStore a URL or a client: one of the two", field="client")
        self._client = client
        self.mongo_url = (
            MongoUrl.of(url)
            if url is not None
            else MongoUrl.of_client(cast("AnyClient", client), database, prefix)
        )
        self._time = ServerTime() if clock is None else GivenTime(clock)
        self._session: _Session | None = None

    def __repr__(self) -> str:
        return f"MongoStore({without_password(self.mongo_url.url)!r})"

    def info(self) -> StoreInfo:
        return StoreInfo(
            kind="mongodb",
            location=without_password(self.mongo_url.url),
            within=ACCEPTED,
            setup_script=schema.setup_script(self.mongo_url.database, self.mongo_url.prefix),
        )

    async def open(self, *, create: bool = True) -> None:
        if self._session is not None:
            return
        db = self._connect()
        try:
            with translating():
                if not create and not await schema.is_there(db):
                    raise StoreMissing(f"{self.info().location} holds no Mainspring data")
                await schema.prepare(db)
                await db.sessions.end_dead_sessions()
        except BaseException:
            await db.client.close()
            raise
        if self._session is not None:  # another task has opened it meanwhile
            await db.client.close()
            return
        clients = Clients(self._client_options(), self._client, db)
        partition = ClaimPartition(random.Random(), db.time.elapsed)
        notifier = Notifier(db, partition)
        self._session = _Session(db, notifier, clients, asyncio.get_running_loop(), partition)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        await asyncio.gather(*session.releases, return_exceptions=True)
        await session.notifier.close()
        await session.clients.close()
        await session.db.sessions.close()
        await session.db.client.close()

    async def now(self) -> datetime:
        with translating():
            return from_us(await self._db.now())

    async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
        if within is not None:
            return await self._add_within(runs, within)
        with translating():
            new = await self._new_finished(runs)
            added = await dedupe.add(self._db, runs)
            ended = [item.run for item in added if item.run.id in new and not item.duplicate]
            await counters.count(self._db, map(ending_of, ended))
        self._notify()
        return added

    async def _add_within(self, runs: Sequence[Run], within: Any) -> list[Added]:
        session = self._open_session()

        async def read_identity() -> Any:
            return await call_on_loop(session.loop, identity(session.db))

        return await session.callers.add(session.db, runs, within, read_identity)

    async def _new_finished(self, runs: Sequence[Run]) -> frozenset[str]:
        """The ids of the finished runs that the store does not have yet."""
        ids = frozenset(run.id for run in runs if run.finished)
        if not ids:
            return ids
        page = await queries.find(self._db, RunQuery(ids=ids, brief=True))
        return ids - {run.id for run in page.items}

    async def claim(self, claim: Claim) -> Claimed:
        session = self._open_session()
        taking = claim_runs(session.db, claim, session.partition, session.unanswered)
        work = asyncio.create_task(taking)
        try:
            with translating():
                taken = await asyncio.shield(work)
            session.notifier.record_claim(took_nothing=not taken.runs)
            if taken.more:  # no hint will come for it
                session.notifier.wake_here()
            if taken.runs:
                return Claimed(taken.runs)
            with translating():
                return Claimed([], await next_due(session.db, claim, taken.since))
        except asyncio.CancelledError:
            back = asyncio.create_task(self._release_claimed(session.db, work))
            session.releases.add(back)
            back.add_done_callback(session.releases.discard)
            raise

    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        with translating():
            return await renew_leases(self._db, held, lease)

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        self._open_session()
        if not changes:
            return []
        with translating():
            applied: set[int] = set()
            try:
                done = await commit_changes(self._db, changes, applied)
            finally:  # sent again, what was applied is not counted
                ended = [change.ending for change in changes if change.change_id in applied]
                await counters.count(self._db, ended)
        self._notify(new=any(change.set.get("state") not in FINISHED for change in changes))
        return done

    async def find(self, query: RunQuery) -> Page[Run]:
        with translating():
            return await queries.find(self._db, query)

    async def counts(
        self, since: datetime | None = None, jobs: frozenset[str] | None = None
    ) -> Counts:
        with translating():
            if jobs is not None:
                return await counters.read(self._db, since, jobs)
            ended = await counters.read(self._db, since, frozenset({WHOLE_STORE}))
            live = await queries.counts(self._db)
            return replace(live, totals=ended.totals, periods=ended.periods)

    async def maintain(self, before: datetime | None, limit: int) -> int:
        with translating():
            await self._db.sessions.end_dead_sessions()
            await self._end_transactions_of_lapsed_runs()
            if before is None:
                return 0
            await self._release_set_aside(max(limit, 1))
            await counters.prune(self._db)
            return await prune_runs(self._db, before, limit)

    async def _end_transactions_of_lapsed_runs(self) -> None:
        """End open transactions of dead workers' handlers. They lock their runs, and a rescue would
        wait for a minute."""
        find = partial(queries.find, self._db)
        async for runs in pages(find, RunQuery(lapsed=True, brief=True, limit=500)):
            await end_orphans(self._db, [run.id for run in runs])

    async def _release_set_aside(self, limit: int) -> None:
        """Let claims find runs again that were set aside and that can be read by now."""
        page = await queries.find(self._db, RunQuery(set_aside=True, limit=limit))
        readable = [run for run in page.items if run.unreadable is None]
        if readable:
            await release_set_aside(self._db, readable)
            self._notify()

    async def jobs(self, query: JobQuery) -> Page[Job]:
        with translating():
            return await queries.jobs(self._db, query)

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        with translating():
            done = await put_jobs(self._db, writes)
            pairs = zip(writes, done, strict=True)
            await counters.drop(self._db, [w.id for w, kept in pairs if kept and w.job is None])
        self._notify()
        return done

    async def notes(self, query: NoteQuery) -> Page[Note]:
        with translating():
            return await notes.find(self._db, query)

    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        with translating():
            db = self._db
            return [await notes.put(db, write) for write in writes]

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        with translating():
            fired = [Fired(False)] * len(firings)
            ended: list[Run] = []
            try:
                await fire(self._db, firings, fired, ended)
            finally:  # sent again, what was fired is not counted
                await counters.count(self._db, map(ending_of, ended))
        self._notify()
        return fired

    async def wait(self, timeout: float) -> bool:
        return await self._open_session().notifier.wait(timeout)

    def transaction(
        self, held: Held, limit: timedelta, *, blocking: bool = False
    ) -> MongoTransaction:
        session = self._open_session()

        def notify_waiters() -> None:
            with suppress(RuntimeError):  # the store was closed meanwhile
                session.loop.call_soon_threadsafe(partial(session.notifier.notify, new=False))

        return MongoTransaction(session.clients, held, blocking=blocking, committed=notify_waiters)

    def _client_options(self) -> dict[str, Any]:
        """The arguments for clients of the driver."""
        if self._client is not None:
            return client_options(self._client)
        url = self.mongo_url.url
        return {"host": url, **driver_defaults(url)}

    def _connect(self) -> Database:
        try:
            client: AsyncMongoClient[Document] = AsyncMongoClient(**self._client_options())
        except (PyMongoError, ValueError, OSError) as error:  # also: no such certificate
            raise InvalidInput(f"{self.info().location} cannot be used: {error}") from error
        # Claims, limits and overlap are decided by what was written last, whatever the URL says.
        handle = client.get_database(
            self.mongo_url.database,
            codec_options=CodecOptions(tz_aware=True),
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
        )
        prefix = self.mongo_url.prefix
        sessions = SessionPool(client, handle[f"{prefix}sessions"], self._time)
        return Database(client, handle, prefix, self._time, sessions)

    def _open_session(self) -> _Session:
        if self._session is None:
            raise StoreError("the store is closed; open it first")
        return self._session

    @property
    def _db(self) -> Database:
        return self._open_session().db

    def _notify(self, *, new: bool = True) -> None:
        if self._session is not None:
            self._session.notifier.notify(new=new)

    async def _release_claimed(self, db: Database, work: asyncio.Task[Taken]) -> list[Run]:
        """Release the runs of a claim whose caller was cancelled. The attempt does not count."""
        try:
            runs = (await work).runs
            now = from_us(await db.now())
            await commit_changes(
                db, [transitions.released(run, now, began=False) for run in runs], set()
            )
        except (PyMongoError, MainspringError):
            return []  # their leases lapse, and they are rescued
        return runs
