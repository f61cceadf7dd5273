"""The page at `/jobs`: the list, its filters and order, and every action on one job or on many."""

from __future__ import annotations

import re
from typing import Any

from playwright.async_api import Page, expect

from mainspring import Scheduler
from tests.support.dashboard import Dashboard, served
from tests.support.service import WEBHOOK, Api, Make
from tests.support.service_calls import key

HTML = {"accept": "text/html"}
EVIL = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


async def shown(api: Api, path: str = "/jobs") -> str:
    answer = await api.get(path, headers=HTML)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", answer.text)


def rows(text: str) -> list[str]:
    return re.findall(r'<tr id="job-([^"]+)"', text)


async def test_a_row_says_what_a_job_is_and_how_it_does(working: Api) -> None:
    scheduler = working.scheduler
    run = await scheduler.enqueue("greet", {"name": "nobody"})
    await scheduler.wait(run.id)
    text = await shown(working)
    assert rows(text) == ["forever", "greet", "report"]
    assert "At 09:00, UTC" in text
    assert "Owned by code" in text
    assert "on demand" in text
    row = text[text.index('id="job-greet"') : text.index('id="job-report"')]
    assert "state-failed" in row
    assert "health-unhealthy" in row
    assert re.search(r'<svg class="spark"[^>]*aria-label="last 1 run: 1 failed; [^"]+"', row)
    assert 'class="tone-red"' in row


async def test_jobs_are_filtered_sorted_and_paged(api: Api) -> None:
    add = api.scheduler.add_job
    for n in range(30):
        await add(
            f"mail{n:02}",
            handler="greet",
            schedule=f"{n} 3 1 1 *",
            tags=["mail"] if n % 2 else [],
            queue="slow" if n < 3 else "default",
            description="Letters" if n == 7 else "",
            enabled=n != 4,
        )
    first = await shown(api, "/jobs?q=mail")
    assert len(rows(first)) == 25
    assert "1 to 25 of 30 jobs" in first
    assert 'href="/jobs?page=2&amp;q=mail"' in first or 'href="/jobs?q=mail&amp;page=2"' in first
    second = await shown(api, "/jobs?q=mail&page=2")
    assert rows(second) == [f"mail{n}" for n in range(25, 30)]
    for query, expected in (
        ("queue=slow", ["mail00", "mail01", "mail02"]),
        ("queue=slow&tag=mail", ["mail01"]),
        ("state=paused", ["mail04"]),
        ("q=letters", ["mail07"]),
        ("queue=slow&sort=next", ["mail00", "mail01", "mail02"]),
        ("queue=slow&sort=next&desc=true", ["mail02", "mail01", "mail00"]),
        ("queue=slow&sort=id&desc=true", ["mail02", "mail01", "mail00"]),
        ("queue=slow&sort=updated&desc=true", ["mail02", "mail01", "mail00"]),
    ):
        assert rows(await shown(api, f"/jobs?{query}")) == expected, query
    nothing = await shown(api, "/jobs?q=nowhere&state=&tag=")
    assert "No job matches" in nothing


