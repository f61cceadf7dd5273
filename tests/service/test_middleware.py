"""Checks on every request, whatever its route: host and origin."""

from __future__ import annotations

import pytest
from playwright.async_api import Browser

from tests.support.dashboard import *  # noqa: F403
from tests.support.service import WEBHOOK, Api, Make, Serve
from tests.support.service_calls import code, key, refused

# -- host and origin ------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "localhost:3000", "127.0.0.1:1", "[::1]:3000"])
async def test_loopback_host_names_are_accepted(api: Api, host: str) -> None:
    assert await code(api, headers={"Host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.evil.example", "", "10.0.0.1", "[", "localhost.evil"),
        *("[::1]evil", "localhost#x", "localhost/x", "x@localhost", "localhost:x", "[::1"),
    ],
)
async def test_other_host_names_are_refused_on_loopback(api: Api, host: str) -> None:
    answer = await refused(api, "GET", "/api/v1/jobs", 403, headers={"Host": host})
    assert "localhost" in answer["detail"]


async def test_a_proxys_name_can_be_allowed_and_needs_a_key(make: Make) -> None:
    api: Api = await make(workers=0, settings={"allowed_hosts": "jobs.example.org, other"})
    proxied = {"Host": "Jobs.example.org:443"}
    assert await code(api, headers=proxied) == 401
    first = {"name": "mine", "scope": "admin"}
    assert await code(api, "POST", "/api/v1/keys", json=first, headers=proxied) == 401
    assert await code(api) == 200  # who asks by loopback's own name
    headers = await key(api)
    assert await code(api, headers={**proxied, **headers}) == 200
    assert await code(api, headers={"Host": "example.org", **headers}) == 403


@pytest.mark.parametrize(
    "mark",
    [
        "Forwarded",
        "X-Forwarded-For",
        "X-Forwarded-Host",
        "X-Forwarded-Proto",
        "X-Real-IP",
        "X-Client-IP",
        "X-Original-Host",
        "CF-Connecting-IP",
        "True-Client-IP",
        "Via",
    ],
)
async def test_what_a_proxy_passes_on_needs_a_key(api: Api, mark: str) -> None:
    """Also where the proxy gives the Host that it connects to."""
    assert await code(api, headers={mark: "203.0.113.9"}) == 401
    assert await code(api, headers={mark: "203.0.113.9", **await key(api)}) == 200


async def test_beyond_loopback_any_host_is_accepted_with_a_key(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    assert await code(api, headers={"Host": "jobs.example.org", **await key(api)}) == 200


LINK = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}
"""What a browser sends when a link on a page of another site is followed."""


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:3000.evil.example"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
    ],
)
async def test_cross_site_requests_are_refused(api: Api, headers: dict[str, str]) -> None:
    assert await code(api, headers=headers) == 403
    assert await code(api, "POST", json=WEBHOOK, headers=headers) == 403
    assert len((await api.ok("GET", "/api/v1/jobs?search=example"))["items"]) == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://127.0.0.1:3000"},
        {"Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        LINK,
    ],
)
async def test_same_origin_requests_and_followed_links_are_allowed(
    api: Api, headers: dict[str, str]
) -> None:
    assert await code(api, headers=headers) == 200


async def test_a_form_of_another_site_is_refused_even_without_its_origin(api: Api) -> None:
    assert await code(api, "POST", json=WEBHOOK, headers=LINK) == 403


async def test_a_proxy_that_rewrites_the_host_is_told_what_to_set(make: Make) -> None:
    page = {"Origin": "https://jobs.example.org", "Host": "127.0.0.1:3000"}
    api: Api = await make(workers=0)
    problem = await refused(api, "POST", "/api/v1/jobs", 403, json=WEBHOOK, headers=page)
    for word in ("ALLOWED_HOSTS=jobs.example.org", "Host header", "https://jobs.example.org"):
        assert word in problem["detail"]
    told: Api = await make(workers=0, settings={"allowed_hosts": "jobs.example.org"})
    assert await code(told, "POST", json=WEBHOOK, headers=page) == 201
    other = {**page, "Origin": "https://evil.example"}
    assert await code(told, "POST", json=WEBHOOK, headers=other) == 403


