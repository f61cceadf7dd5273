"""Sessions: an API key exchanged for a cookie."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mainspring.service.admission import WRONG_KEYS_A_MINUTE
from mainspring.service.api_keys import CACHE_SECONDS
from mainspring.service.sessions import SESSION_TTL
from mainspring.testing import FakeClock
from tests.support.service import Api, Make, sample_scheduler
from tests.support.service_calls import refused

SESSION = "/api/v1/session"
OURS = {"Origin": "http://127.0.0.1:3000"}
COOKIE = "mainspring_session_3000"


async def signed_in(make: Make, scope: str = "write") -> Api:
    api: Api = await make(workers=0, loopback=False)
    _, text = await api.app.state.service.keys.create("ada", scope)
    answer = await api.post(SESSION, headers={"Authorization": f"Bearer {text}", **OURS})
    assert answer.status_code == 201
    api.check_described(answer)
    return api


async def test_a_key_is_exchanged_for_a_cookie_that_scripts_cannot_read(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    _, text = await api.app.state.service.keys.create("ada", "write")
    answer = await api.post(SESSION, headers={"Authorization": f"Bearer {text}"})
    set_cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in set_cookie
    assert "SameSite=strict" in set_cookie
    assert "Secure" not in set_cookie  # over plain HTTP the browser would not send it back
    assert text not in set_cookie
    assert answer.json() | {"expiresAt": None, "keyId": None} == {
        "keyId": None,
        "name": "ada",
        "scope": "write",
        "expiresAt": None,
    }
    behind_tls = await api.post(
        SESSION,
        headers={
            "Authorization": f"Bearer {text}",
            "Origin": "https://jobs.example.org",
            "Host": "jobs.example.org",
        },
    )
    cookie = behind_tls.headers["set-cookie"]
    assert "Secure" in cookie
    assert cookie.startswith("__Host-mainspring_session=")
    sent = {"Cookie": cookie.partition(";")[0], "Host": "jobs.example.org"}
    assert (await api.get(SESSION, headers=sent)).json()["name"] == "ada"
    tossed = {**sent, "Cookie": f"mainspring_session=other; {sent['Cookie']}"}
    assert (await api.get(SESSION, headers=tossed)).json()["name"] == "ada"
    bare = {**sent, "Cookie": sent["Cookie"].removeprefix("__Host-")}  # a page can set this one
    for sign in ({"X-Forwarded-Proto": "https"}, {"Origin": "https://jobs.example.org"}):
        assert (await api.get(SESSION, headers={**bare, **sign})).status_code == 401
        assert (await api.get(SESSION, headers={**sent, **sign})).status_code == 200


async def test_a_session_reads_and_changes_as_its_key_may(make: Make) -> None:
    api = await signed_in(make)
    assert (await api.get("/api/v1/jobs")).status_code == 200
    assert (await api.post("/api/v1/jobs/report/pause", headers=OURS)).status_code == 200
    assert (await api.get("/api/v1/keys")).json()["code"] == "scope_too_small"
    assert (await api.get(SESSION)).json()["name"] == "ada"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", **OURS},
    ],
)
async def test_a_change_by_cookie_must_come_from_our_own_page(
    make: Make, headers: dict[str, str]
) -> None:
    api = await signed_in(make)
    await refused(api, "POST", "/api/v1/jobs/report/pause", 403, headers=headers)
    assert (await api.scheduler.get_job("report")).enabled


async def test_signing_out_ends_the_session(make: Make) -> None:
    api = await signed_in(make)
    cookie = {COOKIE: api.cookies[COOKIE]}
    assert (await api.delete(SESSION, headers=OURS)).status_code == 204
    assert COOKIE not in api.cookies
    await refused(api, "GET", "/api/v1/jobs", 401, headers={"Cookie": f"{COOKIE}={cookie[COOKIE]}"})


async def test_a_session_ends_with_its_key_and_after_twelve_hours(make: Make) -> None:
    clock = FakeClock()
    scheduler = sample_scheduler(clock=clock, workers=0)
    api: Api = await make(scheduler, loopback=False, service_clock=clock)
    service = api.app.state.service
    first, _ = await service.keys.create("ada", "read")
    second, _ = await service.keys.create("bob", "read")
    texts = [(await service.sessions.create(key))[0] for key in (first, second)]
    await service.keys.revoke(first.id)
    assert await service.sessions.key(texts[0]) is None
    assert await service.sessions.key(texts[1]) == second
    clock.advance(SESSION_TTL + timedelta(seconds=CACHE_SECONDS + 1))
    assert await service.sessions.key(texts[1]) is None


@pytest.mark.parametrize("text", ["", "x", "%00", "é", "a" * 5000])
async def test_a_cookie_that_was_made_up_is_no_session(make: Make, text: str) -> None:
    api: Api = await make(workers=0, loopback=False)
    await api.app.state.service.keys.create("ada", "read")
    headers = {b"Cookie": f"other=1; {COOKIE}={text}".encode("latin-1")}
    assert (await api.get("/api/v1/jobs", headers=headers)).status_code == 401


async def test_where_no_key_is_needed_there_is_no_session(api: Api) -> None:
    assert (await api.post(SESSION)).status_code == 409
    assert (await api.get(SESSION)).json() == {
        "keyId": None,
        "name": None,
        "scope": "admin",
        "expiresAt": None,
    }


async def test_a_session_cannot_begin_another(make: Make) -> None:
    """Otherwise it would never end: each could be exchanged for a new one."""
    api = await signed_in(make)
    answer = await api.post(SESSION, headers=OURS)
    assert answer.status_code == 409
    assert "set-cookie" not in answer.headers


async def test_services_at_two_ports_of_a_host_have_sessions_of_their_own(make: Make) -> None:
    """A browser sends the cookies of a host to all its ports."""
    api = await signed_in(make)
    other = {"Host": "127.0.0.1:3001"}
    _, text = await api.app.state.service.keys.create("bob", "read")
    answer = await api.post(SESSION, headers={"Authorization": f"Bearer {text}", **other})
    assert answer.headers["set-cookie"].startswith("mainspring_session_3001=")
    both = f"{answer.headers['set-cookie'].partition(';')[0]}; {COOKIE}={api.cookies[COOKIE]}"
    api.cookies.clear()
    assert (await api.get(SESSION, headers={"Cookie": both})).json()["name"] == "ada"
    assert (await api.get(SESSION, headers={"Cookie": both, **other})).json()["name"] == "bob"
    proxied = await api.post(
        SESSION, headers={"Authorization": f"Bearer {text}", "Host": "jobs.example.org"}
    )
    assert proxied.headers["set-cookie"].startswith("mainspring_session=")


async def test_wrong_cookies_count_as_wrong_keys(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    _, text = await api.app.state.service.keys.create("ada", "read")
    answers = [
        await api.get("/api/v1/jobs", headers={"Cookie": f"{COOKIE}=made-up-{number}"})
        for number in range(2 * WRONG_KEYS_A_MINUTE)
    ]
    codes = [answer.status_code for answer in answers]
    assert codes[:WRONG_KEYS_A_MINUTE] == [401] * WRONG_KEYS_A_MINUTE
    assert codes[-1] == 429
    assert "retry-after" in answers[-1].headers
    wrong_key = {"Authorization": "Bearer ms_wrong"}
    assert (await api.get("/api/v1/jobs", headers=wrong_key)).status_code == 429
    right = {"Authorization": f"Bearer {text}"}
    assert (await api.post(SESSION, headers=right)).status_code == 201  # nobody is locked out
    assert (await api.get("/api/v1/jobs")).status_code == 200
