"""`memory://`: keeps everything in dicts, for tests and simulation.

Tests compare other stores with it, so it is the simplest correct implementation of the protocol. It
has one index, the unfinished runs, so that long simulations stay fast. No method awaits in the
middle of its work, so each is atomic on its event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from functools import wraps
from itertools import count
from threading import Lock
from typing import Any, ParamSpec, TypeVar

from mainspring.core import codec
from mainspring.core.clock import Clock, SteadyClock, SystemClock
from mainspring.core.model import FINISHED, LIVE, Job, Note, Page, Run, State, replace
from mainspring.core.overlap import resolve_overlap, runs_ended_by
from mainspring.core.statistics import ending_of
from mainspring.core.transitions import Change
from mainspring.errors import TransactionAborted
from mainspring.stores import evaluation
from mainspring.stores.codec import RUN
from mainspring.stores.counters import Counters
from mainspring.stores.limits import RateAllowance
from mainspring.stores.notifier import Waiters
from mainspring.stores.protocol import (
    TTL_NOTE_KEPT,
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

P = ParamSpec("P")
T = TypeVar("T")
_Result = Coroutine[Any, Any, T]


def _atomic(method: Callable[P, _Result[T]]) -> Callable[P, _Result[T]]:
    """Make a method atomic between threads, too: handlers commit in their own threads."""

    @wraps(method)
    async def locked(*arguments: P.args, **options: P.kwargs) -> T:
        with arguments[0]._guard:  # type: ignore[attr-defined]
            return await method(*arguments, **options)

    return locked


class _Runs(dict[str, Run]):
    """Runs by id, and beside them those that have not ended: a claim looks at no others. Those that
    a query by `upstream` may give are beside them as well."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[str, Run] = {}
        self.followers: dict[str, Run] = {}

    def __setitem__(self, run_id: str, run: Run) -> None:
        super().__setitem__(run_id, run)
        if run.state in LIVE:
            self.live[run_id] = run
        else:
            self.live.pop(run_id, None)
        if evaluation.is_follower(run):
            self.followers[run_id] = run
        else:
            self.followers.pop(run_id, None)

    def __delitem__(self, run_id: str) -> None:
        super().__delitem__(run_id)
        self.live.pop(run_id, None)
        self.followers.pop(run_id, None)


