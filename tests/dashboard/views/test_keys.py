"""The pages of keys and of the audit log, in a real browser."""

from __future__ import annotations

from playwright.async_api import Page, expect

from tests.support.dashboard import served, sign_in
from tests.support.service import Api

HTML = {"accept": "text/html"}
PROBE = "<img src=x onerror=alert(1)>"


async def test_a_key_is_made_shown_once_and_revoked(page: Page) -> None:
    async with served(loopback=False) as made:
        _, text = await made.app.state.service.keys.create("ada", "admin")
        await sign_in(page, f"{made.url}/keys", text)
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


async def test_the_first_key_is_an_admin_key_and_the_browser_goes_on_with_it(page: Page) -> None:
    async with served() as made:
        await page.goto(f"{made.url}/keys")
        await page.get_by_label("Name").fill("first")
        await page.get_by_role("button", name="Create key").click()
        shown = page.locator("#made-key-text")
        await expect(shown).to_contain_text("ms_")
        await expect(page.locator("tbody tr")).to_contain_text("first")  # the page was read again
        new = await made.app.state.service.keys.check(await shown.inner_text())
        assert new.scope == "admin"
        await page.goto(f"{made.url}/jobs")
        await expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


async def test_the_audit_log_says_what_each_change_was(api: Api) -> None:
    await api.ok("POST", "/api/v1/jobs", json={"id": "mail", "schedule": None, "handler": "greet"})
    await api.post("/api/v1/jobs/greet/pause")
    await api.post("/api/v1/pause")
    await api.app.state.service.audit.flush()
    rows = (await api.get("/audit", headers=HTML)).text.partition("<tbody>")[2].split("</tr>")[:3]
    # The clock of a store may give two entries the same microsecond, so their order is not asked.
    [paused] = [row for row in rows if "Pause a job: greet" in row]
    assert "POST /api/v1/jobs/greet/pause" in paused
    assert sum("Pause all firing" in row for row in rows) == 1
    assert sum("Create a job: mail" in row for row in rows) == 1
    assert all("no key" in row for row in rows)
