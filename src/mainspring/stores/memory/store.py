"""`memory://`: a dict. For tests and simulation, and the model that other stores are held to.

Every method does its work without an `await` in the middle, so each is atomic on its loop.
It is the plainest correct reading of the protocol; nothing in it is fast on purpose.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from functools import wraps
from itertools import count
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from mainspring.core.clock import Clock, SteadyClock, SystemClock
from mainspring.core.model import (
    FINISHED,
    LIVE,
    Job,
    Note,
    Page,
    Run,
    Source,
    State,
    replace,
)
from mainspring.core.transitions import Change
from mainspring.errors import TransactionAborted
from mainspring.stores.cursors import note_cursor, read_note_cursor
from mainspring.stores.memory import records
from mainspring.stores.notifier import Waiters
from mainspring.stores.protocol import (
    TTL_NOTE_KEPT,
    Added,
    Claim,
    Claimed,
    Counts,
    Due,
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
    ended,
    overlapped,
)

__all__ = ["MemoryStore"]


_LimitKey = tuple[str, str]
P = ParamSpec("P")
T = TypeVar("T")
_Doing = Coroutine[Any, Any, T]


def _whole(method: Callable[P, _Doing[T]]) -> Callable[P, _Doing[T]]:
    """Nothing of another thread comes between, either: handlers commit in theirs."""

    @wraps(method)
    async def locked(*given: P.args, **more: P.kwargs) -> T:
        with given[0]._guard:  # type: ignore[attr-defined]
            return await method(*given, **more)

    return locked


class MemoryStore:
    """`data` is what handlers keep by their transactions: a dict, for tests and simulation."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._steady = SteadyClock(self._clock)
        self._wall_offset: int | None = None
        self._runs: dict[str, Run] = {}
        self._number: dict[str, int] = {}  # in which order they came, for cursors
        self._numbers = count(1)
        self._last_change: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}
        self._notes: dict[tuple[str, str], Note] = {}
        self._with_ttl: set[tuple[str, str]] = set()
        # A dict keeps its order, which a set of futures does not: a seed must replay exactly.
        self._waiters = Waiters()
        self.data: dict[Any, Any] = {}
        self._guard = Lock()

    async def open(self, *, create: bool = True) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """What was kept stays, so that a restart can be simulated."""

    def info(self) -> StoreInfo:
        return StoreInfo(kind="memory", location="memory://", shared=False)

    async def now(self) -> datetime:
        return self._now()

    def _now(self) -> datetime:
        """The wall clock's time. When somebody has set it, leases, notes with a ttl and retries are
        moved along: they last as long as they were meant to."""
        if self._wall_offset is None:
            self._wall_offset = self._steady.wall_offset_us()
        elif step := self._steady.step_from(self._wall_offset):
            self._wall_offset += step
            self._move(timedelta(microseconds=step))
        return self._clock.now()

    def _move(self, step: timedelta) -> None:
        now = self._clock.now()
        before = now - step
        for run in list(self._runs.values()):
            retries = run.state is State.PENDING and run.attempt > 0 and run.run_at > before
            stays_due = run.state in LIVE and now < run.run_at <= before
            if retries or stays_due:
                run = replace(run, run_at=run.run_at + step)
            if run.state is State.RUNNING and run.lease_until is not None:
                run = replace(run, lease_until=run.lease_until + step)
            self._runs[run.id] = run
        for key in self._with_ttl:
            note = self._notes[key]
            assert note.expires_at is not None
            self._notes[key] = replace(note, expires_at=note.expires_at + step)

    @_whole
    async def add(self, runs: Sequence[Run]) -> list[Added]:
        now = self._now()
        runs = [
            records.storable(run) for run in runs
        ]  # refused before the first is there, or not at all
        refused: set[str] = set()
        added = []
        for run in runs:
            follows = run.id not in self._runs and not refused.isdisjoint(run.after)
            one = Added(replace(run, duplicate=True), True) if follows else self._add(run, now)
            added.append(one)
            if one.duplicate:
                refused.add(run.id)
        self._waiters.wake()
        return [replace(item, run=records.handed_out(item.run)) for item in added]

    @_whole
    async def claim(self, claim: Claim) -> Claimed:
        now = self._now()
        due = sorted(
            (r for r in self._runs.values() if r.run_at <= now and records.takes(claim, r)),
            key=lambda r: (-r.priority, r.run_at),
        )
        room = self._room(now)
        taken: list[Run] = []
        for run in due:
            if len(taken) == claim.limit:
                break
            key = self._limit_key(run.job_id)
            if key is not None:
                if room[run.job_id, key] <= 0:
                    continue
                for other in room:
                    room[other] -= other[1] == key
            run = replace(
                run,
                state=State.RUNNING,
                token=run.token + 1,
                attempt=run.attempt + 1,
                worker=claim.worker,
                started_at=now,
                began=False,
                lease_until=now + claim.lease,
                progress=None,
            )
            self._runs[run.id] = run
            taken.append(records.handed_out(run))
        return Claimed(taken, None if taken else self._next_due(claim, now))

    def _next_due(self, claim: Claim, now: datetime) -> datetime | None:
        return min(
            (r.run_at for r in self._runs.values() if r.run_at > now and records.takes(claim, r)),
            default=None,
        )

    @_whole
    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        now = self._now()
        mine = []
        for item in held:
            run = self._runs.get(item.id)
            if run and run.state is State.RUNNING and run.token == item.token:
                if records.lapsed(run, now) and not self._has_room(run, now):
                    continue
                run = replace(run, lease_until=now + lease, progress=item.progress)
                self._runs[run.id] = run
                mine.append(Renewed(run.id, run.cancel_requested, run.reason))
        return mine

    @_whole
    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        now = self._now()
        changes = [records.storable_change(change) for change in changes]
        done = [self._commit(change, now) for change in changes]
        self._waiters.wake()
        return done

    @_whole
    async def find(self, query: RunQuery) -> Page[Run]:
        hand_out = records.brief if query.brief else records.handed_out
        if query.ids is not None:
            return Page([hand_out(run) for run in self._look_up(query.ids)])
        now = self._now()
        before = records.cursor(query.cursor)
        found = [
            run
            for run in reversed(self._runs.values())
            if (query.job is None or run.job_id == query.job)
            and (query.states is None or run.state in query.states)
            and (not query.lapsed or records.lapsed(run, now))
            and (not query.failing or run.failures)
            and (not query.tried or run.attempt)
            and (not query.set_aside or records.set_aside(run))
            and (query.upstream is None or records.waits_for(run, query.upstream))
            and (query.since is None or run.created_at >= query.since)
            and (query.until is None or run.created_at < query.until)
            and (before is None or self._number[run.id] < before)
        ][: query.limit]
        full = found and len(found) == query.limit
        cursor = str(self._number[found[-1].id]) if full else None
        return Page([hand_out(run) for run in found], cursor)

    def _look_up(self, ids: Iterable[str]) -> list[Run]:
        # In the order of the ids: that of a set differs between processes, and a seed must replay.
        return [self._runs[run_id] for run_id in sorted(ids) if run_id in self._runs]

    async def counts(self, since: datetime | None = None) -> Counts:
        now = self._now()
        runs: dict[str, Counter[State]] = defaultdict(Counter)
        due: dict[str, Due] = {}
        ended: Counter[State] = Counter()
        for run in self._runs.values():
            runs[run.job_id][run.state] += 1
            if run.state is State.PENDING and run.run_at <= now and run.unreadable is None:
                seen = due.get(run.handler, Due(0, run.run_at))
                due[run.handler] = Due(seen.count + 1, min(seen.oldest, run.run_at))
            if since is not None and run.finished_at is not None and run.finished_at >= since:
                ended[run.state] += 1
        return Counts(runs, due, ended)

    @_whole
    async def maintain(self, before: datetime | None, limit: int) -> int:
        if before is None:
            return 0
        now = self._now()
        for key in [key for key, note in self._notes.items() if records.over(note, now)]:
            if key not in self._with_ttl or records.over(self._notes[key], now - TTL_NOTE_KEPT):
                self._drop_note(key)
        old = [r.id for r in self._runs.values() if r.finished_at and r.finished_at < before]
        gone = [run_id for run_id in old if self._droppable(run_id, now)][:limit]
        for run_id in gone:
            self._delete(run_id)
        return len(gone)

    def _droppable(self, run_id: str, now: datetime) -> bool:
        run = self._runs.get(run_id)
        if run is None or not run.finished:
            return False
        return run.dedupe_until is None or run.dedupe_until <= now

    def _delete(self, run_id: str) -> None:
        del self._runs[run_id], self._number[run_id]
        self._last_change.pop(run_id, None)

    async def jobs(self, query: JobQuery) -> Page[Job]:
        found = [
            job
            for job in self._jobs.values()
            if (query.ids is None or job.id in query.ids)
            and (query.tag is None or query.tag in job.tags)
            and (not query.follows or job.policy.after)
            and (query.enabled is None or job.enabled is query.enabled)
            and (query.text is None or records.mentions(job, query.text))
        ]
        total = len(found) if query.with_total else None
        if query.due is not None:
            due = [j for j in found if j.enabled and j.next_run_at and j.next_run_at <= query.due]
            return Page(sorted(due, key=lambda j: (j.next_run_at, j.id))[: query.limit])
        found = sorted(
            (j for j in found if query.cursor is None or j.id > query.cursor), key=lambda j: j.id
        )[query.offset : query.offset + query.limit]
        full = found and len(found) == query.limit
        return Page(found, found[-1].id if full else None, total)

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        kept = [w.job if w.job is None else records.storable_job(w.job) for w in writes]
        done = [self._put_job(w, job) for w, job in zip(writes, kept, strict=True)]
        self._waiters.wake()
        return done

    def _put_job(self, write: JobWrite, job: Job | None) -> bool:
        stored = self._jobs.get(write.id)
        version = 0 if stored is None else stored.version
        if write.expected_version not in (None, version):
            return False
        if job is not None:
            self._jobs[write.id] = job
            return True
        return self._jobs.pop(write.id, None) is not None

    async def notes(self, query: NoteQuery) -> Page[Note]:
        now = self._now()
        behind = query.cursor and tuple(read_note_cursor(query.cursor))
        found = sorted(
            (kind, name)
            for (kind, name), note in self._notes.items()
            if (query.kind is None or kind == query.kind)
            and not records.over(note, now)
            and (query.names is None or name in query.names)
            and (not behind or (kind, name) > behind)
        )[: query.limit]
        page = [self._notes[key] for key in found]
        return Page(page, note_cursor(page[-1]) if page and len(page) == query.limit else None)

    @_whole
    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        now = self._now()
        writes = [records.storable_note(write) for write in writes]
        return [self._put_note(write, now) for write in writes]

    def _put_note(self, write: NoteWrite, now: datetime) -> int | None:
        key = (write.kind, write.name)
        stored = self._notes.get(key)
        version = 0 if stored is None or records.over(stored, now) else stored.version
        if write.expected_version not in (None, version):
            return None
        if write.note is None:
            return 0 if self._drop_note(key) else None
        # The number of a note that has expired grows on: no writer meets the same version twice.
        version = (stored.version if stored else 0) + 1
        note = replace(write.note, version=version)
        self._with_ttl.discard(key)
        if write.ttl is not None:
            note = replace(note, expires_at=now + write.ttl)
            self._with_ttl.add(key)
        self._notes[key] = note
        return version

    def _drop_note(self, key: tuple[str, str]) -> bool:
        self._with_ttl.discard(key)
        return self._notes.pop(key, None) is not None

    @_whole
    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        now = self._now()
        fired: list[Fired] = []
        broken: set[str] = set()  # the jobs whose chain of firings did not hold
        for firing in firings:
            one = Fired(False) if firing.job_id in broken else self._fire(firing, now)
            if not one.done:
                broken.add(firing.job_id)
            fired.append(one)
        self._waiters.wake()
        return fired

    async def wait(self, timeout: float) -> bool:
        return await self._waiters.wait(timeout)

    def transaction(
        self, held: Held, limit: timedelta, *, blocking: bool = False
    ) -> MemoryTransaction:
        return MemoryTransaction(self, held)

    def _add(self, run: Run, now: datetime) -> Added:
        if run.id in self._runs:
            return Added(self._runs[run.id])
        holder = self._holder(run.dedupe_key, now)
        if holder is not None:
            return Added(replace(holder, duplicate=True), duplicate=True)
        self._runs[run.id] = run
        self._number[run.id] = next(self._numbers)
        return Added(run)

    def _holder(self, key: str | None, now: datetime) -> Run | None:
        if key is None:
            return None
        for run in self._runs.values():
            held = run.state in LIVE or (run.dedupe_until is not None and run.dedupe_until > now)
            if run.dedupe_key == key and held:
                return run
        return None

    def _limit_key(self, job_id: str) -> _LimitKey | None:
        job = self._jobs.get(job_id)
        if job is None or job.policy.concurrency is None:
            return None
        key = job.policy.concurrency_key
        return ("job", job_id) if key is None else ("key", key)

    def _has_room(self, run: Run, now: datetime) -> bool:
        key = self._limit_key(run.job_id)
        return key is None or self._room(now)[run.job_id, key] > 0

    def _room(self, now: datetime) -> dict[tuple[str, _LimitKey], int]:
        """How many more runs each limited job may have, by (job, what its limit counts over)."""
        used = Counter(
            self._limit_key(run.job_id)
            for run in self._runs.values()
            if run.state is State.RUNNING and run.lease_until and run.lease_until > now
        )
        return {
            (job.id, key): (job.policy.concurrency or 0) - used[key]
            for job in self._jobs.values()
            if (key := self._limit_key(job.id)) is not None
        }

    def _commit(self, change: Change, now: datetime) -> bool:
        run = self._runs.get(change.id)
        if run is None:
            return change.deletes
        if self._last_change.get(run.id) == change.change_id:
            return True
        if not all(getattr(run, name) == value for name, value in change.expect.items()):
            return False
        if change.deletes:
            return self._commit_deletion(run.id, now)
        after = change.after(run)
        if run.state in FINISHED and after.state in LIVE:
            holder = self._holder(run.dedupe_key, now)
            if holder is not None and holder.id != run.id:
                return False
        self._runs[run.id] = after
        self._last_change[run.id] = change.change_id
        return True

    def _commit_deletion(self, run_id: str, now: datetime) -> bool:
        if not self._droppable(run_id, now):
            return False
        self._delete(run_id)
        return True

    def _fire(self, firing: Firing, now: datetime) -> Fired:
        job = self._jobs.get(firing.job_id)
        if job is None or job.version != firing.version:
            return Fired(False)
        if firing.valid_until is not None and now > firing.valid_until:
            return Fired(False)
        unfinished = [
            run
            for run in self._runs.values()
            if run.job_id == job.id and run.source is Source.SCHEDULE and run.state in LIVE
        ]
        runs, changes = overlapped(firing, unfinished, now)
        replaced = ended(unfinished, changes, [self._commit(c, now) for c in changes])
        stored = tuple(
            records.handed_out(self._add(records.storable(run), now).run) for run in runs
        )
        self._jobs[job.id] = replace(
            job,
            next_run_at=firing.next_run_at,
            last_run_at=firing.last_run_at,
            version=job.version + 1,
        )
        return Fired(True, stored, replaced)


class MemoryTransaction:
    """A handler's writes, committed together with its run's completion.

    The handler writes to a copy of the store's data. The first of two overlapping transactions to
    commit wins; the other is aborted, as in a database."""

    def __init__(self, store: MemoryStore, held: Held) -> None:
        self._store = store
        self._held = held
        self._before: dict[Any, Any] = {}
        self._session: dict[Any, Any] = {}

    async def begin(self) -> dict[Any, Any]:
        run = self._store._runs.get(self._held.id)
        mine = run and run.state is State.RUNNING and run.token == self._held.token
        if run is None or not mine or run.cancel_requested:
            raise TransactionAborted("the run is no longer this worker's, or is to be cancelled")
        self._before = self._store.data
        self._session = deepcopy(self._before)
        return self._session

    async def commit(self, change: Change) -> bool:
        store, change = self._store, records.storable_change(change)
        with store._guard:
            if store.data is not self._before:
                raise TransactionAborted("another transaction committed first")
            done = store._commit(change, store._now())
            if done:
                store.data = deepcopy(self._session)
        return done

    async def rollback(self) -> None:
        """The copy is dropped."""

    def transient(self, error: BaseException) -> bool:
        return False
