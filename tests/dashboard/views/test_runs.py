"""The page of all runs: filters in the address, pages, and what is done with many runs."""

from __future__ import annotations

import asyncio
import html
import re
import shlex
from datetime import timedelta

from playwright.async_api import Browser, Page, expect

from mainspring import RunContext
from mainspring.core.model import State
from mainspring.dashboard.views.runs import RUNS_PER_PAGE, request_command, trigger_command
from tests.support.dashboard import Dashboard, watched_page
from tests.support.service import LONG, Api, Make
from tests.support.service_calls import key
from tests.support.webhook_endpoint import endpoint, response

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


async def test_a_reader_sees_no_actions(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    run = await api.scheduler.enqueue("greet")
    headers = {**HTML, **await key(api, "read")}
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


NASTY = 'it\'s $(reboot) `id`\n"x" \\ <b>'


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n ", " "))


def test_a_request_is_sent_again_as_it_was_kept() -> None:
    command = request_command(
        {
            "method": "PUT",
            "url": "https://example.com/a?b=$HOME",
            "headers": [["X-One", NASTY], ["X-One", "two"], ["Content-Length", "5"]],
            "body": NASTY,
        }
    )
    assert words(command) == [
        *("curl", "-g", "-X", "PUT", "https://example.com/a?b=$HOME"),
        *("-H", f"X-One: {NASTY}", "-H", "X-One: two", "--data-raw", NASTY),
    ]


def test_a_body_that_is_no_text_is_decoded_by_the_command() -> None:
    command = request_command({"url": "http://x/", "body": "AAE=", "encoding": "base64"})
    assert words(command)[:5] == ["echo", "AAE=", "|", "base64", "-d"]
    assert words(command)[-2:] == ["--data-binary", "@-"]


def test_a_trigger_names_the_key_only_where_one_is_needed() -> None:
    free = trigger_command("http://h/p", "a", {"text": NASTY}, with_key=False)
    assert words(free)[3] == "http://h/p/api/v1/jobs/a/trigger"
    assert "Authorization" not in free
    assert "MAINSPRING_API_KEY" in trigger_command("http://h", "a", None, with_key=True)
    assert words(trigger_command("http://h", "a", None, with_key=True))[-1] == "{}"


def test_a_large_payload_is_read_from_a_file() -> None:
    command = trigger_command("http://h", "a", "x" * 100_000, with_key=False)
    assert len(command) < 1000
    assert words(command)[-1] == "@payload.json"