async def test_a_reader_sees_jobs_and_no_actions(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    headers = {**HTML, **await key(api, "read")}
    page = await api.get("/jobs", headers=headers)
    assert rows(page.text) == ["forever", "greet", "report"]
    job = await api.get("/jobs/report", headers=headers)
    assert job.status_code == 200
    for offered in ("api/v1/jobs", "new-job", 'type="checkbox"', "/edit", "Run now", "Backfill"):
        assert offered not in page.text
        assert offered not in job.text


async def test_each_action_of_a_row(dashboard: Dashboard, page: Page) -> None:
    scheduler = dashboard.scheduler
    await scheduler.add_job("mail", handler="greet", schedule="0 4 * * *")
    await page.goto(f"{dashboard.url}/jobs")
    row = page.locator("#job-mail")
    await row.get_by_role("button", name="Pause").click()
    await expect(row.locator(".health")).to_have_text("paused")
    assert not (await scheduler.get_job("mail")).enabled
    await row.get_by_role("button", name="Resume").click()
    await expect(row.get_by_role("button", name="Pause")).to_be_visible()
    assert (await scheduler.get_job("mail")).enabled
    await row.get_by_role("button", name="Run now").click()
    await expect(row.locator(".state")).to_contain_text("succeeded")
    await row.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Delete the job mail?")
    await dialog.get_by_role("button", name="Keep").click()
    await expect(row).to_be_visible()
    await row.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(row).to_have_count(0)
    await expect(page.get_by_role("status")).to_contain_text("mail was deleted")
    report = page.locator("#job-report")  # code defines it
    await expect(report.get_by_role("button", name="Pause")).to_be_visible()
    await expect(report.get_by_role("button", name="Delete")).to_have_count(0)
    await expect(report.get_by_role("link", name="Edit")).to_have_count(0)


async def test_actions_on_the_ticked_jobs_and_on_all_that_match(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    for n in range(28):
        await scheduler.add_job(f"many{n:02}", handler="greet", schedule="0 4 * * *", tags=["m"])
    await page.goto(f"{dashboard.url}/jobs?tag=m")
    bar = page.locator("#bulk")
    await expect(bar).to_be_hidden()
    for name in ("many03", "many05"):
        await page.get_by_label(f"Choose {name}").check()
    await expect(bar).to_contain_text("2 jobs chosen")
    await bar.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("status")).to_contain_text("2 jobs were paused.")
    await expect(bar).to_be_hidden()
    assert await paused(scheduler) == ["many03", "many05"]

    await page.get_by_label("Choose all jobs on this page").check()
    await expect(bar).to_contain_text("25 jobs chosen")
    await bar.get_by_role("button", name="Choose all 28 jobs").click()
    await expect(bar).to_contain_text("28 jobs chosen")
    await bar.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Pause: 28 jobs?")
    await dialog.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("status")).to_contain_text("28 jobs were paused.")
    assert len(await paused(scheduler)) == 28

    await page.get_by_label("Choose all jobs on this page").check()
    await bar.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("status")).to_contain_text("25 jobs were resumed.")
    assert await paused(scheduler) == ["many25", "many26", "many27"]

    await page.get_by_label("Choose many00").check()
    await bar.get_by_role("button", name="Run now").click()
    await expect(page.get_by_role("status")).to_contain_text("1 job was queued.")
    await expect(page.locator("#job-many00 .state")).to_contain_text("succeeded")

    await page.get_by_label("Choose all jobs on this page").check()
    await bar.get_by_role("button", name="Choose all 28 jobs").click()
    await bar.get_by_role("button", name="Delete").click()
    await dialog.get_by_role("button", name="Delete").click()
    await expect(page.get_by_text("No job matches")).to_be_visible()
    left = await scheduler.list_jobs()
    assert [job.id for job in left.items] == ["forever", "greet", "report"]


async def paused(scheduler: Scheduler) -> list[str]:
    return [job.id for job in (await scheduler.list_jobs(enabled=False)).items]


async def test_texts_of_users_are_shown_and_never_run(dashboard: Dashboard, page: Page) -> None:
    options: dict[str, Any] = {"description": EVIL, "tags": [EVIL], "payload": {"name": EVIL}}
    await dashboard.scheduler.add_job("evil", handler="greet", queue="default", **options)
    await page.goto(f"{dashboard.url}/jobs?tag={EVIL}&q=evil")
    row = page.locator("#job-evil")
    await expect(row.locator(".sub").first).to_contain_text("<img src=x onerror=")
    await expect(row.locator(".tag")).to_have_text(EVIL)
    await expect(page.locator("main img, main script")).to_have_count(0)
    assert await page.evaluate("window.hacked") is None


async def test_it_says_what_the_job_is_and_where_its_policy_comes_from(make: Make) -> None:
    api: Api = await make(workers=0, defaults={"timeout": "10m"})
    await api.scheduler.add_job(
        "mail",
        handler="greet",
        schedule="30 2 * * *",
        timezone="Europe/Berlin",
        payload={"name": "ada"},
        retries=3,
        tags=["letters"],
        metadata={"team": "data"},
        description="Sends the letters",
    )
    text = await shown(api, "/jobs/mail")
    for part in (
        "Sends the letters",
        "At 02:30, Europe/Berlin",
        "<code>30 2 * * *</code>",
        "<dd>Europe/Berlin</dd>",
        "&#34;name&#34;: &#34;ada&#34;",
        "&#34;team&#34;: &#34;data&#34;",
        "the API: it can be edited here",
        'href="/jobs?tag=letters"',
        "No live worker has the job&#39;s handler",
    ):
        assert part in text, part
    for option, value, origin in (
        ("Retries", "3", "this job"),
        ("Timeout", "10 min", "defaults"),
        ("Priority", "5", "built in"),
        ("Backoff", "kind exponential, delay 1.0 s, factor 2, cap 1 h, jitter 0.1", "built in"),
    ):
        row = rf'">{option}</th><td>{value}</td><td class="end"><span[^>]*>{origin}<'
        assert re.search(row, text), option
    assert text.count('<tr><td class="nowrap"><time') == 10  # its next slots
    assert re.search(r"2027-03-28 02:30 does not exist in Europe/Berlin", text)


