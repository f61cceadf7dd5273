"""Reads a store page by page, and repeats calls while the store is unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

from mainspring.core import note_kinds
from mainspring.core.model import Job, Note, Run, State
from mainspring.errors import StoreUnavailable
from mainspring.stores.paging import pages
from mainspring.stores.protocol import JobQuery, NoteQuery, RunQuery, Store

T = TypeVar("T")

PAGE = 200
"""Runs in a page. With the largest allowed payloads, results and logs a page takes 400 MB."""

TRIES = 12
LONGEST_PAUSE = 5.0
"""The tries take about 45 seconds in all, which is longer than a failover takes."""


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
    found = {run.id: run for run in page.items}
    return {run_id: found[run_id] for run_id in wanted if run_id in found}


async def find_jobs(store: Store, query: JobQuery) -> list[Job]:
    return (await store.jobs(query)).items


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
