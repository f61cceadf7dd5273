"""Tests of `jobs` as lists for people: page numbers, text search, enabled or not."""

from __future__ import annotations

from typing import Any

from mainspring.core.model import Page
from mainspring.core.policy import Policy
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

    async def test_jobs_are_listed_by_queue(self, store: Store) -> None:
        for name, queue in (("a", "default"), ("b", "mail"), ("c", "mail.more"), ("d", 'q"\\ü:')):
            policy = Policy.make(queue=queue, concurrency=1, concurrency_key='"queue": "none"')
            await put_job(store, self.job(name, policy=policy))
        assert await self.listed(store, queue="mail", with_total=True) == (["b"], 1)
        assert (await self.listed(store, queue="default"))[0] == ["a"]
        assert (await self.listed(store, queue='q"\\ü:'))[0] == ["d"]
        assert await self.listed(store, queue="none", with_total=True) == ([], 0)
        assert (await self.listed(store, queue="mail", text="B", enabled=True))[0] == ["b"]

    async def test_jobs_are_listed_in_another_order(self, store: Store) -> None:
        """Those without a value come last, those with equal values by id, both ways."""
        for name, at in (("a", 2), ("b", None), ("c", 1), ("d", None), ("e", 2)):
            when = None if at is None else self.at(at)
            moved = self.job(name, next_run_at=when, last_run_at=when, enabled=name != "e")
            await put_job(store, moved)
        for order in ("next_run_at", "last_run_at"):
            assert (await self.listed(store, order=order))[0] == ["c", "a", "e", "b", "d"]
            back = await self.listed(store, order=order, descending=True, with_total=True)
            assert back == (["a", "e", "c", "b", "d"], 5)
            pages = [
                (await self.listed(store, order=order, descending=True, limit=2, offset=at))[0]
                for at in (0, 2, 4, 6)
            ]
            assert pages == [["a", "e"], ["c", "b"], ["d"], []]
        assert (await self.listed(store, descending=True))[0] == ["e", "d", "c", "b", "a"]
        on = await self.listed(store, order="next_run_at", enabled=True, with_total=True)
        assert on == (["c", "a", "b", "d"], 4)

    async def test_jobs_are_listed_by_when_they_were_edited(self, store: Store) -> None:
        for name, at in (("a", 2), ("b", 3), ("c", 1)):
            await put_job(store, self.job(name, updated_at=self.at(at)))
        assert (await self.listed(store, order="updated_at"))[0] == ["c", "a", "b"]
        back = (await self.listed(store, order="updated_at", descending=True))[0]
        assert back == ["b", "a", "c"]

    async def test_only_a_list_by_id_has_a_cursor(self, store: Store) -> None:
        for name in ("a", "b", "c"):
            await put_job(store, self.job(name, next_run_at=self.at(1)))
        assert (await store.jobs(JobQuery(limit=2))).cursor is not None
        for query in (
            JobQuery(limit=2, descending=True),
            JobQuery(limit=2, order="next_run_at"),
            JobQuery(limit=2, order="updated_at", descending=True),
        ):
            assert (await store.jobs(query)).cursor is None
