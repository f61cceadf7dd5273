"""A dashboard on a real port, and a real browser that looks at it (Playwright with Chromium).

One Chromium serves all tests of a process, which share one loop and one connection to it; each test
has windows of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect
from starlette.applications import Starlette
from starlette.routing import Mount

from mainspring import Scheduler
from mainspring.dashboard.app import create_app
from mainspring.service.server import listening
from mainspring.service.settings import ServiceSettings
from tests.support.browser.chromium import FLAGS, chromium
from tests.support.service import LONG, sample_scheduler

__all__ = ["Dashboard", "browser", "chromium_port", "dashboard", "page", "served", "watched_page"]

expect.set_options(timeout=LONG * 1000)


class Dashboard:
    """The pages of a started scheduler."""

    def __init__(self, scheduler: Scheduler, app: Any, url: str) -> None:
        self.scheduler = scheduler
        self.app = app
        self.url = url


@asynccontextmanager
async def served(
    scheduler: Scheduler | None = None, *, loopback: bool = True, prefix: str = ""
) -> AsyncIterator[Dashboard]:
    """Serve the dashboard of a scheduler in this loop. `loopback=False`: a key is needed.
    `prefix`: mounted below that path."""
    made = scheduler or sample_scheduler(workers=4)
    with listening("127.0.0.1", 0) as bound:
        async with made:
            app = create_app(made, ServiceSettings.read(), loopback=loopback)
            whole = Starlette(routes=[Mount(prefix, app)]) if prefix else app
            config = uvicorn.Config(whole, lifespan="off", log_config=None, access_log=False)
            server = uvicorn.Server(config)
            serving = asyncio.ensure_future(server._serve([bound]))  # without signal handlers
            port = bound.getsockname()[1]
            try:
                yield Dashboard(made, app, f"http://127.0.0.1:{port}{prefix}")
            finally:
                app.state.service.draining.set()  # ends event streams
                server.should_exit = server.force_exit = True
                await serving
                await made.stop(graceful=False)  # some handlers of the samples run for ever


@pytest_asyncio.fixture(loop_scope="session")
async def dashboard() -> AsyncIterator[Dashboard]:
    """A dashboard on a memory store with the jobs of `sample_scheduler`, without keys."""
    async with served() as made:
        yield made


@pytest.fixture(scope="session")
def chromium_port() -> Iterator[int]:
    """A running Chromium: the port at which it takes commands."""
    found = chromium()
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [found.program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            env={**os.environ, **found.env},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _wait_for_port(process, Path(folder) / "DevToolsActivePort")
        finally:
            process.kill()
            process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], told: Path) -> int:
    ends = time.monotonic() + 4 * LONG
    while time.monotonic() < ends:
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        lines = told.read_text().splitlines() if told.exists() else []
        if len(lines) == 2:
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError("Chromium did not start in time")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium_port: int) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        where = f"http://127.0.0.1:{chromium_port}"
        made = await playwright.chromium.connect_over_cdp(where, timeout=4 * LONG * 1000)
        yield made
        await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page in a window of its own. The test fails if a script fails or the policy of a page
    forbids something."""
    async with watched_page(browser) as made:
        yield made


@asynccontextmanager
async def watched_page(browser: Browser, **options: Any) -> AsyncIterator[Page]:
    options = {"viewport": {"width": 1280, "height": 800}, "locale": "en-US", **options}
    context = await browser.new_context(**options)
    context.set_default_timeout(LONG * 1000)
    made = await context.new_page()
    complaints: list[str] = []
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("console", lambda message: complaints.extend(_complaint(message)))
    yield made
    await context.close()
    assert not complaints, complaints


def _complaint(message: ConsoleMessage) -> list[str]:
    """What the browser says of scripts and policies. A request that the service refuses is also an
    error to it; the page shows that to the person. A request that a change of page cuts off is
    none: htmx says `sendAbort` then, and `afterRequest` beside the cause of every error."""
    expected = ("Failed to load resource", "htmx:afterRequest", "htmx:sendAbort")
    if message.type != "error" or any(text in message.text for text in expected):
        return []
    return [message.text]


async def sign_in(page: Page, url: str, key: str) -> None:
    await page.goto(url)
    await page.get_by_label("API key").fill(key)
    await page.get_by_role("button", name="Sign in").click()
