"""Finds runs: live ones in the state, finished ones in the segments of the history.

A search of the history may read many segments. So a round only gives the live runs that match, and
the segments that may hold matches at that moment. The segments are read after that, while renewals
and claims go on. If another client has replaced one of them meanwhile, the search begins again.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple

from mainspring.core.model import LIVE, Page, Run, State, replace
from mainspring.stores import evaluation
from mainspring.stores.codec import Record, run_from_record
from mainspring.stores.evaluation import FOLLOWING
from mainspring.stores.objects.group_commit import GroupCommit, Operation, missing_part
from mainspring.stores.objects.history import Segment, gone_of, number_of
from mainspring.stores.objects.part_cache import AT_ONCE, PartCache, PartMissing
from mainspring.stores.objects.state import LiveState
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.paging import cursor_number
from mainspring.stores.protocol import RunQuery

_STATES = frozenset(map(str, State))


async def find_runs(group_commit: GroupCommit, query: RunQuery) -> Page[Run]:
    if query.ids is not None:
        look_up: Operation[Page[Run]] = Operation(lambda work: _look_up(work, query), writes=False)
        return await group_commit.submit(look_up)
    if query.jobs is not None:
        of_each = (replace(query, job=job, jobs=None) for job in sorted(query.jobs))
        pages = await asyncio.gather(*(find_runs(group_commit, of_job) for of_job in of_each))
        return Page([run for page in pages for run in page.items])
    if query.upstream is not None:
        wanted = FOLLOWING if query.states is None else FOLLOWING & query.states
        query = replace(query, states=wanted)
    missing: set[str] = set()
    while True:
        search: Operation[_Live] = Operation(lambda work: _find_live(work, query), writes=False)
        live = await group_commit.submit(search)
        if not live.segments:
            return live.page
        try:
            return await _merge(group_commit.parts, query, live)
        except PartMissing as error:
            if str(error) in missing:  # another look at the head has shown that it is still named
                raise missing_part(error) from error
            missing.add(str(error))


def _look_up(work: Workspace, query: RunQuery) -> Page[Run]:
    ids = query.ids or frozenset()
    records = {run_id: record for run_id in ids if (record := work.state.get("runs", run_id))}
    if missing := ids - records.keys():
        finished = work.history.look_up(work.state, missing)
        records |= {run_id: record for run_id, (_, record) in finished.items()}
    return Page([run_from_record(records[run_id], brief=query.brief) for run_id in sorted(records)])


class _Live(NamedTuple):
    """What a round gives: the page of the live runs with their numbers, and the segments that may
    hold matches, the newest last, with the runs that no longer count in them."""

    page: Page[Run]
    numbers: dict[str, int]
    segments: list[Segment]
    gone: dict[str, Record]
    before: int | None
    """The number of the run at which the page begins."""
    now: datetime


def _find_live(work: Workspace, query: RunQuery) -> _Live:
    state = work.state
    before = None if query.cursor is None else cursor_number(query.cursor, query.cursor)
    segments = [
        segment
        for segment in ([] if _is_live_only(query) else work.history.segments(state))
        if segment.most_matches(query) and (before is None or segment.first < before)
    ]
    segments.sort(key=lambda segment: segment.last)
    numbers = {
        run_id: number_of(record)
        for run_id, record in state.table("runs").items()
        if may_match(record, query)
    }
    page = evaluation.page_of_runs(_newest_live(state, numbers), query, work.now, numbers)
    if query.brief:
        page = replace(page, items=list(_brief_runs(state, page.items)))
    gone = {segment.name: gone_of(state, segment.name) for segment in segments}
    return _Live(page, numbers, segments, gone, before, work.now)


def _is_live_only(query: RunQuery) -> bool:
    finished = query.states is None or not query.states <= LIVE
    return query.lapsed or query.set_aside or not finished


def may_match(record: Record, query: RunQuery) -> bool:
    """Whether the record may match, decided without decoding it."""
    job = record.get("job_id")
    if query.job is not None and isinstance(job, str) and job != query.job:
        return False
    if (query.failing and record.get("failures") == 0) or (
        query.tried and record.get("attempt") == 0
    ):
        return False
    state = record.get("state")
    is_known = isinstance(state, str) and state in _STATES
    return query.states is None or not is_known or state in query.states


def _brief_runs(state: LiveState, runs: Iterable[Run]) -> Iterator[Run]:
    for run in runs:
        record = state.get("runs", run.id)
        if record is not None:
            yield run_from_record(record, brief=True)


def _newest_live(state: LiveState, numbers: dict[str, int]) -> Iterator[Run]:
    heap = [(-number, run_id) for run_id, number in numbers.items()]
    heapq.heapify(heap)
    while heap:
        run = state.run(heapq.heappop(heap)[1])
        if run is not None:
            yield run


async def _merge(parts: PartCache, query: RunQuery, live: _Live) -> Page[Run]:
    """The page of live and finished runs together."""
    runs = {run.id: run for run in live.page.items}
    numbers = {run_id: live.numbers[run_id] for run_id in runs}
    chosen: list[Run] = []
    search = _newest_first(parts, query, live, dict(numbers))
    async with aclosing(search):
        async for run_id, number, record in search:
            if record is None:
                run = runs[run_id]
            else:
                run = run_from_record(record)
                if not evaluation.matches(run, query, live.now):
                    continue
                run = run_from_record(record, brief=True) if query.brief else run
            chosen.append(run)
            numbers[run_id] = number
            if len(chosen) >= query.limit:
                break
    return evaluation.page_of_runs(chosen, query, live.now, numbers)


async def _newest_first(
    parts: PartCache, query: RunQuery, live: _Live, numbers: Mapping[str, int]
) -> AsyncGenerator[tuple[str, int, Record | None]]:
    """The runs that may match, newest first: live ones, with their numbers and without a record,
    and finished ones, with their records. Segments are read as they are needed. Raises
    `PartMissing` if another client replaced a segment during the search."""
    heap: list[tuple[int, str, Record | None]] = [
        (-number, run_id, None) for run_id, number in numbers.items()
    ]
    heapq.heapify(heap)
    loaded: dict[str, Any] = {}
    waiting = list(live.segments)
    while heap or waiting:
        while waiting and (not heap or waiting[-1].last >= -heap[0][0]):
            if waiting[-1].name not in loaded:
                loaded |= await parts.load(_next_segments(waiting, query))
            segment = waiting.pop()
            gone = live.gone[segment.name]
            for run_id, record in loaded.pop(segment.name)["runs"].items():
                if run_id not in gone and may_match(record, query):
                    heapq.heappush(heap, (-number_of(record), run_id, record))
            await asyncio.sleep(0)  # a scan of many segments must not hold up the event loop
        if not heap:
            return
        number, run_id, stored = heapq.heappop(heap)
        if live.before is None or -number < live.before:
            yield run_id, -number, stored


def _next_segments(waiting: Sequence[Segment], query: RunQuery) -> list[str]:
    """The next segment, and those behind it that the page probably needs as well."""
    wanted, names = query.limit, []
    for segment in reversed(waiting):
        names.append(segment.name)
        wanted -= segment.most_matches(query)
        if wanted <= 0 or len(names) == AT_ONCE:
            break
    return names
