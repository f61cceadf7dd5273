"""Group commit: all operations that wait go into one conditional write of the head.

A round makes sure that the state is current, evaluates every operation in order, and writes the
head if it still is the one that the state came from. An operation is answered when its round is
stored, or when a read has shown that the state was current. An operation that needs parts which
this client does not have leaves its round: they are loaded beside it, so no other operation waits
for them or fails with them.

A write may fail, or its answer may be lost, or it may be done late. Each try has a nonce, and is
fenced by the entity tag of the head that it replaces. So of all tries on one head at most one is
ever done. While the head has not changed, a try without an answer may still be done: it is
remembered with the answers that it would give. When the head has changed, it names the last nonce
of each client: either that of a try, whose answers are given then, or the tries are void.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from mainspring.core.model import replace
from mainspring.errors import StoreDamaged, StoreError, StoreMissing, StoreUnavailable
from mainspring.stores.codec import json_text, to_us
from mainspring.stores.objects.bucket import (
    LONGEST_PAUSE,
    RETRY_FOR,
    SHORTEST_PAUSE,
    Blob,
    Bucket,
    Retries,
)
from mainspring.stores.objects.history import SegmentReader
from mainspring.stores.objects.part_cache import PartCache, PartMissing, PartsNotLoaded, new_client
from mainspring.stores.objects.schema import (
    HEAD,
    Entry,
    Head,
    decode_head,
    encode_head,
    is_part_name,
)
from mainspring.stores.objects.self_test import FOLDER, MARKER
from mainspring.stores.objects.state import Delta, LiveState, Tables
from mainspring.stores.objects.storage_clock import Bounds, StorageClock
from mainspring.stores.objects.workspace import Workspace

log = logging.getLogger("mainspring")

T = TypeVar("T")

TAIL_BYTES = 128 * 1024
TAIL_ENTRIES = 256
"""A head with more deltas than this gets a new snapshot. Each write sends the deltas again."""

SNAPSHOT_TAKEOVER_FACTOR = 1.5
"""The client whose write fills the head makes the snapshot. If the head grows to this multiple of
that size, the client counts as gone and any client makes the snapshot. Doubled after each
failure."""

LARGE_DELTA = 64 * 1024
"""A delta of so many bytes is written as a part, so that the head stays small."""

MOST_OPERATIONS = 1000
MOST_BYTES = 4 * 1024 * 1024
"""Operations of one round, and about how much they may add to the state. A single operation that
adds more runs in a separate round."""

MOST_LOST_TRIES = 200
"""Tries of a round that others won, before its operations fail."""

ROUNDS_BEFORE_BLIND_WRITE = 2
"""Rounds that met no other writer, after which a round writes without reading the head first."""

WRITE_TURN_SECONDS = 0.15
"""Seconds between the turns of two clients, on storage that limits the writes of one object. A
client sees in this time that the one before it has written."""

MOST_LOOKED_AT = 1000
"""Objects that are looked at before a store is made."""

RECENT_WRITES = 100
"""Clients that made one of the last so many writes may have a turn before this one."""


class Operation(Generic[T]):
    """A call that waits for its round. `evaluate` may be called several times. `on_abandoned` is
    given the answer where the caller waits no longer and the operation was done nevertheless.
    `collects`: parts that nothing names are about to be deleted, so the head counts a collection
    first. No client that wrote a part before can name it from then on."""

    def __init__(
        self,
        evaluate: Callable[[Workspace], T],
        *,
        writes: bool,
        collects: bool = False,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> None:
        self.evaluate = evaluate
        self.writes = writes
        self.collects = collects
        self.parts: dict[str, Any] = {}
        """What was loaded for it."""
        self.failing_since: float | None = None
        """When the storage first failed a try of it."""
        self.saw_current = False
        """Whether a state that it was evaluated on was current since the call began."""
        self.missed: tuple[str | None, str] | None = None
        """A part that was not there, and the head that named it."""
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._on_abandoned = on_abandoned

    def answer(self, answer: T | BaseException) -> None:
        if isinstance(answer, BaseException):
            if not self.future.done():
                self.future.set_exception(answer)
        elif not self.future.done():
            self.future.set_result(answer)
        elif self._on_abandoned is not None and (
            self.future.cancelled() or self.future.exception() is not None
        ):
            self._on_abandoned(answer)


Answers = list[tuple[Operation[Any], Any]]


class _Snapshot(NamedTuple):
    """A snapshot that is written, but that no head names yet."""

    parts: tuple[str, ...]
    seq: int
    collections: int


class GroupCommit:
    """One client's state and its rounds. One round is under way at a time."""

    def __init__(
        self,
        bucket: Bucket,
        *,
        rng: random.Random | None = None,
        tail_bytes: int = TAIL_BYTES,
        retry_for: float = RETRY_FOR,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = new_client()
        self._rng = rng or random.Random()
        self.retries = Retries(bucket.clock, self._rng, retry_for)
        self.parts = PartCache(bucket, self.client, self.retries)
        self.history = SegmentReader(self.parts)
        self.clock = StorageClock(bucket)
        self.state = LiveState()
        self.head = Head()
        self._bucket = bucket
        self._monotonic = bucket.clock.monotonic
        self._tail_bytes = tail_bytes
        self._on_change = on_change
        self._etag: str | None = None
        self._queue: list[Operation[Any]] = []
        self._tries: dict[str, Answers] = {}
        """Tries to replace the head of `_etag` whose end is not known, by nonce."""
        self._tried_parts: list[str] = []
        """Parts that were written for those tries."""
        self._snapshot: _Snapshot | None = None
        self._snapshotting: asyncio.Task[None] | None = None
        self._takeover_fullness = SNAPSHOT_TAKEOVER_FACTOR
        self._garbage: list[str] = []
        """Parts that no head will ever name again."""
        self._loading: set[asyncio.Task[None]] = set()
        """For operations that left their round."""
        self._rounds_without_other_writer = 0
        """Rounds that were won in a row without a sign of another writer."""
        self._may_write_from = 0.0
        self._write_seconds = 0.0
        self._refusal = ""
        """Why this client must be opened anew before it can be used again."""
        self._task: asyncio.Task[None] | None = None

    # -- for callers

    def submit(self, operation: Operation[T]) -> asyncio.Future[T]:
        """Queue an operation. Cancelling the future takes it out, unless its round has begun."""
        self._queue.append(operation)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run_rounds())
        return operation.future

    async def drain(self) -> None:
        """Wait until all operations are answered and the head names the snapshot that is being
        written. A client that makes a single write may be the one that has to write the
        snapshot."""
        while tasks := [*self._loading, *filter(None, (self._task, self._snapshotting))]:
            await asyncio.wait(tasks)

    def discard(self, names: Iterable[str]) -> None:
        """Delete parts that no head will ever name again, after the next round."""
        self._garbage.extend(names)

    def named_parts(self) -> set[str]:
        """The parts that the head names, and the snapshot that the next write of this client lets
        it name."""
        prepared = () if self._snapshot is None else self._snapshot.parts
        return self.head.parts().union(prepared)

    async def open(self, *, create: bool) -> None:
        """Read the head, or make it. Raises `StoreMissing`, `StoreTooNew` or `StoreDamaged`."""
        await self.retries.repeat(self.clock.read_if_due)
        if await self.retries.repeat(lambda: self.refresh(may_be_missing=True)):
            return
        if not create:
            raise StoreMissing(f"there is no Mainspring store at {self._bucket.location}")
        await self._refuse_foreign_parts()
        if self._etag is not None:  # another client has made it meanwhile
            return
        new = Head(id=secrets.token_hex(8))

        async def make() -> None:
            problem = StoreUnavailable(f"{self._bucket.location} does not keep what is written")
            try:
                await self._bucket.put(HEAD, encode_head(new), expected_etag=None)
            except StoreUnavailable as error:
                problem = error
            if not await self.refresh(may_be_missing=True):  # made here, or by another client
                raise problem

        await self.retries.repeat(make)

    async def _refuse_foreign_parts(self) -> None:
        """Before a store is made: refuse a place with the parts of another store, which this one
        would take for garbage, and warn of objects of somebody else."""
        listed = await self.retries.repeat(lambda: self._bucket.list_objects("", MOST_LOOKED_AT))
        keys = [item.key for item in listed]
        parts = [key for key in keys if is_part_name(key)]
        if parts and not await self.retries.repeat(lambda: self.refresh(may_be_missing=True)):
            raise StoreDamaged(
                f"{self._bucket.location} has objects of a store ({parts[0]!r} and others), but not"
                f" its {HEAD!r}. Restore that object from a backup. If the store is not needed any"
                " more, delete all of it, or name another prefix in the URL"
            )
        foreign = [key for key in keys if key not in (HEAD, MARKER) and not is_part_name(key)]
        foreign = [key for key in foreign if not key.startswith(f"{FOLDER}/")]
        if foreign:
            log.warning(
                "a store was made at %s, where other objects are (%r and others). The store changes"
                " and deletes none of them. To keep them apart, add a prefix to the URL",
                self._bucket.location,
                foreign[0],
            )

    # -- rounds

    async def _run_rounds(self) -> None:
        try:
            while self._queue:
                await self._round()
                await self._delete_garbage()
        finally:
            self._task = None

    async def _round(self) -> None:
        batch: list[Operation[Any]] = []
        rest = self._may_write_from - self._monotonic()
        reads_only = rest > 0 and not all(operation.writes for operation in self._queue)
        try:
            if self._refusal:
                raise StoreDamaged(self._refusal)
            if rest > 0 and not reads_only:
                await asyncio.sleep(rest)  # so that other writers are not kept out
            await self._run_to_end(batch, reads_only=reads_only)
        except StoreError as error:
            self._fail(batch, error)
        except Exception as error:
            log.exception("the store at %s failed", self._bucket.location)
            self._fail(batch, StoreError(f"the store failed: {error!r}"))
        except BaseException as error:
            self._fail(batch, StoreUnavailable(f"the round ended early: {error!r}"))
            raise
        finally:
            self.state.undo()

    def _fail(self, batch: list[Operation[Any]], error: StoreError) -> None:
        self._rounds_without_other_writer = 0
        self._take_queued(batch)  # they would fail as well, one after the other
        for operation in batch:
            operation.answer(error)

    async def _run_to_end(self, batch: list[Operation[Any]], *, reads_only: bool) -> None:
        """Try until every operation of the batch is answered. What is queued meanwhile joins it. A
        try that the storage fails is repeated for some seconds, for each operation."""
        failures = losses = 0
        while True:
            try:
                if await self._try(batch, reads_only=reads_only):
                    return
                losses += 1
                for operation in batch:
                    operation.failing_since = None  # the storage has answered
            except StoreUnavailable as error:
                failures += 1
                if self._bucket.write_interval:
                    self._may_write_from = self._next_turn()
                for operation in batch:
                    if operation.failing_since is None:
                        operation.failing_since = self.retries.now()
                    if self.retries.has_expired(operation.failing_since):
                        operation.answer(error)
            self._rounds_without_other_writer = 0
            self.state.undo()
            batch[:] = [operation for operation in batch if not operation.future.done()]
            if not batch:
                return
            if losses == MOST_LOST_TRIES:
                raise StoreUnavailable(
                    f"other writers of {self._bucket.location} won {losses} times in a row. One"
                    " prefix serves a few writing processes: use fewer, or several prefixes"
                )
            if self._bucket.write_interval:  # wait for another turn, and let reads pass meanwhile
                self._queue[:0] = batch
                batch.clear()
                return
            # A client that lost several times waits less, so that no client waits very long.
            turns = self.head.active_writers() / (1 + losses // 4)
            longest = (
                max(self._write_seconds, SHORTEST_PAUSE) * max(2.0, turns) * 2 ** min(failures, 10)
            )
            await asyncio.sleep(self._rng.uniform(0, min(longest, LONGEST_PAUSE)))

    async def _try(self, batch: list[Operation[Any]], *, reads_only: bool) -> bool:
        """Answer every operation of the batch, and of the queue; False if another client won."""
        self._take_queued(batch, reads_only=reads_only)
        if self._needs_refresh(batch):
            await self._refresh_for(batch)
            if not self._may_write_now(batch):
                return False
        while True:
            await self.clock.read_if_due(self.head.time)
            batch[:] = [operation for operation in batch if not operation.future.done()]
            bounds, answers = self._evaluate(batch)
            if not batch:
                return True
            writes = any(operation.writes for operation in batch)
            delta = self.state.delta() if writes else {}
            if delta or (writes and self._snapshot is not None):
                if not await self._write(delta, bounds, batch, answers):
                    return False
                break
            self.state.undo()
            is_current = all(operation.saw_current for operation in batch)
            if is_current or not await self._refresh_for(batch):
                break
        for operation, answer in zip(batch, answers, strict=True):
            operation.answer(answer)
        return True

    async def _refresh_for(self, batch: list[Operation[Any]]) -> bool:
        changed = await self.refresh()
        for operation in batch:
            operation.saw_current = True
        return changed

    def _take_queued(self, batch: list[Operation[Any]], *, reads_only: bool = False) -> None:
        """Move queued operations into the batch, and leave out those whose callers are gone."""
        left: list[Operation[Any]] = []
        for operation in self._queue:
            if operation.future.done():
                continue
            if len(batch) < MOST_OPERATIONS and not (reads_only and operation.writes):
                batch.append(operation)
            else:
                left.append(operation)
        self._queue = left

    def _needs_refresh(self, batch: list[Operation[Any]]) -> bool:
        """Whether to read the head before the batch is evaluated. A write that succeeds proves that
        the state was current, so it needs none if no other client writes."""
        if any(not operation.writes and not operation.saw_current for operation in batch):
            return True
        return self._rounds_without_other_writer < ROUNDS_BEFORE_BLIND_WRITE and any(
            operation.writes for operation in batch
        )

    def _evaluate(self, batch: list[Operation[Any]]) -> tuple[Bounds, list[Any]]:
        """The answer of each operation, or its error. What they change is in the state. Operations
        that need more parts leave the batch, and those that are too many go back to the queue."""
        bounds = self.clock.bounds(self.head.time)
        self.clock.follow_step(self.state)
        work = Workspace(self.state, self.history, bounds)
        answers: list[Any] = []
        evaluated: list[Operation[Any]] = []
        before = self.state.size
        for at, operation in enumerate(batch):
            if self.state.size - before > MOST_BYTES:
                self._queue[:0] = batch[at:]
                break
            mark = self.state.mark()
            self.parts.pinned = operation.parts
            try:
                answer = operation.evaluate(work)
            except PartsNotLoaded as needed:
                self.state.undo(mark)
                self._load_parts_and_requeue(operation, needed.names)
                continue
            except Exception as error:  # it is of this operation alone
                self.state.undo(mark)
                answer = error
            evaluated.append(operation)
            answers.append(answer)
        self.parts.pinned = {}
        batch[:] = evaluated
        return bounds, answers

    def _load_parts_and_requeue(self, operation: Operation[Any], names: list[str]) -> None:
        """Load parts beside the rounds, and queue the operation again. If that fails, it is the
        answer of this operation alone."""

        async def load(etag: str | None) -> None:
            try:
                operation.parts |= await self.parts.load(names)
            except PartMissing as error:
                missed = etag, str(error)
                if operation.missed == missed:  # the head was read since, and names it still
                    operation.answer(missing_part(error))
                    return
                operation.missed = missed
                operation.saw_current = False
                self._rounds_without_other_writer = 0
            except StoreError as error:
                operation.answer(error)
                return
            except Exception as error:
                log.exception("the store at %s failed", self._bucket.location)
                operation.answer(StoreError(f"the store failed: {error!r}"))
                return
            self.submit(operation)

        task = asyncio.get_running_loop().create_task(load(self._etag))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)

    # -- the head

    async def refresh(self, *, may_be_missing: bool = False) -> bool:
        """Bring the state up to the head; True if it had changed. Answers the operations of a try
        that turns out to have been done. The state must have no changes of its own."""
        last: str | None = None
        while True:
            blob = await self._bucket.get(HEAD, self._etag)
            if blob is None:
                if may_be_missing and self._etag is None:
                    return False
                raise StoreMissing(f"the head of the store at {self._bucket.location} was deleted")
            if not isinstance(blob, Blob):
                return False
            head = decode_head(blob.data)
            try:
                await self._advance(head)
            except PartMissing as error:
                if last == blob.etag:  # the head names it still
                    raise missing_part(error) from error
                last = blob.etag
                continue
            self._resolve_unanswered_tries(head)
            self.head, self._etag, self._rounds_without_other_writer = head, blob.etag, 0
            if self._bucket.write_interval:
                self._may_write_from = self._next_turn(self.clock.seconds_since(head.time))
            return True

    async def _advance(self, head: Head) -> None:
        """Bring the state to that of the head. It is changed only when all is loaded."""
        if self._etag is not None and not head.descends_from(self.head):
            self._refusal = (
                f"the store at {self._bucket.location} was restored from a backup, or made anew,"
                " while this program used it. What this program knows is of the old store: restart"
                " it, and every other program that was running then"
            )
            self._garbage.clear()  # the store that is there now may need it
            raise StoreDamaged(self._refusal)
        loads = self._etag is None or not head.reaches(self.head.seq)
        since = head.snapshot_seq if loads else self.head.seq
        missing = [entry for entry in head.entries if entry.seq > since]
        needed = [name for entry in missing for name in entry.parts]
        loaded = await self.parts.read([*needed, *(head.snapshot if loads else ())])
        deltas = [_delta_of(entry, loaded) for entry in missing]
        if loads:
            self.state = LiveState(_join_tables(loaded, head.snapshot))
        for delta in deltas:
            self.state.apply(delta)
        if self._etag is not None and (loads or any(map(_concerns_waiters, deltas))):
            self._on_change()

    def _resolve_unanswered_tries(self, head: Head) -> None:
        """The head has changed: a try on the one before was done, or all of them are void."""
        tries, self._tries = self._tries, {}
        parts, self._tried_parts = self._tried_parts, []
        self._garbage += [name for name in parts if name not in head.parts()]
        if self._snapshot is not None and self._snapshot.seq <= head.snapshot_seq:
            if self._snapshot.parts != head.snapshot:
                self._garbage += self._snapshot.parts
            self._snapshot = None
        if head.snapshot_seq > self.head.snapshot_seq:
            self._takeover_fullness = SNAPSHOT_TAKEOVER_FACTOR
        last = head.commits.get(self.client)
        if last is not None and last.nonce in tries:
            for operation, answer in tries[last.nonce]:
                operation.answer(answer)
        elif self.head.seq < head.commits_since:
            unknown = StoreUnavailable(
                "the storage did not answer a write, so it may or may not have been done: read the"
                " current state, or repeat the call"
            )
            for answers in tries.values():
                for operation, _ in answers:
                    operation.answer(unknown)

    async def _write(
        self, delta: Delta, bounds: Bounds, batch: list[Operation[Any]], answers: list[Any]
    ) -> bool:
        """Replace the head by one with this delta; True if that was done. False, or
        `StoreUnavailable`: the head tells what became of it."""
        before, nonce = self.head, secrets.token_hex(8)
        entry = await self._make_entry(delta)
        stamp, at = self.clock.stamp(bounds), to_us(bounds.earliest)
        head = before.with_write(entry, self.client, nonce, stamp, at)
        snapshot = self._snapshot
        if any(operation.collects for operation in batch):
            head = replace(head, collections=head.collections + 1)
            snapshot = None  # it may have become garbage meanwhile
        elif snapshot is not None and snapshot.collections == before.collections:
            head = head.with_snapshot(snapshot.parts, snapshot.seq)
        self._tries[nonce] = list(zip(batch, answers, strict=True))
        began = self._monotonic()
        etag = await self._bucket.put(HEAD, encode_head(head), expected_etag=self._etag)
        if etag is None:
            return False
        self._write_seconds = self._monotonic() - began
        others = max(1, self.head.active_writers() - 1)
        self._may_write_from = (
            began + self._write_seconds + min(self._write_seconds * others, LONGEST_PAUSE)
        )
        self.state.clear_undo_log()
        self._tries.clear()
        if self._snapshot is not None and snapshot is self._snapshot:
            if head.snapshot != snapshot.parts:  # it may have been collected
                self._garbage += snapshot.parts
            self._snapshot, self._takeover_fullness = None, SNAPSHOT_TAKEOVER_FACTOR
        self._tried_parts, tried = [], self._tried_parts
        self._garbage += [name for name in tried if name not in head.parts()]
        self._garbage += sorted(before.parts() - head.parts())
        self.head, self._etag = head, etag
        if self._bucket.write_interval:
            self._may_write_from = self._next_turn()
        self._rounds_without_other_writer += 1
        if _concerns_waiters(delta):
            self._on_change()
        self._snapshot_if_due(before)
        return True

    def _next_turn(self, since: float = 0.0) -> float:
        """When this client may write, on storage that wants a while between two writes of the head,
        of which the last one is `since` seconds ago. The client whose last write is the oldest has
        the first turn; if it writes nothing, the next one follows a little later."""
        interval, recent = self._bucket.write_interval, self.head.seq - RECENT_WRITES
        own = self.head.commits.get(self.client)
        mine = own.seq if own is not None else recent
        before = sum(recent < write.seq < mine for write in self.head.commits.values())
        before += mine == self.head.seq  # one that has not written yet
        jitter = self._rng.uniform(0, WRITE_TURN_SECONDS / 2)
        return (
            self._monotonic()
            + max(0.0, interval + WRITE_TURN_SECONDS - since)
            + before * WRITE_TURN_SECONDS
            + jitter
        )

    def _may_write_now(self, batch: list[Operation[Any]]) -> bool:
        """Whether it is this client's turn, where clients take turns: the head that was read just
        now may say that another one has written meanwhile."""
        if not self._bucket.write_interval or not any(op.writes for op in batch):
            return True
        return self._monotonic() >= self._may_write_from

    async def _make_entry(self, delta: Delta) -> Entry:
        text = json_text(delta).encode()
        seq = self.head.seq + 1
        if len(text) < LARGE_DELTA:
            return Entry(seq, msgspec.Raw(text))
        parts = await self.parts.write_tables("delta", seq, delta, len(text))
        self._tried_parts += parts
        return Entry(seq, msgspec.Raw(b"null"), parts)

    def _snapshot_if_due(self, before: Head) -> None:
        """Begin to write a snapshot, beside the rounds, if a write of this client has filled the
        head. Reads never do so, and no call waits for it."""
        if self._snapshotting is not None or self._snapshot is not None:
            return
        full = self._fullness(self.head)
        if full >= 1 and (self._fullness(before) < 1 or full >= self._takeover_fullness):
            tables = {name: dict(records) for name, records in self.state.tables().items()}
            writing = self._write_snapshot(tables, self.state.size, self.head)
            self._snapshotting = asyncio.get_running_loop().create_task(writing)

    def _fullness(self, head: Head) -> float:
        return max(head.tail_size / self._tail_bytes, len(head.tail) / TAIL_ENTRIES)

    async def _write_snapshot(self, tables: Tables, size: int, head: Head) -> None:
        """Write a snapshot of the state after that head, and let the next head name it. Without it
        the store goes on with deltas. So a failure only means that it is tried again later."""
        try:
            parts = await self.parts.write_tables("snapshot", head.seq, tables, size)
            if head.seq <= self.head.snapshot_seq:  # another client was faster
                self._garbage += parts
                return
            self._snapshot = _Snapshot(parts, head.seq, head.collections)
            await self.submit(Operation(lambda work: None, writes=True))
        except StoreError as error:
            self._takeover_fullness = 2 * max(self._takeover_fullness, self._fullness(self.head))
            log.warning("a snapshot of %s was not written: %s", self._bucket.location, error)
        finally:
            self._snapshotting = None

    async def _delete_garbage(self) -> None:
        """Delete parts that no head will ever name again. What this leaves, `maintain` finds."""
        garbage, self._garbage = self._garbage, []
        if garbage:
            with suppress(StoreError):
                await self._bucket.delete(garbage)


def missing_part(error: PartMissing) -> StoreDamaged:
    return StoreDamaged(
        f"the object {str(error)!r} is missing, though the store needs it. Restore it from a"
        " backup, and let nothing else delete objects below the store's prefix"
    )


def _delta_of(entry: Entry, loaded: dict[str, Any]) -> Delta:
    delta: Delta = (
        _join_tables(loaded, entry.parts) if entry.parts else msgspec.json.decode(entry.delta)
    )
    return delta


def _join_tables(loaded: dict[str, Any], parts: Iterable[str]) -> Any:
    """The tables that these parts hold together."""
    tables: dict[str, Any] = {}
    for name in parts:
        for table, records in loaded[name]["tables"].items():
            tables.setdefault(table, {}).update(records)
    return tables


def _concerns_waiters(delta: Delta) -> bool:
    """Whether a delta may concern a waiting client: a run is due or has ended, or a job changed."""
    if "jobs" in delta:
        return True
    return any(
        patch is not None
        and (patch.get("state", "running") != "running" or "cancel_requested" in patch)
        for patch in delta.get("runs", {}).values()
    )
