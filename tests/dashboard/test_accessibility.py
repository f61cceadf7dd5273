"""Every page, light and dark, wide and narrow: no finding of axe-core, nothing wider than the
window."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from fastapi.routing import APIRoute
from playwright.async_api import Browser, expect

from mainspring.dashboard.app import VIEWS
from tests.support.browser.axe import RULES, serious_findings
from tests.support.dashboard import Dashboard, served, watched_page
from tests.support.service import sample_scheduler

CONTRAST = ["color-contrast"]
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest_asyncio.fixture(loop_scope="session")
async def filled() -> AsyncIterator[Dashboard]:
    """Jobs and runs of several kinds."""
    scheduler = sample_scheduler(workers=4)
    async with served(scheduler) as made:
        good = await scheduler.enqueue("greet", {"name": "ada"})
        bad = await scheduler.enqueue("greet", {"name": "nobody"})
        for run in (good, bad):
            await scheduler.wait(run.id, timeout="30s")
        await scheduler.enqueue("forever")
        await scheduler.pause_job("report")
        yield made


def paths(run_id: str) -> list[str]:
    """Every page, with a job and a run where it is about one."""
    found: list[str] = []
    for view in VIEWS:
        for route in view.router.routes:
            assert isinstance(route, APIRoute)
            for given in ("report", "greet") if route.path.startswith("/jobs/{") else (run_id,):
                found.append(route.path.replace("{id}", given))
    return sorted(set(found))


@pytest.mark.parametrize("width", [1280, pytest.param(360, marks=pytest.mark.thorough)])
async def test_pages_are_accessible_and_fit(
    filled: Dashboard, browser: Browser, width: int
) -> None:
    run = (await filled.scheduler.list_runs(state="failed")).items[0]
    wrong: dict[str, list[str]] = {}
    async with watched_page(
        browser, viewport={"width": width, "height": 800}, reduced_motion="reduce"
    ) as page:
        for path in paths(run.id):
            await page.emulate_media(color_scheme="light")
            answer = await page.goto(f"{filled.url}{path}")
            assert answer is not None
            assert answer.status == 200, path
            await expect(page.locator("main")).to_be_visible()
            findings = await serious_findings(page, RULES)
            if too_wide := await page.evaluate(OVERFLOW):
                findings.append(f"it is {too_wide} px wider than the window")
            await page.emulate_media(color_scheme="dark")
            # Nothing else differs.
            findings += [f"dark: {text}" for text in await serious_findings(page, CONTRAST)]
            if findings:
                wrong[path] = findings
    assert not wrong, "\n".join(f"{path}: {text}" for path in wrong for text in wrong[path])
