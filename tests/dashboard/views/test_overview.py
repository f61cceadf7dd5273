"""The overview: what it counts, and what it lists."""

from __future__ import annotations

import re

from playwright.async_api import Browser, Page, expect

from mainspring import Scheduler
from mainspring.stores.memory import MemoryStore
from tests.support.dashboard import Dashboard, served, watched_page
from tests.support.service import Api, sample_scheduler

HTML = {"accept": "text/html"}


async def test_the_charts_show_the_window_that_is_chosen(dashboard: Dashboard, page: Page) -> None:
    await page.goto(f"{dashboard.url}/")
    chosen = page.locator(".segments a[aria-current]")
    await expect(chosen).to_have_text("24 hours")
    for words, window in (("1 hour", "1h"), ("7 days", "7d"), ("24 hours", "24h")):
        asked = f"**/api/v1/statistics/history?window={window}"
        async with page.expect_response(asked) as answered:
            await page.get_by_role("link", name=words).click()
        assert (await answered.value).ok
        await expect(page).to_have_url(f"{dashboard.url}/?window={window}")
        await expect(chosen).to_have_text(words)
        await expect(page.locator(".chart canvas")).to_have_count(2)


async def test_runs_that_are_due_and_wait_are_counted(api: Api) -> None:
    for _ in range(3):
        await api.scheduler.enqueue("greet")
    await api.scheduler.enqueue("greet", delay="1h")
    shown = (await api.get("/", headers=HTML)).text
    assert tile(shown, "Due now") == ("3", "waiting to start")
    assert tile(shown, "Scheduled") == ("1", "pending, due later")


async def test_nodes_are_listed_and_one_is_the_leader(page: Page) -> None:
    store = MemoryStore()
    async with served(sample_scheduler(store, workers=4)) as made:
        await page.goto(f"{made.url}/")
        nodes = page.locator("section", has=page.locator("#nodes-title")).locator("tbody tr")
        await expect(nodes).to_contain_text("leader")
        async with sample_scheduler(store, workers=2):
            await expect(nodes).to_have_count(2)
            await expect(nodes.filter(has_text="0 of 4")).to_contain_text("leader")
            await expect(nodes.filter(has_text="0 of 2")).not_to_contain_text("leader")


async def test_an_open_breaker_is_listed_until_it_is_reset(browser: Browser) -> None:
    scheduler = Scheduler("memory://", workers=2, poll="50ms")

    @scheduler.job(retries=0, breaker=2)
    async def broken() -> None:
        raise ValueError("always")

    async with (
        served(scheduler) as made,
        watched_page(browser, viewport={"width": 360, "height": 740}) as page,
    ):
        for _ in range(2):
            await scheduler.wait((await scheduler.enqueue("broken")).id)
        await page.goto(f"{made.url}/")
        row = page.locator("#breaker-broken")
        await expect(row.locator("td")).to_contain_text(["broken", "2", "in"])
        card = page.locator("section", has=page.locator("#breakers-title"))
        inside = "card => card.querySelector('table').offsetWidth <= card.clientWidth"
        assert await card.evaluate(inside), "the table is wider than its card"
        await scheduler.reset_breaker("broken")
        await expect(row).to_have_count(0)
        await expect(card).to_contain_text("A breaker opens when a job fails several times")


async def test_the_most_recent_failures_come_first_with_their_errors(working: Api) -> None:
    scheduler = working.scheduler
    runs = [await scheduler.enqueue("greet", {"name": "nobody"}) for _ in range(2)]
    for run in runs:
        await scheduler.wait(run.id)
    shown = (await working.get("/", headers=HTML)).text
    card = shown.partition('id="failures-title"')[2].partition("</section>")[0]
    listed = re.findall(r'<a href="/runs/([^"]+)">greet</a></td><td class="clip">([^<]+)<', card)
    assert {found for found, _ in listed} == {run.id for run in runs}
    assert all("there is nobody" in error for _, error in listed)
    assert tile(shown, "Failed, 24 h") == ("2", "dead letters")


def tile(text: str, label: str) -> tuple[str, str]:
    """The figure and the note of a tile."""
    start = text.index(f">{label}</a>")
    found = re.search(r'tile-value">(.*?)</div>\s*<div class="tile-note">(.*?)</div>', text[start:])
    assert found is not None
    return found[1], found[2]


async def test_workers_show_what_they_are_doing(dashboard: Dashboard, page: Page) -> None:
    await dashboard.scheduler.enqueue("forever")
    await page.goto(f"{dashboard.url}/workers")
    worker = page.locator("section.card").first
    await expect(worker.get_by_role("link", name="forever")).to_be_visible()
    await expect(worker).to_contain_text("runs at once")
    await expect(worker).to_contain_text("forever, greet, report")
