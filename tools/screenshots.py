"""`python -m tools.screenshots [FOLDER]`: pictures of the main views, for the README and the docs.

They show the made-up fleet of `mainspring serve --demo`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from playwright.async_api import Page, async_playwright

from mainspring.core.model import State
from mainspring.dashboard.demo import demo_scheduler, fill
from tests.support.browser.chromium import FLAGS, chromium
from tests.support.dashboard import Dashboard, served

FOLDER = Path(__file__).parents[1] / "docs" / "assets" / "screenshots"
SETTLE_SECONDS = 8.0
"""How long the demo works before the pictures are made: some runs are under way then."""


async def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        scheduler = demo_scheduler(f"sqlite:///{place}/demo.db")
        async with served(scheduler) as made:
            await fill(scheduler, print)
            await asyncio.sleep(SETTLE_SECONDS)
            await _take_all(made, folder)


async def _take_all(made: Dashboard, folder: Path) -> None:
    failed = (await made.scheduler.list_runs(state=State.FAILED, limit=1, job="call_partner")).items
    views = {
        "overview": "/?window=7d",
        "jobs": "/jobs?tag=payments",
        "job": "/jobs/payments-send-invoices-eu",
        "new-job": "/new-job",
        "runs": "/runs",
        "run": f"/runs/{failed[0].id}",
        "timeline": "/timeline",
        "load": "/load",
        "dead-letters": "/dead-letters",
        "workers": "/workers",
    }
    found = chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=found.program,
            env={**os.environ, **found.env},
            args=[flag for flag in FLAGS if "debugging" not in flag],
        )
        for scheme in ("light", "dark"):
            context = await browser.new_context(
                viewport={"width": 1280, "height": 860}, color_scheme=scheme, locale="en-US"
            )
            page = await context.new_page()
            for name, path in views.items():
                if scheme == "light" or name == "overview":
                    file = f"{name}.png" if scheme == "light" else f"{name}-dark.png"
                    await _take(page, f"{made.url}{path}", folder / file)
        await browser.close()


async def _take(page: Page, url: str, file: Path) -> None:
    answer = await page.goto(url)
    assert answer is not None
    assert answer.status == 200, url
    await page.wait_for_timeout(1500)  # charts are drawn, previews are there
    await page.screenshot(path=file)
    print(file)


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    chosen.mkdir(parents=True, exist_ok=True)
    asyncio.run(main(chosen))
