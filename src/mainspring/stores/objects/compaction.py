"""Moves finished runs and closed periods out of the live state, deletes old runs, and collects
garbage.

Each step writes its parts first, and then lets the state name them by an operation. The operation
is refused if what it was made from has changed meanwhile. So a crash leaves nothing but parts that
nothing names. Those are deleted when they are an hour old. The head is changed before that, so a
client that stalled after writing a part cannot name it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from mainspring.core.model import Run
from mainspring.stores import evaluation
from mainspring.stores.codec import Record, run_from_record, to_us
from mainspring.stores.objects import counters
from mainspring.stores.objects.bucket import Bucket
from mainspring.stores.objects.group_commit import GroupCommit, Operation
from mainspring.stores.objects.history import (
    SEGMENT_BYTES,
    SEGMENT_RUNS,
    Segment,
    catalogue_body,
    catalogue_name,
    describe_segment,
    divide_runs,
    gone_of,
    had_failure,
)
from mainspring.stores.objects.notes import prune_notes
from mainspring.stores.objects.schema import PART_KINDS, is_part_name
from mainspring.stores.objects.self_test import FOLDER, is_test_object
from mainspring.stores.objects.state import LiveState
from mainspring.stores.objects.workspace import Workspace

T = TypeVar("T")

MOST_FINISHED = SEGMENT_RUNS
"""Finished runs of one kind that the live state keeps before it moves them to a segment."""

FEWEST_PERIODS = 100
"""Periods of a day for which a part is written. Fewer stay in the live state."""

MOST_FINISHED_BYTES = SEGMENT_BYTES
"""Bytes of finished runs, about, that the live state keeps before it moves them."""

SMALL_SEGMENTS = 8
"""Small segments of one kind that are merged into one."""

GARBAGE_AGE = timedelta(hours=1)
COLLECT_EVERY = timedelta(hours=1)


class _Base(NamedTuple):
    """What a step was prepared from."""

    catalogue: str | None
    segments: list[Segment]
    collections: int


class _Amount(NamedTuple):
    runs: int
    size: int


class Compaction:
    def __init__(
        self, bucket: Bucket, group_commit: GroupCommit, most_finished: int = MOST_FINISHED
    ) -> None:
        self._bucket = bucket
        self._group_commit = group_commit
        self._most_finished = most_finished
        self._lock = asyncio.Lock()
        """Held from the first part that a step writes until the state names it, and while garbage
        is collected: so this client never collects what it is about to name."""
        self._held = _Amount(0, 0)
        """Finished runs that could not be moved when this client last looked, because they keep
        their dedupe keys. Without this each end of a run would look at all of them again."""

    async def _write(self, evaluate: Callable[[Workspace], T]) -> T:
        return await self._group_commit.submit(Operation(evaluate, writes=True))

    async def _read(self, evaluate: Callable[[Workspace], T]) -> T:
        return await self._group_commit.submit(Operation(evaluate, writes=False))

    @property
    def is_due(self) -> bool:
        """Whether the live state has so many finished runs, or so large ones, that a step pays."""
        state, held = self._group_commit.state, self._held
        movable = _Amount(state.finished_count - held.runs, state.finished_size - held.size)
        return self._is_enough(movable) and not self._lock.locked()

    def _is_enough(self, movable: _Amount, share: int = 1) -> bool:
        """Whether so many runs can be moved. `share`: whether they are at least that part of it."""
        return (
            movable.runs >= max(1, self._most_finished // share)
            or movable.size >= MOST_FINISHED_BYTES // share
        )

    # -- finished runs

    async def move_finished(self) -> bool:
        """Move finished runs to segments, the oldest first. False if there were too few, or another
        client did so meanwhile."""
        async with self._lock:
            base, chosen = await self._read(
                lambda work: (self._base(work), self._choose_finished(work))
            )
            return bool(chosen) and await self._replace_segments(base, chosen, {})

    def _base(self, work: Workspace) -> _Base:
        return _Base(
            catalogue_name(work.state), self._segments(work), self._group_commit.head.collections
        )

    def _choose_finished(self, work: Workspace) -> list[dict[str, Record]]:
        finished = work.state.finished()
        movable = [run for run in finished if evaluation.is_settled(run, work.now)]
        state = work.state
        moved = _amount_of(state, [run.id for run in movable])
        self._held = _Amount(state.finished_count - moved.runs, state.finished_size - moved.size)
        movable.sort(key=lambda run: to_us(run.finished_at) if run.finished_at else 0)
        by_kind: dict[bool, dict[str, Record]] = {False: {}, True: {}}
        for run in movable:
            record = work.state.get("runs", run.id)
            if record is not None:
                by_kind[had_failure(record)][run.id] = record
        if not self._is_enough(moved):
            return []
        # A kind with few runs waits, so that no segment is small.
        return [
            part
            for runs in by_kind.values()
            if self._is_enough(_amount_of(work.state, runs), share=4)
            for part in divide_runs(runs)
        ]

    async def _replace_segments(
        self,
        base: _Base,
        groups: list[dict[str, Record]],
        sources: Mapping[str, str],
        replaced: Collection[str] = (),
    ) -> bool:
        """Write segments and let the state name them. `groups` are runs of the live state, or those
        of other segments, which are `replaced`: then `sources` has the segment of each run."""
        seq = self._group_commit.head.seq
        new: dict[str, dict[str, Record]] = {}
        for runs in groups:
            new[await self._group_commit.parts.write("history", seq, {"runs": runs})] = runs
        added = [describe_segment(segment, runs) for segment, runs in new.items()]

        def adopt(state: LiveState) -> bool:
            for segment, runs in new.items():
                gone: Record = {}
                for run_id, record in runs.items():
                    if run_id in sources:
                        is_gone = run_id in gone_of(state, sources[run_id])
                    else:
                        is_gone = state.get("runs", run_id) != record
                        if not is_gone:
                            state.put("runs", run_id, None)
                    if is_gone:
                        gone[run_id] = 1
                if gone:
                    state.put("gone", segment, gone)
            return True

        return bool(await self._change_catalogue(base, replaced, added, adopt))

    async def _change_catalogue(
        self,
        base: _Base,
        dropped: Collection[str],
        added: list[Segment],
        adopt: Callable[[LiveState], T],
    ) -> T | None:
        """Write a catalogue without the dropped segments and with the added ones, and let the state
        name it. None if another client has changed the catalogue, or has collected garbage, since:
        then nothing of what was written is named."""
        group_commit = self._group_commit
        kept = [segment for segment in base.segments if segment.name not in dropped]
        catalogue = await group_commit.parts.write(
            "catalogue", group_commit.head.seq, catalogue_body([*kept, *added])
        )

        def change(work: Workspace) -> T | None:
            is_unchanged = catalogue_name(work.state) == base.catalogue
            if not is_unchanged or group_commit.head.collections != base.collections:
                return None
            answer = adopt(work.state)
            for segment in dropped:
                work.state.put("gone", segment, None)
            work.state.put("meta", "history", {"catalogue": catalogue})
            return answer

        answer = await self._write(change)
        if answer is None:
            group_commit.discard([*(segment.name for segment in added), catalogue])
        else:
            group_commit.discard([*filter(None, [base.catalogue]), *dropped])
        return answer

    def _segments(self, work: Workspace) -> list[Segment]:
        return self._group_commit.history.segments(work.state)

    async def merge_segments(self) -> bool:
        """Merge small segments of one kind, rewrite those most of whose runs are deleted, and drop
        those of which nothing is left."""
        async with self._lock:

            def read(work: Workspace) -> tuple[_Base, list[str], dict[str, Record], dict[str, str]]:
                runs: dict[str, Record] = {}
                sources: dict[str, str] = {}
                emptied, chosen = self._choose_sources(work)
                work.history.require_loaded(chosen)
                for segment in chosen:
                    gone = gone_of(work.state, segment)
                    for run_id, record in work.history.runs_of(segment).items():
                        if run_id not in gone:
                            runs[run_id], sources[run_id] = record, segment
                return self._base(work), emptied + chosen, runs, sources

            base, replaced, runs, sources = await self._read(read)
            return bool(replaced) and await self._replace_segments(
                base, list(divide_runs(runs)), sources, replaced
            )

    def _choose_sources(self, work: Workspace) -> tuple[list[str], list[str]]:
        """The segments of which nothing is left, and those to merge into one."""
        segments = self._segments(work)
        left = {s.name: s.runs - len(gone_of(work.state, s.name)) for s in segments}
        emptied = [name for name, runs in left.items() if not runs]
        for any_failure in (True, False):
            of_kind = [s for s in segments if s.any_failure is any_failure and left[s.name]]
            worn = [s.name for s in of_kind if left[s.name] < s.runs // 2]
            small = [s.name for s in of_kind if left[s.name] <= SEGMENT_RUNS // 2]
            chosen: list[str] = []
            room = SEGMENT_RUNS
            for name in sorted({*worn, *(small if len(small) >= SMALL_SEGMENTS else [])}):
                if left[name] <= room:
                    chosen.append(name)
                    room -= left[name]
            if chosen:
                return emptied, chosen
        return emptied, []

    # -- deletion

    async def prune(self, before: datetime, limit: int) -> int:
        """Delete up to `limit` finished runs that finished before that moment. Those in a segment
        no longer count there; `merge_segments` drops the segment when nothing of it is left."""
        async with self._lock:
            return await self._write(lambda work: _prune_runs(work, before, limit))

    # -- counters and notes

    async def prune_notes_and_counts(self) -> None:
        """Delete expired notes and old counts; move the counts of days that are over to parts."""
        async with self._lock:
            self._group_commit.discard(await self._write(_prune_notes_and_counts))
            days = await self._read(lambda work: counters.closed_days(work.state, work.now))
            for day, moved in days.items():
                if len(moved) >= FEWEST_PERIODS:
                    await self._move_periods(day, moved)

    async def _move_periods(self, day: str, moved: dict[str, Record]) -> None:
        head = self._group_commit.head
        part = await self._group_commit.parts.write("periods", head.seq, {"counters": moved})

        def adopt(work: Workspace) -> bool:
            is_kept = self._group_commit.head.collections == head.collections
            return is_kept and counters.adopt_day(work.state, day, moved, part)

        if not await self._write(adopt):
            self._group_commit.discard([part])

    # -- garbage

    async def collect_garbage(self) -> int:
        """Delete parts that nothing names and that are old enough, once in an hour."""
        async with self._lock:
            return await self._collect_garbage()

    async def _collect_garbage(self) -> int:
        def due(work: Workspace) -> tuple[set[str], datetime] | None:
            last = (work.state.get("meta", "collected") or {}).get("at", 0)
            if to_us(work.now) - last < COLLECT_EVERY // timedelta.resolution:
                return None
            return self._named_parts(work), work.now

        asked = await self._read(due)
        if asked is None:
            return 0
        named, now = asked
        old = [
            name for name in await self._list_old_objects(now - GARBAGE_AGE) if name not in named
        ]

        def count_collection(work: Workspace) -> list[str]:
            work.state.put("meta", "collected", {"at": to_us(work.now)})
            return [name for name in old if name not in self._named_parts(work)]

        garbage = await self._group_commit.submit(
            Operation(count_collection, writes=True, collects=True)
        )
        if garbage:
            await self._bucket.delete(garbage)
        return len(garbage)

    def _named_parts(self, work: Workspace) -> set[str]:
        """All parts that the store needs."""
        periods = {str(record["part"]) for record in work.state.table("periods").values()}
        segments = {segment.name for segment in self._segments(work)}
        catalogue = catalogue_name(work.state)
        return (
            periods
            | segments
            | self._group_commit.named_parts()
            | ({catalogue} if catalogue else set())
        )

    async def _list_old_objects(self, before: datetime) -> list[str]:
        """All parts that were written before, and objects of self-tests that were cut off. Names
        that no client of a store can have made are left out: files of somebody else, or another
        store below this one."""
        old: list[str] = []
        for kind in (*PART_KINDS, FOLDER):
            listed = await self._group_commit.retries.repeat(
                partial(self._bucket.list_objects, kind)
            )
            own = [item for item in listed if is_part_name(item.key) or is_test_object(item.key)]
            old += [item.key for item in own if item.modified < before]
        return old


def _amount_of(state: LiveState, ids: Collection[str]) -> _Amount:
    return _Amount(len(ids), sum(map(state.size_of, ids)))


def _prune_notes_and_counts(work: Workspace) -> list[str]:
    prune_notes(work)
    return counters.prune(work.state, work.now)


def _prune_runs(work: Workspace, before: datetime, limit: int) -> int:
    """Delete runs of the live state, then of segments."""
    awaited = work.awaited_runs()
    deleted = 0
    for run in work.state.finished():
        is_old = run.finished_at is not None and run.finished_at < before
        if deleted < limit and is_old and evaluation.may_be_deleted(run, work.now, awaited):
            work.delete(run.id)
            deleted += 1
    for segment in work.history.segments(work.state):
        if deleted >= limit:
            break
        if segment.finished is not None and segment.finished[0] >= to_us(before):
            continue
        gone = dict(gone_of(work.state, segment.name))
        if len(gone) == segment.runs:
            continue
        for run_id, record in work.history.runs_of(segment.name).items():
            if (
                deleted < limit
                and run_id not in gone
                and _is_old(record, before, work.now, awaited)
            ):
                gone[run_id] = 1
                deleted += 1
        work.state.put("gone", segment.name, gone or None)
    return deleted


def _is_old(record: Record, before: datetime, now: datetime, awaited: set[str]) -> bool:
    ended = record.get("finished_at")
    if isinstance(ended, int) and ended >= to_us(before):
        return False
    run: Run = run_from_record(record, brief=True)
    is_old = run.finished_at is not None and run.finished_at < before
    return is_old and evaluation.may_be_deleted(run, now, awaited)
