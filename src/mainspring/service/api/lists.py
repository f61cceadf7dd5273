"""Lists: pages that are bounded by bytes as well as by items."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Response

from mainspring.core.model import Page
from mainspring.service.problems import ApiError, FieldError
from mainspring.service.schemas.json_format import encode_json

PAGE_BYTES = 4 * 1024 * 1024
"""A page that has so many bytes ends, although more items were asked for."""
CHUNK = 25
"""Items that are read from the store and written at once: other requests go on in between."""

T = TypeVar("T")
Read = Callable[[int, str | None], Awaitable[Page[T]]]


async def list_response(
    read: Read[T], document: Callable[[T], Any], *, limit: int, cursor: str | None
) -> Response:
    """`{"items": […], "nextCursor": …}`. `read` gives a number of items after a cursor."""
    items, more = await read_items(read, document, limit=limit, cursor=cursor)
    content = b'{"items":[%s],"nextCursor":%s}' % (b",".join(items), encode_json(more))
    return Response(content, media_type="application/json")


async def read_items(
    read: Read[T], document: Callable[[T], Any], *, limit: int, cursor: str | None
) -> tuple[list[bytes], str | None]:
    """The documents of at most `limit` items as JSON, and the cursor of the next."""
    items: list[bytes] = []
    size = 0
    while True:
        page = await read(min(CHUNK, limit - len(items)), cursor)
        encoded = [encode_json(document(item)) for item in page.items]
        items += encoded
        size += sum(map(len, encoded))
        cursor = page.cursor
        if cursor is None or len(items) >= limit or size >= PAGE_BYTES:
            return items, cursor


def read_offset(cursor: str) -> int:
    """The cursor of a list whose pages are found by counting."""
    if cursor.isascii() and cursor.isdigit() and len(cursor) < 10:
        return int(cursor)
    raise ApiError.of_fields(
        FieldError.predicate(
            "cursor",
            f"is not one that a page of results gave: {cursor[:100]!r}. Leave it out for the first"
            " page",
        )
    )
