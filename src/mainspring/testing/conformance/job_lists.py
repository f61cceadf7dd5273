"""Tests of `jobs` as lists for people: page numbers, text search, enabled or not."""

from __future__ import annotations

from typing import Any

from mainspring.core.model import Page
from mainspring.stores.protocol import JobQuery, Store
from mainspring.testing.conformance.base import Suite
from mainspring.testing.store_calls import put_job

__all__ = ["JobListTests"]


class JobListTests(Suite):
    async def listed(self, store: Store, **query: Any) -> tuple[list[str], int | None]:
        page: Page[Any] = await store.jobs(JobQuery(**query))
        return [job.id for job in page.items], page.total

    async def test_jobs_are_listed_by_page_number_with_their_total(self, store: Store) -> None:
        for name in ("c", "a", "e", "b", "d"):
            await put_job(store, self.job(name))
        assert await self.listed(store) == (["a", "b", "c", "d", "e"], None)
        pages = [
            await self.listed(store, offset=offset, limit=2, with_total=True)
            for offset in (0, 2, 4, 6)
        ]
        assert pages == [(["a", "b"], 5), (["c", "d"], 5), (["e"], 5), ([], 5)]

    async def test_jobs_are_listed_by_whether_they_are_enabled(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await put_job(store, self.job(name, enabled=name != "b"))
        assert await self.listed(store, enabled=True, with_total=True) == (["a", "c"], 2)
        assert await self.listed(store, enabled=False, with_total=True) == (["b"], 1)

    async def test_jobs_are_found_by_part_of_the_id_or_the_description(self, store: Store) -> None:
        await put_job(store, self.job("Mail.daily", description="Sends (all) letters"))
        await put_job(store, self.job("report", description="100% of the DAILY ärger"))
        await put_job(store, self.job("other"))
        assert await self.listed(store, text="daily", with_total=True) == (
            ["Mail.daily", "report"],
            2,
        )
        assert (await self.listed(store, text="(ALL)"))[0] == ["Mail.daily"]
        assert (await self.listed(store, text="100%"))[0] == ["report"]
        assert (await self.listed(store, text="ÄRGER"))[0] == ["report"]
        assert (await self.listed(store, text=".*"))[0] == []
        assert (await self.listed(store, text="daily", tag="none", with_total=True)) == ([], 0)
