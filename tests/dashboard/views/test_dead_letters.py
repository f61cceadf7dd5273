"""The page of failed runs: grouped by job and error, retried or deleted together."""

from __future__ import annotations

import asyncio
import html
import re

from playwright.async_api import Page, expect

from mainspring.core.model import State
from tests.support.dashboard import Dashboard
from tests.support.service import Api

HTML = {"accept": "text/html"}
EVIL = "<img src=x onerror=alert(1)>"


def rows(page: str) -> list[tuple[str, str, int]]:
    """Job, error and number of runs of each group."""
    found = re.findall(r'<tr id="group-[^>]*>(.*?)</tr>', page, re.S)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)[:3] for row in found]
    words = [[html.unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in row] for row in cells]
    return [(job, error, int(count)) for job, error, count in words]


async def failed(scheduler: object, job: str, names: list[str]) -> None:
    made = await scheduler.enqueue_many(job, [{"name": name} for name in names])  # type: ignore[attr-defined]
    await asyncio.gather(*(scheduler.wait(run.id) for run in made))  # type: ignore[attr-defined]


async def test_without_failed_runs_it_says_what_comes_here(api: Api) -> None:
    assert "No dead letters" in (await api.get("/dead-letters", headers=HTML)).text
    none = await api.get("/dead-letters?job=greet", headers=HTML)
    assert "No failed run matches" in none.text


async def test_failed_runs_are_grouped_by_job_and_error(working: Api) -> None:
    scheduler = working.scheduler

    @scheduler.job()
    async def order(name: str) -> None:
        raise LookupError(f"order {name} is gone\nsecond line {name}")

    await failed(scheduler, "order", ["17", "18", EVIL])
    await failed(scheduler, "greet", ["nobody"] * 3)
    page = (await working.get("/dead-letters", headers=HTML)).text
    assert "<img" not in page.partition("<main")[2]
    assert rows(page) == [
        ("greet", "ValueError: there is nobody", 3),
        ("order", "LookupError: order # is gone", 2),
        ("order", f"LookupError: order {EVIL} is gone", 1),
    ]
    [link] = re.findall(r'href="(/dead-letters[^"]*order\+%23\+is\+gone)"', page)
    group = (await working.get(html.unescape(link), headers=HTML)).text
    assert len(re.findall(r'<tr id="run-', group)) == 2
    assert "Runs with this error" in group
    of_job = (await working.get("/dead-letters?job=order", headers=HTML)).text
    assert len(re.findall(r'<tr id="run-', of_job)) == 3


async def test_retry_of_a_group_and_delete_of_all(dashboard: Dashboard, page: Page) -> None:
    scheduler = dashboard.scheduler
    wrong = asyncio.Event()

    @scheduler.job()
    async def order(name: str) -> str:
        if not wrong.is_set():
            raise LookupError(f"order {name} is gone")
        return name

    await failed(scheduler, "order", ["1", "2", "3"])
    await failed(scheduler, "greet", ["nobody"] * 2)
    wrong.set()
    await page.goto(f"{dashboard.url}/dead-letters")
    dialog = page.get_by_role("dialog")
    group = page.locator("tr[id^='group-']", has_text="order # is gone")
    await group.get_by_role("button", name="Retry").click()
    await expect(dialog).to_contain_text(
        "Retry 3 runs of order with the error “LookupError: order # is gone”?"
    )
    await dialog.get_by_role("button", name="Retry").click()
    await expect(page.get_by_text("Retried 3 runs.")).to_be_visible()
    await expect(group).to_have_count(0)
    done = await scheduler.list_runs(job="order")
    for run in done.items:
        assert (await scheduler.wait(run.id)).state is State.SUCCEEDED
    bar = page.locator(".selection")
    await bar.get_by_label("All that match").check()
    await bar.get_by_role("button", name="Delete").click()
    await expect(dialog).to_contain_text("all failed runs of all jobs")
    await expect(dialog).to_contain_text("This cannot be undone.")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("Deleted 2 runs.")).to_be_visible()
    await expect(page.get_by_text("No dead letters")).to_be_visible()
    assert len((await scheduler.list_runs()).items) == 3


async def test_nothing_moves_while_the_pointer_is_on_a_button(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    await failed(scheduler, "greet", ["nobody"])
    await page.clock.install()
    await page.goto(f"{dashboard.url}/dead-letters")
    row = page.locator("tr[id^='group-']", has_text="greet")
    reads: list[str] = []
    page.on("request", lambda request: reads.append(request.url))
    button = row.get_by_role("button", name="Delete")
    await button.hover()
    await page.wait_for_load_state("networkidle")
    reads.clear()
    await page.clock.run_for(60_000)
    assert [one for one in reads if one.endswith("/dead-letters")] == []
    async with page.expect_response("**/dead-letters"):
        await page.mouse.move(5, 5)
        await page.clock.run_for(10_000)
