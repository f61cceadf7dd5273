"""The pages for signing in, for API keys, and for the audit log of changes. A script sends the key
to the API, which answers with the cookie of a session."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Query, Request, Response
from starlette.routing import BaseRoute, Match

from mainspring.dashboard.pages import page_router, render, service_of
from mainspring.service.access import CheckedRoute, access
from mainspring.service.audit import RETENTION, AuditEntry

router = page_router()

ENTRIES_SHOWN = 100


@router.get("/keys")
@access("admin")
async def keys(request: Request) -> Response:
    service = service_of(request)
    now = await service.keys.now()
    api_keys = await service.keys.list()
    return render(
        request,
        "keys.html",
        page="keys",
        title="Keys",
        keys=[(key, key.state(now)) for key in reversed(api_keys)],
        needs_key=bool(api_keys) or not service.loopback,
        has_admin=any(key.scope == "admin" and key.usable(now) for key in api_keys),
        is_open=service.without_keys,
    )


@router.get("/audit")
@access("admin")
async def audit(
    request: Request, cursor: Annotated[str | None, Query(max_length=500)] = None
) -> Response:
    page = await service_of(request).audit.list(ENTRIES_SHOWN, cursor)
    return render(
        request,
        "audit.html",
        page="audit",
        title="Audit log",
        entries=[(entry, describe_change(request.app.routes, entry)) for entry in page.items],
        older=page.cursor,
        is_newest=cursor is None,
        kept_days=RETENTION.days,
    )


def describe_change(routes: Iterable[BaseRoute], entry: AuditEntry) -> str | None:
    """What a request did: the summary of its route, and whom it concerned."""
    scope = {"type": "http", "method": entry.method, "path": entry.path}
    for route in routes:
        match, matched = route.matches(scope)
        if match is Match.FULL and isinstance(route, CheckedRoute) and route.summary:
            parts = (*matched["path_params"].values(), entry.created_id, entry.detail)
            return ": ".join([route.summary.partition(";")[0], *filter(None, parts)])
    return None


@router.get("/sign-in")
@access("open")
async def sign_in(request: Request) -> Response:
    return render(request, "sign_in.html", page="sign-in", title="Sign in")
