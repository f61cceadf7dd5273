"""`ObjectStore`: the methods of the protocol, each as an operation of a round."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, NoReturn, TypeVar

from mainspring.core import transitions
from mainspring.core.clock import Clock
from mainspring.core.model import Job, Note, Page, Run
from mainspring.core.transitions import Change
from mainspring.errors import InvalidInput, StoreError, install_advice
from mainspring.stores import evaluation
from mainspring.stores.codec import run_to_record
from mainspring.stores.notifier import Waiters
from mainspring.stores.objects.bucket import RETRY_FOR, Bucket
from mainspring.stores.objects.claim import claim_runs, renew_leases
from mainspring.stores.objects.commit import add_runs, commit_changes
from mainspring.stores.objects.compaction import MOST_FINISHED, Compaction
from mainspring.stores.objects.counters import read_counts
from mainspring.stores.objects.group_commit import TAIL_BYTES, GroupCommit, Operation
from mainspring.stores.objects.jobs import fire, put_jobs
from mainspring.stores.objects.notes import put_notes
from mainspring.stores.objects.queries import find_runs
from mainspring.stores.objects.url import Address
from mainspring.stores.objects.workspace import Workspace
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

S = TypeVar("S")
T = TypeVar("T")

NO_TRANSACTIONS = "object storage has no transactions: a write changes one object"
CLOSED = "the store is closed: open it first"

POLL = timedelta(seconds=2)
"""The longest time between two looks at the head while `wait` waits."""

IDLE_POLL = timedelta(seconds=10)
"""How long an idle engine waits between two looks of its own."""

SHORTEST_POLL = 0.05


class ObjectStore:
    """A store in a bucket. `poll`: how long a change by another process may go unnoticed while
    nothing happens; each look is a request. `tail_bytes`, `most_finished` and `retry_for` (seconds
    for which a call repeats requests that fail) are for tests."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        poll: timedelta = POLL,
        rng: random.Random | None = None,
        tail_bytes: int = TAIL_BYTES,
        most_finished: int = MOST_FINISHED,
        retry_for: float = RETRY_FOR,
    ) -> None:
        self.bucket = bucket
        self._poll_at_most = poll
        self._poll = poll.total_seconds()
        self._rng = rng
        self._tail_bytes = tail_bytes
        self._most_finished = most_finished
        self._retry_for = retry_for
        self._waiters = Waiters()
        self._poller: asyncio.Task[None] | None = None
        self._waiting = 0
        self._interval = SHORTEST_POLL
        self._group_commit: GroupCommit | None = None
        self._compaction: Compaction | None = None
        self._compacting: asyncio.Task[Any] | None = None

    @property
    def group_commit(self) -> GroupCommit:
        """Writes and reads the head of the open store. Tests look at its state and its parts."""
        if self._group_commit is None:
            raise StoreError(CLOSED)
        return self._group_commit

    @property
    def compaction(self) -> Compaction:
        """Moves finished runs to segments. Tests call its steps one by one."""
        if self._compaction is None:
            raise StoreError(CLOSED)
        return self._compaction

    async def finish_compaction(self) -> None:
        """Wait for the compaction that is under way, if there is one."""
        if self._compacting is not None:
            await asyncio.shield(self._compacting)

    async def open(self, *, create: bool = True) -> None:
        if self._group_commit is not None:
            return
        await self.bucket.open(create=create)
        group_commit = GroupCommit(
            self.bucket,
            rng=self._rng,
            tail_bytes=self._tail_bytes,
            retry_for=self._retry_for,
            on_change=self._noticed_change,
        )
        try:
            await group_commit.open(create=create)
        except BaseException:
            await self.bucket.close()
            raise
        self._compaction = Compaction(self.bucket, group_commit, self._most_finished)
        self._group_commit = group_commit

    async def close(self) -> None:
        group_commit, self._group_commit, self._compaction = self._group_commit, None, None
        if group_commit is None:
            return
        if self._poller is not None:
            self._poller.cancel()
            self._poller = None
        with suppress(StoreError):
            await self.finish_compaction()
        await group_commit.drain()
        await self.bucket.close()

    def info(self) -> StoreInfo:
        return StoreInfo(
            kind=self.bucket.kind,
            location=self.bucket.location,
            no_transactions=NO_TRANSACTIONS,
            idle_poll=max(IDLE_POLL, self._poll_at_most),
            clock_error=timedelta(0)
            if self._group_commit is None
            else self._group_commit.clock.error,
        )

    async def now(self) -> datetime:
        group_commit = self.group_commit
        await group_commit.retries.repeat(
            lambda: group_commit.clock.read_if_due(group_commit.head.time)
        )
        return group_commit.clock.bounds(group_commit.head.time).earliest

    # -- runs

    async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
        # Encoded now: the caller may change a payload while the call waits for its round.
        added = await self._write_each(add_runs, list(map(run_to_record, runs)))
        self._compact_if_due()  # copies of stores add finished runs
        return added

    async def claim(self, claim: Claim) -> Claimed:
        operation = Operation(
            lambda work: claim_runs(work, claim), writes=True, on_abandoned=self._release
        )
        return await self.group_commit.submit(operation)

    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        return await self._write_each(lambda work, held: renew_leases(work, held, lease), held)

    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        done = await self._write_each(commit_changes, changes)
        self._compact_if_due()
        return done

    async def find(self, query: RunQuery) -> Page[Run]:
        return await find_runs(self.group_commit, query)

    async def counts(
        self, since: datetime | None = None, jobs: frozenset[str] | None = None
    ) -> Counts:
        parts = self.group_commit.parts
        return await self._read(lambda work: read_counts(work.state, parts, work.now, since, jobs))

    async def maintain(self, before: datetime | None, limit: int) -> int:
        compaction = self.compaction
        if before is None:
            return 0  # no call leaves anything half done
        deleted = await compaction.prune(before, limit)
        await compaction.prune_notes_and_counts()
        await compaction.merge_segments()
        await compaction.collect_garbage()
        return deleted

    def _release(self, claimed: Claimed) -> None:
        """Give back the runs of a claim whose caller waits no longer. They lose no attempt."""
        group_commit = self._group_commit
        if group_commit is None or not claimed.runs:
            return
        now = group_commit.clock.bounds(group_commit.head.time).earliest
        back = [transitions.released(run, now, began=False) for run in claimed.runs]
        group_commit.submit(Operation(lambda work: commit_changes(work, back), writes=True))

    def _compact_if_due(self) -> None:
        """Move finished runs to a segment, beside other calls."""
        compaction = self._compaction
        if compaction is None or not compaction.is_due or self._compacting is not None:
            return

        async def compact() -> None:
            try:
                with suppress(StoreError):
                    await compaction.move_finished()
            finally:
                self._compacting = None

        self._compacting = asyncio.get_running_loop().create_task(compact())

    # -- jobs and notes

    async def jobs(self, query: JobQuery) -> Page[Job]:
        return await self._read(
            lambda work: evaluation.page_of_jobs(work.state.jobs().values(), query)
        )

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        return await self._write_each(put_jobs, writes)

    async def notes(self, query: NoteQuery) -> Page[Note]:
        return await self._read(
            lambda work: evaluation.page_of_notes(work.state.notes(), query, work.now)
        )

    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        return await self._write_each(put_notes, writes)

    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        return await self._write_each(fire, firings)

    def transaction(self, held: Held, limit: timedelta, *, blocking: bool = False) -> NoReturn:
        raise NotImplementedError(NO_TRANSACTIONS)

    # -- waiting

    async def wait(self, timeout: float) -> bool:
        if self._group_commit is None:
            raise StoreError(CLOSED)
        self._waiting += 1
        if self._poller is None:
            self._poller = asyncio.get_running_loop().create_task(self._poll_head())
        try:
            return await self._waiters.wait(timeout)
        finally:
            self._waiting -= 1

    async def _poll_head(self) -> None:
        """Read the head while somebody waits: at short intervals after a change, then at growing
        ones."""
        while self._waiting:
            await asyncio.sleep(self._interval)
            if not self._waiting:
                break
            self._interval = min(self._interval * 2, self._poll)
            with suppress(StoreError):
                await self._read(lambda work: None)
        self._poller = None

    def _noticed_change(self) -> None:
        self._interval = min(SHORTEST_POLL, self._poll)
        self._waiters.wake()

    # -- rounds

    async def _write_each(
        self, evaluate: Callable[[Workspace, list[S]], list[T]], items: Sequence[S]
    ) -> list[T]:
        """The answer for each item. What is given is copied, because it is evaluated later."""
        group_commit, items = self.group_commit, list(items)
        if not items:
            return []
        return await group_commit.submit(Operation(lambda work: evaluate(work, items), writes=True))

    async def _read(self, evaluate: Callable[[Workspace], T]) -> T:
        return await self.group_commit.submit(Operation(evaluate, writes=False))


def make_bucket(url: str, clock: Clock | None = None) -> Bucket:
    """The bucket that a URL names, not open yet."""
    address = Address.of(url)
    if address.scheme == "file":
        from mainspring.stores.objects.directory_bucket import DirectoryBucket

        return DirectoryBucket(address.bucket, clock)
    try:
        from mainspring.stores.objects.obstore_bucket import ObstoreBucket
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise InvalidInput(
            f"{address.scheme}:// needs the object storage client: {install_advice('objects')}"
        ) from error
    return ObstoreBucket(address, clock)