async def test_it_answers_why_the_job_did_not_run(api: Api) -> None:
    await api.scheduler.add_job("late", handler="greet", schedule="0 9 * * *")
    await api.scheduler.pause_job("late")
    assert "The job is paused, so no slot fires." in await shown(api, "/jobs/late")
    before = await shown(api, "/jobs/late?at=2020-01-01T09:00:00Z")
    assert "The job did not exist yet: it was created at" in before
    other = await shown(api, "/jobs/late?at=2020-01-01T09:10:00Z")
    assert "2020-01-01T09:10:00Z is not a slot of its schedule" in other
    wrong = await shown(api, "/jobs/late?at=tomorrow&window=7d")
    assert 'aria-invalid="true"' in wrong
    assert "tomorrow" in wrong


async def test_figures_and_runs_of_a_job(working: Api) -> None:
    scheduler = working.scheduler
    for name in ("ada", "nobody", "eve"):
        run = await scheduler.enqueue("greet", {"name": name})
        await scheduler.wait(run.id)
    text = await shown(working, "/jobs/greet?window=1h")
    assert "2 of 3 runs" in text
    assert "66.7 %" in text
    assert re.search(r'aria-label="last 3 runs: 2 succeeded, 1 failed; [^"]+"', text)
    assert "there is nobody" in text
    assert f'href="/runs/{run.id}"' in text
    assert "Less than 80 % of its runs succeed." in text


async def test_a_workflow_is_drawn_and_listed(make: Make) -> None:
    scheduler = Scheduler("memory://", workers=0)

    @scheduler.job("0 1 * * *")
    def load() -> None: ...

    @scheduler.job(after=["load"])
    def check() -> None: ...

    @scheduler.job(after=["load", "check"])
    def tell() -> None: ...

    api: Api = await make(scheduler)
    for name in ("load", "check", "tell"):
        text = await shown(api, f"/jobs/{name}")
        assert 'aria-label="3 steps, 3 dependencies"' in text
        assert text.count('class="edge"') == 3
        assert re.search(rf'class="node current"><title>{name}:', text)
        assert '<a href="/jobs/tell">tell</a> after load, check' in text
    scheduler.add_handler("alone", lambda: None)
    await scheduler.add_job("alone", handler="alone")
    assert "Workflow" not in await shown(api, "/jobs/alone")


async def test_a_webhook_is_shown_with_its_secrets_masked(api: Api) -> None:
    await api.ok("POST", "/api/v1/jobs", json={**WEBHOOK, "id": "hook"})
    text = await shown(api, "/jobs/hook")
    assert "POST https://api.example.com/webhook" in text
    assert "YOUR_TOKEN" not in text
    assert "scheduled_task" in text
    assert "200-299" in text


async def test_each_action_of_the_page(dashboard: Dashboard, page: Page) -> None:
    scheduler = dashboard.scheduler
    await scheduler.add_job("mail", handler="greet", schedule="0 * * * *")
    await page.goto(f"{dashboard.url}/jobs/mail")
    await page.get_by_role("button", name="Pause").click()
    await expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert not (await scheduler.get_job("mail")).enabled
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()

    await page.get_by_role("button", name="Run now").click()
    dialog = page.get_by_role("dialog", name="Run mail now")
    await dialog.get_by_label("Payload (JSON)").fill('{"name": ')
    await dialog.get_by_role("button", name="Run now").click()
    await expect(dialog.locator("#error-payload")).to_contain_text("This is not JSON")
    await dialog.get_by_label("Payload (JSON)").fill('{"nome": "ada"}')
    await dialog.get_by_role("button", name="Run now").click()
    await expect(dialog).to_contain_text("nome")
    await dialog.get_by_label("Payload (JSON)").fill('{"name": "Ada"}')
    await dialog.get_by_role("button", name="Run now").click()
    await expect(dialog).to_be_hidden()
    runs = page.locator("#main .state", has_text="succeeded")
    await expect(runs.first).to_be_visible()
    [run] = (await scheduler.list_runs(job="mail")).items
    assert run.result == "hello Ada"

    await page.get_by_role("button", name="Backfill").click()
    backfill = page.get_by_role("dialog", name="Run past slots")
    await backfill.get_by_label("From").fill("2026-01-01T00:00:00")
    await backfill.get_by_label("Until").fill("2026-01-01T03:00:00")
    await backfill.get_by_role("button", name="Count first").click()
    await expect(backfill).to_contain_text("3 slots: 3 would run, 0 already have a run.")
    assert len((await scheduler.list_runs(job="mail")).items) == 1
    await backfill.get_by_label("From").fill("2025-12-31T23:30:00")
    await backfill.get_by_label("At most").fill("2")
    await backfill.get_by_role("button", name="Add the runs").click()
    await expect(backfill).to_be_hidden()
    assert len((await scheduler.list_runs(job="mail")).items) == 3

    await page.get_by_role("button", name="Delete").click()
    confirm = page.get_by_role("dialog", name="Delete the job mail?")
    await confirm.get_by_role("button", name="Delete").click()
    await page.wait_for_url("**/jobs")
    await expect(page.locator("#job-mail")).to_have_count(0)


