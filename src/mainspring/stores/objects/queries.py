"""Finds runs: live ones in the state, finished ones in the segments of the history.

A search of the history may read many segments. So a round only gives the live runs that match, and
what the state says of the history at that moment. The segments are read after that, while renewals
and claims go on. If another client has replaced one of them meanwhile, the search begins again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from mainspring.core.model import Page, Run, replace
from mainspring.stores import evaluation
from mainspring.stores.codec import run_from_record
from mainspring.stores.evaluation import FOLLOWING
from mainspring.stores.objects.group_commit import GroupCommit, Operation, missing_part
from mainspring.stores.objects.history import (
    catalogue_name,
    is_live_only,
    may_match,
    number_of,
    view_of,
)
from mainspring.stores.objects.part_cache import PartMissing, PartsNotLoaded
from mainspring.stores.objects.state import LiveState
from mainspring.stores.objects.workspace import Workspace
from mainspring.stores.paging import cursor_number
from mainspring.stores.protocol import RunQuery

T = TypeVar("T")


class _Live(NamedTuple):
    """What a round gives: the page of the live runs, and the state's view of the history (None:
    nothing there can match)."""

    page: Page[Run]
    numbers: dict[str, int]
    view: LiveState | None
    now: datetime


async def find_runs(group_commit: GroupCommit, query: RunQuery) -> Page[Run]:
    if query.upstream is not None:
        wanted = FOLLOWING if query.states is None else FOLLOWING & query.states
        query = replace(query, states=wanted)
    gone: set[str] = set()
    while True:
        try:
            return await _find(group_commit, query)
        except PartMissing as error:
            if str(error) in gone:  # another look at the head has shown that it is still named
                raise missing_part(error) from error
            gone.add(str(error))


async def _find(group_commit: GroupCommit, query: RunQuery) -> Page[Run]:
    live = await group_commit.submit(Operation(lambda work: _find_live(work, query), writes=False))
    if live.view is None:
        return live.page
    if query.ids is not None:
        found = await _look_up(
            group_commit, live.view, query.ids, live.page.items, brief=query.brief
        )
        return Page(found)
    return await _merge(group_commit, live.view, query, live)


def _find_live(work: Workspace, query: RunQuery) -> _Live:
    state = work.state
    has_history = catalogue_name(state) is not None
    if query.ids is not None:
        ids = sorted(query.ids)
        items = _as_asked(state, (run_id for run_id in ids if state.get("runs", run_id)), query)
        is_needed = has_history and len(items) < len(ids)
        return _Live(Page(items), {}, view_of(state) if is_needed else None, work.now)
    numbers = {
        run_id: number_of(record)
        for run_id, record in state.table("runs").items()
        if may_match(record, query)
    }
    page = evaluation.page_of_runs(_newest_first(state, numbers), query, work.now, numbers)
    if query.brief:
        page = replace(page, items=_as_asked(state, (run.id for run in page.items), query))
    is_needed = has_history and not is_live_only(query)
    return _Live(page, numbers, view_of(state) if is_needed else None, work.now)


def _as_asked(state: LiveState, ids: Iterable[str], query: RunQuery) -> list[Run]:
    records = (state.get("runs", run_id) for run_id in ids)
    return [run_from_record(record, brief=query.brief) for record in records if record is not None]


def _newest_first(state: LiveState, numbers: dict[str, int]) -> Iterator[Run]:
    heap = [(-number, run_id) for run_id, number in numbers.items()]
    heapq.heapify(heap)
    while heap:
        run = state.run(heapq.heappop(heap)[1])
        if run is not None:
            yield run


async def _merge(
    group_commit: GroupCommit, view: LiveState, query: RunQuery, live: _Live
) -> Page[Run]:
    """The page of live and finished runs together."""
    before = None if query.cursor is None else cursor_number(query.cursor, query.cursor)
    runs = {run.id: run for run in live.page.items}
    numbers: dict[str, int] = {run_id: live.numbers[run_id] for run_id in runs}
    await _with_parts(group_commit, lambda: group_commit.history.segments(view))
    found: list[Run] = []
    search = group_commit.history.newest_first(view, query, before, dict(numbers))
    async with aclosing(search):
        async for run_id, number, record in search:
            if record is None:
                run = runs[run_id]
            else:
                run = run_from_record(record)
                if not evaluation.matches(run, query, live.now):
                    continue
                run = run_from_record(record, brief=True) if query.brief else run
            found.append(run)
            numbers[run_id] = number
            if len(found) >= query.limit:
                break
    return evaluation.page_of_runs(found, query, live.now, numbers)


async def _look_up(
    group_commit: GroupCommit, view: LiveState, ids: Iterable[str], live: list[Run], *, brief: bool
) -> list[Run]:
    runs = {run.id: run for run in live}
    missing = sorted(set(ids) - runs.keys())
    finished = await _with_parts(group_commit, lambda: group_commit.history.look_up(view, missing))
    for run_id, (_, record) in finished.items():
        runs[run_id] = run_from_record(record, brief=brief)
    return [runs[run_id] for run_id in sorted(runs)]


async def _with_parts(group_commit: GroupCommit, evaluate: Callable[[], T]) -> T:
    """What this gives, after the parts that it needs are read."""
    loaded: dict[str, Any] = {}
    while True:
        group_commit.parts.pinned, before = loaded, group_commit.parts.pinned
        try:
            return evaluate()
        except PartsNotLoaded as needed:
            names = needed.names
        finally:
            group_commit.parts.pinned = before
        loaded |= await group_commit.parts.load(names)
