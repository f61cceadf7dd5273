"""The PostgreSQL store: the methods of the protocol. It belongs to the loop that opened it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from mainspring.core import transitions
from mainspring.core.clock import Clock
from mainspring.core.model import Job, Note, Page, Run, State, replace
from mainspring.core.statistics import WHOLE_STORE
from mainspring.core.transitions import Change
from mainspring.errors import StoreError, StoreMissing
from mainspring.stores.caller_connection import call_on_loop
from mainspring.stores.codec import from_us, to_us
from mainspring.stores.postgresql import claim as claims
from mainspring.stores.postgresql import counters, jobs, notes, queries, schema
from mainspring.stores.postgresql.commit import EncodedChange, commit_changes, prune_runs
from mainspring.stores.postgresql.database import Database, Transaction
from mainspring.stores.postgresql.dedupe import (
    BRIEF_WAIT,
    WITHOUT_OTHER_ADDS,
    add_runs,
    as_stored,
    is_held_by_ended,
)
from mainspring.stores.postgresql.handler_transaction import (
    HandlerConnections,
    PostgresTransaction,
)
from mainspring.stores.postgresql.notifier import Notifier
from mainspring.stores.postgresql.url import PostgresUrl
from mainspring.stores.postgresql.within import ACCEPTED, Callers, add_within
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


@dataclass(slots=True)
class _Session:
    """What exists between `open` and `close`."""

    db: Database
    notifier: Notifier
    handlers: HandlerConnections
    callers: Callers
    loop: asyncio.AbstractEventLoop
    releases: set[asyncio.Task[None]] = field(default_factory=set)
    """Claims whose caller was cancelled."""


class PostgresStore:
    """`clock` takes the place of the server's clock, in tests."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._url = PostgresUrl.of(url)
        self._clock = clock
        self._lane_starts = claims.LaneStarts()
        self._session: _Session | None = None

    def __repr__(self) -> str:
        return f"PostgresStore({self._url.location!r})"

    def info(self) -> StoreInfo:
        return StoreInfo(
            kind="postgresql",
            location=self._url.location,
            within=ACCEPTED,
            setup_script=schema.setup_script(self._url.schema),
        )

    async def open(self, *, create: bool = True) -> None:
        if self._session is not None:
            return
        db = Database(self._url, self._clock)
        await db.open()
        try:
            if not create and not await schema.is_there(db):
                raise StoreMissing(f"{self._url.location} holds no Mainspring data")
            await schema.prepare(db)
            callers = Callers(self._url.schema, await schema.identity(db), self._clock)
        except BaseException:
            await db.close()
            raise
        if self._session is not None:  # another task has opened it meanwhile
            await db.close()
            return
        handlers = HandlerConnections(self._url, self._clock)
        loop = asyncio.get_running_loop()
        self._session = _Session(db, Notifier(db), handlers, callers, loop)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if session.releases:  # those that do not come lapse, and are rescued
            await asyncio.wait(session.releases, timeout=5)
        await session.notifier.close()
        session.handlers.close()
        await session.db.close()

    async def now(self) -> datetime:
        return from_us(await self._db.now())

    async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
        db = self._db
        stored = [as_stored(run) for run in runs]
        if not stored:
            return []
        if within is not None:
            return await self._add_within(stored, within)
        keyed = any(run.dedupe_key is not None for run in stored)
        # A scheduler adds no finished runs but skipped ones, whose ids are new. A caller's
        # transaction may be open for long, and while this lock is waited for, so are all writes.
        copied = any(run.finished and run.state is not State.SKIPPED for run in stored)

        async def add(tx: Transaction) -> list[Added]:
            if copied:
                await tx.changed(BRIEF_WAIT)
                await tx.changed(WITHOUT_OTHER_ADDS)
            return await add_runs(tx, stored)

        added = await db.transact(add, is_keyed=keyed)
        self._notify()
        return added

    async def _add_within(self, runs: Sequence[Run], within: Any) -> list[Added]:
        session = self._open_session()
        tx, caller = await session.callers.transaction(within)

        async def is_held(keys: list[str]) -> bool:
            reading = session.db.read(lambda own: is_held_by_ended(own, keys))
            return await call_on_loop(session.loop, reading)

        added = await add_within(tx, runs, is_held)
        if caller.on_commit is not None:
            caller.on_commit(self._notify_from_any_thread)
        return added

    async def claim(self, claim: Claim) -> Claimed:
        session = self._open_session()
        work = asyncio.create_task(self._claim(session.db, claim))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            back = asyncio.create_task(self._release_claimed(session.db, work))
            session.releases.add(back)
            back.add_done_callback(session.releases.discard)
            raise

    async def _claim(self, db: Database, claim: Claim) -> Claimed:
        skip_locked = self._url.skip_locked
        while True:
            taken = await db.transact(
                lambda tx: claims.claim_runs(tx, claim, self._lane_starts, skip_locked=skip_locked)
            )
            if not taken.again:
                break
        due = taken.next_due
        return Claimed(taken.runs, None if due is None else from_us(due))

    async def _release_claimed(self, db: Database, work: asyncio.Task[Claimed]) -> None:
        """Release the runs of a claim whose caller was cancelled. The attempt does not count."""
        with suppress(StoreError):  # their leases lapse, and they are rescued
            runs, now = (await work).runs, from_us(await db.now())
            back = [EncodedChange.of(transitions.released(r, now, began=False)) for r in runs]
            await db.transact(lambda tx: commit_changes(tx, back))

    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        db = self._db
        if not held:
            return []
        return await db.transact(lambda tx: claims.renew_leases(tx, held, lease))

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        db = self._db
        items = [EncodedChange.of(change) for change in changes]
        if not items:
            return []
        done = await db.transact(lambda tx: commit_changes(tx, items))
        self._notify()
        return done

    async def find(self, query: RunQuery) -> Page[Run]:
        return await self._db.read(lambda tx: queries.find(tx, query))

    async def counts(
        self, since: datetime | None = None, jobs: frozenset[str] | None = None
    ) -> Counts:
        async def read(tx: Transaction) -> Counts:
            if jobs is not None:
                return await counters.read(tx, since, jobs)
            ended = await counters.read(tx, since, frozenset({WHOLE_STORE}))
            live = await queries.count_live(tx)
            return replace(live, totals=ended.totals, periods=ended.periods)

        return await self._db.read(read)

    async def maintain(self, before: datetime | None, limit: int) -> int:
        db = self._db
        if before is None:  # a crash leaves nothing half done here
            await db.transact(counters.fold)
            return 0
        page = await self.find(RunQuery(set_aside=True, limit=max(limit, 1)))
        readable = [run.id for run in page.items if run.unreadable is None]
        if readable:
            await db.transact(lambda tx: claims.release_set_aside(tx, readable))
            self._notify()
        moment = to_us(before)

        async def prune(tx: Transaction) -> int:
            await notes.prune(tx)
            await counters.prune(tx)
            return await prune_runs(tx, moment, max(limit, 0))

        return await db.transact(prune)

    async def jobs(self, query: JobQuery) -> Page[Job]:
        return await self._db.read(lambda tx: queries.jobs(tx, query))

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        db = self._db
        if not writes:
            return []
        done = await db.transact(lambda tx: jobs.put_jobs(tx, writes))
        self._notify()
        return done

    async def notes(self, query: NoteQuery) -> Page[Note]:
        return await self._db.read(lambda tx: notes.find(tx, query, tx.now))

    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        db = self._db

        async def put(tx: Transaction) -> list[int | None]:
            await notes.lock(tx, writes)
            return [await notes.put(tx, write) for write in writes]

        return await db.transact(put) if writes else []

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        db = self._db
        if not firings:
            return []
        fired = await db.transact(lambda tx: jobs.fire(tx, firings))
        self._notify()
        return fired

    async def wait(self, timeout: float) -> bool:
        return await self._open_session().notifier.wait(timeout)

    def transaction(
        self, held: Held, limit: timedelta, *, blocking: bool = False
    ) -> PostgresTransaction:
        committed = self._notify_from_any_thread
        handlers = self._open_session().handlers
        return PostgresTransaction(handlers, held, limit, blocking=blocking, committed=committed)

    def _notify_from_any_thread(self) -> None:
        if self._session is not None:
            with suppress(RuntimeError):  # the store is closed by now
                self._session.loop.call_soon_threadsafe(self._notify)

    def _open_session(self) -> _Session:
        if self._session is None:
            raise StoreError("the store is closed; open it first")
        return self._session

    @property
    def _db(self) -> Database:
        return self._open_session().db

    def _notify(self) -> None:
        if self._session is not None:
            self._session.notifier.notify()
