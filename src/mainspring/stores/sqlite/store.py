"""The SQLite store: each method queues an operation on a thread and awaits its result.

It may be used from any event loop in any thread. Like SQLite, it cannot be used after a fork: a
child process opens its own store, on a file that its parent did not have open when it forked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from mainspring.core import transitions
from mainspring.core.clock import Clock, SystemClock
from mainspring.core.model import Job, Note, Page, Run
from mainspring.core.transitions import Change
from mainspring.errors import StoreError, StoreMissing
from mainspring.stores.codec import from_us, to_us
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
from mainspring.stores.sqlite import notes, queries
from mainspring.stores.sqlite.claim import (
    ClaimedRows,
    claim_runs,
    release_set_aside,
    renew_leases,
    set_aside,
)
from mainspring.stores.sqlite.codec import span_us
from mainspring.stores.sqlite.commit import EncodedChange, commit_changes, prune_runs
from mainspring.stores.sqlite.dedupe import NewRun, add_runs
from mainspring.stores.sqlite.handler_transaction import SqliteTransaction
from mainspring.stores.sqlite.jobs import drop_jobs, fire, put_jobs
from mainspring.stores.sqlite.schema import exists
from mainspring.stores.sqlite.threads import CLOSED, NOW, Operation, Reader
from mainspring.stores.sqlite.within import ACCEPTED, add_within
from mainspring.stores.sqlite.writer import Writer

_open_here: dict[Writer, Path] = {}
_open_at_fork: set[Path] = set()


def _mark_open_files() -> None:
    """Mark files that were open at the fork. SQLite keeps a list of its locks in memory, and a fork
    copies the list without the locks, so a new connection to such a file would be unsafe."""
    _open_at_fork.update(_open_here.values())


os.register_at_fork(after_in_child=_mark_open_files)


@dataclass(frozen=True, slots=True)
class _Session:
    """What exists between `open` and `close`. Slow queries have their own reader thread."""

    writer: Writer
    reader: Reader
    slow_reader: Reader
    process: int
    file: Path


class SqliteStore:
    def __init__(self, path: str | os.PathLike[str], clock: Clock | None = None) -> None:
        self._path = Path(path)
        self._clock = clock or SystemClock()
        self._session: _Session | None = None

    def info(self) -> StoreInfo:
        file = self._file() if self._session is None else self._session.file
        location = f"sqlite:///{self._path}"
        return StoreInfo(
            kind="sqlite", any_loop=True, location=location, file=file, within=ACCEPTED
        )

    def _file(self) -> Path:
        """The database file itself. Its lock, its reserve and its key lie beside it, so two names
        of one database (a link) must not make two of each. The name is kept where no link is."""
        real = Path(os.path.realpath(self._path))
        return self._path if real == self._path.absolute() else real

    async def open(self, *, create: bool = True) -> None:
        if self._session is not None:
            return
        file = self._file()
        path = file.absolute()
        if not create and not await asyncio.to_thread(exists, path):
            raise StoreMissing(f"there is no Mainspring database at {self._path.absolute()}")
        if path in _open_at_fork:
            raise StoreError(
                f"{path} was open in the process that this one was forked from, so SQLite cannot"
                " open it here safely. Open it in each process after the fork and not before (in a"
                " Django project, call `scheduler.close()` before the fork), or start this process"
                ' by the method "spawn"'
            )
        writer = Writer(path, self._clock)
        _open_here[writer] = path
        writer.start()
        try:
            await asyncio.wrap_future(writer.opened)
        except BaseException:
            writer.mailbox.close()  # the thread closes what it has opened, and ends
            writer.ended.add_done_callback(lambda _: _open_here.pop(writer, None))
            raise
        if self._session is not None:  # another task has opened it meanwhile
            await _close_writer(writer)
            return
        reader, slow_reader = (Reader(path, writer.clock, writer.identity) for _ in range(2))
        self._session = _Session(writer, reader, slow_reader, os.getpid(), file)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        readers = (session.reader, session.slow_reader)
        for reader in readers:
            reader.close()
        try:  # the writer's connection is closed last: it knows whether the log may be used
            await asyncio.gather(*(asyncio.wrap_future(reader.ended) for reader in readers))
        finally:
            await _close_writer(session.writer)

    async def now(self) -> datetime:
        self._open_session()
        return self._clock.now()

    async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
        if within is not None:
            session = self._open_session()
            return await add_within(session.file.absolute(), session.writer.clock, runs, within)
        added: list[Added] = await self._write(add_runs, [NewRun.of(r) for r in runs])
        return added

    async def claim(self, claim: Claim) -> Claimed:
        while True:
            [taken] = await self._write(
                claim_runs, [claim], wakes=False, undo=self._release_claimed
            )
            runs: dict[int, Run] = taken.runs()
            # If this fails, their leases lapse, and the next claim tries again.
            aside = [(seq, run.token) for seq, run in runs.items() if run.unreadable is not None]
            await self._write(set_aside, aside, wakes=False)
            readable = [run for run in runs.values() if run.unreadable is None]
            if readable or not runs:  # else all were unreadable: others may be due behind them
                next_due = None if taken.next_due is None else from_us(taken.next_due)
                return Claimed(readable, next_due)

    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        items = [(item, span_us(lease)) for item in held]
        renewed = await self._write(renew_leases, items, wakes=False)
        return [item for item in renewed if item is not None]

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        items = [EncodedChange.of(change) for change in changes]
        done: list[bool] = await self._write(commit_changes, items)
        return done

    async def find(self, query: RunQuery) -> Page[Run]:
        session = self._open_session()
        reader = session.slow_reader if queries.needs_walk(query) else session.reader
        return await reader.read(queries.find, query, NOW)

    async def counts(
        self, since: datetime | None = None, jobs: frozenset[str] | None = None
    ) -> Counts:
        session = self._open_session()
        reader = session.slow_reader if jobs is None else session.reader
        return await reader.read(queries.counts, NOW, since, jobs)

    async def maintain(self, before: datetime | None, limit: int) -> int:
        self._open_session()
        if before is None:  # a crash leaves nothing half done here
            return 0
        await self._release_set_aside(max(limit, 1))
        [count] = await self._write(prune_runs, [(to_us(before), max(limit, 0))], wakes=False)
        return int(count)

    async def _release_set_aside(self, limit: int) -> None:
        """Let claims find the runs again that were set aside and can be read by now."""
        page = await self.find(RunQuery(set_aside=True, limit=limit))
        readable = [run.id for run in page.items if run.unreadable is None]
        await self._write(release_set_aside, readable)

    async def jobs(self, query: JobQuery) -> Page[Job]:
        return await self._open_session().reader.read(queries.jobs, query)

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        put = put_jobs if any(write.job for write in writes) else drop_jobs
        done: list[bool] = await self._write(put, list(writes))
        return done

    async def notes(self, query: NoteQuery) -> Page[Note]:
        return await self._open_session().reader.read(notes.find, query, NOW)

    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        versions: list[int | None] = await self._write(notes.put, list(writes), wakes=False)
        return versions

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        [fired] = await self._write(fire, [list(firings)])
        return list(fired)

    async def wait(self, timeout: float) -> bool:
        return await self._open_session().writer.notifier.wait(timeout)

    def transaction(
        self, held: Held, limit: timedelta, *, blocking: bool = False
    ) -> SqliteTransaction:
        ask = self._open_session().writer.request_transaction
        return SqliteTransaction(ask, held, limit, blocking=blocking)

    async def _write(
        self,
        run: Callable[..., list[Any]],
        items: list[Any],
        *,
        wakes: bool = True,
        undo: Callable[[Any], None] | None = None,
    ) -> list[Any]:
        session = self._open_session()
        if not items:
            return []
        loop = asyncio.get_running_loop()
        work = Operation(run, items, loop, loop.create_future(), wakes, undo)
        session.writer.mailbox.put(work)
        results: list[Any] = await work.future
        return results

    def _open_session(self) -> _Session:
        if self._session is None:
            raise StoreError(CLOSED)
        if self._session.process != os.getpid():
            raise StoreError(
                f"{self._path} was opened before this process was forked; open a store of its own"
                " in the child (or start it by spawn)"
            )
        return self._session

    def _release_claimed(self, result: list[ClaimedRows]) -> None:
        """Release the runs of a claim whose caller was cancelled. They lose no attempt."""
        session, claimed = self._session, result[0].runs().values()
        runs = [run for run in claimed if run.unreadable is None]  # the leases of the others lapse
        if session is None or not runs:
            return
        now = self._clock.now()
        back = [EncodedChange.of(transitions.released(run, now, began=False)) for run in runs]
        loop = asyncio.get_running_loop()
        session.writer.mailbox.put(
            Operation(commit_changes, back, loop, loop.create_future(), True)
        )


async def _close_writer(writer: Writer) -> None:
    """Wait until its thread has done what was queued, and has closed the file."""
    writer.mailbox.close()
    try:
        await asyncio.wrap_future(writer.ended)
    finally:
        _open_here.pop(writer, None)
