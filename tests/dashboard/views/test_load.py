"""The page with the coming load, and the cache of forecasts behind it."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from mainspring.core.forecast import Forecast
from tests.support.dashboard import Dashboard
from tests.support.service import Api, until

HTML = {"accept": "text/html"}


async def page_of(api: Api, query: str = "") -> str:
    """The page, once the forecast is there."""

    async def shown() -> str | None:
        answer = await api.get(f"/load{query}", headers=HTML)
        assert answer.status_code == 200, answer.text
        return None if "Computing…" in answer.text else answer.text

    found: str = await until(shown)
    return found


def cells(page: str) -> list[list[str]]:
    rows = re.findall(r'<tr><th scope="row">(.*?)</tr>', page, re.S)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


async def test_without_schedules_it_says_what_to_do(api: Api) -> None:
    await api.scheduler.pause_job("report")
    assert "No schedule starts anything" in await page_of(api)


async def test_the_hours_are_those_of_the_zone(api: Api) -> None:
    utc = cells(await page_of(api))
    assert [row.index("1") for row in utc] == [9] * 7
    kolkata = cells(await page_of(api, "?zone=Asia/Kolkata&days=30"))
    assert [row.index("1") for row in kolkata] == [14] * 7


async def test_collisions_suggestions_and_clock_changes_are_in_words(api: Api) -> None:
    for number in range(12):
        await api.scheduler.add_job(f"nightly-{number}", handler="greet", schedule="0 3 * * *")
    page = html.unescape(re.sub(r"<[^>]*>", "", await page_of(api)))
    assert (
        "03:00:00: up to 12 jobs on 7 days: nightly-0, nightly-1, nightly-10, nightly-11 and 8 more"
        in page
    )
    assert "write H in place of the minute" in page
    assert "No change of the clocks" in page
    assert "nightly-0: H 3 * * *" in page


async def test_the_forecast_appears_by_itself(
    dashboard: Dashboard, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = asyncio.Event()
    forecast = dashboard.scheduler.forecast

    async def slow(*given: Any, **rest: Any) -> Forecast:
        await go_on.wait()
        return await forecast(*given, **rest)

    monkeypatch.setattr(dashboard.scheduler, "forecast", slow)
    await page.goto(f"{dashboard.url}/load")
    await expect(page.get_by_text("Computing…")).to_be_visible()
    go_on.set()
    await expect(page.get_by_role("heading", name="Runs by weekday and hour")).to_be_visible()
    await page.get_by_label("Hours of the zone").fill("Asia/Tokyo")
    await page.get_by_role("button", name="Show").click()
    await page.wait_for_url(re.compile("zone=Asia%2FTokyo"))
    await expect(page.get_by_text("Asia/Tokyo").first).to_be_visible()
