"""The page at `/docs`, in a real browser that reaches no other host; and what it has to show."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, expect

from tests.support.dashboard import *  # noqa: F403
from tests.support.dashboard import served
from tests.support.service import Api, Serve

DRAWN = """
[...document.querySelectorAll("section details")].filter((one) => !one.id).map((one) =>
  one.querySelector(".method").textContent + " " + one.querySelector("summary code").textContent)
"""
FIELDS = """
Object.fromEntries([...document.querySelectorAll("#JobBody tr")].map((row) =>
  [row.cells[0].textContent, [row.cells[1].textContent, row.cells[2].textContent]]))
"""
COMMANDS = "[...document.querySelectorAll('pre')].map((one) => one.textContent)"
INLINE = """
new Promise((resolve) => {
  addEventListener("securitypolicyviolation", (event) => resolve(event.effectiveDirective));
  const script = document.createElement("script");
  script.textContent = "document.title = 'taken over'";
  document.body.append(script);
})
"""


async def shown(page: Page, url: str) -> None:
    await page.goto(url)
    await expect(page.locator("main section").first).to_be_attached()


async def test_every_operation_is_drawn_by_this_server_alone(serve: Serve, page: Page) -> None:
    served = serve()
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    await shown(page, f"{served.url}/docs")
    api = await page.evaluate("fetch('openapi.json').then((answer) => answer.json())")
    operations = [
        f"{method.upper()} {path}" for path, found in api["paths"].items() for method in found
    ]
    assert sorted(await page.evaluate(DRAWN)) == sorted(operations)
    assert len(operations) > 20
    assert {urlsplit(url).netloc for url in requests} == {urlsplit(served.url).netloc}
    weight = "getComputedStyle(document.querySelector('.method')).fontWeight"
    assert await page.evaluate(weight) == "700"  # its style is allowed too


async def test_a_field_tells_its_type_and_its_meaning(serve: Serve, page: Page) -> None:
    await shown(page, f"{serve().url}/docs")
    fields = await page.evaluate(FIELDS)
    assert fields["retryAttempts"] == [
        "integer | null",
        "How often a failed run is tried again. 0: never.",
    ]
    kind, meaning = fields["backoff"]
    assert (kind, meaning) == (
        '"fixed" | "linear" | "exponential" | BackoffBody | null',
        "How the wait grows with each retry.",
    )
    # A shape within a shape is a link away, and opens.
    assert not await page.evaluate("document.getElementById('BackoffBody').open")
    await page.evaluate("document.querySelector('a[href=\"#BackoffBody\"]').click()")
    await expect(page.locator("#BackoffBody")).to_have_attribute("open", "")


async def test_the_commands_have_the_path_that_it_is_mounted_at(page: Page) -> None:
    async with served(prefix="/below/here") as made:
        await shown(page, f"{made.url}/docs")
        commands = await page.evaluate(COMMANDS)
    assert f"curl {made.url}/api/v1/jobs" in commands
    assert (
        f"curl -X PATCH {made.url}/api/v1/jobs/$id -H 'Content-Type: application/json' -d '{{…}}'"
        in commands
    )


async def test_its_policy_lets_no_other_script_run(serve: Serve, browser: Browser) -> None:
    page = await browser.new_page()  # one that may complain
    await shown(page, f"{serve().url}/docs")
    assert await page.evaluate(INLINE) == "script-src-elem"
    assert await page.evaluate("document.title") == "Mainspring API"


async def test_a_description_that_does_not_come_is_told(serve: Serve, page: Page) -> None:
    await page.route("**/openapi.json", lambda route: route.abort())
    await page.goto(f"{serve().url}/docs")
    await expect(page.locator("main")).to_contain_text("could not be read")


async def test_every_field_of_what_is_sent_and_read_has_its_words(api: Api) -> None:
    schemas: dict[str, Any] = (await api.get("/openapi.json")).json()["components"]["schemas"]
    bodies = {name for name in schemas if name.endswith("Body")}
    read = {"Job", "JobDocument", "Run", "Attempt", "Execution", "Problem", "ProblemDocument"}
    silent = [
        f"{name}.{field}"
        for name in bodies | read
        for field, schema in schemas[name]["properties"].items()
        if not schema.get("description")
    ]
    assert silent == []


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/docs.js", "/docs.css"])
async def test_what_a_client_has_already_is_not_sent_again(api: Api, path: str) -> None:
    first = await api.get(path)
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
    same = await api.get(path, headers={"If-None-Match": f'"other", {first.headers["etag"]}'})
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["etag"] == first.headers["etag"]
    assert (await api.get(path, headers={"If-None-Match": '"other"'})).content == first.content