async def test_an_open_breaker_is_reset(page: Page) -> None:
    scheduler = Scheduler("memory://", workers=2, poll="50ms")

    @scheduler.job(retries=0, breaker=1)
    async def broken() -> None:
        raise ValueError("always")

    async with served(scheduler) as made:
        run = await scheduler.enqueue("broken")
        await scheduler.wait(run.id)
        await page.goto(f"{made.url}/jobs/broken")
        await expect(page.locator("#main")).to_contain_text("The circuit breaker is open")
        await page.get_by_role("button", name="Reset the breaker").click()
        await expect(page.get_by_role("button", name="Reset the breaker")).to_have_count(0)
        assert (await scheduler.job_health("broken")).breaker == "closed"


async def test_the_request_of_a_webhook_is_shown_and_not_sent(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    hook = {
        "url": "https://api.example.com/hook",
        "body": {"n": 1},
        "headers": {"X-Team": EVIL[:20]},
    }
    await scheduler.add_job("hook", webhook=hook)
    await page.goto(f"{dashboard.url}/jobs/hook")
    await page.get_by_role("button", name="Run now").click()
    dialog = page.get_by_role("dialog", name="Run hook now")
    await dialog.get_by_label("Body of the request").fill('{"n": 2}')
    await dialog.get_by_role("button", name="Show the request").click()
    answer = dialog.locator("[data-answer]")
    await expect(answer).to_contain_text("POST https://api.example.com/hook")
    await expect(answer).to_contain_text('{"n":2}')
    assert (await scheduler.list_runs(job="hook")).items == []


async def test_texts_of_users_on_the_page_of_a_job_are_never_run(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    options: dict[str, Any] = {"description": EVIL, "tags": [EVIL], "metadata": {EVIL: EVIL}}
    await scheduler.add_job("evil", handler="greet", payload={"name": EVIL}, **options)
    run = await scheduler.trigger("evil")
    await scheduler.wait(run.id)
    await page.goto(f"{dashboard.url}/jobs/evil?at={EVIL[:60]}")
    await expect(page.locator("main pre").first).to_contain_text("<img src=x onerror=")
    await expect(page.locator("main img, main script")).to_have_count(0)
    assert await page.evaluate("window.hacked") is None


async def test_the_page_follows_the_job(dashboard: Dashboard, page: Page) -> None:
    await page.goto(f"{dashboard.url}/jobs/greet")
    await expect(page.locator("#main")).to_contain_text("No run has started yet")
    await dashboard.scheduler.enqueue("greet", {"name": "ada"})
    await expect(page.locator("#main .bar-chart rect")).to_have_count(1)


async def test_a_large_payload_is_cut(api: Api) -> None:
    big = {"text": "x" * 200_000}
    await api.scheduler.add_job("big", handler="greet", payload=big, metadata={"m": "y" * 50_000})
    page = (await api.get("/jobs/big", headers=HTML)).text
    assert len(page) < 100_000
    assert page.count("Only its beginning.") == 2
    assert 'href="/api/v1/jobs/big"' in page
    form = (await api.get("/jobs/big/edit", headers=HTML)).text
    assert "x" * 200_000 in form  # to be edited it must be whole
    assert "data-live" not in form
