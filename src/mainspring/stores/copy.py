"""Copies every job, note and run from one store to another, unchanged.

A scheduler that starts on the copy continues where the original stopped: tokens, attempts,
versions, dedupe keys and slots are the same. The copy uses only the store protocol:

1. `read_contents` reads through the source, newest run first as pages come. It keeps only counts
   and the cursors of the pages.
2. `copy` reads these pages backwards and writes the oldest run first, so that a store that numbers
   its runs lists them in the same order. A run that is already in the target is compared and
   corrected, never written twice: the same call completes an interrupted copy.
3. At the end it counts both stores and compares every job.

It refuses to copy while a lease is valid, a scheduler is the leader or a worker is alive, so that
no worker loses a run. A run whose lease has lapsed is copied as it is; a worker on the target
rescues it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from mainspring.core import codec, note_kinds
from mainspring.core.model import Job, Note, Run, State, replace
from mainspring.core.plurals import list_some
from mainspring.core.transitions import Change
from mainspring.errors import CopyRefused, StoreUnavailable
from mainspring.stores.election import LEADER, elect
from mainspring.stores.paging import all_items, pages
from mainspring.stores.protocol import JobQuery, JobWrite, NoteQuery, NoteWrite, RunQuery, Store

T = TypeVar("T")

PAGE = 200
"""Runs in a page. With the largest allowed payloads, results and logs a page takes 400 MB."""

TRIES = 12
LONGEST_PAUSE = 5.0
"""The tries take about 45 seconds in all, which is longer than a failover takes."""

LOCK_TERM = timedelta(seconds=30)

_LOCK = "copy"
_COMPARED = tuple(
    name for name in Run.__struct_fields__ if name not in ("id", "duplicate", "unreadable", "brief")
)


@dataclass(slots=True)
class StoreContents:
    """How much a store holds, and the cursors of its pages of runs (newest first)."""

    jobs: int = 0
    runs: Counter[State] = field(default_factory=Counter)
    tokens: int = 0
    secrets: int = 0
    """Jobs with secrets. Only the keys that encrypted those can decrypt them."""
    key_ids: set[str] = field(default_factory=set)
    """The ids of these keys."""
    pages: list[str | None] = field(default_factory=list)

    @property
    def total(self) -> int:
        return self.runs.total()

    @property
    def empty(self) -> bool:
        return not self.jobs and not self.total


@dataclass(slots=True)
class CopyReport:
    """The result of a copy: how many runs were added, existed already, and were corrected
    because they had changed in the source since an earlier copy."""

    jobs: int = 0
    notes: int = 0
    runs: Counter[State] = field(default_factory=Counter)
    added: int = 0
    corrected: int = 0
    existing: int = 0
    secrets: int = 0
    key_ids: set[str] = field(default_factory=set)
    store_key: str | None = None
    """The key of secrets that the source keeps in a note. An embedded store does not read the
    note, so it is not copied there: the caller writes the key to the key file."""


async def read_contents(store: Store) -> StoreContents:
    """Count what a store holds. Raises `CopyRefused` while a worker holds a run."""
    await _refuse_leases(store)
    seen = StoreContents()
    async for jobs in job_pages(store):
        _refuse_unreadable("job", jobs)
        seen.jobs += len(jobs)
        for job in jobs:
            key_ids = _secret_key_ids(job)
            seen.secrets += bool(key_ids)
            seen.key_ids |= key_ids
    cursor: str | None = None
    while True:
        runs, after = await read_run_page(store, cursor)
        _refuse_unreadable("run", runs)
        if runs:
            seen.pages.append(cursor)
        for run in runs:
            seen.runs[run.state] += 1
            seen.tokens += run.token
        if (cursor := after) is None:
            return seen


async def copy(
    source: Store, target: Store, progress: Callable[[int, int], None] = lambda done, total: None
) -> CopyReport:
    """Copy everything. Calls `progress` with how many runs are copied, and of how many."""
    async with _exclusive_access(source, target) as keep_exclusive:
        seen = await read_contents(source)
        await _refuse_leases(target)
        await _refuse_foreign_records(source, target)
        work = _Copier(source, target)
        await work.copy_jobs()
        work.copied.notes = await _copy_notes(source, target)
        for number, cursor in enumerate(reversed(seen.pages), start=1):
            await keep_exclusive()
            runs, _ = await read_run_page(source, cursor)
            await work.copy_runs(runs[::-1])
            progress(min(number * PAGE, seen.total), seen.total)
        await work.copy_deferred()
        await _refuse_leases(source)
        await _verify(source, target, seen, work.tokens)
        await _verify_notes(source, target)
        work.copied.runs = seen.runs
        work.copied.store_key = await _read_store_key(source)
    work.copied.secrets, work.copied.key_ids = seen.secrets, seen.key_ids
    return work.copied


def _secret_key_ids(job: Job) -> set[str]:
    """The ids of the keys that encrypted the job's secrets."""
    if job.webhook is None:
        return set()
    signing = [secret.sealed for secret in job.webhook.signing]
    return {sealed.key for sealed in (*job.webhook.secret_headers.values(), *signing)}


