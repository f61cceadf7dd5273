"""The page with what ran and what will run, on one axis."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import Any

from playwright.async_api import Page, expect

from mainspring.core.model import Run, State
from mainspring.dashboard.views.timeline import JOBS_SHOWN, MOST_MARKS
from tests.support.dashboard import Dashboard
from tests.support.service import Api

HTML = {"accept": "text/html"}
EVIL = "<img src=x onerror=alert(1)>"


async def page_of(api: Api, query: str = "") -> str:
    answer = await api.get(f"/timeline{query}", headers=HTML)
    assert answer.status_code == 200, answer.text
    return answer.text


def row(page: str, job: str) -> list[str]:
    """The cells of a job's row in the table: job, ended, failed, last, coming, next."""
    [found] = re.findall(rf'<tr id="row-{job}">(.*?)</tr>', page, re.S)
    return [
        re.sub(r"<[^>]*>", "", cell).strip() for cell in re.findall(r"<td.*?</td>", found, re.S)
    ]


async def add_finished(api: Api, job: str, count: int, every: timedelta, **fields: Any) -> None:
    now = await api.scheduler.now()
    runs = []
    for number in range(count):
        at = now - (number + 1) * every
        given = {"state": State.SUCCEEDED, "attempt": 1, "finished_at": at, **fields}
        times: dict[str, Any] = dict.fromkeys(
            ("created_at", "scheduled_at", "run_at", "started_at"), at
        )
        runs.append(Run(id=f"{job}-{number}", job_id=job, handler=job, **times, **given))
    await api.scheduler.store.add(list(reversed(runs)))


async def test_with_nothing_to_show_it_says_so(api: Api) -> None:
    await api.scheduler.pause_job("report")
    assert "Nothing ran, and nothing is planned" in await page_of(api)


async def test_past_runs_and_coming_slots_are_on_one_axis(api: Api) -> None:
    scheduler = api.scheduler
    await scheduler.add_job("hourly", handler="greet", schedule="0 * * * *")
    await add_finished(api, "greet", 3, timedelta(hours=2), state=State.FAILED, error=EVIL)
    later = await scheduler.enqueue("greet", delay="3h")
    page = await page_of(api)
    assert "<img" not in page.partition("<main")[2]
    assert "greet: failed, " in page
    assert f"\n{EVIL}" in html.unescape(page)
    marks = re.findall(
        r'<a href="/runs/(greet-\d)" tabindex="-1"><rect class="run tone-red" x="([\d.]+)%', page
    )
    # 24 h are half of the picture: 2 h are 4.17 % of it.
    assert sorted((name, round(50 - float(x), 1)) for name, x in marks) == [
        ("greet-0", 4.2),
        ("greet-1", 8.3),
        ("greet-2", 12.5),
    ]
    assert re.search(
        rf'<a href="/runs/{later.id}"[^>]*><rect class="due tone-grey" x="56.2\d?%', page
    )
    assert row(page, "greet")[1:3] == ["3", "3"]
    assert row(page, "hourly")[4] == "24"
    assert len(re.findall(r"<circle[^>]*><title>hourly: ", page)) == 24
    near = await page_of(api, "?window=1h")
    assert row(near, "hourly")[4] == "1"
    assert "greet: failed" not in near


async def test_frequent_jobs_are_shown_as_blocks(api: Api) -> None:
    await api.scheduler.add_job("often", handler="greet", schedule="*/10 * * * * *")
    await add_finished(api, "often", MOST_MARKS + 20, timedelta(minutes=2))
    page = await page_of(api)
    assert row(page, "often")[1:3] == [str(MOST_MARKS + 20), "0"]
    assert row(page, "often")[4] == "8\u202f640"
    assert 'href="/runs/often-' not in page
    assert page.count('class="band tone-blue"') == 24
    assert 1 <= page.count('class="band tone-green"') <= 4
    assert "each block is an hour" in page


async def test_it_shows_a_bounded_number_of_jobs_and_says_so(api: Api) -> None:
    for number in range(JOBS_SHOWN + 5):
        await api.scheduler.add_job(f"job-{number}", handler="greet", schedule="0 * * * *")
    page = await page_of(api)
    assert page.count('<tr id="row-') == JOBS_SHOWN
    assert f"{JOBS_SHOWN} jobs are shown" in page


async def test_paused_firing_plans_nothing(api: Api) -> None:
    await api.scheduler.add_job("hourly", handler="greet", schedule="0 * * * *")
    await add_finished(api, "hourly", 1, timedelta(minutes=5))
    await api.scheduler.pause_all()
    page = await page_of(api)
    assert "All firing is paused" in page
    assert "<circle" not in page
    assert row(page, "hourly")[1] == "1"


async def test_the_window_is_in_the_address_and_marks_lead_to_runs(
    dashboard: Dashboard, page: Page
) -> None:
    run = await dashboard.scheduler.enqueue("forever")
    await page.goto(f"{dashboard.url}/timeline")
    await page.get_by_role("link", name="1 h", exact=True).click()
    await page.wait_for_url(f"{dashboard.url}/timeline?window=1h")
    bar = page.locator(f".timeline-picture a[href='/runs/{run.id}']")
    await expect(bar.locator("rect.tone-blue")).to_have_count(1)
    await dashboard.scheduler.cancel(run.id)
    await expect(bar.locator("rect.tone-grey")).to_have_count(1)
    await bar.dispatch_event("click")
    await page.wait_for_url(f"{dashboard.url}/runs/{run.id}")
