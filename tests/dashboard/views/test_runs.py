"""The page of all runs: filters in the address, pages, and what is done with many runs."""

from __future__ import annotations

import asyncio
import html
import re
from datetime import timedelta
from typing import Any

from playwright.async_api import Page, expect

from mainspring.core.model import Run, State
from mainspring.dashboard.views.runs import RUNS_PER_PAGE
from tests.support.dashboard import Dashboard
from tests.support.service import Api, Make

HTML = {"accept": "text/html"}
SHOWN = re.compile(r'id="run-([^"]+)"')


async def shown(api: Api, path: str) -> list[str]:
    answer = await api.get(path, headers=HTML)
    assert answer.status_code == 200, answer.text
    return SHOWN.findall(answer.text)


async def test_before_the_first_run_it_says_how_runs_are_made(api: Api) -> None:
    answer = await api.get("/runs", headers=HTML)
    assert "No runs yet" in answer.text
    assert 'href="/new-job"' in answer.text
    none = await api.get("/runs?job=nothing&state=failed", headers=HTML)
    assert "No run matches" in none.text
    assert "job nothing, failed" in none.text


async def test_filters_are_in_the_address(working: Api) -> None:
    scheduler = working.scheduler
    good = await scheduler.enqueue("greet", {"name": "ada"})
    bad = await scheduler.enqueue("greet", {"name": "nobody"})
    await asyncio.gather(scheduler.wait(good.id), scheduler.wait(bad.id))
    later = await scheduler.enqueue("report", delay="2h")
    assert await shown(working, "/runs") == [later.id, bad.id, good.id]
    assert await shown(working, "/runs?job=greet") == [bad.id, good.id]
    assert await shown(working, "/runs?state=pending&state=failed") == [later.id, bad.id]
    assert await shown(working, "/runs?failing=true") == [bad.id]
    assert await shown(working, "/runs?within=1h&since=&until=&job=") == [later.id, bad.id, good.id]
    tomorrow = (await scheduler.now() + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M")
    assert await shown(working, f"/runs?since={tomorrow}") == []
    assert await shown(working, f"/runs?until={tomorrow}") == [later.id, bad.id, good.id]
    row = (await working.get("/runs?state=failed", headers=HTML)).text
    assert "ValueError: there is nobody" in row
    assert 'aria-current="true"><span class="state state-failed">' in row


async def test_older_runs_are_on_the_next_page(api: Api) -> None:
    made = await api.scheduler.enqueue_many(
        "greet", [{"name": str(n)} for n in range(RUNS_PER_PAGE + 3)]
    )
    newest = [run.id for run in reversed(made)]
    first = await api.get("/runs?job=greet", headers=HTML)
    assert SHOWN.findall(first.text) == newest[:RUNS_PER_PAGE]
    assert "Newest" not in first.text
    [older] = re.findall(r'rel="next" href="([^"]+)"', first.text)
    second = await api.get(older.replace("&amp;", "&"), headers=HTML)
    assert SHOWN.findall(second.text) == newest[RUNS_PER_PAGE:]
    assert 'href="/runs?job=greet">Newest' in second.text
    assert "Older" not in second.text


async def test_a_list_from_a_moment_on_ends_there(api: Api) -> None:
    scheduler = api.scheduler
    now = await scheduler.now()
    old = now - timedelta(days=2)
    times: dict[str, Any] = dict.fromkeys(("created_at", "scheduled_at", "run_at"), old)
    await scheduler.store.add(
        [
            Run(id=f"old-{n}", job_id="greet", handler="greet", **times)
            for n in range(2 * RUNS_PER_PAGE)
        ]
    )
    new = [(await scheduler.enqueue("greet")).id for _ in range(2)][::-1]
    assert await shown(api, "/runs?within=24h") == new
    since = (now - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert await shown(api, f"/runs?job=greet&state=pending&since={since}") == new
    [older] = re.findall(r'rel="next" href="([^"]+)"', (await api.get("/runs?within=24h")).text)
    end = (await api.get(html.unescape(older), headers=HTML)).text
    assert "No older runs" in end
    tomorrow = (now + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert await shown(api, f"/runs?since={since}&until={tomorrow}") == new


async def test_wrong_filters_give_a_page_that_says_which(api: Api) -> None:
    wrong = (
        ("since=soon", "“Since”"),
        ("state=odd", "The state"),
        ("cursor=x", "place in the list"),
    )
    for query, words in wrong:
        answer = await api.get(f"/runs?{query}", headers=HTML)
        assert answer.status_code == 422, query
        assert words in answer.text.partition("<main")[2]


async def test_a_reader_sees_no_actions(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    run = await api.scheduler.enqueue("greet")
    _, text = await api.app.state.service.keys.create("ada", "read")
    headers = {**HTML, "Authorization": f"Bearer {text}"}
    for path in ("/runs", f"/runs/{run.id}"):
        page = (await api.get(path, headers=headers)).text
        assert run.id in page
        assert "data-does" not in page
        assert "data-tick" not in page
        assert f'data-path="api/v1/runs/{run.id}' not in page


async def test_texts_of_users_are_shown_as_text(working: Api) -> None:
    scheduler = working.scheduler

    @scheduler.job()
    async def evil() -> None:
        raise ValueError('<img src=x onerror="alert(1)">')

    run = await scheduler.enqueue("evil")
    await scheduler.wait(run.id)
    page = (await working.get("/runs", headers=HTML)).text
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;" in page


async def test_bulk_actions_of_ticked_runs(dashboard: Dashboard, page: Page) -> None:
    scheduler = dashboard.scheduler
    await page.goto(f"{dashboard.url}/runs")
    await expect(page.get_by_text("No runs yet")).to_be_visible()
    failed = await scheduler.enqueue_many("greet", [{"name": "nobody"}] * 3)
    await asyncio.gather(*(scheduler.wait(run.id) for run in failed))
    waits = await scheduler.enqueue("greet", delay="2h")
    await page.get_by_role("button", name="Retry").click()
    await expect(page.get_by_text("Tick runs first")).to_be_visible()
    await page.get_by_label(f"Tick run {failed[0].id}").check()
    await page.get_by_label(f"Tick run {waits.id}").check()
    await expect(page.get_by_text("2 ticked")).to_be_visible()
    # An update keeps what is ticked.
    seen = await scheduler.enqueue("report")
    await expect(page.locator(f"[id='run-{seen.id}']")).to_be_visible()
    await expect(page.get_by_text("2 ticked")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Cancel the 2 runs that you ticked?")
    await dialog.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_text("Cancelled 1 run. 1 run stayed")).to_be_visible()
    row = page.locator(f"[id='run-{waits.id}']")
    await expect(row.locator(".state")).to_have_text("cancelled")
    assert (await scheduler.get_run(waits.id)).state is State.CANCELLED
    await expect(page.get_by_text("None ticked")).to_be_visible()


async def test_bulk_actions_of_all_that_match(dashboard: Dashboard, page: Page) -> None:
    scheduler = dashboard.scheduler
    failed = await scheduler.enqueue_many("greet", [{"name": "nobody"}] * 4)
    await asyncio.gather(*(scheduler.wait(run.id) for run in failed))
    other = await scheduler.enqueue("report", delay="2h")
    await scheduler.cancel(other.id)
    await page.goto(f"{dashboard.url}/runs?job=greet&state=failed&failing=true")
    await page.get_by_label("All that match").check()
    await page.get_by_role("button", name="Retry").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("all runs that match (job greet, failed, with a failed")
    await dialog.get_by_role("button", name="Keep").click()
    assert (await scheduler.get_run(failed[0].id)).attempt == 1
    await page.get_by_role("button", name="Retry").click()
    await dialog.get_by_role("button", name="Retry").click()
    await expect(page.get_by_text("Retried 4 runs.")).to_be_visible()
    for run in failed:
        await scheduler.wait(run.id)
        assert (await scheduler.get_run(run.id)).attempt == 2
    await page.goto(f"{dashboard.url}/runs")
    await page.get_by_label("Tick all runs on this page").check()
    await expect(page.get_by_text("5 ticked")).to_be_visible()
    await page.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("Deleted 5 runs.")).to_be_visible()
    await expect(page.get_by_text("No runs yet")).to_be_visible()