async def _read_store_key(store: Store) -> str | None:
    query = NoteQuery(kind=note_kinds.SECRET_KEY, limit=1)
    page = await retry_while_unavailable(store.notes, query)
    return page.items[0].value["key"] if page.items else None


class _Copier:
    """Copies page by page, and counts what it has done."""

    def __init__(self, source: Store, target: Store) -> None:
        self._source = source
        self._target = target
        self._deferred: list[str] = []
        self.copied = CopyReport()
        self.tokens = 0

    async def copy_jobs(self) -> None:
        async for jobs in job_pages(self._source):
            there = await jobs_by_id(self._target, jobs)
            writes = []
            for job in jobs:
                old = there.get(job.id)
                if old is not None and old != job:
                    _refuse_newer(f"job {job.id}", "version", old.version, job.version)
                if old != job:
                    writes.append(JobWrite(job.id, 0 if old is None else old.version, job))
            await retry_while_unavailable(self._target.put_jobs, writes)
            self.copied.jobs += len(jobs)

    async def copy_runs(self, runs: Sequence[Run]) -> None:
        """Write a page of runs, oldest first. Defers live runs whose dedupe key is held."""
        there = await runs_by_id(self._target, [run.id for run in runs])
        stale = [(there[run.id], run) for run in runs if run.id in there]
        self.copied.corrected += await self._correct(stale)
        refused = await self._add([run for run in runs if run.id not in there])
        await self._add_without_key([run for run in refused if run.finished])
        left = await self._add([run for run in refused if not run.finished])
        self._deferred += [run.id for run in left]
        self.tokens += sum(run.token for run in runs)
        self.copied.existing += len(there)

    async def copy_deferred(self) -> None:
        """Add the live runs whose dedupe key was held before: its holder is corrected by now."""
        for at in range(0, len(self._deferred), PAGE):
            ids = self._deferred[at : at + PAGE]
            runs = await runs_by_id(self._source, ids)
            for run in await self._add(list(runs.values())):
                raise CopyRefused(
                    f"run {run.id} cannot be copied: its dedupe key {run.dedupe_key!r} is held by"
                    " another run in the target. Stop the programs that use the target, or name an"
                    " empty target"
                )

    async def _add(self, runs: Sequence[Run]) -> list[Run]:
        """Add runs as they are; return those that were refused because of their dedupe key."""
        if not runs:
            return []
        added = await retry_while_unavailable(self._target.add, runs)
        refused = [run for run, result in zip(runs, added, strict=True) if result.duplicate]
        pairs = zip(runs, added, strict=True)
        await self._correct([(result.run, run) for run, result in pairs if not result.duplicate])
        self.copied.added += len(runs) - len(refused)
        return refused

    async def _add_without_key(self, runs: Sequence[Run]) -> None:
        """Add finished runs whose dedupe key another run holds by now: without the key first, then
        corrected, because a finished run may name a key that it no longer holds."""
        bare = [replace(run, dedupe_key=None, dedupe_until=None) for run in runs]
        await self._add(bare)
        await self._correct(list(zip(bare, runs, strict=True)))

    async def _correct(self, pairs: Sequence[tuple[Run, Run]]) -> int:
        """Make runs in the target equal to those of the source; return how many differed."""
        differ = [(kept, run, unlike) for kept, run in pairs if (unlike := _differences(kept, run))]
        if not differ:
            return 0
        for kept, run, _ in differ:
            _refuse_newer(f"run {run.id}", "token", kept.token, run.token)
        changes = [
            Change(run.id, {"state": kept.state, "token": kept.token}, unlike)
            for kept, run, unlike in differ
        ]
        await retry_while_unavailable(self._target.commit, changes)
        now = await runs_by_id(self._target, [run.id for _, run, _ in differ])
        for _, run, _ in differ:
            if run.id not in now or _differences(now[run.id], run):
                raise CopyRefused(
                    f"run {run.id} could not be made equal in the target: something else must be"
                    " using it"
                )
        return len(differ)


