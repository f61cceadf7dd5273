"""What a request must pass before its route runs: key, scope, rate and body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mainspring.service import admission
from mainspring.service.api_keys import CACHE_SECONDS, ApiKeys
from mainspring.testing import FakeClock
from tests.support.service import LONG, WEBHOOK, Api, Make
from tests.support.service_calls import code, key, refused

# -- bodies ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "x"]
)
async def test_a_body_is_json_or_nothing(api: Api, kind: str) -> None:
    headers = {"Content-Type": kind}
    assert await code(api, "POST", content=b"{}", headers=headers) == 415


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/x-www-form-urlencoded"])
async def test_no_body_is_of_no_type(api: Api, kind: str) -> None:
    """aiohttp names the first where nothing is sent, `curl -d ''` and urllib the second."""
    headers = {"Content-Type": kind, "Content-Length": "0"}
    for action, answered in (("trigger", 202), ("pause", 200), ("resume", 200)):
        assert await code(api, "POST", f"/api/v1/jobs/report/{action}", headers=headers) == answered
    assert await code(api, "POST", headers=headers) == 422
    page_elsewhere = {**headers, "Origin": "https://evil.example"}
    assert await code(api, "POST", "/api/v1/jobs/report/trigger", headers=page_elsewhere) == 403


async def test_a_body_with_two_lengths_is_refused(api: Api) -> None:
    headers = {"Content-Length": "2", "Transfer-Encoding": "chunked"}
    answer = await api.post("/api/v1/jobs", content=b"{}", headers=headers)
    assert answer.status_code == 400
    assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"enabled": false, "enabled": true}', "enabled"),
        (b'{"payload": {"to": [{"a": 1, "a": 1}]}}', "a"),
        (b'{"enabled": true, "enable\\u0064": false}', "enabled"),
    ],
)
async def test_a_name_given_twice_in_an_object_is_refused(
    api: Api, body: bytes, field: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await refused(api, "PATCH", "/api/v1/jobs/report", 422, content=body, headers=headers)
    assert answer["errors"] == [
        {"field": field, "message": "is given twice in one object: give it once"}
    ]


@pytest.mark.parametrize("path", ["/livez", "/docs", "/sign-in", "/api/v1/jobs", "/nowhere"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_a_body_that_nothing_reads_is_refused_unread(
    api: Api, method: str, path: str
) -> None:
    sent: list[bytes] = []

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(100):
            sent.append(b"x")
            yield b"x" * 1000

    answer = await api.request(method, path, content=parts())
    assert (answer.status_code, answer.headers["connection"]) == (400, "close")
    assert sent == []
    assert await code(api, method, path, headers={"Content-Length": "0"}) != 400


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/pause", {"jobs": ["report"]}),
        ("POST", "/api/v1/jobs/report/pause", {"until": "tomorrow"}),
        ("DELETE", "/api/v1/jobs/mine", {"dryRun": True}),
        ("DELETE", "/api/jobs/mine", []),
        ("POST", "/api/v1/jobs/prune-orphans", {"dryRun": True}),
    ],
)
async def test_a_body_that_the_operation_does_not_take_is_refused(
    api: Api, method: str, path: str, body: Any
) -> None:
    await api.ok("POST", "/api/v1/jobs", json={**WEBHOOK, "id": "mine"})
    told = await refused(api, method, path, 422, json=body)
    assert "takes no body: nothing was done" in told["detail"]
    assert (await api.ok("GET", "/api/v1/health"))["pausedSince"] is None
    assert (await api.scheduler.get_job("report")).enabled
    await api.ok("GET", "/api/v1/jobs/mine")
    assert (await api.request(method, path, json={})).status_code != 422  # {} means nothing


async def test_all_bodies_together_have_one_budget(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "BODIES_BYTES", 0)
    api: Api = await make(workers=0, settings={"body_limit": 1024})  # four bodies of 1 KiB
    keys = [await key(api, "write") for _ in range(5)]
    go, waiting = asyncio.Event(), asyncio.Semaphore(0)

    async def half_sent() -> AsyncIterator[bytes]:
        yield b"{" + b" " * 1000
        waiting.release()
        await go.wait()
        yield b"}"

    headers = {"Content-Type": "application/json"}

    async def send_half(key: dict[str, str]) -> asyncio.Task[Any]:
        call = api.post("/api/v1/jobs", content=half_sent(), headers={**headers, **key})
        task = asyncio.create_task(call)
        await waiting.acquire()
        return task

    async def send_small(key: dict[str, str]) -> Any:
        body = b"{" + b" " * 500 + b"}"
        return await api.post("/api/v1/jobs", content=body, headers={**headers, **key})

    slow = [await send_half(keys[0])]
    answer = await send_small(keys[0])
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert (await send_small(keys[4])).status_code == 422  # one key does not keep out the others
    slow += [await send_half(key) for key in keys[1:4]]
    answer = await send_small(keys[4])
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["code"] == "busy"
    go.set()
    assert {(await task).status_code for task in slow} == {422}
    assert (await send_small(keys[0])).status_code == 422


async def test_a_body_has_a_limit(make: Make) -> None:
    api: Api = await make(workers=0, settings={"body_limit": 2048})
    big = {**WEBHOOK, "description": "x" * 3000}
    answer = await refused(api, "POST", "/api/v1/jobs", 413, json=big)
    assert "2,048" in answer["detail"]

    async def trickle() -> Any:
        for _ in range(100):
            yield b'"' + b"x" * 100

    headers = {"Content-Type": "application/json"}
    assert await code(api, "POST", content=trickle(), headers=headers) == 413


# -- keys -----------------------------------------------------------------------------------


async def test_loopback_is_open_until_there_is_a_key(make: Make) -> None:
    api: Api = await make(workers=0)
    assert await code(api) == 200
    headers = await key(api)
    answer = await api.get("/api/v1/jobs")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "mainspring keys create" in answer.json()["detail"]
    assert await code(api, headers=headers) == 200


async def test_a_key_may_do_what_its_scope_allows(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    read, write, admin = [await key(api, scope) for scope in ("read", "write", "admin")]
    assert await code(api, headers=read) == 200
    answer = await refused(api, "POST", "/api/v1/jobs", 403, json=WEBHOOK, headers=read)
    assert "needs write" in answer["detail"]
    assert await code(api, "POST", json=WEBHOOK, headers=write) == 201
    assert await code(api, "PUT", "/api/v1/jobs", headers=read) == 405
    assert await code(api, "PUT", "/api/v1/keys", headers=read) == 405
    preview = {"schedule": "@daily"}
    assert await code(api, "POST", "/api/v1/schedules/preview", json=preview, headers=read) == 200
    for headers, status in ((read, 403), (write, 403), (admin, 200)):
        assert await code(api, path="/api/v1/keys", headers=headers) == status
    made = await api.post("/api/v1/keys", json={"name": "ci", "expiresIn": "1h"}, headers=admin)
    text = made.json()["key"]
    assert await code(api, headers={"X-Api-Key": text}) == 200
    listed = await api.get("/api/v1/keys", headers=admin)
    assert text not in listed.text
    assert {one["state"] for one in listed.json()["items"]} == {"active"}
    gone = f"/api/v1/keys/{made.json()['id']}"
    assert await code(api, "DELETE", gone, headers=admin) == 204
    assert await code(api, headers={"X-Api-Key": text}) == 401


async def test_a_key_without_bearer_is_told_how_to_send_it(make: Make) -> None:
    api: Api = await make(workers=0)
    text = (await key(api))["Authorization"].removeprefix("Bearer ")
    answer = await api.get("/api/v1/jobs", headers={"Authorization": text})
    assert answer.status_code == 401
    assert "'Authorization: Bearer ms_…'" in answer.json()["detail"]
    assert text not in answer.text


async def test_a_key_counts_beside_what_a_proxy_adds(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    good = (await key(api))["Authorization"].removeprefix("Bearer ")
    for added in ("Basic dXNlcjpwYXNz", "Bearer eyJhbGciOi", "Bearer ms_000000000000_x"):
        headers = {"Authorization": added, "X-Api-Key": good}
        assert await code(api, headers=headers) == 200
        assert await code(api, headers={"Authorization": added}) == 401
        assert await code(api, headers={**headers, "X-Api-Key": "ms_0_x"}) == 401


# -- rates ----------------------------------------------------------------------------------


async def test_a_key_over_its_rate_gets_429_with_retry_after(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    api: Api = await make(workers=0, loopback=False, settings={"rate_limit": 2})
    monkeypatch.setattr(api.app.state.service.clock, "monotonic", lambda: 1.0)
    eager, other = await key(api), await key(api)
    codes = [await code(api, headers=eager) for _ in range(5)]
    assert codes == [200, 200, 200, 200, 429]
    answer = await api.get("/api/v1/jobs", headers=eager)
    assert int(answer.headers["retry-after"]) >= 1
    assert await code(api, headers=other) == 200


async def test_without_a_key_on_loopback_there_is_no_limit(make: Make) -> None:
    api: Api = await make(workers=0, settings={"rate_limit": 1})
    assert {await code(api) for _ in range(10)} == {200}


async def test_a_client_that_guesses_keys_is_rate_limited(make: Make) -> None:
    api: Api = await make(workers=0, loopback=False)
    headers = {"Authorization": "Bearer ms_000000000000_guess"}
    codes = [await code(api, headers=headers) for _ in range(40)]
    assert codes[0] == 401
    assert codes[-1] == 429


async def test_guessing_never_locks_out_a_valid_key(make: Make) -> None:
    """Behind a proxy all come from one address, whoever guesses there."""
    clock = FakeClock()
    api: Api = await make(workers=0, loopback=False, service_clock=clock)

    async def guess_until_limited() -> None:
        for n in range(40):
            await code(api, headers={"Authorization": f"Bearer ms_{n:012}_guess"})
        assert await code(api, headers={"Authorization": "Bearer ms_999999999999_guess"}) == 429

    used, unused, revoked = await key(api), await key(api), await key(api)
    assert await code(api, headers=used) == await code(api, headers=revoked) == 200
    await guess_until_limited()
    assert await code(api, headers=unused) == 200
    assert await code(api, headers=used) == 200
    fresh = await key(api)
    assert await code(api, headers=fresh) == 200
    known = used["Authorization"].rpartition("_")[0]
    assert await code(api, headers={"Authorization": f"{known}_guess"}) == 429
    await ApiKeys(api.scheduler).revoke(revoked["Authorization"].split("_")[1])
    clock.advance(CACHE_SECONDS + 0.001)  # what is known of the key is old now: it is read again
    await guess_until_limited()
    assert [await code(api, headers=revoked) for _ in range(2)] == [429, 429]


LIMITS = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"


async def test_a_body_that_does_not_come_is_waited_for_so_long(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"within {admission.BODY_SECONDS:.0f} s" in LIMITS.read_text()
    monkeypatch.setattr(admission, "BODY_SECONDS", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        yield b'{"schedule": '
        await asyncio.Event().wait()

    headers = {"Content-Type": "application/json"}
    async with asyncio.timeout(LONG):
        answer = await api.post("/api/v1/jobs", content=trickle(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (408, "body_timeout")
    assert "did not arrive within" in answer.json()["detail"]
    assert len((await api.ok("GET", "/api/v1/jobs?search=example"))["items"]) == 0