@pytest.mark.parametrize(
    ("allowed", "origin", "status"),
    [
        ("jobs.example.org", "https://jobs.example.org", 201),
        ("jobs.example.org", "http://jobs.example.org", 201),  # which one it is, is not known
        ("jobs.example.org", "https://jobs.example.org:8443", 403),
        ("jobs.example.org", "http://jobs.example.org:8080", 403),
        ("jobs.example.org", "http://jobs.example.org:443", 403),
        ("jobs.example.org:8443", "https://jobs.example.org:8443", 201),
        ("jobs.example.org:8443", "https://jobs.example.org", 403),
    ],
)
@pytest.mark.parametrize("host", ["127.0.0.1:3000", None])
async def test_pages_of_another_port_of_an_allowed_host_are_refused(
    make: Make, allowed: str, origin: str, status: int, host: str | None
) -> None:
    """Whether the proxy passes the Host header on, or writes its own."""
    api: Api = await make(workers=0, settings={"allowed_hosts": allowed})
    page = {"Origin": origin, "Host": host or allowed, **await key(api, "write")}
    assert await code(api, "POST", json=WEBHOOK, headers=page) == status


@pytest.mark.parametrize("scheme", ["https", "https, http", "HTTPS", " https ,http"])
async def test_the_first_proxy_says_which_scheme_the_browser_uses(make: Make, scheme: str) -> None:
    api: Api = await make(workers=0, loopback=False)
    page = {"Host": "jobs.example.org", "X-Forwarded-Proto": scheme, **await key(api, "write")}
    for origin, status in (("https://jobs.example.org", 201), ("http://jobs.example.org", 403)):
        answer = await api.post("/api/v1/jobs", json=WEBHOOK, headers={**page, "Origin": origin})
        assert answer.status_code == status
    assert "have the proxy send X-Forwarded-Proto: http" in answer.json()["detail"]


async def test_no_cors_header_allows_another_origin(api: Api) -> None:
    answer = await api.options(
        "/api/v1/jobs",
        headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    )
    assert answer.status_code == 403
    for name in (await api.get("/api/v1/jobs")).headers:
        assert not name.startswith("access-control")


async def test_security_headers_are_on_every_answer(api: Api) -> None:
    for path in ("/api/v1/jobs", "/nowhere", "/docs", "/livez"):
        headers = (await api.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "server" not in headers
    assert (await api.get("/api/v1/jobs")).headers["cache-control"] == "no-store"


# -- in a browser ---------------------------------------------------------------------------


SIGN_IN = """
fetch("/api/v1/session", {method: "POST", headers: {Authorization: "Bearer %s"}})
  .then((answer) => answer.status)
"""
ATTACK = """
fetch("http://%s/api/v1/pause", {method: "POST", credentials: "include", mode: "no-cors"})
  .then(() => "sent", (error) => "failed: " + error)
"""


async def test_a_page_of_another_port_cannot_use_the_session(
    serve: Serve, browser: Browser
) -> None:
    first = serve()
    with first.client() as client:
        body = {"name": "ops", "scope": "admin"}
        text = client.post("/api/v1/keys", json=body).json()["key"]
    first.signal()
    first.ends()
    served = serve(ALLOWED_HOSTS="127.0.0.1")
    port = served.url.rpartition(":")[2]
    page = await (await browser.new_context()).new_page()
    await page.goto(f"http://127.0.0.1:{port}/docs")
    assert await page.evaluate(SIGN_IN % text) == 201
    own = "fetch('/api/v1/resume', {method: 'POST'}).then((answer) => answer.status)"
    assert await page.evaluate(own) == 200
    other = "http://127.0.0.1:4321/"  # answered by the browser itself
    html = {"content_type": "text/html", "body": "<!doctype html><title>evil</title>"}
    await page.route(other, lambda route: route.fulfill(**html))
    await page.goto(other)
    await page.evaluate(ATTACK % f"127.0.0.1:{port}")
    with served.client() as client:
        health = client.get("/api/v1/health", headers={"X-Api-Key": text}).json()
    assert health["pausedSince"] is None
