"""The frame of every page, in a real browser: menu, live updates, shortcuts, light and dark."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, expect

from mainspring import Scheduler
from mainspring.dashboard.demo import SAMPLE_HANDLER, demo_scheduler, fill, run_sample
from tests.support.dashboard import Dashboard, served, sign_in


async def test_live_updates_can_be_paused(dashboard: Dashboard, page: Page) -> None:
    await page.goto(f"{dashboard.url}/")
    live = page.get_by_role("button", name="Live")
    await expect(live).to_have_attribute("aria-pressed", "true")
    await live.click()
    await expect(page.get_by_role("button", name="Paused")).to_have_attribute(
        "aria-pressed", "false"
    )
    await page.reload()  # the choice stays for this window
    await expect(page.get_by_role("button", name="Paused")).to_be_visible()


async def test_a_question_mark_lists_the_shortcuts(dashboard: Dashboard, page: Page) -> None:
    await page.goto(f"{dashboard.url}/")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_light_and_dark_follow_system_and_button(dashboard: Dashboard, page: Page) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    await page.goto(f"{dashboard.url}/")
    light = await page.evaluate(background)
    await page.emulate_media(color_scheme="dark")
    dark = await page.evaluate(background)
    assert dark != light
    await page.get_by_role("button", name="Light or dark").click()
    assert await page.evaluate(background) == light
    await page.reload()
    assert await page.evaluate(background) == light


async def test_pausing_all_firing_asks_first(dashboard: Dashboard, page: Page) -> None:
    await page.goto(f"{dashboard.url}/")
    await page.get_by_role("button", name="Pause all firing").click()
    await page.get_by_role("button", name="Keep").click()
    assert await dashboard.scheduler.paused_since() is None
    await page.get_by_role("button", name="Pause all firing").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause all firing").click()
    resume = page.get_by_role("button", name="Resume firing")
    await expect(resume).to_be_visible()
    assert await dashboard.scheduler.paused_since() is not None
    await resume.click()
    await expect(resume).to_have_count(0)


async def test_it_works_below_a_path(page: Page) -> None:
    async with served(prefix="/scheduler") as made:
        await page.goto(f"{made.url}/")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        for link in await page.locator("nav.side a").all():
            assert (await link.get_attribute("href") or "").startswith("/scheduler/")


async def test_signing_in_and_out(page: Page) -> None:
    async with served(loopback=False) as made:
        keys = made.app.state.service.keys
        _, text = await keys.create("ada", "read")
        await page.goto(f"{made.url}/?window=7d")
        await page.get_by_label("API key").fill("ms_wrong")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("alert")).to_contain_text("unknown, revoked or expired")
        await page.get_by_label("API key").fill(text)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        assert page.url == f"{made.url}/?window=7d"
        assert await page.evaluate("document.cookie") == ""
        await expect(page.get_by_role("button", name="Pause all firing")).to_have_count(0)
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("API key")).to_be_visible()
        await page.goto(f"{made.url}/")
        await expect(page.get_by_label("API key")).to_be_visible()


async def test_a_new_service_says_what_to_do_first(page: Page) -> None:
    scheduler = Scheduler("memory://", workers=2)
    scheduler.add_handler(SAMPLE_HANDLER, run_sample)
    async with served(scheduler) as made:
        await page.goto(f"{made.url}/")
        await expect(page.get_by_role("heading", name="Welcome to Mainspring")).to_be_visible()
        await expect(page.locator("main")).to_contain_text(f"curl {made.url}/api/v1/jobs")
        await page.get_by_role("button", name="Create a sample job").click()
        await expect(page.get_by_role("heading", name="sample")).to_be_visible()
        assert (await scheduler.get_job("sample")).handler == SAMPLE_HANDLER
        run = await scheduler.trigger("sample", {"name": "Ada", "step_seconds": 0})
        ended = await scheduler.wait(run.id, "30s")
        assert ended.result == {"greeting": "hello Ada", "steps": 5}
        await page.goto(f"{made.url}/")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()


async def test_the_first_paint_of_the_overview_loads_less_than_200_kb(page: Page) -> None:
    scheduler = demo_scheduler("memory://", workers=2)
    async with served(scheduler) as made:
        await fill(scheduler, jobs=20)
        network = await page.context.new_cdp_session(page)
        await network.send("Network.enable")
        urls: dict[str, str] = {}
        loaded: dict[str, float] = {}  # each address once: live updates may load some again

        def requested(event: dict[str, Any]) -> None:
            urls[event["requestId"]] = event["request"]["url"]

        def finished(event: dict[str, Any]) -> None:
            loaded.setdefault(urls[event["requestId"]], event["encodedDataLength"])

        network.on("Network.requestWillBeSent", requested)
        network.on("Network.loadingFinished", finished)
        await page.goto(f"{made.url}/")
        await expect(page.locator("#throughput canvas")).to_be_visible()
        await expect(page.locator("#durations canvas")).to_be_visible()
        assert len(loaded) > 10  # the page, styles, scripts and figures
        assert sum(loaded.values()) < 200_000
        other = "performance.getEntries().filter(e => e.name.startsWith('http')).map(e => e.name)"
        assert all(name.startswith(made.url) for name in await page.evaluate(other))
        await page.goto("about:blank")


async def test_a_button_of_a_page_whose_session_ended_keeps_the_page(page: Page) -> None:
    async with served(loopback=False) as made:
        keys = made.app.state.service.keys
        key, text = await keys.create("ada", "write")
        await sign_in(page, f"{made.url}/", text)
        await page.get_by_role("button", name="Live").click()
        await keys.revoke(key.id)
        await page.get_by_role("button", name="Pause all firing").click()
        await page.get_by_role("dialog").get_by_role("button", name="Pause all firing").click()
        await expect(page.locator("#messages")).to_contain_text("You are signed out.")
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
