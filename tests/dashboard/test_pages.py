"""What all pages share: signing in, pages for errors, safe headers, and any prefix."""

from __future__ import annotations

import hashlib
import re

import pytest

from mainspring.dashboard import pages
from tests.support.service import Api, Make
from tests.support.service_calls import key

HTML = {"accept": "text/html,application/xhtml+xml"}


async def test_a_page_forbids_inline_scripts_and_is_not_kept(api: Api) -> None:
    answer = await api.get("/", headers=HTML)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\bon[a-z]+=|\bstyle=|javascript:", answer.text)


async def test_a_browser_without_a_key_is_sent_to_sign_in_and_back(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    answer = await api.get("/?window=7d", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%3Fwindow%3D7d")
    part = await api.get("/", headers={"HX-Request": "true"})  # as htmx sends it
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in")
    program = await api.get("/")
    assert (program.status_code, program.json()["code"]) == (401, "key_missing")
    form = await api.get("/sign-in", headers=HTML)
    assert form.status_code == 200
    assert 'type="password"' in form.text


async def test_pages_are_packed_and_answers_of_the_api_are_not(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    headers = {**HTML, **await key(api, "admin"), "Accept-Encoding": "gzip, br"}
    packed = await api.get("/jobs", headers=headers)
    plain = await api.get("/jobs", headers={**headers, "Accept-Encoding": "gzip;q=0, identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert {answer.headers["vary"] for answer in (packed, plain)} == {"Accept-Encoding"}
    assert packed.text.partition("<main")[0] == plain.text.partition("<main")[0]
    assert int(packed.headers["content-length"]) < int(plain.headers["content-length"]) / 2
    for path in ("/api/v1/jobs", "/api/v1/keys", "/openapi.json"):  # some hold secrets
        assert "content-encoding" not in (await api.get(path, headers=headers)).headers


@pytest.mark.parametrize("scope", ["read", "write", "admin"])
async def test_a_page_offers_only_what_the_key_may_do(make: Make, scope: str) -> None:
    api: Api = await make(workers=0, loopback=False)
    headers = {**HTML, **await key(api, scope)}
    shown = (await api.get("/", headers=headers)).text
    assert ("Pause all firing" in shown) == (scope != "read")
    assert ('href="/keys"' in shown) == (scope == "admin")
    assert "Sign out" in shown


async def test_a_page_that_needs_more_says_so(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    _, text = await api.app.state.service.keys.create("ada", "read")
    answer = await api.get("/keys", headers={**HTML, "Authorization": f"Bearer {text}"})
    assert answer.status_code == 403
    assert (
        "The key &#39;ada&#39; has the scope read, and this request needs admin: use a key"
        in answer.text
    )


@pytest.mark.parametrize("path", ["/nothing", "/jobs/a/b", "/KEYS", "/jobs/nothing", "/runs/x"])
async def test_a_page_that_is_not_there_is_a_page(api: Api, path: str) -> None:
    answer = await api.get(path, headers=HTML)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "Go to the overview" in answer.text
    program = await api.get(path, headers={"accept": "*/*"})
    if path in ("/nothing", "/KEYS"):
        assert program.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("/jobs?page=-1", "The number of the page is 1 or more, not &#39;-1&#39;."),
        (f"/jobs?q={'x' * 201}", "The search has at most 200 characters."),
        ("/runs?since=soon", "“Since”"),
        ("/runs?state=odd", "The state"),
        ("/runs?cursor=x", "place in the list"),
        ("/jobs?sort=colour", "sort"),
        ("/load?zone=Mars/Olympus", "Mars/Olympus"),
        ("/?window=9y", "not &#39;9y&#39;"),
    ],
)
async def test_an_error_page_says_it_once_in_the_words_of_the_form(
    api: Api, address: str, sentence: str
) -> None:
    answer = await api.get(address, headers=HTML)
    assert answer.status_code == 422
    main = answer.text.partition("<main")[2]
    assert main.count(sentence) == 1
    [content] = re.findall(r'<div class="card">(.*?)</div>', main, re.S)
    assert content.count("<p>") == 3  # the sentence and two ways on
    assert f'href="{address.partition("?")[0]}"' in content


async def test_a_page_past_the_end_shows_the_last_one(api: Api) -> None:
    for number in range(30):
        await api.scheduler.add_job(f"job-{number:02}", handler="greet")
    last = (await api.get("/jobs?page=100000&q=job-", headers=HTML)).text
    assert "26 to 30 of 30 jobs" in last
    assert 'id="job-job-29"' in last
    assert "page=" not in last.partition('rel="prev"')[2].partition(">")[0]
    none = (await api.get("/jobs?page=3&q=nothing", headers=HTML)).text
    assert "No job matches" in none


VENDOR = pages.FOLDER / "vendor"


def test_vendored_files_are_unchanged_and_have_a_licence() -> None:
    listed = dict(re.findall(r"^\| (\S+\.(?:js|css)) \|.*\| ([0-9a-f]{64}) \|$", _list(), re.M))
    kept = {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")}
    assert set(listed) == kept
    for name, expected in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == expected, name
    for licence in re.findall(r"\((\S+\.LICENSE\.txt)\)", _list()):
        assert (VENDOR / licence).stat().st_size > 100


def _list() -> str:
    return (VENDOR / "README.md").read_text()


async def test_no_other_file_can_be_read(api: Api) -> None:
    for name in ("../app.py", "..%2fapp.py", "vendor/README.md", "nothing.js", "%2e%2e/pages.py"):
        assert (await api.get(f"/assets/x/{name}")).status_code == 404, name