class MemoryStore:
    """`data` holds what handlers write in their transactions."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._steady = SteadyClock(self._clock)
        self._wall_offset: int | None = None
        self._runs = _Runs()
        self._number: dict[str, int] = {}  # the order in which runs were added, for cursors
        self._numbers = count(1)
        self._last_change: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}
        self._notes: dict[tuple[str, str], Note] = {}
        self._with_ttl: set[tuple[str, str]] = set()
        self._counters = Counters()
        self._waiters = Waiters()
        self.data: dict[Any, Any] = {}
        self._guard = Lock()

    async def open(self, *, create: bool = True) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """The data stays, so that a test can simulate a restart."""

    def info(self) -> StoreInfo:
        return StoreInfo(kind="memory", location="memory://", shared=False)

    async def now(self) -> datetime:
        return self._now()

    def _now(self) -> datetime:
        """The wall clock's time. When somebody has set that clock, leases, notes with a ttl and
        retries move with it, so that they keep their length."""
        if self._wall_offset is None:
            self._wall_offset = self._steady.wall_offset_us()
        elif step := self._steady.step_from(self._wall_offset):
            self._wall_offset += step
            self._follow_clock_step(timedelta(microseconds=step))
        return self._clock.now()

    def _follow_clock_step(self, step: timedelta) -> None:
        now = self._clock.now()
        for run in self._runs.values():
            moved = evaluation.fields_of_clock_step(run, step, now)
            self._runs[run.id] = replace(run, **moved)
        for key in self._with_ttl:
            note = self._notes[key]
            assert note.expires_at is not None
            self._notes[key] = replace(note, expires_at=note.expires_at + step)

    @_atomic
    async def add(self, runs: Sequence[Run], within: Any = None) -> list[Added]:
        now = self._now()
        runs = [_storable_run(run) for run in runs]  # a bad payload refuses all runs
        refused: set[str] = set()
        added = []
        for run in runs:
            follows = run.id not in self._runs and not refused.isdisjoint(run.after)
            result = Added(replace(run, duplicate=True), True) if follows else self._add(run, now)
            added.append(result)
            if result.duplicate:
                refused.add(run.id)
        self._waiters.wake()
        return [replace(item, run=copy_for_caller(item.run)) for item in added]

    @_atomic
    async def claim(self, claim: Claim) -> Claimed:
        now = self._now()
        runs = self._runs.live.values()
        used, rates = self._used_capacity(now), self._rate_allowance(now)
        chosen = evaluation.choose_claimed(runs, self._jobs, claim, now, used, rates)
        for write in rates.writes():
            self._put_note(write, now)
        for run in chosen:
            self._runs[run.id] = replace(run, **evaluation.fields_of_claim(run, claim, now))
        taken = [copy_for_caller(self._runs[run.id]) for run in chosen]
        return Claimed(taken, None if taken else evaluation.next_due(runs, claim, now, rates))

    @_atomic
    async def renew(self, held: Sequence[Held], lease: timedelta) -> list[Renewed]:
        now = self._now()
        mine = []
        for item in held:
            run = self._runs.get(item.id)
            if run and run.state is State.RUNNING and run.token == item.token:
                if evaluation.has_lapsed(run, now) and not self._has_capacity(run, now):
                    continue
                run = replace(run, lease_until=now + lease, progress=item.progress)
                self._runs[run.id] = run
                mine.append(Renewed(run.id, run.cancel_requested, run.reason))
        return mine

    @_atomic
    async def commit(self, changes: Sequence[Change]) -> list[bool]:
        now = self._now()
        changes = [_storable_change(change) for change in changes]
        done = [self._commit(change, now) for change in changes]
        self._waiters.wake()
        return done

    @_atomic
    async def find(self, query: RunQuery) -> Page[Run]:
        hand_out = RUN.brief_copy if query.brief else copy_for_caller
        if query.ids is not None:
            return Page([hand_out(run) for run in self._look_up(query.ids)])
        now = self._now()  # first: it moves leases if the wall clock was set
        newest_first: Iterable[Run] = reversed(self._runs.values())
        if query.lapsed or query.upstream is not None or (query.states or FINISHED) <= LIVE:
            number = self._number
            few = self._runs.live if query.upstream is None else self._runs.followers
            newest_first = sorted(few.values(), key=lambda run: number[run.id], reverse=True)
        page = evaluation.page_of_runs(newest_first, query, now, self._number)
        return replace(page, items=[hand_out(run) for run in page.items])

    def _look_up(self, ids: Iterable[str]) -> list[Run]:
        # Sorted, because the order of a set differs between processes, and a seed must replay.
        return [self._runs[run_id] for run_id in sorted(ids) if run_id in self._runs]

    async def counts(
        self, since: datetime | None = None, jobs: frozenset[str] | None = None
    ) -> Counts:
        return self._counters.counts(self._runs.live.values(), self._now(), since, jobs)

    @_atomic
    async def maintain(self, before: datetime | None, limit: int) -> int:
        if before is None:
            return 0
        now = self._now()
        for key in [key for key, note in self._notes.items() if evaluation.has_expired(note, now)]:
            if key not in self._with_ttl or evaluation.has_expired(
                self._notes[key], now - TTL_NOTE_KEPT
            ):
                self._drop_note(key)
        self._counters.prune(self._jobs, now)
        old = [r for r in self._runs.values() if r.finished_at and r.finished_at < before]
        awaited = evaluation.awaited_runs(self._runs.live.values())
        gone = [run for run in old if evaluation.may_be_deleted(run, now, awaited)][:limit]
        for run in gone:
            self._delete(run.id)
        return len(gone)

    def _delete(self, run_id: str) -> None:
        del self._runs[run_id], self._number[run_id]
        self._last_change.pop(run_id, None)

    async def jobs(self, query: JobQuery) -> Page[Job]:
        return evaluation.page_of_jobs(self._jobs.values(), query)

    async def put_jobs(self, writes: Sequence[JobWrite]) -> list[bool]:
        kept = [w.job if w.job is None else _storable_job(w.job) for w in writes]
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
        if stored is None:
            return False
        del self._jobs[write.id]
        self._counters.remove_job(write.id)
        return True

    async def notes(self, query: NoteQuery) -> Page[Note]:
        return evaluation.page_of_notes(self._notes.values(), query, self._now())

    @_atomic
    async def put_notes(self, writes: Sequence[NoteWrite]) -> list[int | None]:
        now = self._now()
        writes = [_storable_note(write) for write in writes]
        return [self._put_note(write, now) for write in writes]

    def _put_note(self, write: NoteWrite, now: datetime) -> int | None:
        key = (write.kind, write.name)
        stored = self._notes.get(key)
        version = 0 if stored is None or evaluation.has_expired(stored, now) else stored.version
        if write.expected_version not in (None, version):
            return None
        if write.note is None:
            return 0 if self._drop_note(key) else None
        # The version grows also after the note has expired: no writer sees one version twice.
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

    @_atomic
    async def fire(self, firings: Sequence[Firing]) -> list[Fired]:
        now = self._now()
        fired: list[Fired] = []
        broken: set[str] = set()  # jobs one of whose firings was refused
        for firing in firings:
            result = Fired(False) if firing.job_id in broken else self._fire(firing, now)
            if not result.done:
                broken.add(firing.job_id)
            fired.append(result)
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
        self._runs[run.id] = run = evaluation.new_run_by_clock(run, now)
        self._number[run.id] = next(self._numbers)
        self._counters.count(ending_of(run), now)
        return Added(run)

    def _holder(self, key: str | None, now: datetime, besides: str | None = None) -> Run | None:
        return evaluation.dedupe_holder(self._runs.values(), key, now, besides)

    def _has_capacity(self, run: Run, now: datetime) -> bool:
        return evaluation.has_capacity(self._jobs.get(run.job_id), self._used_capacity(now))

    def _rate_allowance(self, now: datetime) -> RateAllowance:
        return evaluation.rate_allowance(self._jobs, self._notes.values(), now)

    def _used_capacity(self, now: datetime) -> evaluation.UsedCapacity:
        return evaluation.used_capacity(self._runs.live.values(), self._jobs, now)

    def _commit(self, change: Change, now: datetime) -> bool:
        run = self._runs.get(change.id)
        if run is None:
            return change.deletes
        if self._last_change.get(run.id) == change.change_id:
            return True
        if not all(getattr(run, name) == value for name, value in change.expect.items()):
            return False
        if change.deletes:
            return self._commit_deletion(run, now)
        after = replace(run, **evaluation.fields_of_change(change, now))
        revives = run.state in FINISHED and after.state in LIVE
        if revives and self._holder(run.dedupe_key, now, besides=run.id) is not None:
            return False
        self._runs[run.id] = after
        self._last_change[run.id] = change.change_id
        self._counters.count(change.ending, now)
        return True

    def _commit_deletion(self, run: Run, now: datetime) -> bool:
        awaited = evaluation.awaited_runs(self._runs.live.values())
        if not evaluation.may_be_deleted(run, now, awaited):
            return False
        self._delete(run.id)
        return True

    def _fire(self, firing: Firing, now: datetime) -> Fired:
        job = self._jobs.get(firing.job_id)
        if job is None or job.version != firing.version:
            return Fired(False)
        if firing.valid_until is not None and now > firing.valid_until:
            return Fired(False)
        unfinished = evaluation.unfinished_slots(self._runs.live.values(), job.id)
        runs, changes = resolve_overlap(firing.overlap, firing.runs, unfinished, now)
        replaced = runs_ended_by(unfinished, changes, [self._commit(c, now) for c in changes])
        stored = tuple(copy_for_caller(self._add(_storable_run(run), now).run) for run in runs)
        self._jobs[job.id] = replace(
            job,
            next_run_at=firing.next_run_at,
            last_run_at=firing.last_run_at,
            version=job.version + 1,
        )
        return Fired(True, stored, replaced)


class MemoryTransaction:
    """Commits a handler's writes together with the completion of its run.

    The handler writes to a copy of the store's data. Of two overlapping transactions the first to
    commit wins, and the other is aborted, as in a database."""

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
        store, change = self._store, _storable_change(change)
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


# -- values on their way in and out ----------------------------------------------------------
#
# No stored value shares a payload with its caller. Each payload passes through the codec, so that
# it comes back as a store on disk would return it.


def _round_trip(value: Any) -> Any:
    """The value as a store on disk would return it."""
    return codec.decode(codec.encode(value))


def _storable_run(run: Run) -> Run:
    return replace(run, payload=_round_trip(run.payload), duplicate=False)


def _storable_job(job: Job) -> Job:
    metadata = _round_trip(dict(job.metadata))
    return replace(job, payload=_round_trip(job.payload), metadata=metadata)


def _storable_note(write: NoteWrite) -> NoteWrite:
    if write.note is None:
        return write
    return replace(write, note=replace(write.note, value=_round_trip(write.note.value)))


def _storable_change(change: Change) -> Change:
    if "result" not in change.set:
        return change
    return replace(change, set={**change.set, "result": _round_trip(change.set["result"])})


def copy_for_caller(run: Run) -> Run:
    """The run with its own payload and result, so that a handler can change no stored run."""
    if isinstance(run.payload, dict | list) or isinstance(run.result, dict | list):
        return replace(run, payload=deepcopy(run.payload), result=deepcopy(run.result))
    return run
