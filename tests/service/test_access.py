"""Who may use a route: every route of the application, with every kind of caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import APIRouter

from mainspring.dashboard.app import create_app
from mainspring.service.access import Access, CheckedRoute, access
from mainspring.service.settings import ServiceSettings
from tests.support.service import Api, Make, sample_scheduler

APP = create_app(sample_scheduler(workers=0), ServiceSettings.read(), loopback=False)
ROUTES: dict[tuple[str, str], Access] = {
    (method, route.path): route.access
    for route in APP.routes
    if isinstance(route, CheckedRoute)
    for method in sorted(route.methods or ())
}
CALLERS = ("nobody", "read", "write", "admin", "session")
RANK = {"nobody": 0, "read": 1, "write": 2, "admin": 3, "session": 3}
NEEDED = {"open": 0, "read": 1, "write": 2, "admin": 3}

OPEN = {
    *("/livez", "/readyz", "/docs", "/docs.js", "/docs.css", "/openapi.json"),
    *("/sign-in", "/favicon.ico", "/assets/{version}/{name:path}"),
}
ADMIN = {"/api/v1/keys", "/api/v1/keys/{id}", "/api/v1/audit", "/keys", "/audit"}
WRITE_PAGES = {"/new-job", "/jobs/{id}/edit"}
READ_POSTS = {"/api/v1/schedules/preview", "/api/v1/session"}


def expected(method: str, path: str) -> str:
    """The rule, written a second time: a route that breaks it was declared by mistake."""
    if path in OPEN:
        return "open"
    if path in ADMIN:
        return "admin"
    if path in WRITE_PAGES:
        return "write"
    return "read" if method == "GET" or path in READ_POSTS else "write"


def test_every_route_is_declared_as_the_rule_says() -> None:
    assert all(isinstance(route, CheckedRoute) for route in APP.routes)
    declared = {place: access.needed for place, access in ROUTES.items()}
    assert declared == {place: expected(*place) for place in ROUTES}
    assert len(ROUTES) > 60


def test_only_changes_are_declared_as_changes() -> None:
    changes = {place for place, access in ROUTES.items() if access.is_change and place[0] != "GET"}
    assert {place for place in ROUTES if place[0] != "GET"} - changes == {
        ("POST", "/api/v1/schedules/preview"),
        ("DELETE", "/api/v1/session"),
    }


def test_a_route_that_declares_nothing_cannot_be_made() -> None:
    router = APIRouter(route_class=CheckedRoute)
    with pytest.raises(TypeError, match="/secrets does not declare who may use it"):

        @router.get("/secrets")
        async def secrets() -> None: ...

    @router.get("/plain")
    @access("read")
    async def plain() -> None: ...


class Callers:
    """An application with a key of each scope, and a session of the admin's key."""

    def __init__(self, api: Api, headers: dict[str, dict[str, str]]) -> None:
        self.api, self.headers = api, headers


@asynccontextmanager
async def _callers(make: Make, **options: Any) -> AsyncIterator[Callers]:
    api: Api = await make(workers=0, loopback=False, settings={"rate_limit": 100_000}, **options)
    service = api.app.state.service
    headers: dict[str, dict[str, str]] = {"nobody": {}}
    for scope in ("read", "write", "admin"):
        key, text = await service.keys.create(scope, scope)
        headers[scope] = {"Authorization": f"Bearer {text}"}
    cookie, _ = await service.sessions.create(key)
    headers["session"] = {
        "Cookie": f"mainspring_session_3000={cookie}",
        "Origin": "http://127.0.0.1:3000",
    }
    yield Callers(api, headers)


@pytest.mark.parametrize("caller", CALLERS)
async def test_each_caller_is_admitted_to_what_its_scope_allows(make: Make, caller: str) -> None:
    async with _callers(make) as callers:
        admitted, right = set(), set()
        for (method, path), declared in ROUTES.items():
            if path.endswith("/events") or path == "/api/v1/session":
                continue  # a stream does not end; `test_sessions.py` has sessions
            place = path.replace("{id}", "nobody").replace("{version}/{name:path}", "0/none")
            answer = await callers.api.request(method, place, headers=callers.headers[caller])
            if answer.status_code not in (401, 403):
                admitted.add((method, path))
            if RANK[caller] >= NEEDED[declared.needed]:
                right.add((method, path))
        assert admitted == right


@pytest.mark.parametrize("caller", CALLERS)
async def test_an_unknown_path_is_closed_too(make: Make, caller: str) -> None:
    async with _callers(make) as callers:
        headers = callers.headers[caller]
        answer = await callers.api.get("/api/v1/nowhere", headers=headers)
        assert answer.status_code == (401 if caller == "nobody" else 404)


async def test_a_change_by_a_cookie_without_an_origin_is_refused(make: Make) -> None:
    async with _callers(make) as callers:
        cookie = {"Cookie": callers.headers["session"]["Cookie"]}
        for method, path in ROUTES:
            if method != "GET":
                place = path.replace("{id}", "nobody")
                answer = await callers.api.request(method, place, headers=cookie)
                assert answer.status_code == 403, path
