"""Workers, keys and the audit log, in a real browser."""

from __future__ import annotations

from playwright.async_api import Page, expect

from mainspring.dashboard.views.keys import describe_change
from tests.support.dashboard import Dashboard, served
from tests.support.service import ROUTES, Api

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


async def test_a_session_that_ended_is_noticed(page: Page) -> None:
    async with served(loopback=False) as made:
        keys = made.app.state.service.keys
        key, text = await keys.create("ada", "write")
        await page.goto(f"{made.url}/workers")
        await page.get_by_label("API key").fill(text)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Workers")).to_be_visible()
        await keys.revoke(key.id)
        await expect(page.get_by_label("API key")).to_be_visible()  # by the next update
        assert page.url.endswith("/sign-in?next=workers")


async def test_a_button_of_a_page_whose_session_ended_keeps_the_page(page: Page) -> None:
    async with served(loopback=False) as made:
        keys = made.app.state.service.keys
        key, text = await keys.create("ada", "write")
        await page.goto(f"{made.url}/")
        await page.get_by_label("API key").fill(text)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("button", name="Live").click()
        await keys.revoke(key.id)
        await page.get_by_role("button", name="Pause all firing").click()
        await page.get_by_role("dialog").get_by_role("button", name="Pause all firing").click()
        await expect(page.locator("#messages")).to_contain_text("You are signed out.")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_the_audit_log_says_what_each_change_was(api: Api) -> None:
    await api.ok("POST", "/api/v1/jobs", json={"id": "mail", "schedule": None, "handler": "greet"})
    await api.post("/api/v1/jobs/greet/pause")
    await api.post("/api/v1/pause")
    await api.app.state.service.audit.flush()
    rows = (await api.get("/audit", headers=HTML)).text.partition("<tbody>")[2].split("</tr>")[:3]
    # The clock of a store may give two entries the same microsecond, so their order is not asked.
    [paused] = [row for row in rows if "Paused the job greet" in row]
    assert "POST /api/v1/jobs/greet/pause" in paused
    assert sum("Paused all firing" in row for row in rows) == 1
    assert sum("Created a job" in row for row in rows) == 1
    assert all("no key" in row for row in rows)


def test_every_change_has_words() -> None:
    """Each route that changes something, of both addresses of the API."""
    changes = [
        (method, route.path.format(id="x", key="x"))
        for route in ROUTES
        for method in getattr(route, "methods", ())
        if method not in ("GET", "HEAD") and "preview" not in route.path
    ]
    assert changes
    assert [one for one in changes if describe_change(*one) is None] == []
    assert describe_change("POST", "/below/api/v1/session") == "Signed in"
    assert describe_change("POST", "/api/jobs/a%20b/trigger") == "Ran the job a b now"
    assert describe_change("POST", "/api/v1/jobs/bulk") == "Changed many jobs"
