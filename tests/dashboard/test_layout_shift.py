"""Nothing jumps while a page is live: a value that changes in place moves nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from playwright.async_api import Page, expect

from mainspring import Scheduler
from tests.support.dashboard import Dashboard

MOST = 0.01
"""The sum of the browser's layout shifts. A line that appears above a list of three jobs gives
0.0097 by itself. The columns of a table move by a few pixels when a text in them gets longer,
which gives 0.003 each time."""

OBSERVE = """
() => {
  window.shifts = [];
  const from = performance.now();
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) {
      if (one.startTime < from || one.hadRecentInput) continue;
      const moved = one.sources.map(({ node }) => node?.parentElement?.outerHTML.slice(0, 200));
      window.shifts.push([one.value, moved]);
    }
  }).observe({ type: "layout-shift", buffered: true });
}
"""
# Entries come after the frame in which something moved.
READ = """
() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => done(window.shifts)))))
"""

Change = Callable[[Page, Scheduler], Awaitable[None]]


async def change_overview(page: Page, scheduler: Scheduler) -> None:
    """The counts of the tiles, and of the worker."""
    running = page.locator(".tile", has_text="Running").locator(".tile-value")
    succeeded = page.locator(".tile", has_text="Succeeded").locator(".tile-value")
    for count in range(1, 4):
        await scheduler.enqueue("forever")
        await expect(running).to_have_text(str(count))
    for _ in range(10):
        await scheduler.enqueue("greet")
    await expect(succeeded).to_have_text("11")


async def change_jobs(page: Page, scheduler: Scheduler) -> None:
    """The state of a job, its last run and its health."""
    row = page.locator("#job-report")
    await scheduler.pause_job("report")
    await expect(row).to_contain_text("paused")
    await scheduler.resume_job("report")
    await expect(row).not_to_contain_text("paused")
    run = await scheduler.enqueue("greet", {"name": "nobody"})
    await scheduler.wait(run.id)
    await expect(page.locator("#job-greet")).to_contain_text("failed")
    await scheduler.enqueue("forever")
    await expect(page.locator("#job-forever")).to_contain_text("running")


async def change_runs(page: Page, scheduler: Scheduler) -> None:
    """The states of runs that are listed already."""
    for run in (await scheduler.list_runs(job="greet", state="pending")).items:
        row = page.locator(f'[id="run-{run.id}"]')
        await scheduler.cancel(run.id)
        await expect(row).to_contain_text("cancelled")


@pytest.mark.parametrize(
    ("path", "change"),
    [("/", change_overview), ("/jobs", change_jobs), ("/runs", change_runs)],
)
async def test_values_that_change_in_place_move_nothing(
    dashboard: Dashboard, page: Page, path: str, change: Change
) -> None:
    scheduler = dashboard.scheduler
    await scheduler.wait((await scheduler.enqueue("greet")).id)
    for _ in range(3):
        await scheduler.enqueue("greet", delay="1h")
    await page.goto(f"{dashboard.url}{path}")
    if path == "/":
        await expect(page.locator(".chart canvas")).to_have_count(2)
    await page.evaluate(READ)
    await page.evaluate(OBSERVE)
    await change(page, scheduler)
    shifts = await page.evaluate(READ)
    assert sum(value for value, _ in shifts) < MOST, shifts
