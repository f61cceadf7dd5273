"""Reads all that a query finds, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from msgspec.structs import replace

from mainspring.core.model import Page
from mainspring.stores.protocol import JobQuery, NoteQuery, RunQuery

__all__ = ["all_items", "pages"]

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
