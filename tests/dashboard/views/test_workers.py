"""The page of workers, in a real browser."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.support.dashboard import Dashboard


async def test_workers_show_what_they_are_doing(dashboard: Dashboard, page: Page) -> None:
    await dashboard.scheduler.enqueue("forever")
    await page.goto(f"{dashboard.url}/workers")
    worker = page.locator("section.card").first
    await expect(worker.get_by_role("link", name="forever")).to_be_visible()
    await expect(worker).to_contain_text("runs at once")
    await expect(worker).to_contain_text("forever, greet, report")
