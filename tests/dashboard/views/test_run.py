"""The page of a run: what happened to it, and what can be done with it."""

from __future__ import annotations

import asyncio
import html
import re
import shlex

from playwright.async_api import Browser, Page, expect

from mainspring import RunContext
from mainspring.core.model import State
from tests.support.dashboard import Dashboard, watched_page
from tests.support.service import LONG, Api
from tests.support.webhook_endpoint import endpoint, response

HTML = {"accept": "text/html"}
EVIL = '<img src=x onerror="alert(1)">'


async def text_of(api: Api, run_id: str, query: str = "") -> str:
    answer = await api.get(f"/runs/{run_id}{query}", headers=HTML)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_an_unknown_run_gives_a_page_that_says_so(api: Api) -> None:
    answer = await api.get("/runs/nothing", headers=HTML)
    assert answer.status_code == 404
    assert "nothing" in answer.text
    assert answer.headers["content-type"].startswith("text/html")


async def test_errors_logs_payloads_and_results_are_shown_as_text(working: Api) -> None:
    scheduler = working.scheduler

    @scheduler.job()
    async def evil(ctx: RunContext, given: str) -> str:
        ctx.log.info("log %s", EVIL)
        if given.startswith("fail"):
            raise ValueError(f"error {EVIL}")
        return f"result {EVIL}"

    for given in (f"fail {EVIL}", f"payload {EVIL}"):
        run = await scheduler.enqueue("evil", {"given": given})
        await scheduler.wait(run.id)
        page = await text_of(working, run.id)
        assert "<img" not in page.partition("<main")[2]
        plain = html.unescape(page)
        assert f"log {EVIL}" in plain
        assert ("error " if given.startswith("fail") else "result ") + "<img src=x" in plain


async def test_a_pending_run_says_why_it_has_not_run(api: Api) -> None:
    later = await api.scheduler.enqueue("greet", delay="2h")
    stuck = await api.scheduler.enqueue("greet")
    for run in (later, stuck):
        found = await api.scheduler.explain(run.id)
        page = html.unescape(await text_of(api, run.id))
        kind = "info" if found.is_well else "warning"
        assert f'class="notice notice-{kind}"' in page
        assert found.sentence[1:30] in page


async def test_the_runs_before_and_after_it_are_linked(working: Api) -> None:
    scheduler = working.scheduler
    first, second = await scheduler.chain(("greet", {"name": "ada"}), "report")
    await scheduler.wait(second.id)
    assert f'href="/runs/{second.id}">report' in await text_of(working, first.id)
    assert f'href="/runs/{first.id}">greet' in await text_of(working, second.id)


async def test_a_run_with_many_long_attempts_stays_readable(working: Api) -> None:
    scheduler = working.scheduler

    @scheduler.job(retries=19, retry_delay="1ms", backoff="fixed")
    async def stubborn(ctx: RunContext) -> None:
        for number in range(700):
            ctx.log.info("attempt %s line %s %s", ctx.attempt, number, "x" * 70)
        raise RuntimeError("no luck")

    run = await scheduler.enqueue("stubborn")
    await scheduler.wait(run.id)
    page = await text_of(working, run.id)
    assert page.count('class="card attempt"') == 20
    assert len(page) < 200_000
    whole = await text_of(working, run.id, "?attempt=3")
    assert "attempt 3 line 699" in page
    assert "attempt 3 line 400 " not in page
    assert "attempt 3 line 400 " in whole
    assert re.search(r'id="attempt-3" open', whole)
    first, last = page.index('id="attempt-20"'), page.index('id="attempt-1"')
    assert first < last  # newest first


async def test_a_webhook_shows_request_and_response_with_secrets_masked(working: Api) -> None:
    said = response(500, f"no {EVIL} topsecret-token".encode())
    async with endpoint(lambda _: said) as called:
        job = await working.scheduler.add_job(
            "hook",
            webhook={
                "url": called.url,
                "headers": {"Authorization": "Bearer topsecret-token", "X-Plain": "it's <b>"},
                "body": {"evil": EVIL},
            },
        )
        run = await working.scheduler.trigger(job.id)
        await working.scheduler.wait(run.id)
    page = await text_of(working, run.id)
    assert "topsecret" not in page
    assert "<img" not in page.partition("<main")[2]
    plain = html.unescape(page)
    assert f"POST {called.url}" in plain
    assert "500 Internal Server Error" in plain
    assert "X-Plain: it's <b>" in plain
    [command] = re.findall(r'<pre id="curl"[^>]*>(.*?)</pre>', page, re.S)
    words = shlex.split(html.unescape(command).replace("\\\n", " "))
    assert words[:5] == ["curl", "-g", "-X", "POST", called.url]
    assert "X-Plain: it's <b>" in words
    assert not any("topsecret" in word for word in words)
    assert words[words.index("--data-raw") + 1].startswith('{"evil"')


async def test_a_running_run_shows_its_progress_and_can_be_cancelled(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    go_on = asyncio.Event()

    @scheduler.job()
    async def count(ctx: RunContext) -> None:
        ctx.progress(1, 4, f"one {EVIL}")
        await go_on.wait()
        ctx.progress(3, 4, "three")
        await asyncio.Event().wait()

    run = await scheduler.enqueue("count")
    await page.goto(f"{dashboard.url}/runs/{run.id}")
    bar = page.get_by_role("progressbar")
    await expect(bar).to_have_attribute("value", re.compile(r"^1(\.0)?$"))
    await expect(page.locator("#progress")).to_contain_text(f"one {EVIL}")
    go_on.set()
    await expect(bar).to_have_attribute("value", re.compile(r"^3(\.0)?$"))
    await expect(page.locator("#progress")).to_contain_text("75 %".replace(" ", "\u202f"))
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    await expect(page.locator("#run-state")).to_have_text("cancelled")
    assert (await scheduler.wait(run.id, LONG)).state is State.CANCELLED


async def test_a_failed_run_can_be_retried_copied_and_deleted(
    dashboard: Dashboard, browser: Browser
) -> None:
    scheduler = dashboard.scheduler
    run = await scheduler.enqueue("greet", {"name": "nobody"})
    await scheduler.wait(run.id)
    async with watched_page(browser, permissions=["clipboard-read", "clipboard-write"]) as page:
        await page.goto(f"{dashboard.url}/runs/{run.id}")
        await page.get_by_role("button", name="Copy id").click()
        await expect(page.get_by_text("Copied.")).to_have_count(1)
        copied = "navigator.clipboard.readText()"
        assert await page.evaluate(copied) == run.id
        await page.get_by_role("button", name="Copy as curl").click()
        await expect(page.get_by_text("Copied.")).to_have_count(2)
        words = shlex.split((await page.evaluate(copied)).replace("\\\n", " "))
        assert words[3] == f"{dashboard.url}/api/v1/jobs/greet/trigger"
        assert words[-1] == '{"payload": {"name": "nobody"}}'
        await page.get_by_role("button", name="Retry").click()
        await expect(page.locator("#attempt-2")).to_be_visible()
        await expect(page.locator("#run-state")).to_have_text("failed")
        await page.get_by_role("button", name="Delete").click()
        await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        await page.wait_for_url(f"{dashboard.url}/runs")
        await expect(page.get_by_text("No runs yet")).to_be_visible()