def _differences(kept: Run, run: Run) -> dict[str, Any]:
    """The fields in which a copy differs, with the values of the source."""
    return {
        name: getattr(run, name)
        for name in _COMPARED
        if getattr(kept, name) != getattr(run, name)
        and not (name in ("payload", "result") and _same_value(kept, run, name))
    }


def _same_value(kept: Run, run: Run, name: str) -> bool:
    """Compares the encoded values, because a NaN does not equal itself."""
    return codec.encode(getattr(kept, name)) == codec.encode(getattr(run, name))


# -- reasons to refuse ----------------------------------------------------------------------


@asynccontextmanager
async def _exclusive_access(
    source: Store, target: Store
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Take a lock in both stores. Refuses if a scheduler works on one, if another copy uses one, or
    if both are the same store. Yields a function that renews the locks."""
    me = f"copy:{uuid.uuid4().hex}"
    for store, name in ((source, "source"), (target, "target")):
        if await _elect(store, LEADER, me, timedelta(seconds=5)) is None:
            raise CopyRefused(
                f"a scheduler is working on the {name}: stop it; after a kill -9 wait 30 seconds"
                " (a minute on object storage), then copy again"
            )
        await _elect(store, LEADER, me, timedelta())
        await _refuse_live_workers(store, name)
    names = {f"{me}:from": source, f"{me}:to": target}
    held: list[tuple[Store, str]] = []
    try:
        for holder, store in names.items():
            if await _elect(store, _LOCK, holder, LOCK_TERM) is None:
                raise CopyRefused(
                    "FROM and TO are the same store: name another target"
                    if held and await _same_store(source, target, *names)
                    else "another copy from or to this store is under way; if it was killed, wait"
                    " half a minute"
                )
            held.append((store, holder))

        async def keep_exclusive() -> None:
            for store, holder in held:
                if await _elect(store, _LOCK, holder, LOCK_TERM) is None:
                    raise CopyRefused("another copy has begun meanwhile: this one took too long")

        yield keep_exclusive
    finally:
        for store, holder in held:
            try:
                await elect(store, _LOCK, holder, timedelta())
            except StoreUnavailable:
                continue  # the lock expires by itself


async def _same_store(source: Store, target: Store, mine: str, other: str) -> bool:
    """Whether releasing the lock in the source also frees the one in the target."""
    await _elect(source, _LOCK, mine, timedelta())
    return await _elect(target, _LOCK, other, timedelta(seconds=1)) is not None


async def _elect(store: Store, name: str, holder: str, ttl: timedelta) -> int | None:
    return await retry_while_unavailable(elect, store, name, holder, ttl)


async def _refuse_live_workers(store: Store, name: str) -> None:
    """Refuse while a worker is alive. One that fires no slots is never the leader, and one that is
    idle holds no lease, but it would claim the next run that falls due."""
    query = NoteQuery(kind=note_kinds.WORKER, limit=PAGE)
    page = await retry_while_unavailable(store.notes, query)
    if not page.items:
        return
    workers = list_some([note.name for note in page.items], 5)
    ends = [note.expires_at for note in page.items if note.expires_at is not None]
    until = f" until {max(ends):%H:%M:%S} UTC" if ends else ""
    raise CopyRefused(
        f"there are live workers on the {name}: {workers}. Stop them, and copy again (one that was"
        f" killed counts as alive{until})"
    )


async def _refuse_leases(store: Store) -> None:
    now = await retry_while_unavailable(store.now)
    cursor: str | None = None
    while True:
        runs, cursor = await read_run_page(store, cursor, State.RUNNING)
        held = [run for run in runs if run.lease_until is not None and run.lease_until > now]
        if held:
            last = max(run.lease_until for run in held if run.lease_until is not None)
            raise CopyRefused(
                f"run {held[0].id} is running on {held[0].worker}: stop the workers first (a"
                f" killed one holds its runs until {last:%H:%M:%S} UTC), and copy again"
            )
        if cursor is None:
            return


async def _refuse_foreign_records(source: Store, target: Store) -> None:
    """Refuse a target that holds anything that is not in the source."""
    async for jobs in job_pages(target):
        known = await jobs_by_id(source, jobs)
        _refuse_foreign("job", frozenset(job.id for job in jobs) - known.keys())
    await _refuse_foreign_notes(source, target)
    cursor: str | None = None
    while True:
        runs, cursor = await read_run_page(target, cursor)
        ids = frozenset(run.id for run in runs)
        _refuse_foreign("run", ids - (await runs_by_id(source, ids)).keys())
        if cursor is None:
            return


def _refuse_foreign(kind: str, ids: frozenset[str]) -> None:
    if ids:
        raise CopyRefused(
            f"the target is not empty: {kind} {min(ids)} is there, and not in the source. Name an"
            " empty target (a new file, database or mainspringPrefix)"
        )


def _refuse_unreadable(kind: str, records: Sequence[Job] | Sequence[Run]) -> None:
    """Refuse records that cannot be read: their copies would be incomplete."""
    for record in records:
        if record.unreadable is not None:
            raise CopyRefused(
                f"{kind} {record.id} cannot be read ({record.unreadable}), so it cannot be copied."
                " Copy with the version that wrote it, or repair or delete it first"
            )


def _refuse_newer(what: str, number: str, there: int, here: int) -> None:
    if there > here:
        raise CopyRefused(
            f"{what} has gone on in the target ({number} {there}, in the source {here}):"
            " something has worked there. Name an empty target"
        )


async def _verify(source: Store, target: Store, seen: StoreContents, tokens: int) -> None:
    here, there = await _count_runs(source), await _count_runs(target)
    if here != there or _by_state(here) != seen.runs or seen.tokens != tokens:
        had, has, target_has = map(_describe_counts, (seen.runs, _by_state(here), _by_state(there)))
        raise CopyRefused(
            f"the source has changed while it was copied (it had {had}, has {has}; the target has"
            f" {target_has}). Stop what uses it and copy again: that completes the copy"
        )
    async for jobs in job_pages(source):
        copies = await jobs_by_id(target, jobs)
        for job in jobs:
            if job != copies.get(job.id):
                raise CopyRefused(
                    f"job {job.id} has changed while it was copied. Stop what uses the source and"
                    " copy again: that completes the copy"
                )


async def _count_runs(store: Store) -> Counter[tuple[str, State]]:
    """How many runs each job has in each state. `counts` counts unfinished runs only."""
    counted: Counter[tuple[str, State]] = Counter()
    find = partial(retry_while_unavailable, store.find)
    async for run in all_items(find, RunQuery(brief=True, limit=PAGE)):
        counted[run.job_id, run.state] += 1
    return counted


def _by_state(counts: Mapping[tuple[str, State], int]) -> Counter[State]:
    by_state: Counter[State] = Counter()
    for (_, state), count in counts.items():
        by_state[state] += count
    return by_state


def _describe_counts(runs: Mapping[State, int]) -> str:
    return ", ".join(f"{runs[state]} {state}" for state in State if runs.get(state)) or "no runs"


# -- notes: API keys, idempotency records, and notes that programs keep ----------------------
#
# The versions of copied notes start at 1, and another copy raises a version only where the note
# has changed in the source. So a note that differs and whose version in the target is not lower was
# changed in the target. The copy is refused then: an API key that was revoked in the target must
# not become valid again. Notes that expire may differ, because each store expires them by its own
# clock.


async def _copy_notes(source: Store, target: Store) -> int:
    """Write the notes that the target lacks; return how many the source has."""
    count = 0
    async for notes in note_pages(source, without=_kind_not_copied(target)):
        there = await find_same_notes(target, notes)
        for note in notes:
            kept = there.get(note.name)
            if _is_same_note(note, kept):
                continue
            if kept is not None and note.expires_at is None and kept.version >= note.version:
                raise CopyRefused(
                    f"{note.kind} {note.name} was changed in the target: something has worked"
                    " there. Name an empty target"
                )
            version = kept.version if kept else 0
            write = NoteWrite.put(replace(note, version=version))
            await retry_while_unavailable(target.put_notes, [write])
        count += len(notes)
    return count


async def _refuse_foreign_notes(source: Store, target: Store) -> None:
    async for notes in note_pages(target):
        known = await find_same_notes(source, notes)
        for note in _without_expiry(notes):
            if note.name not in known:
                raise CopyRefused(
                    f"the target is not empty: {note.kind} {note.name} is there, and not in the"
                    " source. Name an empty target, and make API keys for it when the copy is done"
                )


async def _verify_notes(source: Store, target: Store) -> None:
    async for notes in note_pages(source, without=_kind_not_copied(target)):
        there = await find_same_notes(target, notes)
        for note in _without_expiry(notes):
            if not _is_same_note(note, there.get(note.name)):
                raise CopyRefused(
                    f"{note.kind} {note.name} has changed while it was copied. Stop what uses the"
                    " source and copy again: that completes the copy"
                )


def _kind_not_copied(target: Store) -> str:
    return "" if target.info().file is None else note_kinds.SECRET_KEY


def _is_same_note(note: Note, kept: Note | None) -> bool:
    return kept is not None and replace(kept, version=note.version) == note


def _without_expiry(notes: Sequence[Note]) -> list[Note]:
    return [note for note in notes if note.expires_at is None]


# -- page by page, with patience --------------------------------------------------------------


async def read_run_page(
    store: Store, cursor: str | None, *states: State
) -> tuple[list[Run], str | None]:
    query = RunQuery(cursor=cursor, limit=PAGE, states=frozenset(states) or None)
    page = await retry_while_unavailable(store.find, query)
    return page.items, page.cursor


async def runs_by_id(store: Store, ids: Iterable[str]) -> dict[str, Run]:
    """The runs of these ids that exist, in the order of the ids."""
    wanted = list(ids)
    page = await retry_while_unavailable(store.find, RunQuery(ids=frozenset(wanted)))
    runs = {run.id: run for run in page.items}
    return {run_id: runs[run_id] for run_id in wanted if run_id in runs}


async def jobs_by_id(store: Store, jobs: Sequence[Job]) -> dict[str, Job]:
    """The jobs in a store that have the ids of these jobs."""
    query = JobQuery(ids=frozenset(job.id for job in jobs), limit=len(jobs))
    page = await retry_while_unavailable(store.jobs, query)
    return {job.id: job for job in page.items}


def job_pages(store: Store) -> AsyncIterator[list[Job]]:
    return pages(partial(retry_while_unavailable, store.jobs), JobQuery(limit=PAGE))


async def note_pages(store: Store, *, without: str = "") -> AsyncIterator[list[Note]]:
    """Yield the notes page by page, each page of one kind. Leaves out the terms of elections and
    the times when workers were alive, which belong to their store, and the kind `without`."""
    async for page in pages(partial(retry_while_unavailable, store.notes), NoteQuery(limit=PAGE)):
        for kind, notes in groupby(page, key=lambda note: note.kind):
            if kind not in (note_kinds.TERM, note_kinds.UPTIME, without):
                yield list(notes)


async def find_same_notes(store: Store, notes: Sequence[Note]) -> dict[str, Note]:
    """The notes that have the kind (all have the same) and the names of these notes, by name."""
    names = frozenset(note.name for note in notes)
    query = NoteQuery(kind=notes[0].kind, names=names, limit=len(names))
    return {note.name: note for note in (await retry_while_unavailable(store.notes, query)).items}


async def retry_while_unavailable(operation: Callable[..., Awaitable[T]], *arguments: Any) -> T:
    """Call `operation` again while the store is unavailable. Every call here may be repeated."""
    for attempt in range(TRIES):
        try:
            return await operation(*arguments)
        except StoreUnavailable:
            if attempt == TRIES - 1:
                raise
            await asyncio.sleep(min(0.1 * 2**attempt, LONGEST_PAUSE))
    raise AssertionError("unreachable")
