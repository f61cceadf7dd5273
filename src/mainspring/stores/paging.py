"""Reads all that a query finds, page by page, or what has these ids; makes and checks cursors of
pages."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from mainspring.core.model import Job, Note, Page, Run
from mainspring.errors import InvalidCursor
from mainspring.stores.protocol import JobQuery, NoteQuery, RunQuery, Store

Q = TypeVar("Q", JobQuery, NoteQuery, RunQuery)
T = TypeVar("T")


async def pages(
    read: Callable[[Q], Awaitable[Page[T]]], query: Q, most: int | None = None
) -> AsyncIterator[list[T]]:
    """The items that a store's `find`, `jobs` or `notes` gives, `query.limit` at a time and at most
    `most` in all. No page is empty."""
    left = query.limit if most is None else most
    while left > 0:
        page = await read(replace(query, limit=min(query.limit, left)))
        if page.items:
            yield page.items
        if page.cursor is None:
            return
        query = replace(query, cursor=page.cursor)
        if most is not None:
            left -= len(page.items)


async def all_items(read: Callable[[Q], Awaitable[Page[T]]], query: Q) -> AsyncIterator[T]:
    """The same items one by one."""
    async for page in pages(read, query):
        for item in page:
            yield item


BATCH = 1000


async def read_runs(store: Store, ids: Iterable[str], *, brief: bool = True) -> dict[str, Run]:
    """Those of the runs that exist, by id."""
    names, runs = list(ids), dict[str, Run]()
    for start in range(0, len(names), BATCH):
        query = RunQuery(ids=frozenset(names[start : start + BATCH]), brief=brief)
        runs |= {run.id: run for run in (await store.find(query)).items}
    return runs


async def read_jobs(store: Store, ids: Iterable[str]) -> dict[str, Job]:
    """Those of the jobs that exist, by id."""
    names, jobs = list(ids), dict[str, Job]()
    for start in range(0, len(names), BATCH):
        part = frozenset(names[start : start + BATCH])
        page = await store.jobs(JobQuery(ids=part, limit=len(part)))
        jobs |= {job.id: job for job in page.items}
    return jobs


async def read_note(store: Store, kind: str, name: str) -> Note | None:
    """The note, or None if there is none or it has expired."""
    page = await store.notes(NoteQuery(kind=kind, names=frozenset({name}), limit=1))
    return page.items[0] if page.items else None


# -- cursors -------------------------------------------------------------------------------

_NUMBER = re.compile(r"-?[0-9]{1,19}")
_LARGEST = 2**63 - 1
"""What databases keep as an integer."""


def cursor_number(part: object, cursor: object) -> int:
    """The number in a cursor, or in a part of one. Raises `InvalidCursor` where it is no number."""
    if not isinstance(part, str) or _NUMBER.fullmatch(part) is None or abs(int(part)) > _LARGEST:
        raise InvalidCursor(cursor)
    return int(part)


def note_cursor(note: Note) -> str:
    """The cursor of a page whose last note is this one."""
    return json.dumps([note.kind, note.name])


def read_note_cursor(cursor: str) -> list[str]:
    """The kind and the name of the last note of the page before. Raises `InvalidCursor`."""
    try:
        parts = json.loads(cursor)
    except ValueError:
        parts = None
    if not isinstance(parts, list) or [type(part) for part in parts] != [str, str]:
        raise InvalidCursor(cursor)
    return parts
