"""The forms at `/new-job` and `/jobs/{id}/edit`: what is sent, errors beside fields, previews, and
the difference that a change makes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from playwright.async_api import Dialog, Frame, Locator, Page, expect

from mainspring.core.policy import Backoff
from tests.support.dashboard import Dashboard
from tests.support.service import Api, Make
from tests.support.service_calls import key

HTML = {"accept": "text/html"}
EVIL = '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'


async def test_a_reader_gets_no_form(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    headers = {**HTML, **await key(api, "read")}
    for path in ("/new-job", "/jobs/report/edit"):
        answer = await api.get(path, headers=headers)
        assert answer.status_code == 403
        assert "scope write" in answer.text
        assert "job-form" not in answer.text


async def test_a_job_of_code_says_why_it_cannot_be_edited(api: Api) -> None:
    answer = await api.get("/jobs/report/edit", headers=HTML)
    assert answer.status_code == 200
    assert "A program defines this job" in answer.text
    assert "job-form" not in answer.text


async def test_a_webhook_is_created_and_its_secret_is_shown_once(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    await page.goto(f"{dashboard.url}/new-job")
    await page.get_by_label("Address", exact=True).fill("https://api.example.com/hook")
    await page.get_by_label("Method").select_option("PUT")
    await page.get_by_label("Headers", exact=True).fill(
        "X-Team: data\nAuthorization: Bearer s3cret"
    )
    await page.get_by_label("Body").fill('{"event": "{{jobId}}"}')
    await page.get_by_label("Success codes").fill("200, 202-204")
    await page.get_by_label("Id", exact=True).fill("hook")
    await page.get_by_label("Description").fill(EVIL)
    await page.get_by_label("Tags").fill("a, b")
    await page.get_by_label("Schedule").fill("30 2 * * *")
    await page.get_by_label("Time zone").fill("Europe/Berlin")
    preview = page.locator("#preview")
    await expect(preview).to_contain_text("At 02:30, Europe/Berlin.")
    await expect(preview).to_contain_text("2027-03-28 02:30 does not exist in Europe/Berlin")
    await expect(preview.locator("tbody tr")).to_have_count(10)

    await page.get_by_role("button", name="Test: show the request").click()
    request = page.locator("#request-text")
    await expect(request).to_contain_text("PUT https://api.example.com/hook")
    await expect(request).to_contain_text('{"event":"hook"}')
    assert "s3cret" not in await request.inner_text()
    assert (await scheduler.list_jobs(search="hook")).items == []

    await page.get_by_label("Retry attempts").fill("4")
    await page.get_by_text("More options").click()
    await page.get_by_label("Breaker: failures").fill("7")
    await page.get_by_label("Backoff: cap").fill("10m")
    await page.get_by_label("Metadata").fill('{"team": "data"}')
    await page.get_by_role("button", name="Create the job").click()
    secret = page.get_by_role("region", name="The signing secret")
    await expect(secret).to_contain_text("whsec_")
    for _ in range(4):  # a dialog would be closed by it
        await page.keyboard.press("Escape")
    await expect(secret).to_contain_text("whsec_")
    await expect(page.locator("#job-form")).to_be_hidden()
    asked = asyncio.ensure_future(page.wait_for_event("dialog"))
    leave = "setTimeout(() => document.querySelector('nav a[href=\"/runs\"]').click())"
    await page.evaluate(leave)
    await (await asked).dismiss()
    await expect(secret).to_contain_text("whsec_")
    await secret.get_by_role("link", name="Go to the job").click()
    await page.wait_for_url("**/jobs/hook")
    await expect(page.locator("#main")).to_contain_text("<img src=x onerror=")
    assert await page.evaluate("window.hacked") is None
    job = await scheduler.get_job("hook")
    assert job.webhook is not None
    assert (job.webhook.method, job.webhook.url) == ("PUT", "https://api.example.com/hook")
    assert job.webhook.body == {"event": "{{jobId}}"}
    assert job.webhook.success == ((200, 200), (202, 204))
    assert dict(job.webhook.headers) == {"X-Team": "data"}
    assert list(job.webhook.secret_headers) == ["Authorization"]
    assert (job.policy.retries, job.tags, dict(job.metadata)) == (4, ("a", "b"), {"team": "data"})
    assert job.policy.breaker is not None
    assert job.policy.breaker.failures == 7
    assert job.origins is not None
    assert "queue" not in job.origins  # what was left empty is not the job's own
    assert job.schedule is not None
    assert job.schedule.timezone == "Europe/Berlin"


async def test_errors_stand_beside_their_fields(dashboard: Dashboard, page: Page) -> None:
    await page.goto(f"{dashboard.url}/new-job")
    await page.get_by_role("button", name="Create the job").click()
    await expect(page.locator('[data-error="endpoint"]')).to_contain_text("Give the address")
    await page.get_by_label("Address", exact=True).fill("ftp://example.com")
    await page.get_by_label("Schedule").fill("61 * * * *")
    await expect(page.locator('[data-error="schedule"]')).to_contain_text("61")
    await page.get_by_label("Retry attempts").fill("-1")
    await page.get_by_text("More options").click()
    await page.get_by_label("Rate", exact=True).fill("fast")
    await page.get_by_label("Misfire: grace").fill("soon")
    await page.get_by_text("More options").click()  # closed again: an error opens it
    await page.get_by_label("Body").fill("{no")
    await page.get_by_role("button", name="Create the job").click()
    await expect(page.locator('[data-error="body"]')).to_contain_text("This is not JSON")
    await page.get_by_label("Body").fill("")
    await page.get_by_role("button", name="Create the job").click()
    for name in ("endpoint", "schedule", "retryAttempts", "rate", "misfire.grace"):
        await expect(page.locator(f'[data-error="{name}"]')).not_to_be_empty()
        field = page.locator(f'[name="{name}"]')
        await expect(field).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Address", exact=True)).to_be_focused()
    assert len((await dashboard.scheduler.list_jobs()).items) == 3


async def test_a_job_for_a_function_is_created(dashboard: Dashboard, page: Page) -> None:
    await page.goto(f"{dashboard.url}/new-job")
    await page.get_by_label("Run a Python function").check()
    await expect(page.get_by_label("Address", exact=True)).to_be_hidden()
    offered = page.locator("#handlers option")
    await expect(offered).to_have_count(3)
    await page.get_by_label("Function", exact=True).fill("greet")
    await page.get_by_role("button", name="*/15 * * * *").click()
    await expect(page.locator("#preview")).to_contain_text("Every 15 minutes")
    await page.get_by_label("Payload").fill('{"nome": "Ada"}')
    await page.get_by_label("Id", exact=True).fill("hello")
    await page.get_by_role("button", name="Create the job").click()
    await expect(page.locator('[data-error="payload"]')).to_contain_text("nome")
    await page.get_by_label("Payload").fill('{"name": "Ada"}')
    await page.get_by_role("button", name="Create the job").click()
    await page.wait_for_url("**/jobs/hello")
    job = await dashboard.scheduler.get_job("hello")
    assert (job.handler, job.payload) == ("greet", {"name": "Ada"})
    assert job.schedule is not None
    run = await dashboard.scheduler.trigger("hello")
    assert (await dashboard.scheduler.wait(run.id)).result == "hello Ada"


async def test_an_edit_shows_the_difference_and_sends_only_changes(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    await scheduler.add_job(
        "mail",
        handler="greet",
        schedule="0 9 * * *",
        timezone="Europe/Berlin",
        payload={"name": EVIL},
        retries=2,
        backoff=Backoff("linear", delay="5s", jitter=0.5),
        description="Letters",
    )
    before = await scheduler.get_job("mail")
    await page.goto(f"{dashboard.url}/jobs/mail/edit")
    assert json.loads(await page.get_by_label("Payload").input_value()) == {"name": EVIL}
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_contain_text("Nothing was changed.")
    await page.get_by_label("Schedule").fill("0 9 * * 1-5")
    preview = page.locator("#preview")
    await expect(preview).to_contain_text("no longer run, none are new.")
    await expect(preview.locator(".slot-gone").first).to_be_visible()
    await expect(preview.locator(".slot-later").first).to_be_visible()
    old, new = await preview.locator("ul").all()
    await expect(old.locator("li")).to_have_count(10)
    await expect(new.locator("li")).to_have_count(10)
    await page.get_by_label("Schedule").fill("0 10 * * *")
    await expect(preview).to_contain_text("none stay as they are")
    await expect(preview.locator(".slot-new").first).to_be_visible()
    await page.get_by_label("Schedule").fill("0 9 * * 1-5")
    await expect(preview.locator(".slot-new")).to_have_count(0)
    assert await scheduler.get_job("mail") == before  # nothing is saved yet
    await page.get_by_label("Description").fill("")
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url("**/jobs/mail")
    after = await scheduler.get_job("mail")
    assert after.schedule is not None
    assert after.schedule.describe() == "At 09:00, Monday through Friday, Europe/Berlin"
    assert after.description == ""
    assert (after.payload, after.policy, after.origins) == (
        before.payload,
        before.policy,
        before.origins,
    )
    assert await page.evaluate("window.hacked") is None


async def test_an_edit_leaves_numbers_and_tags_as_they_were_written(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    numbers = {"name": 12345678901234567890, "whole": 1.0, "text": "1.0"}
    await scheduler.add_job("big", handler="greet", metadata=numbers, tags=["a,b", '"q" x', "d"])
    await page.goto(f"{dashboard.url}/jobs/big/edit")
    await page.get_by_text("More options").click()
    metadata = page.get_by_label("Metadata")
    text = await metadata.input_value()
    await metadata.fill(text.replace("{", '{"new": 2.50,', 1))
    tags = page.get_by_label("Tags")
    await tags.fill(await tags.input_value() + ", c")
    await page.get_by_role("button", name="Save").click()
    await page.wait_for_url("**/jobs/big")
    job = await scheduler.get_job("big")
    assert job.tags == ("a,b", '"q" x', "d", "c")
    assert json.dumps(dict(job.metadata), sort_keys=True) == json.dumps(
        {**numbers, "new": 2.5}, sort_keys=True
    )


async def conflict(dashboard: Dashboard, page: Page) -> Locator:
    """Two people edit the job `mail`. Both change its description, one also its queue and whether
    it is enabled, the other its tags. Returns what the second to save sees."""
    scheduler = dashboard.scheduler
    await scheduler.add_job("mail", handler="greet", description="first", schedule="0 9 * * *")
    await page.goto(f"{dashboard.url}/jobs/mail/edit")
    await page.get_by_label("Description").fill("mine")
    await page.get_by_label("Tags").fill("my-tag")
    await scheduler.update_job(
        "mail", description="<b>theirs</b>", schedule="0 10 * * *", queue="slow", overlap="allow"
    )
    await scheduler.pause_job("mail")
    await page.get_by_role("button", name="Save").click()
    seen = page.get_by_role("region", name="Another person changed this job")
    await expect(seen.get_by_role("row", name="Description")).to_contain_text("first")
    return seen


async def test_after_a_conflict_a_person_saves_theirs_over_it(
    dashboard: Dashboard, page: Page
) -> None:
    seen = await conflict(dashboard, page)
    rows = await seen.locator("tbody tr").all_inner_texts()
    cells = {name: parts for name, *parts in (map(str.strip, row.split("\t")) for row in rows)}
    assert cells == {
        "Description": ["first", "<b>theirs</b>", "mine"],
        "Schedule": ["0 9 * * *", "0 10 * * *", "—"],
        "Overlap": ["skip", "allow", "—"],
        "Queue": ["default", "slow", "—"],
        "Enabled: its slots fire": ["yes", "no", "—"],
    }
    await expect(page.get_by_label("Description")).to_have_value("mine")  # nothing is lost
    await expect(page.get_by_label("Schedule")).to_have_value("0 10 * * *")
    await expect(page.locator("#preview")).to_contain_text("10:00")
    assert (await dashboard.scheduler.get_job("mail")).description == "<b>theirs</b>"
    await seen.get_by_role("button", name="Save mine").click()
    await page.wait_for_url("**/jobs/mail")
    job = await dashboard.scheduler.get_job("mail")
    assert (job.description, job.tags) == ("mine", ("my-tag",))
    assert (job.policy.queue, job.policy.overlap, job.enabled) == ("slow", "allow", False)
    assert job.schedule is not None
    assert job.schedule.describe() == "At 10:00, UTC"


async def test_after_a_conflict_a_person_takes_the_others(dashboard: Dashboard, page: Page) -> None:
    seen = await conflict(dashboard, page)
    await seen.get_by_role("button", name="Take theirs").click()
    await expect(page.get_by_label("Description")).to_have_value("<b>theirs</b>")
    await expect(page.get_by_label("Tags")).to_have_value("")
    assert (await dashboard.scheduler.get_job("mail")).tags == ()


async def test_a_job_that_was_deleted_meanwhile_leaves_the_form(
    dashboard: Dashboard, page: Page
) -> None:
    await dashboard.scheduler.add_job("mail", handler="greet")
    await page.goto(f"{dashboard.url}/jobs/mail/edit")
    await page.get_by_label("Description").fill("mine")
    await dashboard.scheduler.remove_job("mail")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("alert")).to_contain_text("mail")
    await expect(page.get_by_label("Description")).to_have_value("mine")


async def leaves(page: Page, leave: Callable[[], Awaitable[Any]]) -> bool:
    """Whether the page is left without a question. A question is answered with "stay"."""
    answered: asyncio.Queue[bool] = asyncio.Queue()

    async def stay(dialog: Dialog) -> None:
        await dialog.dismiss()
        answered.put_nowait(False)

    def left(frame: Frame) -> None:
        answered.put_nowait(True)

    page.on("dialog", stay)
    page.on("framenavigated", left)
    await leave()
    found = await answered.get()
    page.remove_listener("dialog", stay)
    page.remove_listener("framenavigated", left)
    return found


async def test_a_changed_form_is_not_left_without_a_question(
    dashboard: Dashboard, page: Page
) -> None:
    await dashboard.scheduler.add_job("mail", handler="greet", schedule="0 9 * * *")
    await page.goto(f"{dashboard.url}/jobs/mail/edit")
    description, queue = page.get_by_label("Description"), page.get_by_label("Queue", exact=True)

    async def by_shortcut() -> None:
        await page.get_by_text("More options").focus()
        await page.keyboard.press("g")
        await page.keyboard.press("r")

    async def by_link() -> None:  # a click waits for the page that does not come
        await page.evaluate("setTimeout(() => document.querySelector('a[href=\"/runs\"]').click())")

    await description.click()
    await page.keyboard.type("typed")
    for leave in (by_shortcut, by_link):
        assert not await leaves(page, leave)
    await expect(description).to_have_value("typed")
    await description.fill("")  # as it was
    await queue.select_text()
    assert await leaves(page, by_shortcut)
    await page.goto(f"{dashboard.url}/jobs/mail/edit")
    await page.get_by_label("Overlap").select_option("allow")
    assert not await leaves(page, by_shortcut)
    await page.get_by_role("button", name="Save").click()  # a saved form asks nothing
    await page.wait_for_url("**/jobs/mail")
    assert (await dashboard.scheduler.get_job("mail")).policy.overlap == "allow"


async def test_an_edit_of_a_webhook_keeps_its_secrets_and_rotates_one(
    dashboard: Dashboard, page: Page
) -> None:
    scheduler = dashboard.scheduler
    hook = {
        "url": "https://api.example.com/hook",
        "headers": {"Authorization": "Bearer s3cret", "X-Team": "data"},
        "body": "plain text",
    }
    before = await scheduler.add_job("hook", webhook=hook, schedule="5m", breaker=3)
    assert before.webhook is not None
    await page.goto(f"{dashboard.url}/jobs/hook/edit")
    assert "s3cret" not in await page.content()
    await expect(page.get_by_label("Body")).to_have_value("plain text")
    await expect(page.get_by_label("Schedule")).to_have_value("5m")
    await page.get_by_label("Headers", exact=True).fill("Authorization: ********\nX-Team: ops")
    await page.get_by_text("More options").click()
    await page.get_by_label("Breaker: failures").fill("")
    await page.get_by_label("Breaker: reset").fill("")
    await page.get_by_label("Sign with a new secret").check()
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("region", name="The signing secret")).to_contain_text("whsec_")
    job = await scheduler.get_job("hook")
    assert job.webhook is not None
    assert dict(job.webhook.headers) == {"X-Team": "ops"}
    assert job.webhook.secret_headers == before.webhook.secret_headers
    assert job.policy.breaker is None
