"""The pages for signing in, for API keys, and for the audit log of changes. A script sends the key
to the API, which answers with the cookie of a session."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import unquote

from fastapi import APIRouter, Query, Request, Response

from mainspring.dashboard.pages import PageRoute, render, service_of
from mainspring.service.access import access
from mainspring.service.audit import RETENTION

router = APIRouter(include_in_schema=False, route_class=PageRoute)

ENTRIES_SHOWN = 100

CHANGES = {
    "POST session": "Signed in",
    "DELETE session": "Signed out",
    "POST jobs": "Created a job",
    "PUT jobs/(.+)": "Changed the job {}",
    "PATCH jobs/(.+)": "Changed the job {}",
    "DELETE jobs/(.+)": "Deleted the job {}",
    "POST jobs/bulk": "Changed many jobs",
    "POST jobs/prune-orphans": "Deleted jobs that no code defines any more",
    "POST jobs/(.+)/trigger": "Ran the job {} now",
    "POST jobs/(.+)/backfill": "Queued past slots of the job {}",
    "POST jobs/(.+)/pause": "Paused the job {}",
    "POST jobs/(.+)/resume": "Resumed the job {}",
    "POST jobs/(.+)/breaker/reset": "Reset the circuit breaker of the job {}",
    "POST chains": "Queued a chain of runs",
    "POST runs/bulk": "Changed many runs",
    "POST runs/(.+)/cancel": "Cancelled the run {}",
    "POST runs/(.+)/retry": "Retried the run {}",
    "DELETE runs/(.+)": "Deleted the run {}",
    "POST pause": "Paused all firing",
    "POST resume": "Resumed firing",
    "POST keys": "Created an API key",
    "DELETE keys/(.+)": "Revoked the API key {}",
}
"""What a request that changes something did: its method and its path below `/api/v1` or `/api`."""


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
        entries=[
            (entry, describe_change(entry.method, entry.path, entry.created, entry.detail))
            for entry in page.items
        ],
        older=page.cursor,
        is_newest=cursor is None,
        kept_days=RETENTION.days,
    )


def describe_change(method: str, path: str, created: str = "", detail: str = "") -> str | None:
    """What a request did, in words. None for an address that has none here."""
    asked = f"{method} " + re.sub(r"^.*?/api/(v1/)?", "", path)
    for pattern, words in CHANGES.items():
        if found := re.fullmatch(pattern, asked):
            text = words.format(*map(unquote, found.groups()))
            more = detail if not created else f"{created} ({detail})" if detail else created
            return f"{text}: {more}" if more else text
    return None


@router.get("/sign-in")
@access("open")
async def sign_in(request: Request) -> Response:
    return render(request, "sign_in.html", page="sign-in", title="Sign in")
