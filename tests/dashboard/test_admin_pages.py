"""Workers, keys and the audit log, in a real browser."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.support.dashboard import Dashboard, served
from tests.support.service import Api

HTML = {"accept": "text/html"}
PROBE = "<img src=x onerror=alert(1)>"


async def test_workers_show_what_they_are_doing(dashboard: Dashboard, page: Page) -> None:
    await dashboard.scheduler.enqueue("forever")
    await page.goto(f"{dashboard.url}/workers")
    worker = page.locator("section.card").first
    await expect(worker.get_by_role("link", name="forever")).to_be_visible()
    await expect(worker).to_contain_text("runs at once")
    await expect(worker).to_contain_text("forever, greet, report")


async def test_a_key_is_made_shown_once_and_revoked(page: Page) -> None:
    async with served(loopback=False) as made:
        _, text = await made.app.state.service.keys.create("ada", "admin")
        await page.goto(f"{made.url}/keys")
        await page.get_by_label("API key").fill(text)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_label("Name").fill(PROBE)
        await page.get_by_label("May").select_option("write")
        await page.get_by_role("button", name="Create key").click()
        shown = page.locator("#made-key-text")
        await expect(shown).to_contain_text("ms_")
        new = await made.app.state.service.keys.check(await shown.inner_text())
        assert (new.name, new.scope) == (PROBE, "write")
        row = page.locator(f"#key-{new.id}")
        await expect(row).to_contain_text(PROBE)
        await row.get_by_role("button", name="Revoke").click()
        await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        await expect(row).to_contain_text("revoked")
        await page.reload()
        await expect(shown).to_be_hidden()
        await page.goto(f"{made.url}/audit")
        await expect(page.locator("tbody tr").first).to_contain_text(
            f"DELETE /api/v1/keys/{new.id}"
        )
        await expect(page.locator("tbody tr").first).to_contain_text("ada")


async def test_empty_pages_say_what_to_do(api: Api) -> None:
    assert "Create one before you let other machines reach" in (await api.get("/keys")).text
    assert "Each change through the API" in (await api.get("/audit")).text
