"""All that a query finds, page by page."""

from __future__ import annotations

from mainspring.core.model import Page
from mainspring.stores.paging import all_items, pages
from mainspring.stores.protocol import JobQuery


class Numbers:
    """Answers queries as a store does: 0 to 4 in pages, and a last page that is empty."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str | None]] = []

    async def read(self, query: JobQuery) -> Page[int]:
        self.asked.append((query.limit, query.cursor))
        first = int(query.cursor or 0)
        last = min(first + query.limit, 5)
        return Page(list(range(first, last)), str(last) if last > first else None)


async def test_every_page_is_read_until_there_is_no_cursor() -> None:
    numbers = Numbers()
    assert [page async for page in pages(numbers.read, JobQuery(limit=2))] == [[0, 1], [2, 3], [4]]
    assert numbers.asked == [(2, None), (2, "2"), (2, "4"), (2, "5")]
    assert [one async for one in all_items(numbers.read, JobQuery(limit=2))] == [0, 1, 2, 3, 4]


async def test_no_more_are_read_than_are_wanted() -> None:
    numbers = Numbers()
    found = [page async for page in pages(numbers.read, JobQuery(limit=2), most=3)]
    assert found == [[0, 1], [2]]
    assert numbers.asked == [(2, None), (1, "2")]
    assert [page async for page in pages(numbers.read, JobQuery(limit=2), most=0)] == []
